// A thread of another process that waits in the C library is borrowed: it loads a library and calls a function of it on
// a stack of its own, and goes on with its wait.
//
// The thread is traced only twice, for less than a millisecond: to start the code (the stub, in stub.cc) and
// to let the kernel continue the wait. Between these the thread and this process talk through the thread's memory. If
// this process ends at any instant, the thread goes on by itself after 5 s at most: the stub has saved what it changes
// and restores it. What the thread has already called stays called.
#ifndef HBMPROF_SRC_TOOL_ATTACH_BORROWED_THREAD_H_
#define HBMPROF_SRC_TOOL_ATTACH_BORROWED_THREAD_H_

#include <sys/user.h>

#include "src/tool/attach/target.h"

namespace hbmprof::tool {

// A thread that is traced and stopped. The destructor lets it go on where it was stopped, so that also those waits go
// on that the kernel would end with EINTR.
class StoppedThread {
 public:
  // Errors: kAborted (it cannot be stopped now; another one may), kUnavailable (give up).
  static absl::StatusOr<StoppedThread> Stop(pid_t tid);
  StoppedThread(StoppedThread&& other) noexcept;
  ~StoppedThread();
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  pid_t tid() const { return tid_; }
  const user_regs_struct& registers() const { return registers_; }

  // Writes into memory that is not writable for the process itself.
  bool WriteCode(uint64_t address, std::string_view code) const;
  bool ReadMask(uint64_t* mask) const;
  // Lets the thread go on with other registers, with nearly all signals blocked.
  void StartAt(const user_regs_struct& registers);
  // Lets the thread go on with `registers`, which it had when it was stopped earlier, and with that mask.
  // `restarting`: StubData::restarting.
  void GoOnAfterLoan(const user_regs_struct& registers, uint64_t mask, uint64_t restarting);

 private:
  explicit StoppedThread(pid_t tid) : tid_(tid) {}

  pid_t tid_;
  user_regs_struct registers_ = {};
  bool was_changed_ = false;  // `registers_`, to make the call again
};

// Whether the stop has interrupted a wait in the kernel that can go on afterwards.
bool IsWaiting(const Target& target, const user_regs_struct& stopped);
// Whether the thread has the C library's data of a thread.
bool IsThreadOfLibc(const Target& target, pid_t tid, const user_regs_struct& registers);

// What the thread shall do.
struct Loading {
  std::string path;        // of the library. Empty: it comes from `contents`
  std::string contents;    // of the library's file, for a process that cannot see it
  bool is_loaded = false;  // `path` is the name of a library that the process has loaded
  std::string options;     // for its hbmprof_attach
};

// Finds the functions of the C library that load a library. Errors: kFailedPrecondition.
struct LoaderFunctions {
  uint64_t open = 0;
  uint64_t error = 0;  // 0: there is none
  uint64_t symbol = 0;
  uint64_t errno_location = 0;
  uint64_t mode = 0;  // for `open`
};
absl::StatusOr<LoaderFunctions> FindLoader(const Target& target);

// Makes a thread that is `stopped` at a point where it may load libraries do so. Returns the code of hbmprof_attach
// (src/protocol/attach.h). Errors: kFailedPrecondition with the dynamic linker's message, kDeadlineExceeded,
// kUnavailable (the process has ended).
absl::StatusOr<int> LoadInThread(const Target& target, StoppedThread stopped, const LoaderFunctions& loader,
                                 const Loading& loading);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_BORROWED_THREAD_H_
