// How the linked calls tell the injected library, if the program was started with it, that they are the outermost: what
// the driver is asked for within them gets the stack of their caller.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_
#define HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_

#include <dlfcn.h>

#include <atomic>

#include "hbmprof/caller.h"

namespace hbmprof::internal {

// For the calling thread, while it lives. Does nothing without the injected library.
class CallerAbove {
 public:
  explicit CallerAbove(const Caller& caller) { Setter()(&caller); }
  ~CallerAbove() { Setter()(nullptr); }
  CallerAbove(const CallerAbove&) = delete;
  CallerAbove& operator=(const CallerAbove&) = delete;

 private:
  using Set = void(const Caller*);
  static void Ignore(const Caller*) {}
  // Ignore without the injected library. Threads that look at the same time find the same; no guard is held meanwhile,
  // since the search takes the dynamic linker's lock.
  static Set* Setter() {
    static std::atomic<Set*> found{nullptr};
    Set* set = found.load(std::memory_order_relaxed);
    if (set == nullptr) {
      set = reinterpret_cast<Set*>(dlsym(RTLD_DEFAULT, "hbmprof_cuda_set_caller"));
      if (set == nullptr) set = &Ignore;
      found.store(set, std::memory_order_relaxed);
    }
    return set;
  }
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_
