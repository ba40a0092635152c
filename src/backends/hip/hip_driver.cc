#include "src/backends/hip/hip_driver.h"

namespace hbmprof::internal {
namespace hip_driver {
#define CALLS "src/backends/hip/hip_calls.inc"
// A thread's current device is its context.
static const DeviceDriver kDeviceDriver = {
    [] {
      int device = -1;
      return query::hipGetDevice(&device) == kCallSucceeded ? reinterpret_cast<void*>(device + intptr_t{1}) : nullptr;
    },
    [](void* context) {
      if (context != nullptr) query::hipSetDevice(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1);
    },
    [](std::string_view, const std::string&) { return DeviceFacts(); }};
#define NAMES                                                                                                    \
  Driver::Names {                                                                                                \
    {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so.10"}, "/libamdhip64.so", "hip", \
        "GPU:", "hipMallocAsync", &kDeviceDriver                                                                 \
  }
#include "src/backends/calls/define_driver.inc"

bool StaysAtReset(MemoryKind kind) {
  int count = 0;
  if (kind != MemoryKind::kPinnedHost && kind != MemoryKind::kManaged) return false;
  return query::hipGetDeviceCount(&count) == kCallSucceeded && count > 1;
}
}  // namespace hip_driver

using hip_driver::CUdeviceptr;
namespace query = hip_driver::query;

namespace {

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Returns 0 if the driver does not report it.
int64_t PoolNumber(void* pool, int attribute) {
  int64_t value = 0;
  return query::hipMemPoolGetAttribute(pool, attribute, &value) == kCallSucceeded ? value : 0;
}

}  // namespace

int HipDriverInProcess::CurrentDevice() {
  int device = -1;
  return query::hipGetDevice(&device) == kCallSucceeded ? device : -1;
}

DriverQueries::Pointer HipDriverInProcess::DescribePointer(const void* address) {
  int attributes[16] = {};  // hipPointerAttribute_t: 1 is the device, 6 whether the memory is managed
  if (query::hipPointerGetAttributes(attributes, Address(address)) != kCallSucceeded) return {};
  return {attributes[1], attributes[6] != 0 ? MemoryKind::kManaged : MemoryKind::kDevice};
}

DriverQueries::Range HipDriverInProcess::AddressRange(const void* address) {
  Range range;
  CUdeviceptr start = 0;
  if (query::hipMemGetAddressRange(&start, &range.bytes, Address(address)) != kCallSucceeded) return {};
  range.start = start;
  return range;
}

DriverQueries::Capture HipDriverInProcess::CaptureOf(const DriverStream& stream) {
  if (stream.stream == nullptr) return {};
  int status = 0;
  uint64_t id = 0;
  hip_driver::Handle graph = nullptr;
  const int result = query::hipStreamGetCaptureInfo_v2(stream.stream, &status, &id, &graph, nullptr, nullptr);
  return result == kCallSucceeded && status == hip_driver::kCaptureActive ? Capture{true, graph} : Capture{};
}

// Only of the calling thread's current device, which is not changed. HIP does not say which processes use the memory.
DeviceProbe HipDriverInProcess::Probe(int ordinal, DeviceId) {
  DeviceProbe probe;
  size_t free = 0;
  size_t total = 0;
  if (CurrentDevice() != ordinal || query::hipMemGetInfo(&free, &total) != kCallSucceeded) return probe;
  probe.bytes_limit = static_cast<int64_t>(total);
  probe.bytes_free = static_cast<int64_t>(free);
  probe.driver_bytes_in_use = static_cast<int64_t>(total - free);
  probe.driver_scope = DriverScope::kDevice;
  int64_t idle = 0;
  const auto add = [&](void* pool) {
    idle += PoolNumber(pool, hip_driver::kPoolReservedCurrent) - PoolNumber(pool, hip_driver::kPoolUsedCurrent);
  };
  hip_driver::Handle pool = nullptr;
  if (query::hipDeviceGetDefaultMemPool(&pool, ordinal) == kCallSucceeded) add(pool);
  if (adapter != nullptr) adapter->ForEachPool(ordinal, add);
  probe.driver_cache_bytes = idle;
  return probe;
}

std::optional<size_t> HipDriverInProcess::PoolBytes(void* pool) {
  return static_cast<size_t>(PoolNumber(pool, hip_driver::kPoolUsedCurrent));
}

// Up to ROCm 6.3 a call that succeeds sets the last error, too. More bytes than a device can have are refused at once.
void HipDriverInProcess::RestoreLastError() {
  if (query::hipPeekAtLastError() == hip_driver::kErrorOutOfMemory) return;
  using Create = int(CUdeviceptr * handle, size_t bytes, const void* properties, hip_driver::Flags64 flags);
  auto* const create = reinterpret_cast<Create*>(hip_driver::driver.DriverFunction(hip_driver::k_hipMemCreate));
  constexpr int kOnDevice[32] = {1, 0, hip_driver::kLocationDevice, 0};  // hipMemAllocationProp
  CUdeviceptr none = 0;
  if (create != nullptr) create(&none, SIZE_MAX >> 30 << 30, kOnDevice, 0);
}

}  // namespace hbmprof::internal
