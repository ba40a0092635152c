// A substitute for Moore Threads' libmusa.so.1 without a device, as far as the tests call it. Its memory is that of
// fake_musa. Physical memory is kept until it is released and unmapped.
#include <map>
#include <mutex>

#include "src/backends/musa/mu_driver.h"
#include "tests/support/fake_vendors/fake_memory.h"

namespace hbmprof::internal::mu_driver {
namespace {

using fake_vendors::Memory;

constexpr int kInvalidValue = 1;

int Make(CUdeviceptr* ptr, size_t bytes, bool is_on_device = true) {
  const uintptr_t made = Memory::Instance().Allocate(bytes, is_on_device);
  if (made == 0) return kErrorOutOfMemory;
  *ptr = made;
  return kSuccess;
}
int End(CUdeviceptr ptr) { return ptr == 0 || Memory::Instance().Free(ptr) ? kSuccess : kInvalidValue; }

std::mutex mutex;
std::map<CUmemGenericAllocationHandle, int> references;
std::map<CUdeviceptr, CUmemGenericAllocationHandle> mapped;

int Unreference(CUmemGenericAllocationHandle handle) {
  if (--references[handle] > 0) return kSuccess;
  references.erase(handle);
  return End(handle);
}

}  // namespace

extern "C" {

int muCtxGetCurrent(Handle* context) { return *context = &mutex, kSuccess; }
int muCtxGetDevice(CUdevice* device) { return *device = 0, kSuccess; }
int muMemGetInfo_v2(size_t* free, size_t* total) {
  *total = fake_vendors::kCapacity;
  *free = *total - Memory::Instance().used();
  return kSuccess;
}
int muMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr ptr) {
  uintptr_t start = 0;
  *bytes = Memory::Instance().Find(ptr, &start);
  *base = start;
  return *bytes == 0 ? kInvalidValue : kSuccess;
}

int muMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) { return Make(ptr, bytes); }
int muMemFree_v2(CUdeviceptr ptr) { return End(ptr); }

int muMemAddressReserve(CUdeviceptr* ptr, size_t bytes, size_t, CUdeviceptr, Flags64) {
  return Make(ptr, bytes, false);
}
int muMemAddressFree(CUdeviceptr ptr, size_t) { return End(ptr); }
int muMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const MemAllocationProp*, Flags64) {
  const std::lock_guard<std::mutex> hold(mutex);
  const int result = Make(handle, bytes);
  if (result == kSuccess) references[*handle] = 1;
  return result;
}
int muMemMap(CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, Flags64) {
  const std::lock_guard<std::mutex> hold(mutex);
  ++references[handle];
  mapped[address] = handle;
  return kSuccess;
}
int muMemUnmap(CUdeviceptr address, size_t) {
  const std::lock_guard<std::mutex> hold(mutex);
  const auto found = mapped.find(address);
  if (found == mapped.end()) return kInvalidValue;
  return Unreference(mapped.extract(found).mapped());
}
int muMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> hold(mutex);
  return Unreference(handle);
}

}  // extern "C"
}  // namespace hbmprof::internal::mu_driver
