// Mutex: std::mutex with lock annotations, for slow paths. Also its scoped guard.
// Not here: the lock of the path of an event (spin_lock.h).
#ifndef HBMPROF_SRC_BASE_MUTEX_H_
#define HBMPROF_SRC_BASE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace hbmprof::internal {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

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
