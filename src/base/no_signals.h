// NoSignals: delays the signals of the calling thread.
#ifndef HBMPROF_SRC_BASE_NO_SIGNALS_H_
#define HBMPROF_SRC_BASE_NO_SIGNALS_H_

#include <pthread.h>
#include <signal.h>

namespace hbmprof::internal {

// Blocks all signals of the calling thread during the life of this object, except those of faults. It is needed where a
// thread has a lock for long that the exit writer also takes (src/api/exit_writer.h): the handler of a signal that ends
// the process waits for the exit writer, which would wait for the lock of the interrupted thread.
class NoSignals {
 public:
  NoSignals() {
    sigset_t delayed;
    sigfillset(&delayed);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&delayed, fault);
    pthread_sigmask(SIG_BLOCK, &delayed, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_NO_SIGNALS_H_
