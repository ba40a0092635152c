// Functions that the programs of out_of_memory_test share.
#ifndef HBMPROF_TESTS_API_OUT_OF_MEMORY_PROGRAMS_H_
#define HBMPROF_TESTS_API_OUT_OF_MEMORY_PROGRAMS_H_

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/check.h"

namespace oom_program {

// Returns the bytes of address space that the process has.
inline size_t MappedBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  size_t pages = 0;
  CHECK_THAT(file != nullptr && std::fscanf(file, "%zu", &pages) == 1);
  std::fclose(file);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Sets the limit of the address space to the bytes that are mapped now, plus `bytes`.
inline void LimitAddresses(size_t bytes) {
  const rlim_t mapped = MappedBytes() + bytes;
  const rlimit limit{mapped, mapped};
  CHECK_THAT(setrlimit(RLIMIT_AS, &limit) == 0);
}

// Limits the locked memory of the process. As long as the object exists, the process has no privileges, because a
// privileged process has no limit.
class LockedMemoryLimit {
 public:
  explicit LockedMemoryLimit(size_t bytes) {
    const rlimit limit{bytes, bytes};
    CHECK_THAT(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK_THAT(user_ != 0 || seteuid(65534) == 0);
  }
  ~LockedMemoryLimit() { CHECK_THAT(seteuid(user_) == 0); }  // LeakSanitizer needs the rights at the exit
  LockedMemoryLimit(const LockedMemoryLimit&) = delete;
  LockedMemoryLimit& operator=(const LockedMemoryLimit&) = delete;

 private:
  const uid_t user_ = geteuid();
};

// Calls `fail` in `count` threads at the same time.
inline void FailInThreads(int count, const std::function<void()>& fail) {
  std::atomic<int> waiting{count};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      waiting.fetch_sub(1);
      while (waiting.load() != 0) std::this_thread::yield();
      fail();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs the mode "threads" or "host" with its argument `number`: `fail` is an allocation that fails.
inline void FailAs(const std::string& mode, const std::string& number, const std::function<void()>& fail) {
  if (mode == "threads") return FailInThreads(std::stoi(number), fail);
  CHECK_THAT(mode == "host");
  LimitAddresses(std::stoul(number));
  fail();
}

}  // namespace oom_program

#endif  // HBMPROF_TESTS_API_OUT_OF_MEMORY_PROGRAMS_H_
