// The ScopedCaller that is in effect on each thread.
#ifndef HBMPROF_SRC_CORE_SCOPED_CALLER_H_
#define HBMPROF_SRC_CORE_SCOPED_CALLER_H_

#include "hbmprof/caller.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

// The caller of the outermost scope of this thread, if ThreadState::is_scoped. Plain data in the static TLS block.
extern __thread Caller scoped_caller __attribute__((tls_model("initial-exec")));

// Whether a stack that would begin at `caller` begins at the scope's caller instead. The function of a scope is further
// out on the stack than all code in the scope. If it is not, the program has left the scope without ending it, or is on
// another stack.
inline bool IsInScope(const Caller& caller) {
  return __builtin_expect(thread_state.is_scoped, 0) != 0 && caller.sp <= scoped_caller.sp;
}

// Begins a scope, unless the thread is in one. Returns whether it has begun one.
bool BeginScope(const Caller& caller);
// Ends the scope of this thread.
void EndScope();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SCOPED_CALLER_H_
