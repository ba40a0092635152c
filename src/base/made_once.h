// MadeOnce: an object that is made on first use without a lock and without a static-initialization guard, so that its
// making may load a library or ask the dynamic linker: a thread that holds the linker's lock never waits for it.
// Not here: what is made once under a lock that nobody calls out with.
#ifndef HBMPROF_SRC_BASE_MADE_ONCE_H_
#define HBMPROF_SRC_BASE_MADE_ONCE_H_

#include <atomic>
#include <memory>

namespace hbmprof::internal {

// Constant-initialized: declare it static. The object is never destroyed.
template <typename T>
class MadeOnce {
 public:
  constexpr MadeOnce() = default;
  MadeOnce(const MadeOnce&) = delete;
  MadeOnce& operator=(const MadeOnce&) = delete;

  // The object. While there is none, calls `make`, which returns a std::unique_ptr<T>; null means "not yet", and the
  // next call asks again. Several threads may be in `make` at the same time: the first to be done publishes its object,
  // the others discard theirs. So `make` must have no effect that must not happen twice. If `published` is given, it
  // says whether this call published the object. Throws what `make` throws.
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

#endif  // HBMPROF_SRC_BASE_MADE_ONCE_H_
