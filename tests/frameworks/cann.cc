// The functions of Ascend's libascendcl.so that need an answer, for torch_npu (make_doubles.py): device 0 of an
// Ascend910B1. Memory comes from the substitute libascend_hal.so, with the flags and sizes of CANN's runtime; work is
// done at once, on the host.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

// Of libascend_hal.so.
struct HalMemProperties {
  uint32_t side, device, module, page_type, memory_type;
  uint64_t reserved;
};
struct HalMemInfo {
  unsigned long total, free, huge_total, huge_free;
  unsigned long others[60];
};
int halMemAlloc(void** ptr, unsigned long long bytes, unsigned long long flags);
int halMemFree(void* ptr);
int halDeviceClose(uint32_t device, const uint32_t* type);
int halMemCreate(uint64_t* handle, size_t bytes, const HalMemProperties* properties, uint64_t flags);
int halMemRelease(uint64_t handle);
int halMemAddressReserve(void** ptr, size_t bytes, size_t alignment, void* address, uint64_t flags);
int halMemAddressFree(void* ptr);
int halMemMap(void* ptr, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
int halMemUnmap(void* ptr);
int halMemGetInfo(uint32_t device, unsigned type, HalMemInfo* info);
}

namespace {

constexpr unsigned long long kApp = 33;  // the module of ACL's callers
constexpr unsigned long long kOnDevice = 1 << 10, kOnHost = 2 << 10, kHbm = 1 << 14, kHugePages = 1 << 17;
constexpr int kOutOfMemory = 207001;

int OfHal(int result) { return result == 0 ? 0 : result == 6 ? kOutOfMemory : 500000; }
// As ACL_MEM_MALLOC_HUGE_FIRST.
int OnDevice(void** ptr, size_t bytes) {
  constexpr unsigned long long kFlags = kApp << 56 | kOnDevice | kHbm;
  const int result = halMemAlloc(ptr, bytes, kFlags | kHugePages);
  return OfHal(result == 0 ? result : halMemAlloc(ptr, bytes, kFlags));
}
int OnHost(void** ptr, size_t bytes) { return OfHal(halMemAlloc(ptr, bytes, kApp << 56 | kOnHost)); }
size_t Align32(size_t bytes) { return (bytes + 31) / 32 * 32; }
template <typename T>
int Answer(T* out, T value) {
  *out = value;
  return 0;
}
int New(void** out) { return Answer(out, std::calloc(1, 64)); }
int Copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}

}  // namespace

extern "C" {

struct PhysicalMemProperties {
  int handle_type, allocation_type, attributes;
  uint32_t device;
  int location_type;
  uint64_t reserved;
};

// ACL pads what it allocates, so that copies can read beyond the end.
int aclrtMalloc(void** ptr, size_t bytes, int) { return OnDevice(ptr, Align32(bytes) + 32); }
int aclrtMallocAlign32(void** ptr, size_t bytes, int) { return OnDevice(ptr, Align32(bytes)); }
int aclrtFree(void* ptr) { return OfHal(halMemFree(ptr)); }
int aclrtMallocHost(void** ptr, size_t bytes) { return OnHost(ptr, bytes); }
int aclrtMallocHostWithCfg(void** ptr, uint64_t bytes, void*) { return OnHost(ptr, bytes); }
int aclrtFreeHost(void* ptr) { return OfHal(halMemFree(ptr)); }
int aclrtReserveMemAddress(void** ptr, size_t bytes, size_t alignment, void* address, uint64_t flags) {
  return OfHal(halMemAddressReserve(ptr, bytes, alignment, address, flags));
}
int aclrtReleaseMemAddress(void* ptr) { return OfHal(halMemAddressFree(ptr)); }
int aclrtMallocPhysical(uint64_t* handle, size_t bytes, const PhysicalMemProperties* properties, uint64_t flags) {
  const HalMemProperties of_hal = {1, properties->device, kApp, 1, 1, 0};
  return OfHal(halMemCreate(handle, bytes, &of_hal, flags));
}
int aclrtFreePhysical(uint64_t handle) { return OfHal(halMemRelease(handle)); }
int aclrtMapMem(void* ptr, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
  return OfHal(halMemMap(ptr, bytes, offset, handle, flags));
}
int aclrtUnmapMem(void* ptr) { return OfHal(halMemUnmap(ptr)); }
int aclrtGetMemInfo(int, size_t* free, size_t* total) {
  HalMemInfo info = {};
  const int result = halMemGetInfo(0, 2, &info);
  *free = info.free + info.huge_free;
  *total = info.total + info.huge_total;
  return OfHal(result);
}

int aclrtResetDevice(int device) { return OfHal(halDeviceClose(static_cast<uint32_t>(device), nullptr)); }
int aclrtGetDevice(int* device) { return Answer(device, 0); }
int aclrtGetDeviceCount(uint32_t* count) { return Answer(count, 1u); }
const char* aclrtGetSocName() { return "Ascend910B1"; }
const char* aclGetRecentErrMsg() { return "of the double"; }
int aclGetDeviceCapability(uint32_t, int, int64_t* value) { return Answer<int64_t>(value, 24); }
int aclrtDeviceCanAccessPeer(int* can, int, int) { return Answer(can, 0); }
int aclrtGetPrimaryCtxState(int, uint32_t*, int* active) { return Answer(active, 1); }
int aclrtGetCurrentContext(void** context) {
  static int the_context;
  return Answer<void*>(context, &the_context);
}
size_t aclGetCompileoptSize(int) { return 16; }
int aclGetCompileopt(int, char* value, size_t bytes) { return std::snprintf(value, bytes, "enable") < 0; }

int aclrtCreateStream(void** stream) { return New(stream); }
int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) { return New(stream); }
int aclrtCreateEventExWithFlag(void** event, uint32_t) { return New(event); }
int aclrtQueryEventStatus(void*, int* status) { return Answer(status, 1); }
int aclrtMemcpy(void* to, size_t, const void* from, size_t bytes, int) { return Copy(to, from, bytes); }
int aclrtMemcpyAsync(void* to, size_t, const void* from, size_t bytes, int, void*) { return Copy(to, from, bytes); }
int aclrtMemset(void* to, size_t, int value, size_t bytes) { return std::memset(to, value, bytes) == nullptr; }
int aclrtMemsetAsync(void* to, size_t, int value, size_t bytes, void*) {
  return std::memset(to, value, bytes) == nullptr;
}
}
