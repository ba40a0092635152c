#include "src/backends/cuda/driver/driver_queries.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/backends/cuda/shared/nvml.h"
#include "src/core/device_driver.h"

namespace hbmprof::internal {
namespace cuda_driver {
extern const DeviceDriver kDeviceDriver;
#define NAMES \
  Driver::Names { {"libcuda.so.1"}, "/libcuda.so", "cu", "GPU:", "cudaMallocAsync", &kDeviceDriver }
#define CALLS "src/backends/cuda/driver/driver_calls.inc"
#include "src/backends/calls/define_driver.inc"
}  // namespace cuda_driver
namespace {

using cuda_driver::CUdevice;
using cuda_driver::CUdeviceptr;
using cuda_driver::Handle;
using cuda_driver::kSuccess;
namespace query = cuda_driver::query;

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Since 580 the driver writes each call that fails into the program's error log. So a question that would fail is not
// asked: this one succeeds with null.
Handle CurrentContext() {
  Handle context = nullptr;
  return query::cuCtxGetCurrent(&context) == kSuccess ? context : nullptr;
}

bool HasAttribute(CUdevice device, int attribute) {
  int value = 0;
  return query::cuDeviceGetAttribute(&value, attribute, device) == kSuccess && value != 0;
}

bool HasActivePrimaryContext(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  return query::cuDevicePrimaryCtxGetState(device, &flags, &active) == kSuccess && active != 0;
}

// The bytes that `pool` has reserved on the device and that no allocation uses; 0 if the driver does not report it.
int64_t IdleBytes(Handle pool) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  if (query::cuMemPoolGetAttribute(pool, cuda_driver::kPoolReservedCurrent, &reserved) != kSuccess ||
      query::cuMemPoolGetAttribute(pool, cuda_driver::kPoolUsedCurrent, &used) != kSuccess) {
    return 0;
  }
  return static_cast<int64_t>(reserved) - static_cast<int64_t>(used);
}

// The bytes that graphs have reserved on the device and do not use; 0 if the driver or the adapter does not report it.
int64_t IdleGraphBytes(CUdevice device, DeviceId id, AdapterMemory* adapter) {
  uint64_t reserved = 0;
  if (adapter == nullptr ||
      query::cuDeviceGetGraphMemAttribute(device, cuda_driver::kGraphsReservedCurrent, &reserved) != kSuccess) {
    return 0;
  }
  return std::max<int64_t>(static_cast<int64_t>(reserved) - adapter->GraphBytes(id), 0);
}

// The idle bytes of the device's pools and graphs; no value if the driver has no pools.
std::optional<int64_t> IdlePoolBytes(int ordinal, CUdevice device, DeviceId id, AdapterMemory* adapter) {
  Handle default_pool = nullptr;
  if (cuda_driver::driver.DriverFunction(cuda_driver::k_cuMemPoolGetAttribute) == nullptr ||
      !HasAttribute(device, cuda_driver::kDeviceHasPools) ||
      query::cuDeviceGetDefaultMemPool(&default_pool, device) != kSuccess) {
    return std::nullopt;
  }
  int64_t idle = IdleBytes(default_pool) + IdleGraphBytes(device, id, adapter);
  if (adapter != nullptr) adapter->ForEachPool(ordinal, [&](void* pool) { idle += IdleBytes(pool); });
  return idle;
}

// Adds what the driver reports about the device of the calling thread's current context.
void AddContextFigures(bool is_integrated, DeviceProbe& probe) {
  size_t free = 0;
  size_t total = 0;
  if (query::cuMemGetInfo_v2(&free, &total) != kSuccess) return;
  probe.bytes_limit = static_cast<int64_t>(total);
  probe.bytes_free = static_cast<int64_t>(free);
  if (is_integrated) return;
  probe.driver_bytes_in_use = static_cast<int64_t>(total - free);
  probe.driver_scope = DriverScope::kDevice;
}

// Adds what NVML reports about this process, and about the device if the driver did not report it.
void AddNvmlFigures(CUdevice device, bool is_integrated, DeviceProbe& probe) {
  char bus_id[32];
  if (query::cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != kSuccess) return;
  NvmlMemory memory = QueryNvml(bus_id);
  probe.uuid = std::move(memory.uuid);
  probe.processes = std::move(memory.processes);
  if (!probe.bytes_limit.has_value()) probe.bytes_limit = memory.total_bytes;
  bool is_used_known = false;
  if (!is_integrated && memory.total_bytes.has_value() && memory.used_bytes.has_value()) {
    // For a part of a device (MIG), NVML reports the figures of the whole device.
    is_used_known = *memory.total_bytes - *probe.bytes_limit <= *memory.total_bytes / 8;
  }
  if (!probe.bytes_free.has_value() && is_used_known) probe.bytes_free = *memory.total_bytes - *memory.used_bytes;
  if (memory.process_bytes.has_value()) {
    probe.driver_bytes_in_use = memory.process_bytes;
    probe.driver_scope = DriverScope::kProcess;
  } else if (!probe.driver_bytes_in_use.has_value() && is_used_known) {
    probe.driver_bytes_in_use = memory.used_bytes;
    probe.driver_scope = DriverScope::kDevice;
  }
}

int CurrentDevice() {
  CUdevice device = -1;
  return CurrentContext() != nullptr && query::cuCtxGetDevice(&device) == kSuccess ? device : -1;
}

DeviceFacts FactsOf(std::string_view name, const std::string& control_group) {
  DeviceFacts facts;
  int count = 0;
  CUdevice device = 0;
  if (query::cuDeviceGetCount(&count) != kSuccess) return facts;
  int ordinal = 0;
  while (ordinal < count && name != cuda_driver::driver.DeviceName(ordinal)) ++ordinal;
  if (ordinal == count || query::cuDeviceGet(&device, ordinal) != kSuccess) return facts;
  facts.uses_host_memory = HasAttribute(device, cuda_driver::kDeviceIsIntegrated);
  char bus_id[32];
  if (!control_group.empty() && query::cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) == kSuccess) {
    QueryNvmlGroup(bus_id, control_group.c_str(), &facts);
  }
  return facts;
}

}  // namespace

const DeviceDriver cuda_driver::kDeviceDriver = {&CurrentContext,
                                                 [](void* context) { query::cuCtxSetCurrent(context); }, &FactsOf};

CudaDriverInProcess cuda_driver_in_process;

int CudaDriverInProcess::CurrentDevice() { return internal::CurrentDevice(); }

const void* CudaDriverInProcess::CurrentContext() { return internal::CurrentContext(); }

DriverQueries::Pointer CudaDriverInProcess::DescribePointer(const void* address) {
  Pointer pointer;
  const auto get = [&](int attribute, auto* answer) {
    return query::cuPointerGetAttribute(answer, attribute, Address(address)) == kSuccess;
  };
  int device = -1;
  int managed = 0;
  unsigned type = 0;
  if (get(cuda_driver::kPointerDeviceOrdinal, &device)) pointer.device = device;
  if (get(cuda_driver::kPointerIsManaged, &managed) && managed != 0) {
    pointer.kind = MemoryKind::kManaged;
  } else if (get(cuda_driver::kPointerMemoryType, &type) && type == cuda_driver::kMemoryTypeHost) {
    pointer.kind = MemoryKind::kPinnedHost;
  }
  return pointer;
}

DriverQueries::Range CudaDriverInProcess::AddressRange(const void* address) {
  CUdeviceptr start = 0;
  size_t bytes = 0;
  const bool is_known = internal::CurrentContext() != nullptr &&
                        query::cuMemGetAddressRange_v2(&start, &bytes, Address(address)) == kSuccess;
  return is_known ? Range{start, bytes} : Range();
}

DriverQueries::Capture CudaDriverInProcess::CaptureOf(const DriverStream& stream) {
  const auto kLegacyStream = reinterpret_cast<void*>(1);
  const bool is_legacy = stream.stream == kLegacyStream || (stream.stream == nullptr && !stream.per_thread_default);
  if (is_legacy) return {};  // cannot be captured; while another stream is captured, the question fails
  const auto get_info =
      stream.per_thread_default ? &query::cuStreamGetCaptureInfo_v2_ptsz : &query::cuStreamGetCaptureInfo_v2;
  int status = 0;
  uint64_t id = 0;
  Handle graph = nullptr;
  const bool answered = get_info(stream.stream, &status, &id, &graph, nullptr, nullptr) == kSuccess;
  return answered && status == cuda_driver::kCaptureActive ? Capture{true, graph} : Capture{};
}

bool CudaDriverInProcess::PrimaryContextActive(int device) { return HasActivePrimaryContext(device); }

std::optional<int64_t> CudaDriverInProcess::FreeBytes() {
  size_t free = 0;
  size_t total = 0;
  if (internal::CurrentContext() == nullptr || query::cuMemGetInfo_v2(&free, &total) != kSuccess) return std::nullopt;
  return static_cast<int64_t>(free);
}

std::optional<size_t> CudaDriverInProcess::PoolBytes(void* pool) {
  uint64_t used = 0;
  if (query::cuMemPoolGetAttribute(pool, cuda_driver::kPoolUsedCurrent, &used) != kSuccess) return std::nullopt;
  return used;
}

DeviceProbe CudaDriverInProcess::Probe(int ordinal, DeviceId id) {
  DeviceProbe probe;
  CUdevice device = 0;
  if (query::cuDeviceGet(&device, ordinal) != kSuccess) return probe;
  // Only the calling thread's own context is queried. If another context were made current, it would stay alive after
  // the program's last release of it, or it would be created again.
  const bool is_integrated = HasAttribute(device, cuda_driver::kDeviceIsIntegrated);
  if (internal::CurrentDevice() == device) AddContextFigures(is_integrated, probe);
  size_t total = 0;
  if (!probe.bytes_limit.has_value() && HasActivePrimaryContext(device) &&
      query::cuDeviceTotalMem_v2(&total, device) == kSuccess) {
    probe.bytes_limit = static_cast<int64_t>(total);
  }
  AddNvmlFigures(device, is_integrated, probe);
  if (probe.driver_bytes_in_use.has_value()) probe.driver_cache_bytes = IdlePoolBytes(ordinal, device, id, adapter);
  return probe;
}

}  // namespace hbmprof::internal
