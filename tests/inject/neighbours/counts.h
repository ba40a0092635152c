// What a neighbour counts: the allocations and frees that pass through it, and how often the program opens the driver's
// library. It writes them to the file NEIGHBOUR_LOG when the process ends. A call that the neighbour makes while it is
// in another one ends the process.
#ifndef HBMPROF_TESTS_INJECT_NEIGHBOURS_COUNTS_H_
#define HBMPROF_TESTS_INJECT_NEIGHBOURS_COUNTS_H_

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace neighbour {

inline std::atomic<int> allocations{0};
inline std::atomic<int> frees{0};
inline std::atomic<int> opened{0};

// One call through the neighbour.
class Call {
 public:
  explicit Call(std::atomic<int>& count) {
    if (++depth_ > 1) {
      std::fprintf(stderr, "neighbour: recursion\n");
      _exit(111);
    }
    ++count;
  }
  ~Call() { --depth_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  inline static thread_local int depth_ = 0;
};

[[gnu::destructor]] inline void WriteCounts() {
  const char* const path = std::getenv("NEIGHBOUR_LOG");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%d %d %d\n", allocations.load(), frees.load(), opened.load());
  std::fclose(file);
}

}  // namespace neighbour

#endif  // HBMPROF_TESTS_INJECT_NEIGHBOURS_COUNTS_H_
