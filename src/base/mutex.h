// Mutex: std::mutex with lock annotations, for slow paths that a signal handler must not call. MutexLock: its scoped
// guard. Not in this file: the lock for the recording of events (spin_lock.h).
//
// A thread that holds one must not call anything that can wait for another thread or for the disk: the dynamic linker,
// a device, a probe, a function of the user, a file system.
#ifndef HBMPROF_SRC_BASE_MUTEX_H_
#define HBMPROF_SRC_BASE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"
#include "src/base/fork.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    ++thread_state.mutexes;
    const bool is_counted = Section::Begin();
    mutex_.lock();
    is_counted_ = is_counted;
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    const bool is_counted = is_counted_;
    mutex_.unlock();
    Section::End(is_counted);
    --thread_state.mutexes;
  }

 private:
  std::mutex mutex_;
  bool is_counted_ = false;  // as a Section; guarded by mutex_
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
