// Forks of a process that uses this library. CUDA, HIP and PJRT do not survive a fork, so a forked child records only
// if its parent had recorded nothing. Then the child begins like a new process. Otherwise the child is off: it records
// nothing and writes no file.
//
// Two words tell this, and no thread waits for a fork:
//   process_page.records  set by the first event of this process. The kernel empties its page in a forked child.
//   has_recorded          set before the first event of a process begins, and inherited.
//
// No lock hangs in a child. A child that is off takes none of this library's locks that a thread of its parent may
// have held: each entry first looks at these words (BeginEvent, IsOff). In a child whose parent had recorded nothing,
// all locks are free and all data are complete: a lock is taken by an event, before which has_recorded was set, or in
// a Section. A Section that begins before the first event is counted, and if the count is not 0 at a fork, the child is
// off. A child sees the stores of each thread of the parent in their order, so it does not see a lock that is held
// without the word or the count that was stored before.
//
// The locks of the dynamic linker are not this library's: such a child may load the libraries of its device only if no
// other thread of its parent was inside dlopen.
//
// Children of vfork and posix_spawn share the memory of their parent and its state. Without MADV_WIPEONFORK (Linux
// before 4.14) the handler of this file empties the page, so a handler of pthread_atfork that is registered earlier
// must not record in the child, and neither may a child of _Fork or of clone.
#ifndef HBMPROF_SRC_BASE_FORK_H_
#define HBMPROF_SRC_BASE_FORK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {

#if defined(__x86_64__)
inline constexpr size_t kProcessPageBytes = 4096;
#else
inline constexpr size_t kProcessPageBytes = 65536;  // the largest page of aarch64
#endif

// It lies in a page of its own, which is never a part of a file.
struct alignas(kProcessPageBytes) ProcessPage {
  enum : uint32_t { kNothing, kBegins, kRecords };
  std::atomic<uint32_t> records;
  char rest[kProcessPageBytes - sizeof(std::atomic<uint32_t>)];
};
extern ProcessPage process_page __attribute__((visibility("hidden")));
extern std::atomic<bool> has_recorded __attribute__((visibility("hidden")));

// Whether this process has recorded an event itself. If not, an event must call BeginEvent.
inline bool HasRecordedHere() { return process_page.records.load(std::memory_order_relaxed) == ProcessPage::kRecords; }

// To be called before an event does anything. Returns false if the process is off.
[[gnu::cold]] bool BeginFirstEvent();
inline bool BeginEvent() { return HasRecordedHere() || BeginFirstEvent(); }

// Whether this process is a forked child that does not record.
inline bool IsOff() {
  return has_recorded.load(std::memory_order_acquire) &&
         process_page.records.load(std::memory_order_relaxed) == ProcessPage::kNothing;
}

// What a user reads in a process that is off.
inline constexpr char kOffText[] =
    "this process was forked from one that had recorded memory: it is off and records nothing";

// Sets a function that is called in each forked child, on its only thread. To be called by constructors of this
// library, four times at most. The function must not call malloc, whose own fork handler may run later.
void HandleForks(void (*in_child)(bool is_off));

// Where a thread may hold a lock of this library, other than by an event.
class Section {
 public:
  Section() : is_counted_(Begin()) {}
  ~Section() { End(is_counted_); }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  // Begin returns whether the section is counted, which End must be told.
  static bool Begin() {
    const bool is_counted = !HasRecordedHere();
    if (is_counted) open_.fetch_add(1, std::memory_order_seq_cst);
    return is_counted;
  }
  static void End(bool is_counted) {
    if (is_counted) open_.fetch_sub(1, std::memory_order_seq_cst);
  }
  static uint32_t open() { return open_.load(std::memory_order_seq_cst); }

 private:
  static std::atomic<uint32_t> open_;  // those that are counted
  const bool is_counted_;
};

// Returns true in a child of vfork, or of clone with CLONE_VM, until it executes a program. State that is kept for each
// process id must not be changed there: the parent would find it, with the id of another process. Any thread may call
// it. Makes at most three system calls. Does not change errno.
bool SharesParentsMemory();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORK_H_
