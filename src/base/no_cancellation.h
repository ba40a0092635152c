// NoCancellation: delays the cancellation of the calling thread.
#ifndef HBMPROF_SRC_BASE_NO_CANCELLATION_H_
#define HBMPROF_SRC_BASE_NO_CANCELLATION_H_

#include <pthread.h>

namespace hbmprof::internal {

// Disables cancellation (pthread_cancel) of the calling thread during the life of this object. A request stays pending.
// It is needed if this library makes a call that is a cancellation point: a cancellation there would unwind through
// functions that are noexcept, which ends the process, or leave data in an inconsistent state.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_); }
  ~NoCancellation() { pthread_setcancelstate(old_, nullptr); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int old_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_NO_CANCELLATION_H_
