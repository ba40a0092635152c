// FileMutex: a lock that is held while a file is written, which can take long. No event and no snapshot may wait for
// it. It is no Section (fork.h).
#ifndef HBMPROF_SRC_BASE_FILE_MUTEX_H_
#define HBMPROF_SRC_BASE_FILE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace hbmprof::internal {

// A forked child must use neither the lock nor what it protects: a thread of the parent may have held it.
class ABSL_LOCKABLE FileMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE FileMutexLock {
 public:
  explicit FileMutexLock(FileMutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~FileMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  FileMutexLock(const FileMutexLock&) = delete;
  FileMutexLock& operator=(const FileMutexLock&) = delete;

 private:
  FileMutex& mutex_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FILE_MUTEX_H_
