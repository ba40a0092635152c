// Mutex: std::mutex with lock annotations, for slow paths that a signal handler must not call. MutexLock: its scoped
// guard. Not in this file: the lock for the recording of events (spin_lock.h).
//
// During a fork no other thread holds a Mutex, so each is free in the child and its data are consistent (fork.h). A
// thread that holds one must not call anything that may wait for a fork to end: the dynamic linker, a device, a probe,
// a function of the user.
#ifndef HBMPROF_SRC_BASE_MUTEX_H_
#define HBMPROF_SRC_BASE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"
#include "src/base/fork.h"

namespace hbmprof::internal {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    EnterMutexSection();
    mutex_.lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    mutex_.unlock();
    LeaveMutexSection();
  }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_MUTEX_H_
