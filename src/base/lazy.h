// Lazy: an object that is made at first use and never destroyed, for what threads, exit handlers and signal handlers
// use until the very end.
//
// Unlike a function's static variable it is safe across a fork: it is made under a Mutex, so no child is left with one
// that another thread of its parent was making. The constructor of T must keep to what may be done under a Mutex.
#ifndef HBMPROF_SRC_BASE_LAZY_H_
#define HBMPROF_SRC_BASE_LAZY_H_

#include <atomic>
#include <new>

#include "src/base/mutex.h"

namespace hbmprof::internal {

// Any thread. A Lazy itself must be a static variable.
template <typename T>
class Lazy {
 public:
  constexpr Lazy() = default;
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;

  T& Get() {
    T* object = IfMade();
    return object != nullptr ? *object : Make();
  }
  // Null before the first use.
  T* IfMade() const { return object_.load(std::memory_order_acquire); }

 private:
  [[gnu::noinline]] T& Make() {
    MutexLock hold(mutex_);
    T* object = object_.load(std::memory_order_relaxed);
    if (object == nullptr) {
      object = new (memory_) T;
      object_.store(object, std::memory_order_release);
    }
    return *object;
  }

  Mutex mutex_;
  std::atomic<T*> object_{nullptr};
  alignas(T) char memory_[sizeof(T)] = {};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_LAZY_H_
