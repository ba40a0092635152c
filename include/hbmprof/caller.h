// Caller: the point in the program at which a recorded call stack begins.
//
// A wrapper around an allocator takes it in its outermost function, so that stacks begin at the wrapper's caller and
// show none of the wrapper's own frames:
//
//   [[gnu::noinline]] void* my_alloc(size_t n) {
//     const hbmprof::Caller caller = hbmprof::Caller::OfThisFunction();
//     void* p = real_alloc(n);
//     profiler.RecordAllocFrom(caller, p, n, {});
//     return p;
//   }
#ifndef HBMPROF_CALLER_H_
#define HBMPROF_CALLER_H_

#include <cstdint>

namespace hbmprof {

// The registers as they will be when the function that made it returns. Valid until then, on that thread.
struct Caller {
  uintptr_t pc = 0;  // return address
  uintptr_t sp = 0;  // stack pointer after the return; 0 where the architecture is not supported
  uintptr_t fp = 0;  // frame-pointer register

  // The caller of the function this is written in, which must not be inlined ([[gnu::noinline]]).
  [[gnu::always_inline]] static inline Caller OfThisFunction() {
    Caller caller;
    caller.pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
#if defined(__x86_64__)
    const auto* frame = static_cast<const uintptr_t*>(__builtin_frame_address(0));
    caller.fp = frame[0];
    caller.sp = reinterpret_cast<uintptr_t>(frame + 2);
#endif
    return caller;
  }
};

}  // namespace hbmprof

#endif  // HBMPROF_CALLER_H_
