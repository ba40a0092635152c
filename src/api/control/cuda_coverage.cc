#include "hbmprof/cuda_coverage.h"

#include <dlfcn.h>

#include <cstring>
#include <new>
#include <utility>

namespace hbmprof {
namespace {

using State = CudaEntryPoint::State;

// The name that the injected library passes for each state (ForEachCudaEntryPoint).
constexpr struct {
  State state;
  const char* name;
} kStates[] = {{State::kTracked, "tracked"}, {State::kPassedThrough, "passed through"}, {State::kAbsent, "absent"}};

struct Entries {
  std::vector<CudaEntryPoint> found;
  bool out_of_memory = false;
};

// Called by the injected library. It must not throw.
extern "C" void AddEntryPoint(const char* name, const char* state, const char* note, void* argument) noexcept {
  auto& entries = *static_cast<Entries*>(argument);
  for (const auto& known : kStates) {
    if (std::strcmp(known.name, state) != 0) continue;
    try {
      entries.found.push_back({name, known.state, note});
    } catch (const std::bad_alloc&) {
      entries.out_of_memory = true;
    }
  }
}

}  // namespace

const char* CudaEntryStateName(State state) {
  for (const auto& known : kStates) {
    if (known.state == state) return known.name;
  }
  return "unknown";
}

absl::StatusOr<std::vector<CudaEntryPoint>> CudaCoverage() {
  using Coverage = void(void (*visit)(const char*, const char*, const char*, void*), void* argument);
  auto* const coverage = reinterpret_cast<Coverage*>(dlsym(RTLD_DEFAULT, "hbmprof_cuda_coverage"));
  if (coverage == nullptr) {
    return absl::FailedPreconditionError(
        "libhbmprof_cuda.so is not in this process, so no call of the CUDA driver is tracked: start the program with "
        "`hbmprof run`, or with the library in LD_PRELOAD");
  }
  Entries entries;
  coverage(&AddEntryPoint, &entries);
  if (entries.out_of_memory) {
    return absl::ResourceExhaustedError("the host has no memory for the list of entry points");
  }
  return std::move(entries.found);
}

}  // namespace hbmprof
