#include "src/core/scoped_caller.h"

#include <atomic>
#include <cstdint>

#include "src/core/injected/injected.h"

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

constexpr uint32_t kBegunHere = 1;
constexpr int kInjectedShift = 1;  // what the injected library has returned

uint32_t BeginCaller(const Caller& caller) {
  Scope& scope = ScopeOfThisStack();
  const uint32_t here = IsIn(scope, caller) ? 0 : kBegunHere;
  if (here != 0) {
    SetBegun(scope, false);
    scope.caller = caller;
    SetBegun(scope, true);
  }
  const InjectedProfiler* const injected = InjectedOfProcess();
  if (injected == nullptr) return here;
  return here | static_cast<uint32_t>(injected->begin_caller(caller.pc, caller.sp, caller.fp)) << kInjectedShift;
}

void EndCaller(uint32_t begun) {
  if ((begun & kBegunHere) != 0) SetBegun(ScopeOfThisStack(), false);
  if (begun >> kInjectedShift != 0) InjectedOfProcess()->end_caller(static_cast<int>(begun >> kInjectedShift));
}

}  // namespace hbmprof::internal

namespace hbmprof {

ScopedCaller::ScopedCaller(const Caller& caller) : begun_(internal::BeginCaller(caller)) {}

ScopedCaller::~ScopedCaller() { internal::EndCaller(begun_); }

}  // namespace hbmprof
