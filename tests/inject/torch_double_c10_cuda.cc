#include <string_view>

#include "tests/inject/double.h"
#include "tests/inject/torch_double.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types and calls

namespace {

constexpr int8_t kCuda = 1;

int reports = 0;

void Report(CUdeviceptr address, int64_t bytes, size_t allocated, size_t reserved, int8_t index = 0,
            int8_t type = kCuda) {
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(address), bytes, allocated, reserved, {type, index});
  ++reports;
}

// Maps physical memory of 20 MiB at `address`. Returns its handle.
CUmemGenericAllocationHandle MapMemory(CUdeviceptr address) {
  const MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
  CUmemGenericAllocationHandle handle = 0;
  cuMemCreate(&handle, 20 * kMiB, &properties, 0);
  cuMemMap(address, 20 * kMiB, 0, handle, 0);
  return handle;
}

// Allocates three blocks of a pool of mapped memory, and unmaps the memory while the blocks are live, as the sleep mode
// of vLLM does. Maps memory again, frees one of the blocks, and allocates another block.
void SleepAndWakeUp() {
  CUdeviceptr pool = 0;
  cuMemAddressReserve(&pool, 20 * kMiB, 0, 0, 0);
  const CUmemGenericAllocationHandle memory = MapMemory(pool);
  const auto bytes = static_cast<int64_t>(kMiB);
  for (size_t i = 0; i < 3; ++i) Report(pool + i * kMiB, bytes, (i + 1) * kMiB, 20 * kMiB);
  cuMemUnmap(pool, 20 * kMiB);
  cuMemRelease(memory);
  MapMemory(pool);
  Report(pool + kMiB, -bytes, 2 * kMiB, 20 * kMiB);
  Report(pool + 5 * kMiB, bytes, 3 * kMiB, 20 * kMiB);
}

}  // namespace

int double_allocate(const char* scenario_name) {
  const std::string_view scenario = scenario_name;
  const CUdeviceptr segment = DoubleSegment(0);
  const auto bytes = static_cast<int64_t>(kMiB);
  const auto block = [&](size_t number) { return segment + number * kMiB; };
  if (scenario == "silence") return reports;
  if (scenario == "sleep") {
    SleepAndWakeUp();
    return reports;
  }
  for (size_t i = 0; i < 3; ++i) Report(block(i), bytes, (i + 1) * kMiB, 20 * kMiB);
  Report(block(3), bytes, 5 * kMiB, 20 * kMiB, 0, /*type=*/0);  // of the host's memory
  if (scenario == "total") Report(block(3), bytes, 5 * kMiB, 20 * kMiB);
  if (scenario == "reserved") Report(block(3), bytes, 4 * kMiB, 3 * kMiB);
  if (scenario == "unknown free") Report(block(8), -bytes, 2 * kMiB, 20 * kMiB);
  if (scenario == "free of another size") Report(block(1), -2 * bytes, 1 * kMiB, 20 * kMiB);
  if (scenario == "live twice") Report(block(1), bytes, 4 * kMiB, 20 * kMiB);
  if (scenario == "device number") Report(block(3), bytes, kMiB, 20 * kMiB, 100);
  if (scenario == "out of memory") {
    c10::reportOutOfMemoryToProfiler(4711, 815, 42, {kCuda, 0});
    ++reports;
  }
  return reports;
}
