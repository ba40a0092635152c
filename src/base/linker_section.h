// The number of unloaded objects, for which the dynamic linker takes a lock, and forks meanwhile.
#ifndef HBMPROF_SRC_BASE_LINKER_SECTION_H_
#define HBMPROF_SRC_BASE_LINKER_SECTION_H_

#include <atomic>
#include <cstdint>

namespace hbmprof::internal {

// Where a thread takes a lock of the dynamic linker for an instant and often: a child that was forked meanwhile could
// never take it. A fork waits until no such section is open, but a tenth of a second at most.
class LinkerSection {
 public:
  LinkerSection() {
    open_.fetch_add(1);
    may_lock_ = forks_.load() == 0;
  }
  ~LinkerSection() { open_.fetch_sub(1); }
  LinkerSection(const LinkerSection&) = delete;
  LinkerSection& operator=(const LinkerSection&) = delete;
  // False while a thread forks: then the lock must not be taken.
  bool may_lock() const { return may_lock_; }

  // The handlers of pthread_atfork.
  static void BeforeFork();
  static void AfterFork() { forks_.fetch_sub(1); }
  static void InChild();

 private:
  static std::atomic<uint32_t> open_;
  static std::atomic<uint32_t> forks_;  // that have begun
  bool may_lock_;
};

// Returns one more than the number of objects that were unloaded so far. While a thread forks, returns another number
// of at least kUnknownUnloads each time. Not to be called in a process that is off (fork.h).
uint64_t UnloadCount();
inline constexpr uint64_t kUnknownUnloads = uint64_t{1} << 63;
// What the thread's last UnloadCount() has returned. Plain data in the static TLS block.
extern __thread uint64_t last_unload_count __attribute__((tls_model("initial-exec")));

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_LINKER_SECTION_H_
