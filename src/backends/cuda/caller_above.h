// CallerAbove: tells the injected library, if the program was started with it, which linked call is the outermost one.
// Driver calls within that call are recorded with the stack of its caller.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_
#define HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_

#include <dlfcn.h>

#include <atomic>

#include "hbmprof/caller.h"

namespace hbmprof::internal {

// Takes effect for the calling thread during its own lifetime. No effect without the injected library.
class CallerAbove {
 public:
  explicit CallerAbove(const Caller& caller) { Setter()(&caller); }
  ~CallerAbove() { Setter()(nullptr); }
  CallerAbove(const CallerAbove&) = delete;
  CallerAbove& operator=(const CallerAbove&) = delete;

  // Whether the program was started with the injected library.
  static bool IsInjected() { return Setter() != &Ignore; }

 private:
  using Set = void(const Caller*);
  static void Ignore(const Caller*) {}
  // Returns Ignore without the injected library. Not a static local with an initializer: the guard would be held while
  // dlsym takes the dynamic linker's lock. Threads that call it at the same time store the same value.
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
