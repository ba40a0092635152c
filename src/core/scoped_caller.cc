#include "src/core/scoped_caller.h"

#include <atomic>
#include <cstdint>

#include "src/core/injected.h"

namespace hbmprof::internal {

__thread Caller scoped_caller __attribute__((tls_model("initial-exec"))) = {};

// A signal handler that records at any point sees either no scope or a complete one, because is_scoped changes first at
// the end and last at the beginning.

bool BeginScope(const Caller& caller) {
  if (IsInScope(caller)) return false;
  EndScope();
  scoped_caller = caller;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  thread_state.is_scoped = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}

void EndScope() {
  thread_state.is_scoped = false;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace hbmprof::internal

namespace hbmprof {
namespace {

constexpr uint32_t kBegunHere = 1;
constexpr uint32_t kBegunInInjected = 2;

}  // namespace

ScopedCaller::ScopedCaller(const Caller& caller) : begun_(internal::BeginScope(caller) ? kBegunHere : 0) {
  const internal::InjectedProfiler* const joined = internal::JoinedProfiler();
  if (joined != nullptr && joined->begin_scope(&caller) != 0) begun_ |= kBegunInInjected;
}

ScopedCaller::~ScopedCaller() {
  if ((begun_ & kBegunHere) != 0) internal::EndScope();
  if ((begun_ & kBegunInInjected) != 0) internal::JoinedProfiler()->end_scope();
}

}  // namespace hbmprof
