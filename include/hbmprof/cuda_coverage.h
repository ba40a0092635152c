// What is seen of the CUDA driver in this process: which of its calls that matter to memory are tracked. Needs no
// toolkit. `hbmprof doctor --entry-points` prints the same.
//
// The driver's calls are the injected library's business (`hbmprof run`). Of a process without it, everything is known
// beforehand: what goes through the functions of hbmprof/cuda.h is tracked, and nothing else of CUDA.
#ifndef HBMPROF_CUDA_COVERAGE_H_
#define HBMPROF_CUDA_COVERAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hbmprof {

// One of the driver's calls.
struct CudaEntryPoint {
  enum class State {
    kTracked,
    kPassedThrough,  // the driver has it, and `note` says why it is left alone
    kAbsent,         // from this driver; all are while the process has loaded no driver
  };
  std::string name;  // as the driver exports it, such as "cuMemAlloc_v2"
  State state = State::kAbsent;
  std::string note;
};

// "tracked", "passed through" or "absent".
const char* CudaEntryStateName(CudaEntryPoint::State state);

// All entry points that matter to memory, in the order of their subjects. Any thread, at any time; takes microseconds
// to milliseconds. kFailedPrecondition if libhbmprof_cuda.so is not in this process, kResourceExhausted if the host has
// no memory for the list.
absl::StatusOr<std::vector<CudaEntryPoint>> CudaCoverage();

}  // namespace hbmprof

#endif  // HBMPROF_CUDA_COVERAGE_H_
