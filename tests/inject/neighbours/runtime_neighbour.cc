// A preloaded library that interposes cudaMalloc and cudaFree in the way of torch_memory_saver, which can take away the
// memory of an allocation and keep its addresses: with NEIGHBOUR_MAPS it makes each allocation from mapped physical
// memory of the driver, which it links; without, it calls the next cudaMalloc, which it finds with RTLD_NEXT.
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/inject/driver_calls.h"
#include "tests/inject/neighbours/counts.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types and calls

namespace hbmprof::internal::cuda_driver {
extern "C" {
CUresult cuCtxGetDevice(CUdevice*);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const void*, size_t);
}
}  // namespace hbmprof::internal::cuda_driver

namespace {

constexpr size_t kGranularity = size_t{2} << 20;

struct Mapped {
  size_t bytes = 0;
  CUmemGenericAllocationHandle physical = 0;
};
std::mutex mutex;
std::map<CUdeviceptr, Mapped> mapped;

}  // namespace

extern "C" {

CUresult cudaMalloc(CUdeviceptr* ptr, size_t bytes);
CUresult cudaMalloc(CUdeviceptr* ptr, size_t bytes) {
  const neighbour::Call call(neighbour::allocations);
  if (std::getenv("NEIGHBOUR_MAPS") == nullptr) {
    static auto* const next = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(RTLD_NEXT, "cudaMalloc"));
    return next(ptr, bytes);
  }
  MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
  if (const CUresult error = cuCtxGetDevice(&properties.location.id)) return error;
  Mapped memory;
  memory.bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  if (const CUresult error = cuMemCreate(&memory.physical, memory.bytes, &properties, 0)) return error;
  if (const CUresult error = cuMemAddressReserve(ptr, memory.bytes, 0, 0, 0)) return error;
  if (const CUresult error = cuMemMap(*ptr, memory.bytes, 0, memory.physical, 0)) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  mapped[*ptr] = memory;
  return cuMemSetAccess(*ptr, memory.bytes, nullptr, 0);
}

CUresult cudaFree(CUdeviceptr ptr);
CUresult cudaFree(CUdeviceptr ptr) {
  const neighbour::Call call(neighbour::frees);
  Mapped memory;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = mapped.find(ptr);
    if (found != mapped.end()) {
      memory = found->second;
      mapped.erase(found);
    }
  }
  if (memory.bytes == 0) {
    static auto* const next = reinterpret_cast<CUresult (*)(CUdeviceptr)>(dlsym(RTLD_NEXT, "cudaFree"));
    return next(ptr);
  }
  if (const CUresult error = cuMemUnmap(ptr, memory.bytes)) return error;
  if (const CUresult error = cuMemRelease(memory.physical)) return error;
  return cuMemAddressFree(ptr, memory.bytes);
}
}
