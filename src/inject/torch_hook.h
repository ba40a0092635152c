// The functions of PyTorch's libc10.so that the injected library stands in front of: by them PyTorch tells its own
// profiler of each block that its caching allocator hands out and takes back. The names say the argument types, so a
// release with other arguments calls neither.
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

// Both are called with a lock of the device's held, on the thread that allocates or frees; `caller` is in
// libc10_cuda.so. Defined in torch_blocks.cc.

// c10::reportMemoryUsageToProfiler: a block at `address` was handed out (bytes > 0) or taken back (bytes < 0). The
// totals are the device's after that.
void TorchReportsMemory(uint64_t address, int64_t bytes, uint64_t total_allocated, uint64_t total_reserved,
                        TorchDevice device, const Caller& caller);
// c10::reportOutOfMemoryToProfiler: PyTorch is about to throw its out-of-memory error.
void TorchReportsOutOfMemory(int64_t bytes, uint64_t total_allocated, uint64_t total_reserved, TorchDevice device);

// The function that stands in front of the one with this mangled name; null for all other names.
void* TorchHookByName(const char* name);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_TORCH_HOOK_H_
