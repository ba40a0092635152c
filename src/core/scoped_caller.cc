#include "src/core/scoped_caller.h"

#include <atomic>
#include <cstdint>

#include "src/core/joined/injected.h"

namespace hbmprof::internal {

__thread Scope thread_scopes[2] __attribute__((tls_model("initial-exec"))) = {};

namespace {

// A signal handler that records at any point sees either no scope or a complete one. If it runs on another stack, it
// leaves this thread's other scope as it was.
void SetBegun(Scope& scope, bool is_begun) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  scope.is_begun = is_begun;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  thread_state.is_scoped = thread_scopes[0].is_begun || thread_scopes[1].is_begun;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

bool BeginScope(const Caller& caller) {
  Scope& scope = ScopeOfThisStack();
  if (IsIn(scope, caller)) return false;
  SetBegun(scope, false);
  scope.caller = caller;
  SetBegun(scope, true);
  return true;
}

void EndScope() { SetBegun(ScopeOfThisStack(), false); }

}  // namespace hbmprof::internal

namespace hbmprof {

constexpr uint32_t kBegunHere = 1;
constexpr uint32_t kBegunInInjected = 2;

ScopedCaller::ScopedCaller(const Caller& caller) : begun_(internal::BeginScope(caller) ? kBegunHere : 0) {
  const internal::InjectedProfiler* const joined = internal::JoinedProfiler();
  if (joined != nullptr && joined->begin_scope(caller)) begun_ |= kBegunInInjected;
}

ScopedCaller::~ScopedCaller() {
  if ((begun_ & kBegunHere) != 0) internal::EndScope();
  if ((begun_ & kBegunInInjected) != 0) internal::JoinedProfiler()->end_scope();
}

}  // namespace hbmprof
