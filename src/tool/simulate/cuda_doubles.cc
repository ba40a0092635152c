// The functions of the CUDA runtime, the driver and NVML that PyTorch's allocator calls, and the function of libc10.so
// to which it reports. The command exports them (exported.txt), so in its process they come before those of the
// libraries that it loads. All others stay the libraries' own. PyTorch 2.1 to 2.7 look the driver's functions up with
// dlsym and end if one is missing; later releases ask cudaGetDriverEntryPoint. Without a toolkit's headers: structures
// are written by offset.
#include "src/tool/simulate/cuda_doubles.h"

#include <dlfcn.h>

#include <cstring>

namespace hbmprof::tool {

SimulatedDevice& TheSimulatedDevice() {
  static auto* const device = new SimulatedDevice;
  return *device;
}

namespace {

constexpr int kNoError = 0;
constexpr int kOutOfMemory = 2;  // also the driver's
constexpr size_t kGranularity = size_t{2} << 20;
constexpr uint64_t kTop = uint64_t{1} << 60;  // above the addresses of programs
constexpr size_t kTotalMemoryOffset = 288;    // of totalGlobalMem in cudaDeviceProp

int last_error = kNoError;

bool Take(size_t bytes) {
  SimulatedDevice& device = TheSimulatedDevice();
  const auto size = static_cast<int64_t>(bytes);
  device.has_refused = size < 0 || size > device.limit - device.in_use;
  if (device.has_refused) return false;
  device.in_use += size;
  device.peak = std::max(device.peak, device.in_use);
  return true;
}

// Returns where `bytes` bytes are free. PyTorch takes the lowest of several free blocks of one size, so the order of
// addresses matters. As Linux does for mapped memory: the highest place that is large enough.
uint64_t PlaceFor(size_t bytes) {
  const uint64_t size = (bytes + 2 * kGranularity - 1) / kGranularity * kGranularity;  // and a gap
  uint64_t top = kTop;
  const auto& ranges = TheSimulatedDevice().ranges;
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    const uint64_t end = range->first + static_cast<uint64_t>(range->second.bytes);
    if (end > top || top - end >= size) break;
    top = range->first / kGranularity * kGranularity;
  }
  return top - size;
}

bool IsFree(uint64_t begin, size_t bytes) {
  const auto& ranges = TheSimulatedDevice().ranges;
  const auto after = ranges.lower_bound(begin + bytes);
  return after == ranges.begin() ||
         std::prev(after)->first + static_cast<uint64_t>(std::prev(after)->second.bytes) <= begin;
}

int Unsupported() { return 801; }

}  // namespace
}  // namespace hbmprof::tool

using namespace hbmprof::tool;  // NOLINT: these functions have no namespace

#define EXPORTED __attribute__((visibility("default"), used))

extern "C" {

// --- The runtime. ---

EXPORTED int cudaMalloc(void** address, size_t bytes) {
  if (!Take(bytes)) return last_error = kOutOfMemory;
  const uint64_t wanted = std::exchange(TheSimulatedDevice().next, 0);
  const uint64_t begin = wanted != 0 && IsFree(wanted, bytes) ? wanted : PlaceFor(bytes);
  TheSimulatedDevice().ranges[begin] = {static_cast<int64_t>(bytes)};
  *address = reinterpret_cast<void*>(begin);
  return kNoError;
}
EXPORTED int cudaFree(void* address) {
  SimulatedDevice& device = TheSimulatedDevice();
  const auto range = device.ranges.find(reinterpret_cast<uint64_t>(address));
  if (range == device.ranges.end()) return kNoError;
  device.in_use -= range->second.bytes;
  device.ranges.erase(range);
  return kNoError;
}
EXPORTED int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  const SimulatedDevice& device = TheSimulatedDevice();
  *total = static_cast<size_t>(device.total);
  *free_bytes = static_cast<size_t>(std::max<int64_t>(std::min(device.limit, device.total) - device.in_use, 0));
  return kNoError;
}
EXPORTED int cudaGetDeviceProperties(char* properties, int) {
  std::memcpy(properties + kTotalMemoryOffset, &TheSimulatedDevice().total, sizeof(int64_t));
  return kNoError;
}
EXPORTED int cudaGetDeviceProperties_v2(char* properties, int) { return cudaGetDeviceProperties(properties, 0); }
EXPORTED int cudaGetLastError() { return std::exchange(last_error, kNoError); }
EXPORTED const char* cudaGetErrorString(int error) { return error == kOutOfMemory ? "out of memory" : "not supported"; }
EXPORTED const char* cudaGetErrorName(int error) { return cudaGetErrorString(error); }
EXPORTED int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                              int* status) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr) *function = reinterpret_cast<void*>(&Unsupported);
  if (status != nullptr) *status = 0;
  return kNoError;
}
EXPORTED int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}

// --- The driver. A handle of physical memory is its size. ---

EXPORTED int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  static uint64_t next = kTop;
  *address = std::exchange(next, next + bytes + kGranularity);
  return kNoError;
}
EXPORTED int cuMemCreate(uint64_t* handle, size_t bytes, const void*, unsigned long long) {
  *handle = bytes;
  return Take(bytes) ? kNoError : kOutOfMemory;
}
EXPORTED int cuMemRelease(uint64_t handle) {
  TheSimulatedDevice().in_use -= static_cast<int64_t>(handle);
  return kNoError;
}
EXPORTED int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t, unsigned long long) {
  TheSimulatedDevice().ranges[address] = {static_cast<int64_t>(bytes), true};
  return kNoError;
}
EXPORTED int cuMemUnmap(uint64_t address, size_t bytes) {
  auto& ranges = TheSimulatedDevice().ranges;
  ranges.erase(ranges.lower_bound(address), ranges.lower_bound(address + bytes));
  return kNoError;
}
EXPORTED int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = kGranularity;
  return kNoError;
}
EXPORTED int cuGetErrorString(int error, const char** text) {
  *text = cudaGetErrorString(error);
  return kNoError;
}

// --- Functions that only write a number, as their first or second argument; and that do nothing. ---

#define FIRST(name, value)         \
  EXPORTED int name(int* number) { \
    *number = value;               \
    return kNoError;               \
  }
#define SECOND(name, value)               \
  EXPORTED int name(void*, int* number) { \
    *number = value;                      \
    return kNoError;                      \
  }
#define NOTHING(name) \
  EXPORTED int name() { return kNoError; }
// clang-format off
FIRST(cudaGetDeviceCount, 1) FIRST(cudaGetDevice, 0) FIRST(cudaDriverGetVersion, 13000)
FIRST(cudaDeviceCanAccessPeer, 0) FIRST(cuDeviceGetAttribute, 0)
SECOND(cudaStreamIsCapturing, 0) SECOND(cudaStreamGetCaptureInfo, 0) SECOND(cudaStreamGetCaptureInfo_v2, 0)
SECOND(nvmlDeviceGetComputeRunningProcesses, 0)
NOTHING(cudaSetDevice) NOTHING(cudaDeviceSynchronize) NOTHING(cudaStreamSynchronize)
NOTHING(cudaThreadExchangeStreamCaptureMode) NOTHING(cuMemAddressFree) NOTHING(cuMemSetAccess)
NOTHING(nvmlInit_v2) NOTHING(nvmlDeviceGetHandleByPciBusId_v2) NOTHING(nvmlDeviceGetGpuFabricInfoV)
// Releases before 2.8 end if one of these is missing.
NOTHING(cuMemExportToShareableHandle) NOTHING(cuMemImportFromShareableHandle) NOTHING(cuMulticastAddDevice)
NOTHING(cuMulticastBindMem) NOTHING(cuMulticastCreate) NOTHING(cuMemsetD32Async) NOTHING(cuStreamWriteValue32)
NOTHING(nvmlDeviceGetNvLinkRemoteDeviceType) NOTHING(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOTHING(nvmlSystemGetCudaDriverVersion_v2)
    // clang-format on

    // --- libc10.so: PyTorch's reports of each block. Its Device is a structure of two bytes. ---

    EXPORTED void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void* block, int64_t bytes, size_t allocated,
                                                                        size_t, uint16_t) {
  SimulatedDevice& device = TheSimulatedDevice();
  device.allocated = static_cast<int64_t>(allocated);
  const auto address = reinterpret_cast<uint64_t>(block);
  if (bytes > 0) device.blocks[address] = bytes;
  if (bytes < 0) device.blocks.erase(address);
}
}
