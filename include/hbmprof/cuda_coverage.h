// Lists the calls of the CUDA driver that hbmprof tracks in this process. A call is tracked if hbmprof wraps it, so
// that its effect on memory is recorded. This header needs no CUDA toolkit. `hbmprof doctor --entry-points` prints the
// same.
//
// Only the injected library (`hbmprof run`) tracks the driver's calls. In a process without it, only the calls of
// hbmprof/cuda.h are tracked, and no other call of CUDA.
#ifndef HBMPROF_CUDA_COVERAGE_H_
#define HBMPROF_CUDA_COVERAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hbmprof {

// One function of the driver.
struct CudaEntryPoint {
  enum class State {
    kTracked,
    kPassedThrough,  // the driver has it, but it is not tracked: `note` is the reason
    kAbsent,         // this driver does not have it, or the process has loaded no driver
  };
  std::string name;  // as the driver exports it, such as "cuMemAlloc_v2"
  State state = State::kAbsent;
  std::string note;
};

// Returns "tracked", "passed through" or "absent"; "unknown" for any other number. The string is never freed.
const char* CudaEntryStateName(CudaEntryPoint::State state);

// Returns all functions of the driver that matter to memory, grouped by subject. Any thread may call it. It takes
// microseconds to milliseconds. Errors: kFailedPrecondition if libhbmprof_cuda.so is not in this process,
// kResourceExhausted if the host has no memory for the list.
absl::StatusOr<std::vector<CudaEntryPoint>> CudaCoverage();

}  // namespace hbmprof

#endif  // HBMPROF_CUDA_COVERAGE_H_
