// `hbmprof simulate`: what a program called PyTorch's allocator for, and its replay in the user's own PyTorch.
#ifndef HBMPROF_SRC_TOOL_SIMULATE_SIMULATE_H_
#define HBMPROF_SRC_TOOL_SIMULATE_SIMULATE_H_

#include "src/tool/recording/cursor.h"
#include "src/tool/torch/torch_snapshot.h"

namespace hbmprof::tool {

// A call of the allocator that is repeated.
struct AllocatorCall {
  enum class Kind : uint8_t {
    kAllocate,
    kRequestFree,  // PyTorch does not count the block any more, but a stream still uses it
    kFree,
    kEmptyCache,
    kOther,  // `bytes` of the device are in use outside of PyTorch from now on
    kNothing,
  };
  Kind kind = Kind::kNothing;
  // Of kAllocate: whether the device had no memory for it until PyTorch returned cached segments, or not even then.
  bool was_full = false;
  bool has_failed = false;
  uint32_t stack = 0;  // as RecordedStacks numbers it
  int64_t time = 0;    // nanoseconds since the start
  uint64_t block = 0;  // its address in the program
  int64_t bytes = 0;
  int64_t stream = 0;
  uint64_t segment = 0;  // the address of one that PyTorch took for this; 0: none
  int64_t reserved = 0;  // by PyTorch after the call, as recorded
};

struct History {
  std::string memory;  // "GPU:0"
  std::vector<AllocatorCall> calls;
  int64_t reserved_peak = 0;
  // Of the blocks, with what PyTorch adds to the requested size. A snapshot does not have it.
  std::optional<int64_t> allocated_peak;
  std::optional<int64_t> limit;  // of the device
  int64_t outside = 0;           // the most bytes of the device in use outside of recorded calls
  std::string settings;          // PYTORCH_CUDA_ALLOC_CONF; of a recording "", because it is not known
  size_t allocations = 0;
  size_t streams = 0;
};

// Returns the history of the device memory `memory`; if that is "", of the one on which PyTorch reserved most.
// `snapshot`: of OpenRecordingFile; null if `recording` is not one of PyTorch's. Error: kInvalidArgument if PyTorch has
// no blocks there.
absl::StatusOr<History> HistoryOf(RecordingReader& recording, const TorchSnapshot* snapshot, const std::string& memory);

// Returns the path of libc10_cuda.so: in `folder`, the package `torch` or its folder of libraries, or if it is "", in
// the package of the python3 that $PATH has. Error: kNotFound.
absl::StatusOr<std::string> FindTorchLibrary(const std::string& folder);

// What came of a replay. Plain data, which a child process sends.
struct Replay {
  int64_t reserved_peak = 0;
  int64_t allocated_peak = 0;
  // The number of the first call after which more or less was reserved than recorded; -1: none.
  int64_t different_call = -1;
  int64_t failed_call = -1;  // without memory for it; -1: none
  int64_t idle = 0;          // then, in segments
  int64_t pieces = 0;        // of the idle memory
  char problem[400] = {};    // why there is no answer; "" if there is one
};

// Repeats the calls in a child process, with PYTORCH_CUDA_ALLOC_CONF=`settings`. `limit`: the memory of the device;
// INT64_MAX: it is never full; no value: it is full when it was, and the replay goes on after a failure, as recorded.
// Error: kFailedPrecondition: the library refuses the settings, or cannot be used.
absl::StatusOr<Replay> RunReplay(const History& history, const std::string& library, const std::string& settings,
                                 const std::optional<int64_t>& limit);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SIMULATE_SIMULATE_H_
