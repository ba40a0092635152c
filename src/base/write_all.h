// WriteAll: writes a whole text without raising SIGXFSZ or SIGPIPE.
#ifndef HBMPROF_SRC_BASE_WRITE_ALL_H_
#define HBMPROF_SRC_BASE_WRITE_ALL_H_

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "src/base/descriptor.h"

namespace hbmprof::internal {

// During its life this thread gets neither SIGXFSZ (a write beyond RLIMIT_FSIZE) nor SIGPIPE (a pipe without a reader).
// The write fails with EFBIG or EPIPE instead.
class WriteSignalsBlocked {
 public:
  WriteSignalsBlocked() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGXFSZ);
    sigaddset(&signals_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    sigemptyset(&pending_);
    sigpending(&pending_);
  }
  ~WriteSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WriteSignalsBlocked(const WriteSignalsBlocked&) = delete;
  WriteSignalsBlocked& operator=(const WriteSignalsBlocked&) = delete;

  // To be called after a write of this thread has failed with `error`. Removes the signal that the write raised, unless
  // the same signal was pending before.
  void Consume(int error) const {
    const int number = error == EFBIG ? SIGXFSZ : error == EPIPE ? SIGPIPE : 0;
    if (number == 0 || sigismember(&pending_, number) == 1) return;
    sigset_t raised;
    sigemptyset(&raised);
    sigaddset(&raised, number);
    const timespec now = {};
    RetryOnSignal([&] { return sigtimedwait(&raised, nullptr, &now); });
  }

 private:
  sigset_t signals_;
  sigset_t before_;
  sigset_t pending_;
};

// Writes all of `bytes` at the current position of `fd`. Returns 0 or an errno value. Raises no signal.
inline int WriteAll(int fd, std::string_view bytes) {
  const WriteSignalsBlocked blocked;
  while (!bytes.empty()) {
    const ssize_t written = RetryOnSignal([&] { return write(fd, bytes.data(), bytes.size()); });
    if (written <= 0) {
      const int error = written < 0 ? errno : EIO;
      blocked.Consume(error);
      return error;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_WRITE_ALL_H_
