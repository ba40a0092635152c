// Lazy: an object that is made at first use and never destroyed, so that threads, exit handlers and signal handlers can
// use it until the process ends.
// It is made under a Mutex, so unlike a static variable of a function it is safe across a fork (fork.h). The
// constructor of T runs under that Mutex, see mutex.h.
#ifndef HBMPROF_SRC_BASE_LAZY_H_
#define HBMPROF_SRC_BASE_LAZY_H_

#include <atomic>
#include <new>

#include "src/base/mutex.h"

namespace hbmprof::internal {

// Any thread may call any function. A Lazy must be a static variable.
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
  // Returns null before the first call of Get.
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
