// The functions of PyTorch's libc10.so that the injected library interposes. PyTorch calls them to report to its own
// profiler each block that its caching allocator hands out and takes back. The mangled names contain the argument
// types, so a PyTorch release with other arguments calls neither of them.
#ifndef HBMPROF_SRC_INJECT_TORCH_HOOK_H_
#define HBMPROF_SRC_INJECT_TORCH_HOOK_H_

#include <cstdint>

#include "hbmprof/caller.h"

namespace hbmprof::internal {

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
// c10::reportOutOfMemoryToProfiler: PyTorch is about to throw its out-of-memory error.
void TorchReportsOutOfMemory(int64_t bytes, uint64_t total_allocated, uint64_t total_reserved, TorchDevice device);

// Returns the function that interposes the function with this mangled name; null for all other names.
void* TorchHookByName(const char* name);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_TORCH_HOOK_H_
