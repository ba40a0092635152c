// The functions of PyTorch and TensorFlow that the injected library interposes. The frameworks call them to report each
// block that their allocators hand out and take back. The mangled names contain the argument types, so a release with
// other arguments calls none of them.
#ifndef HBMPROF_SRC_INJECT_LINKER_REPORT_HOOKS_H_
#define HBMPROF_SRC_INJECT_LINKER_REPORT_HOOKS_H_

#include <cstdint>
#include <string_view>

#include "hbmprof/caller.h"

namespace hbmprof::internal {

// --- PyTorch: libc10.so, called by libc10_cuda.so. ---

// c10::Device, as it is passed: type and index are bytes, the rest is undefined.
struct TorchDevice {
  explicit TorchDevice(uint64_t passed)
      : type(static_cast<int8_t>(passed & 0xff)), index(static_cast<int8_t>(passed >> 8 & 0xff)) {}

  static constexpr int kCuda = 1;
  int type;
  int index;
};

// Both are called on the thread that allocates or frees, which holds a lock of the device; `caller` is in
// libc10_cuda.so. Defined in torch_blocks.cc.

// c10::reportMemoryUsageToProfiler: a block at `address` was handed out (bytes > 0) or taken back (bytes < 0). The
// totals are the device's after that.
void TorchReportsMemory(uint64_t address, int64_t bytes, uint64_t total_allocated, uint64_t total_reserved,
                        TorchDevice device, const Caller& caller);
// c10::reportOutOfMemoryToProfiler: PyTorch is about to throw its out-of-memory error. May make the report of the
// failure (ReportOutOfMemory), which calls the driver and can take seconds. Other threads that allocate on the device
// wait meanwhile.
void TorchReportsOutOfMemory(int64_t bytes, uint64_t total_allocated, uint64_t total_reserved, TorchDevice device);

// Returns the id of the thread's current stream, which is the one of a tensor that it allocates; 0: the default stream,
// or not known. `caller`: that of a report.
int64_t CurrentTorchStream(int device, const Caller& caller);

// Returns the function that interposes the function of PyTorch with this mangled name; null for all other names.
void* TorchHookByName(const char* name);
// The same for TensorFlow.
void* TensorflowHookByName(const char* name);

// --- TensorFlow: libtensorflow_framework.so.2, called by itself. ---

// tsl::BFCAllocator::AddTraceMe: an allocator handed out ("MemoryAllocation") or took back ("MemoryDeallocation") a
// block of `bytes` bytes at `address`, for a request of `requested` bytes. Called on the thread that allocates or
// frees, which holds the allocator's lock. The memory can be the device's or the host's. Defined in
// tensorflow_blocks.cc.
void TensorflowReportsMemory(std::string_view event, uint64_t address, int64_t requested, int64_t bytes,
                             const Caller& caller);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_LINKER_REPORT_HOOKS_H_
