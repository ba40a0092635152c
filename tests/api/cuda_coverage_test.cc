// CudaCoverage against a double of the injected library's function, in a process whose host memory can run out.
#include "hbmprof/cuda_coverage.h"

#include <cstdlib>
#include <new>

#include "gtest/gtest.h"

namespace {

bool host_memory_is_out = false;
int entries_until_memory_is_out = -1;  // never

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = host_memory_is_out ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// As in the injected library, no exception may leave it.
extern "C" [[gnu::visibility("default")]] void hbmprof_cuda_coverage(void (*visit)(const char*, const char*,
                                                                                   const char*, void*),
                                                                     void* argument) noexcept {
  for (int i = 0; i < 100; ++i) {
    host_memory_is_out = i == entries_until_memory_is_out;
    visit("cuGraphUpload", "passed through", "why it is left alone, in more than a few letters", argument);
  }
  host_memory_is_out = false;
}

namespace hbmprof {
namespace {

TEST(CudaCoverageTest, ListsEveryEntryPoint) {
  const auto coverage = CudaCoverage();
  ASSERT_TRUE(coverage.ok()) << coverage.status();
  EXPECT_EQ(coverage->size(), 100);
  EXPECT_EQ(coverage->back().name, "cuGraphUpload");
  EXPECT_EQ(coverage->back().state, CudaEntryPoint::State::kPassedThrough);
}

TEST(CudaCoverageTest, ReportsThatTheHostHasNoMemory) {
  for (const int entries : {0, 50}) {
    entries_until_memory_is_out = entries;
    EXPECT_EQ(CudaCoverage().status().code(), absl::StatusCode::kResourceExhausted);
  }
  entries_until_memory_is_out = -1;
  EXPECT_TRUE(CudaCoverage().ok());
}

}  // namespace
}  // namespace hbmprof
