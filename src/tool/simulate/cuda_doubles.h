// The simulated device of a replay. It counts memory, and has none. The functions of CUDA that PyTorch's libc10_cuda.so
// calls use it (cuda_doubles.cc).
#ifndef HBMPROF_SRC_TOOL_SIMULATE_CUDA_DOUBLES_H_
#define HBMPROF_SRC_TOOL_SIMULATE_CUDA_DOUBLES_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

struct SimulatedDevice {
  struct Range {
    int64_t bytes = 0;
    bool is_mapped = false;  // then it can continue the range before it
  };
  int64_t total = int64_t{1} << 40;  // that the device says it has
  int64_t limit = INT64_MAX;         // of in_use
  int64_t in_use = 0;
  int64_t peak = 0;
  uint64_t next = 0;         // where cudaMalloc places the next memory, if it is free there; 0: anywhere
  bool has_refused = false;  // a call that needed more than `limit`
  // By address: memory that is allocated or mapped; the bytes of blocks that PyTorch has handed out.
  std::map<uint64_t, Range> ranges;
  std::map<uint64_t, int64_t> blocks;
  int64_t allocated = 0;  // by PyTorch, as it counts it
};
// The only device. It belongs to the process of a replay.
SimulatedDevice& TheSimulatedDevice();

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SIMULATE_CUDA_DOUBLES_H_
