// A program whose own operator new takes memory with a recorded call: the first such call makes the profiler and the
// tables of the wrappers, which take memory themselves.
#include <cstddef>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "hbmprof/cuda.h"
#include "hbmprof/profiler.h"

extern "C" {
extern const char __executable_start;  // NOLINT: the linker's names
extern const char etext;               // NOLINT
}

namespace {

thread_local bool is_on = false;

// The fake libraries also call the program's operator new. The real ones do not, so their calls use malloc here.
bool IsFromProgram(const void* returns_to) {
  const char* const caller = static_cast<const char*>(returns_to);
  return caller >= &__executable_start && caller < &etext;
}

void* Allocate(size_t bytes, const void* returns_to) {
  void* memory = nullptr;
  if (is_on && IsFromProgram(returns_to)) {
    if (hbmprof::cuda::MallocManaged(&memory, bytes) == cudaSuccess) return memory;
    throw std::bad_alloc();
  }
  memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) { return Allocate(bytes, __builtin_return_address(0)); }
[[gnu::noinline]] void* operator new[](size_t bytes) { return Allocate(bytes, __builtin_return_address(0)); }
// Nothing is freed, because an object does not know where its memory came from.
void operator delete(void*) noexcept {}
void operator delete[](void*) noexcept {}
void operator delete(void*, size_t) noexcept {}
void operator delete[](void*, size_t) noexcept {}

namespace {

[[gnu::noinline]] void* New(size_t bytes) { return ::operator new(bytes); }

TEST(CudaOperatorNewTest, FirstUseAndLaterOnesAreRecorded) {
  constexpr size_t kBytes = 123'456;
  constexpr int kTimes = 10;
  is_on = true;
  for (int i = 0; i < kTimes; ++i) New(kBytes);
  is_on = false;
  int64_t objects = 0;
  for (const hbmprof::Snapshot::Sample& sample : hbmprof::Profiler::Default().TakeSnapshot().samples) {
    if (sample.alloc_bytes != static_cast<int64_t>(kBytes) * sample.alloc_objects) continue;
    EXPECT_EQ(sample.kind, hbmprof::MemoryKind::kManaged);
    objects += sample.inuse_objects;
  }
  EXPECT_EQ(objects, kTimes);
  EXPECT_TRUE(hbmprof::Profiler::Default().Stats(hbmprof::kDefaultDevice).bytes_limit.has_value())
      << "the probe is set";
}

}  // namespace
