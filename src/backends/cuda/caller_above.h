// How the linked calls tell the injected library, if the program was started with it, that they are the outermost: what
// the driver is asked for within them gets the stack of their caller.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_
#define HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_

#include <dlfcn.h>

#include "hbmprof/caller.h"

namespace hbmprof::internal {

// For the calling thread, while it lives. Does nothing without the injected library.
class CallerAbove {
 public:
  explicit CallerAbove(const Caller& caller) {
    if (Setter() != nullptr) Setter()(&caller);
  }
  ~CallerAbove() {
    if (Setter() != nullptr) Setter()(nullptr);
  }
  CallerAbove(const CallerAbove&) = delete;
  CallerAbove& operator=(const CallerAbove&) = delete;

 private:
  using Set = void(const Caller*);
  static Set* Setter() {
    static Set* const set = reinterpret_cast<Set*>(dlsym(RTLD_DEFAULT, "hbmprof_cuda_set_caller"));
    return set;
  }
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_CALLER_ABOVE_H_
