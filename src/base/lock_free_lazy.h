// LockFreeLazy: an object that is made at first use without a lock and without a static-initialization guard. So the
// code that makes it may load a library or call the dynamic linker: a thread that holds the linker's lock never waits
// for it. Not in this file: objects that are made under a lock (lazy.h).
#ifndef HBMPROF_SRC_BASE_LOCK_FREE_LAZY_H_
#define HBMPROF_SRC_BASE_LOCK_FREE_LAZY_H_

#include <atomic>
#include <memory>

namespace hbmprof::internal {

// Constant-initialized: declare it static. The object is never destroyed.
template <typename T>
class LockFreeLazy {
 public:
  constexpr LockFreeLazy() = default;
  LockFreeLazy(const LockFreeLazy&) = delete;
  LockFreeLazy& operator=(const LockFreeLazy&) = delete;

  // Returns the object. If there is none, calls `make`, which returns a std::unique_ptr<T>. If that is null, returns
  // null; the next call calls `make` again. Several threads may be in `make` at the same time: the first one that
  // returns publishes its object, the others discard theirs. So it must be harmless if `make` runs twice. Sets
  // `*published`, if it is not null, to whether this call published the object. Throws what `make` throws. Any thread
  // may call it.
  template <typename Make>
  T* Get(const Make& make, bool* published = nullptr) {
    if (published != nullptr) *published = false;
    if (T* made = made_.load(std::memory_order_acquire)) return made;
    std::unique_ptr<T> mine = make();
    if (mine == nullptr) return nullptr;
    T* first = nullptr;
    if (!made_.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return first;
    if (published != nullptr) *published = true;
    return mine.release();
  }

 private:
  std::atomic<T*> made_{nullptr};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_LOCK_FREE_LAZY_H_
