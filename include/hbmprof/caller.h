// Caller: the point in the program at which a recorded call stack begins.
//
// It is for wrappers of allocators. A wrapper that takes it in its outermost function gets stacks that begin at the
// function that called the wrapper, without the wrapper's own frames:
//
//   [[gnu::noinline]] void* my_alloc(size_t bytes) {
//     const hbmprof::Caller caller = hbmprof::Caller::OfThisFunction();
//     void* p = real_alloc(bytes);
//     profiler.RecordAllocFrom(caller, p, bytes, {});
//     return p;
//   }
#ifndef HBMPROF_CALLER_H_
#define HBMPROF_CALLER_H_

#include <cstdint>

namespace hbmprof {

// The registers that the calling function will have after the function that made this object has returned. Valid on
// that thread until then.
struct Caller {
  uintptr_t pc = 0;  // return address
  uintptr_t sp = 0;  // stack pointer after the return; 0 on other architectures than x86-64
  uintptr_t fp = 0;  // frame pointer register; 0 on other architectures than x86-64

  // Returns the caller of the function that contains this call. That function must not be inlined ([[gnu::noinline]]).
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
