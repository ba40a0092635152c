// A double of TensorFlow's libtensorflow_framework.so.2 (double.h).
#include <string_view>

#include "tests/inject/double.h"

using hbmprof::internal::cuda_driver::CUdeviceptr;

namespace {

int made = 0;
int got = 0;

}  // namespace

namespace tsl {

class BFCAllocator {
 public:
  void Report(const char* event, CUdeviceptr address, int64_t requested, int64_t bytes) {
    AddTraceMe(event, reinterpret_cast<void*>(address), requested, bytes);
    ++made;
  }

 private:
  void AddTraceMe(std::string_view event, const void* chunk, int64_t requested, int64_t bytes);

  const int mark_ = 4711;
};

void BFCAllocator::AddTraceMe(std::string_view event, const void* chunk, int64_t requested, int64_t bytes) {
  const bool is_expected = event.find("llocation") != event.npos && chunk != nullptr && requested == bytes - 1;
  if (mark_ == 4711 && is_expected) ++got;
}

}  // namespace tsl

int double_reports() { return got; }

int double_allocate(const char* scenario_name) {
  constexpr char kAlloc[] = "MemoryAllocation";
  constexpr char kFree[] = "MemoryDeallocation";
  const std::string_view scenario = scenario_name;
  DoubleSegment(1);
  const CUdeviceptr segment = DoubleSegment(0);
  const auto bytes = static_cast<int64_t>(kMiB);
  const auto block = [&](size_t number) { return segment + number * kMiB; };
  tsl::BFCAllocator allocator;
  if (scenario == "silence") return made;
  if (scenario == "unknown first event") allocator.Report("MemoryReallocation", block(1), bytes - 1, bytes);
  for (size_t i = 0; i < 3; ++i) allocator.Report(kAlloc, block(i), bytes - 1, bytes);
  // Blocks in host memory.
  static char host[16];
  const auto on_host = reinterpret_cast<CUdeviceptr>(host);
  allocator.Report(kAlloc, on_host, 15, 16);
  allocator.Report(kAlloc, on_host, 15, 16);
  allocator.Report(kFree, on_host, 31, 32);
  allocator.Report(kAlloc, block(3), bytes - 1, bytes);
  allocator.Report(kFree, block(3), bytes - 1, bytes);
  if (scenario == "unknown free") allocator.Report(kFree, block(8), bytes - 1, bytes);
  if (scenario == "free of another size") allocator.Report(kFree, block(1), 2 * bytes - 1, 2 * bytes);
  if (scenario == "live twice") allocator.Report(kAlloc, block(1), bytes - 1, bytes);
  if (scenario == "unknown event") allocator.Report("MemoryReallocation", block(1), bytes - 1, bytes);
  return made;
}
