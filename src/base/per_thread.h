// PerThread<T>: an object for each thread that needs one. It takes nothing of the static TLS block, of which a library
// that is loaded late gets little. For slow paths: the first Get of a thread takes memory from malloc.
#ifndef HBMPROF_SRC_BASE_PER_THREAD_H_
#define HBMPROF_SRC_BASE_PER_THREAD_H_

#include <pthread.h>

#include <cstdlib>
#include <type_traits>

namespace hbmprof::internal {

// Declare it static and give it no other type than one whose bytes may all be 0. The object ends with its thread. The
// key is never deleted, because a library that contains this code is never unloaded (capture/paths/path_cache.cc).
template <typename T>
class PerThread {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  PerThread() : has_key_(pthread_key_create(&key_, &std::free) == 0) {}

  // Returns the object of the calling thread, whose bytes are 0 at first; null if the host has no memory.
  T* Get() {
    if (T* const known = Find()) return known;
    void* const made = has_key_ ? std::calloc(1, sizeof(T)) : nullptr;
    if (made == nullptr || pthread_setspecific(key_, made) == 0) return static_cast<T*>(made);
    std::free(made);
    return nullptr;
  }
  // The same, but returns null if the thread has none yet.
  T* Find() const { return has_key_ ? static_cast<T*>(pthread_getspecific(key_)) : nullptr; }

 private:
  pthread_key_t key_ = 0;
  const bool has_key_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_PER_THREAD_H_
