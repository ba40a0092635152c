// Asks the driver directly where the runtime would initialise a device to answer. The driver is used only if the
// process has loaded it already, by its stable ABI names; its calls never touch the runtime's last-error state.
#include "src/backends/cuda/queries.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace hbmprof::internal {
namespace {

// Types of the driver's ABI: CUresult (0 is success), CUdevice, CUcontext, CUdeviceptr.
using DriverResult = int;
using DriverDevice = int;
using DriverContext = void*;
using DriverAddress = uintptr_t;

struct Driver {
  DriverResult (*device_get)(DriverDevice*, int ordinal) = nullptr;
  DriverResult (*primary_context_get_state)(DriverDevice, unsigned* flags, int* active) = nullptr;
  DriverResult (*primary_context_retain)(DriverContext*, DriverDevice) = nullptr;
  DriverResult (*primary_context_release)(DriverDevice) = nullptr;
  DriverResult (*context_push)(DriverContext) = nullptr;
  DriverResult (*context_pop)(DriverContext*) = nullptr;
  DriverResult (*mem_get_info)(size_t* free, size_t* total) = nullptr;
  DriverResult (*mem_get_address_range)(DriverAddress* base, size_t* bytes, DriverAddress) = nullptr;
};

// Null while the process has no (complete) driver. Threads may find it at the same time; no lock is held while the
// dynamic linker's is taken, so this works inside a library's constructor too.
const Driver* FindDriver() {
  static std::atomic<const Driver*> found{nullptr};
  if (const Driver* driver = found.load(std::memory_order_acquire)) return driver;
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto* driver = new Driver;
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    complete = complete && function != nullptr;
  };
  find(driver->device_get, "cuDeviceGet");
  find(driver->primary_context_get_state, "cuDevicePrimaryCtxGetState");
  find(driver->primary_context_retain, "cuDevicePrimaryCtxRetain");
  find(driver->primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  find(driver->context_push, "cuCtxPushCurrent_v2");
  find(driver->context_pop, "cuCtxPopCurrent_v2");
  find(driver->mem_get_info, "cuMemGetInfo_v2");
  find(driver->mem_get_address_range, "cuMemGetAddressRange_v2");
  const Driver* expected = nullptr;
  if (!complete || !found.compare_exchange_strong(expected, driver, std::memory_order_acq_rel)) {
    delete driver;
    return complete ? expected : nullptr;
  }
  return driver;
}

}  // namespace

int CurrentCudaDevice() {
  int ordinal = -1;
  return AskCuda([&] { return cudaGetDevice(&ordinal); }) ? ordinal : -1;
}

std::string CudaDeviceName(int ordinal) { return "GPU:" + std::to_string(ordinal); }

DeviceId CudaDeviceId(int ordinal) {
  static std::atomic<int> known[64];  // id + 1, by ordinal
  if (ordinal < 0) return kDefaultDevice;
  const bool cached = ordinal < 64;
  if (cached) {
    if (const int id = known[ordinal].load(std::memory_order_acquire)) return DeviceId{static_cast<uint16_t>(id - 1)};
  }
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device(CudaDeviceName(ordinal));
  if (cached) {
    profiler.SetDeviceProbe(device, [ordinal] { return ProbeCudaDevice(ordinal); });
    known[ordinal].store(static_cast<int>(device) + 1, std::memory_order_release);
  }
  return device;
}

AllocatorId CudaStreamOrderedAllocator() {
  static const AllocatorId allocator = Profiler::Default().Allocator("cudaMallocAsync");
  return allocator;
}

DeviceProbe ProbeCudaDevice(int ordinal) {
  DeviceProbe probe;
  const Driver* driver = FindDriver();
  if (driver == nullptr) return probe;
  DriverDevice device = 0;
  unsigned flags = 0;
  int active = 0;
  if (driver->device_get(&device, ordinal) != 0) return probe;
  if (driver->primary_context_get_state(device, &flags, &active) != 0 || active == 0) return probe;
  DriverContext context = nullptr;
  if (driver->primary_context_retain(&context, device) != 0) return probe;
  if (driver->context_push(context) == 0) {
    size_t free = 0;
    size_t total = 0;
    if (driver->mem_get_info(&free, &total) == 0) {
      probe.bytes_limit = static_cast<int64_t>(total);
      probe.driver_bytes_in_use = static_cast<int64_t>(total - free);
    }
    driver->context_pop(&context);
  }
  driver->primary_context_release(device);
  return probe;
}

size_t CudaAddressRangeBytes(const void* ptr) {
  const Driver* driver = FindDriver();
  if (driver == nullptr) return 0;
  DriverAddress base = 0;
  size_t bytes = 0;
  const DriverResult result = driver->mem_get_address_range(&base, &bytes, reinterpret_cast<DriverAddress>(ptr));
  return result == 0 ? bytes : 0;
}

}  // namespace hbmprof::internal
