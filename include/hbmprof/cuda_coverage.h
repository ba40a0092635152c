// Lists the functions of the CUDA driver that matter to memory, and states whether hbmprof tracks each of them in this
// process. A function is tracked if hbmprof wraps it, so that its effect on memory is recorded. This header needs no
// CUDA toolkit. `hbmprof doctor --entry-points` prints the same list.
//
// Only the injected library (`hbmprof run`) tracks the driver's functions. In a process without it, no function of the
// driver is tracked: hbmprof then records only the memory that the program reports to it, for example with
// hbmprof/cuda.h.
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
