// DelayedSignals: delays the signals of the calling thread.
#ifndef HBMPROF_SRC_BASE_DELAYED_SIGNALS_H_
#define HBMPROF_SRC_BASE_DELAYED_SIGNALS_H_

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace hbmprof::internal {

// Blocks the signals of the calling thread during the life of this object. A signal that is sent to the thread stays
// pending. One that is sent to the process is handled by another thread, if there is one that does not block it.
// Signals that a fault or a call of this thread raises are not blocked (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
// SIGSYS, SIGABRT, SIGXFSZ, SIGPIPE): the kernel would end the process at a blocked fault.
//
// It is needed while a thread has a lock for long, or does work, for which the exit writer waits
// (api/output/exit_writer.h): the handler of a signal that ends the process waits for the exit writer, so it must not
// interrupt this thread.
class DelayedSignals {
 public:
  DelayedSignals() {
    sigset_t signals;
    sigfillset(&signals);
    for (const int raised : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGXFSZ, SIGPIPE}) {
      sigdelset(&signals, raised);
    }
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~DelayedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  DelayedSignals(const DelayedSignals&) = delete;
  DelayedSignals& operator=(const DelayedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_DELAYED_SIGNALS_H_
