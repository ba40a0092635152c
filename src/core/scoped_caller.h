// The ScopedCaller that is in effect on each thread.
#ifndef HBMPROF_SRC_CORE_SCOPED_CALLER_H_
#define HBMPROF_SRC_CORE_SCOPED_CALLER_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/thread_state.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

// The outermost scope of a thread on one of its stacks.
struct Scope {
  Caller caller;
  bool is_begun;
};
// The scopes of this thread: on its own stack, and on any other one, such as that of a signal handler or of a fiber.
// ThreadState::is_scoped: one of them is begun. Plain data in the static TLS block.
extern __thread Scope thread_scopes[2] __attribute__((tls_model("initial-exec")));

// The scope on the stack on which the thread runs now.
[[gnu::always_inline]] inline Scope& ScopeOfThisStack() {
  return thread_scopes[IsOnOwnStack(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))) ? 0 : 1];
}

// Whether a stack that would begin at `caller` begins at the caller of `scope` instead. The function of a scope is
// further out on the stack than all code in the scope. If it is not, the program has left the scope without ending it,
// or is on the stack of another fiber.
inline bool IsIn(const Scope& scope, const Caller& caller) { return scope.is_begun && caller.sp <= scope.caller.sp; }

// Returns the caller at which a stack begins that would begin at `caller` without a scope.
inline const Caller& StartOfStack(const Caller& caller) {
  if (__builtin_expect(thread_state.is_scoped, 0) == 0) return caller;
  const Scope& scope = ScopeOfThisStack();
  return IsIn(scope, caller) ? scope.caller : caller;
}

// Begins a scope, unless the thread is in one; also in the injected library if this copy of the library uses its
// profiler. Returns the argument for EndCaller, which runs on the same stack.
uint32_t BeginCaller(const Caller& caller);
void EndCaller(uint32_t begun);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SCOPED_CALLER_H_
