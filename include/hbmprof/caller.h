// Caller: the point in the program at which a recorded call stack begins. ScopedCaller: makes all stacks that a thread
// records in a scope begin at such a point.
//
// They are for wrappers of allocators. The stacks of a wrapper that begins with a ScopedCaller begin at the function
// that called the wrapper. They contain no frame of the wrapper and no frame of the functions that it calls:
//
//   [[gnu::noinline]] void* MyPool::Allocate(size_t bytes) {
//     const hbmprof::ScopedCaller scope;
//     return TakeBlock(bytes);     // calls Profiler::RecordBlock, and cudaMalloc if the pool must grow
//   }
//
// A wrapper that makes its own record and calls no other recorded allocator can pass a Caller instead:
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

// The registers of the function that called the wrapper, as they will be after the wrapper has returned. (The wrapper
// is the function that made this object.) Valid on the same thread, until the wrapper returns.
struct Caller {
  uintptr_t pc = 0;  // return address
  uintptr_t sp = 0;  // stack pointer after the return; 0 on architectures other than x86-64 and aarch64
  uintptr_t fp = 0;  // frame pointer register; 0 on architectures other than x86-64 and aarch64

  // Returns the caller of the function that contains this call. That function must not be inlined ([[gnu::noinline]]).
  [[gnu::always_inline]] static inline Caller OfThisFunction() {
    Caller caller;
    caller.pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
#if defined(__x86_64__)
    const auto* frame = static_cast<const uintptr_t*>(__builtin_frame_address(0));
    caller.fp = frame[0];
    caller.sp = reinterpret_cast<uintptr_t>(frame + 2);
#elif defined(__aarch64__)
    // The position of the frame record in the frame is not fixed, so the compiler provides the end of the frame.
    caller.fp = *static_cast<const uintptr_t*>(__builtin_frame_address(0));
#if defined(__clang__)
    caller.sp = reinterpret_cast<uintptr_t>(__builtin_sponentry());
#else
    caller.sp = reinterpret_cast<uintptr_t>(__builtin_dwarf_cfa());
#endif
#endif
    return caller;
  }
};

// While the object lives, each stack that this thread records begins at `caller`, in every Profiler. This includes
// calls that have a Caller of their own (RecordAllocFrom), the wrappers of this library, and, under `hbmprof run`, the
// driver's calls. Scopes nest, and the outermost one is used: if a wrapper calls another wrapper, or itself, the stack
// begins at the function that called the first of them. The constructor and the destructor never fail and never throw.
// An exception ends a scope as a return does.
//
// Limits:
// - The function with the scope must not be inlined ([[gnu::noinline]]). Otherwise the stack begins one function
//   further out, at the caller of the function that the wrapper is inlined into.
// - A scope must end on the thread that began it, before the function that made `caller` returns. So it cannot be kept
//   while a coroutine is suspended or while another fiber runs on the thread.
// - If the program leaves a scope with longjmp, the scope ends when a function further out on the stack begins another
//   one. Until then, the stacks of deeper functions may have wrong innermost frames or be truncated.
// - Code of the program that runs inside the scope, such as a callback or a signal handler on the same stack, has no
//   frames in the stacks of its own allocations. So begin the scope close to the allocation, not around a whole
//   request.
class ScopedCaller {
 public:
  // The stacks begin at the caller of the function that contains this object.
  [[gnu::always_inline]] inline ScopedCaller() : ScopedCaller(Caller::OfThisFunction()) {}
  explicit ScopedCaller(const Caller& caller);
  ~ScopedCaller();
  ScopedCaller(const ScopedCaller&) = delete;
  ScopedCaller& operator=(const ScopedCaller&) = delete;

 private:
  uint32_t begun_;  // bit 0: this scope is in effect; the other bits: what the injected library has returned
};

}  // namespace hbmprof

#endif  // HBMPROF_CALLER_H_
