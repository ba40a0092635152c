// Mutex: std::mutex with lock annotations, for slow paths. Also its scoped guard.
// Not here: the lock of the path of an event (spin_lock.h).
//
// At a fork no other thread holds one, so each is free in the child and what it protects is whole (fork.h). Therefore
// never hold one while calling anything that could wait for a fork to end: the dynamic linker, a device, a probe, a
// function of the user's.
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
