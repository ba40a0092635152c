// A program that runs out of memory on the fake driver's devices of 1 GiB. It does not use hbmprof. Modes:
//
//   cuda_out_of_memory_program verdict CASE  fails for the cause CASE
//   cuda_out_of_memory_program threads N     fills the device; then N threads fail at the same time
//   cuda_out_of_memory_program host BYTES    fills the device; fails while the process may map no more than BYTES more
//
// Its last word is "done" if each failed call returned the driver's own error.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/api/out_of_memory_programs.h"
#include "tests/inject/driver_program.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

using driver_program::UseDevice;
constexpr size_t kMiB = size_t{1} << 20;
constexpr CUresult kOutOfMemory = 2;

[[gnu::noinline]] void GrowCache(size_t bytes) {
  driver_program::Allocate(bytes);
  asm volatile("" ::: "memory");  // no tail call
}

void Fails(CUresult result) { CHECK_THAT(result == kOutOfMemory); }

void FailToAllocate(size_t bytes) {
  CUdeviceptr ptr = 0;
  Fails(cuMemAlloc_v2(&ptr, bytes));
}

void FailToPin(size_t bytes) {
  fake_cuda_fail("cuMemHostAlloc", kOutOfMemory, 0);
  void* ptr = nullptr;
  Fails(cuMemHostAlloc(&ptr, bytes, 0));
}

// Physical memory on a node of the host.
void FailToCreateOnNode(size_t bytes) {
  fake_cuda_fail("cuMemCreate", kOutOfMemory, 0);
  CUmemGenericAllocationHandle handle = 0;
  const MemAllocationProp properties{1, 0, {kLocationHost + 1, 0}};
  Fails(cuMemCreate(&handle, bytes, &properties, 0));
}

void FailToCreateArray() {
  fake_cuda_fail("cuArrayCreate_v2", kOutOfMemory, 0);
  constexpr int kFloat = 0x20;
  const ArrayDescriptor of_2_gib{16384, 8192, kFloat, 4};
  Handle array = nullptr;
  Fails(cuArrayCreate_v2(&array, &of_2_gib));
}

void FailInPool(int type, int location, size_t bytes) {
  const MemPoolProps properties{type, 0, {location, 0}, nullptr, 0, {}};
  Handle pool = nullptr;
  CUdeviceptr ptr = 0;
  CHECK_THAT(cuMemPoolCreate(&pool, &properties) == kSuccess);
  fake_cuda_fail("cuMemAllocFromPoolAsync", kOutOfMemory, 0);
  Fails(cuMemAllocFromPoolAsync(&ptr, bytes, pool, nullptr));
}

void LeaveThePoolIdle() {
  setenv("FAKE_CUDA_POOL_KEEPS", "1", 1);
  CUdeviceptr ptr = 0;
  CHECK_THAT(cuMemAllocAsync(&ptr, 448 * kMiB, nullptr) == kSuccess);
  CHECK_THAT(cuMemFreeAsync(ptr, nullptr) == kSuccess);
}

void ExceedThePool(const MemLocation& location) {
  const MemPoolProps properties{1, 0, location, nullptr, 64 * kMiB, {}};
  Handle pool = nullptr;
  CUdeviceptr ptr = 0;
  CHECK_THAT(cuMemPoolCreate(&pool, &properties) == kSuccess);
  CHECK_THAT(cuMemAllocFromPoolAsync(&ptr, 48 * kMiB, pool, nullptr) == kSuccess);
  Fails(cuMemAllocFromPoolAsync(&ptr, 32 * kMiB, pool, nullptr));
}

void FailFor(const std::string& cause) {
  if (cause == "too_large") return FailToAllocate(2048 * kMiB);
  if (cause == "array_too_large") return FailToCreateArray();
  if (cause == "slice_too_small") return FailToAllocate(128 * kMiB);  // FAKE_CUDA_CAPACITY is 64 MiB
  GrowCache(64 * kMiB);
  if (cause == "full") {
    GrowCache(704 * kMiB);
  } else if (cause == "fragmented") {
    fake_cuda_fail("cuMemAlloc_v2", kOutOfMemory, 0);
  } else if (cause == "idle_pool") {
    LeaveThePoolIdle();
  } else if (cause == "other_processes") {
    CHECK_THAT(fake_cuda_take_elsewhere(0, 768 * kMiB) == 0);
  } else if (cause == "unaccounted" || cause == "unaccounted_or_others") {
    CHECK_THAT(fake_cuda_take(0, 768 * kMiB) == 0);
  } else if (cause == "pool_limit") {
    return ExceedThePool({kLocationDevice, 0});
  } else if (cause == "pool_limit_on_another_device") {
    return ExceedThePool({kLocationDevice, 1});
  } else if (cause == "pool_limit_in_locality_domain") {
    return ExceedThePool({kLocationDevice + 5, 0x0201});  // domain 2 of device 1
  } else if (cause == "managed_pool") {
    constexpr int kManaged = 2;
    const oom_program::LockedMemoryLimit limit(4 * kMiB);
    return FailInPool(kManaged, 0, 8 * kMiB);
  } else if (cause == "control_group_of_device") {
    fake_cuda_fail("cuMemAlloc_v2", kOutOfMemory, 0);
  } else if (cause == "integrated") {
    CHECK_THAT(fake_cuda_take_elsewhere(0, 768 * kMiB) == 0);
  } else if (cause == "control_group") {
    return FailToPin(256 * kMiB);
  } else if (cause == "locked_memory") {
    const oom_program::LockedMemoryLimit limit(4 * kMiB);
    return FailToPin(8 * kMiB);
  } else if (cause == "locked_memory_of_node") {
    const oom_program::LockedMemoryLimit limit(4 * kMiB);
    return FailToCreateOnNode(8 * kMiB);
  } else if (cause == "locked_memory_of_pool") {
    const oom_program::LockedMemoryLimit limit(4 * kMiB);
    return FailInPool(1, kLocationHost, 8 * kMiB);
  } else if (cause == "addresses") {
    oom_program::LimitAddresses(64 * kMiB);
  } else if (cause == "unknown") {
    // No context of the device is active, and FAKE_NVML_MEMORY is 0.
    CUmemGenericAllocationHandle handle = 0;
    const MemAllocationProp properties{1, 0, {kLocationDevice, 1}};
    return Fails(cuMemCreate(&handle, 2048 * kMiB, &properties, 0));
  }
  FailToAllocate(512 * kMiB);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK_THAT(argc == 3);
  const std::string mode = argv[1];
  UseDevice(0);
  if (mode == "verdict") {
    FailFor(argv[2]);
  } else {
    GrowCache(768 * kMiB);
    const auto fail = [] {
      UseDevice(0);
      FailToAllocate(512 * kMiB);
    };
    oom_program::FailAs(mode, argv[2], fail);
  }
  std::puts("done");
  return 0;
}
