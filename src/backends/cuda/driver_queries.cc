#include "src/backends/cuda/driver_queries.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "src/backends/cuda/driver_abi.h"
#include "src/backends/cuda/nvml.h"
#include "src/base/completes.h"
#include "src/base/made_once.h"

namespace hbmprof::internal {
namespace {

using cuda_driver::CUdevice;
using cuda_driver::CUdeviceptr;
using cuda_driver::CUresult;
using cuda_driver::Handle;

// As many as a profiler tells apart.
constexpr int kMaxDevices = 64;

struct Driver {
  CUresult (*device_get)(CUdevice*, int ordinal) = nullptr;
  CUresult (*primary_context_get_state)(CUdevice, unsigned* flags, int* active) = nullptr;
  CUresult (*mem_get_info)(size_t* free, size_t* total) = nullptr;
  CUresult (*mem_get_address_range)(CUdeviceptr* base, size_t* bytes, CUdeviceptr) = nullptr;
  // Not in every driver: null where absent.
  CUresult (*context_get_device)(CUdevice*) = nullptr;
  CUresult (*context_get_current)(Handle*) = nullptr;
  CUresult (*pointer_get_attribute)(void*, int attribute, CUdeviceptr) = nullptr;
  CUresult (*stream_get_capture_info)(Handle, int* status, uint64_t* id, Handle* graph, const Handle**,
                                      size_t*) = nullptr;
  CUresult (*stream_get_capture_info_ptsz)(Handle, int* status, uint64_t* id, Handle* graph, const Handle**,
                                           size_t*) = nullptr;
  CUresult (*device_get_default_pool)(Handle*, CUdevice) = nullptr;
  CUresult (*pool_get_attribute)(Handle, int attribute, void*) = nullptr;
  CUresult (*device_get_graph_mem_attribute)(CUdevice, int attribute, void*) = nullptr;
  CUresult (*device_total_mem)(size_t* total, CUdevice) = nullptr;
  CUresult (*device_get_pci_bus_id)(char*, int bytes, CUdevice) = nullptr;
};

// Null while the process has no (complete) driver.
const Driver* FindDriver() {
  static MadeOnce<Driver> found;
  return found.Get([]() -> std::unique_ptr<Driver> {
    void* library = CudaDriverLibrary();
    if (library == nullptr) return nullptr;
    auto driver = std::make_unique<Driver>();
    bool complete = true;
    const auto find_optional = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(FindDriverSymbol(library, name));
    };
    const auto find = [&](auto& function, const char* name) {
      find_optional(function, name);
      complete = complete && function != nullptr;
    };
    find(driver->device_get, "cuDeviceGet");
    find(driver->primary_context_get_state, "cuDevicePrimaryCtxGetState");
    find(driver->mem_get_info, "cuMemGetInfo_v2");
    find(driver->mem_get_address_range, "cuMemGetAddressRange_v2");
    find_optional(driver->context_get_device, "cuCtxGetDevice");
    find_optional(driver->context_get_current, "cuCtxGetCurrent");
    find_optional(driver->pointer_get_attribute, "cuPointerGetAttribute");
    find_optional(driver->stream_get_capture_info, "cuStreamGetCaptureInfo_v2");
    find_optional(driver->stream_get_capture_info_ptsz, "cuStreamGetCaptureInfo_v2_ptsz");
    find_optional(driver->device_get_default_pool, "cuDeviceGetDefaultMemPool");
    find_optional(driver->pool_get_attribute, "cuMemPoolGetAttribute");
    find_optional(driver->device_get_graph_mem_attribute, "cuDeviceGetGraphMemAttribute");
    find_optional(driver->device_total_mem, "cuDeviceTotalMem_v2");
    find_optional(driver->device_get_pci_bus_id, "cuDeviceGetPCIBusId");
    return complete ? std::move(driver) : nullptr;
  });
}

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

bool HasActivePrimaryContext(const Driver& driver, CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  return driver.primary_context_get_state(device, &flags, &active) == cuda_driver::kSuccess && active != 0;
}

// Whatever `pool` has taken from the device and no allocation uses.
int64_t IdleBytes(const Driver& driver, Handle pool) {
  uint64_t reserved = 0;
  uint64_t used = 0;
  if (driver.pool_get_attribute(pool, cuda_driver::kPoolReservedCurrent, &reserved) != cuda_driver::kSuccess ||
      driver.pool_get_attribute(pool, cuda_driver::kPoolUsedCurrent, &used) != cuda_driver::kSuccess) {
    return 0;
  }
  return static_cast<int64_t>(reserved) - static_cast<int64_t>(used);
}

// What graphs have taken from the device beyond what they have in use.
int64_t IdleGraphBytes(const Driver& driver, CUdevice device, DeviceId id, const CudaDeviceBooks& books) {
  uint64_t reserved = 0;
  if (!books.graph_bytes || driver.device_get_graph_mem_attribute == nullptr ||
      driver.device_get_graph_mem_attribute(device, cuda_driver::kGraphsReservedCurrent, &reserved) !=
          cuda_driver::kSuccess) {
    return 0;
  }
  return std::max<int64_t>(static_cast<int64_t>(reserved) - books.graph_bytes(id), 0);
}

// No value if the driver has no pools.
std::optional<int64_t> IdlePoolBytes(const Driver& driver, int ordinal, CUdevice device, DeviceId id,
                                     const CudaDeviceBooks& books) {
  if (driver.pool_get_attribute == nullptr || driver.device_get_default_pool == nullptr) return std::nullopt;
  Handle default_pool = nullptr;
  if (driver.device_get_default_pool(&default_pool, device) != cuda_driver::kSuccess) return std::nullopt;
  int64_t idle = IdleBytes(driver, default_pool) + IdleGraphBytes(driver, device, id, books);
  if (books.pools) {
    books.pools(ordinal, [&](void* pool) { idle += IdleBytes(driver, pool); });
  }
  return idle;
}

void AskCurrentContext(const Driver& driver, DeviceProbe& probe) {
  size_t free = 0;
  size_t total = 0;
  if (driver.mem_get_info(&free, &total) != cuda_driver::kSuccess) return;
  probe.bytes_limit = static_cast<int64_t>(total);
  probe.driver_bytes_in_use = static_cast<int64_t>(total - free);
  probe.driver_scope = DriverScope::kDevice;
}

// What NVML says of this process; and of the device, where the driver does not.
void AskManagementLibrary(const Driver& driver, CUdevice device, DeviceProbe& probe) {
  char bus_id[32] = "";
  if (driver.device_get_pci_bus_id == nullptr ||
      driver.device_get_pci_bus_id(bus_id, sizeof(bus_id), device) != cuda_driver::kSuccess) {
    return;
  }
  const NvmlMemory memory = AskNvml(bus_id);
  if (!probe.bytes_limit.has_value() && memory.total_bytes >= 0) probe.bytes_limit = memory.total_bytes;
  if (memory.process_bytes >= 0) {
    probe.driver_bytes_in_use = memory.process_bytes;
    probe.driver_scope = DriverScope::kProcess;
  } else if (!probe.driver_bytes_in_use.has_value() && memory.used_bytes >= 0 &&
             memory.total_bytes - probe.bytes_limit.value_or(0) <= memory.total_bytes / 8) {
    // Of a slice of a device, NVML answers for the whole.
    probe.driver_bytes_in_use = memory.used_bytes;
    probe.driver_scope = DriverScope::kDevice;
  }
}

int CurrentDevice(const Driver& driver) {
  CUdevice device = -1;
  if (driver.context_get_device == nullptr) return -1;
  return driver.context_get_device(&device) == cuda_driver::kSuccess ? device : -1;
}

// What was unaccounted of each of the profiler's devices when its first allocation had been recorded.
struct Baseline {
  std::atomic<bool> taken{false};
  std::atomic<bool> known{false};
  std::atomic<int64_t> bytes{0};
};
Baseline baselines[kMaxDevices];

DeviceProbe ProbeWithBaseline(int ordinal, DeviceId device, const CudaDeviceBooks& books) {
  DeviceProbe probe = ProbeCudaDevice(ordinal, device, books);
  const Baseline& baseline = baselines[static_cast<int>(device)];
  if (baseline.known.load(std::memory_order_acquire)) probe.baseline = baseline.bytes.load(std::memory_order_relaxed);
  return probe;
}

}  // namespace

void* CudaDriverLibrary() {
  static std::atomic<void*> found{nullptr};
  if (void* library = found.load(std::memory_order_acquire)) return library;
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) found.store(library, std::memory_order_release);
  return library;
}

std::string CudaDeviceName(int ordinal) { return "GPU:" + std::to_string(ordinal); }

DeviceId CudaDeviceId(int ordinal, const CudaDeviceBooks& books) {
  static std::atomic<int> known[kMaxDevices];  // id + 1, by ordinal
  if (ordinal < 0) return Profiler::Default().Device("unknown");
  const bool cached = ordinal < kMaxDevices;
  if (cached) {
    if (const int id = known[ordinal].load(std::memory_order_acquire)) return DeviceId{static_cast<uint16_t>(id - 1)};
  }
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device(CudaDeviceName(ordinal));
  if (cached) {
    profiler.SetDeviceProbe(device, [=] { return ProbeWithBaseline(ordinal, device, books); });
    known[ordinal].store(static_cast<int>(device) + 1, std::memory_order_release);
  }
  return device;
}

AllocatorId CudaStreamOrderedAllocator() {
  static std::atomic<int> known{-1};
  int allocator = known.load(std::memory_order_relaxed);
  if (allocator < 0) {
    allocator = static_cast<int>(Profiler::Default().Allocator("cudaMallocAsync"));
    known.store(allocator, std::memory_order_relaxed);
  }
  return AllocatorId{static_cast<uint8_t>(allocator)};
}

DeviceProbe ProbeCudaDevice(int ordinal, DeviceId id, const CudaDeviceBooks& books) {
  DeviceProbe probe;
  const Driver* driver = FindDriver();
  CUdevice device = 0;
  if (driver == nullptr || driver->device_get(&device, ordinal) != cuda_driver::kSuccess) return probe;
  // A context is asked only if it is the calling thread's: to hold another one while asking would keep it alive beyond
  // the program's last release, or make it again.
  if (CurrentDevice(*driver) == device) AskCurrentContext(*driver, probe);
  size_t total = 0;
  if (!probe.bytes_limit.has_value() && HasActivePrimaryContext(*driver, device) &&
      driver->device_total_mem != nullptr && driver->device_total_mem(&total, device) == cuda_driver::kSuccess) {
    probe.bytes_limit = static_cast<int64_t>(total);
  }
  AskManagementLibrary(*driver, device, probe);
  if (probe.driver_bytes_in_use.has_value()) {
    probe.driver_cache_bytes = IdlePoolBytes(*driver, ordinal, device, id, books);
  }
  return probe;
}

size_t CudaAddressRangeBytes(const void* ptr) {
  const Driver* driver = FindDriver();
  if (driver == nullptr) return 0;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  return driver->mem_get_address_range(&base, &bytes, Address(ptr)) == cuda_driver::kSuccess ? bytes : 0;
}

int CudaDriverInProcess::CurrentDevice() {
  const Driver* driver = FindDriver();
  return driver == nullptr ? -1 : internal::CurrentDevice(*driver);
}

const void* CudaDriverInProcess::CurrentContext() {
  const Driver* driver = FindDriver();
  Handle context = nullptr;
  if (driver == nullptr || driver->context_get_current == nullptr) return nullptr;
  return driver->context_get_current(&context) == cuda_driver::kSuccess ? context : nullptr;
}

CudaDriverQuestions::Pointer CudaDriverInProcess::DescribePointer(const void* address) {
  Pointer pointer;
  const Driver* driver = FindDriver();
  if (driver == nullptr || driver->pointer_get_attribute == nullptr) return pointer;
  const auto ask = [&](int attribute, auto* answer) {
    return driver->pointer_get_attribute(answer, attribute, Address(address)) == cuda_driver::kSuccess;
  };
  int device = -1;
  int managed = 0;
  unsigned type = 0;
  if (ask(cuda_driver::kPointerDeviceOrdinal, &device)) pointer.device = device;
  if (ask(cuda_driver::kPointerIsManaged, &managed) && managed != 0) {
    pointer.kind = MemoryKind::kManaged;
  } else if (ask(cuda_driver::kPointerMemoryType, &type) && type == cuda_driver::kMemoryTypeHost) {
    pointer.kind = MemoryKind::kPinnedHost;
  }
  return pointer;
}

size_t CudaDriverInProcess::AddressRangeBytes(const void* address) { return CudaAddressRangeBytes(address); }

CudaDriverQuestions::Capture CudaDriverInProcess::CaptureOf(const CudaDriverStream& stream) {
  Capture capture;
  const Driver* driver = FindDriver();
  if (driver == nullptr) return capture;
  const auto ask = stream.per_thread_default ? driver->stream_get_capture_info_ptsz : driver->stream_get_capture_info;
  if (ask == nullptr) return capture;
  int status = 0;
  uint64_t id = 0;
  Handle graph = nullptr;
  const bool answered = ask(stream.stream, &status, &id, &graph, nullptr, nullptr) == cuda_driver::kSuccess;
  if (answered && status == cuda_driver::kCaptureActive) capture = {true, graph};
  return capture;
}

bool CudaDriverInProcess::PrimaryContextActive(int device) {
  const Driver* driver = FindDriver();
  return driver != nullptr && HasActivePrimaryContext(*driver, device);
}

int64_t CudaDriverInProcess::FreeBytes() {
  const Driver* driver = FindDriver();
  size_t free = 0;
  size_t total = 0;
  if (driver == nullptr || driver->mem_get_info(&free, &total) != cuda_driver::kSuccess) return -1;
  return static_cast<int64_t>(free);
}

void CudaDriverInProcess::Recorded(DeviceId device) {
  Baseline& baseline = baselines[static_cast<int>(device)];
  if (baseline.taken.load(std::memory_order_relaxed) || baseline.taken.exchange(true)) return;
  DeviceStats stats;
  if (!Completes([&] { stats = Profiler::Default().Stats(device); }) || !stats.unaccounted.has_value()) return;
  baseline.bytes.store(*stats.unaccounted, std::memory_order_relaxed);
  baseline.known.store(true, std::memory_order_release);
}

}  // namespace hbmprof::internal
