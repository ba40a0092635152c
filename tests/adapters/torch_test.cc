// TrackTorchAllocator: PyTorch's real libc10_cuda.so on a substitute for the runtime.
#include "hbmprof/adapters/torch.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "tests/adapters/adapter_tests.h"
#include "tests/support/fake_cudart/fake_cuda.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/temporary_directory.h"

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;
using adapter_tests::ExpectNoLosses;
using adapter_tests::InUse;
using adapter_tests::OperateAtRandom;
using adapter_tests::OutOfMemoryReports;
using adapter_tests::StackOf;
using hbmprof::MemoryKind;
using hbmprof::Profiler;
using hbmprof::adapters::TrackTorchAllocator;
using hbmprof_test::CommandResult;
using hbmprof_test::RunCommand;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;
constexpr char kSettings[] = "PYTORCH_CUDA_ALLOC_CONF";

// Initializes the allocator as ATen does when a program first uses CUDA.
void InitializeCuda() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
  c10::cuda::detail::init_p2p_access_cache(fake_cuda_device_count());
#endif
  pytorch::init(fake_cuda_device_count());
}

// Expects that the sums of the profiler equal the counters of PyTorch and of the device, for each device.
void ExpectExact() {
  Profiler& profiler = Profiler::Default();
  for (int device = 0; device < fake_cuda_device_count(); ++device) {
    const std::string name = "GPU:" + std::to_string(device);
    const auto stats = pytorch::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const int64_t requested = stats.requested_bytes[0].current;  // 0: of all pools
    const int64_t reserved = stats.reserved_bytes[0].current;
    EXPECT_EQ(InUse(profiler, name, MemoryKind::kDevice), requested) << name;
    EXPECT_EQ(InUse(profiler, name, MemoryKind::kPool), reserved - requested) << name;
    EXPECT_EQ(InUse(profiler, name), reserved) << name;
    const size_t context = fake_cuda_context_active(device) != 0 ? fake_cuda_context_bytes() : 0;
    EXPECT_EQ(reserved, static_cast<int64_t>(fake_cuda_bytes_in_use(device) - context)) << name;
  }
  ExpectNoLosses(profiler);
}

// The allocator cannot be reset, so all tests of a process use one.
class TorchTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    InitializeCuda();
    EXPECT_TRUE(TrackTorchAllocator().ok());
  }

  Profiler& profiler_ = Profiler::Default();
};

// Returns true if this process was started with these settings of the allocator, which PyTorch reads only once.
// Otherwise runs the current test in a process with them, and returns false.
bool IsInProcessWith(const std::string& settings) {
  const char* const present = std::getenv(kSettings);
  if (present != nullptr && settings == present) return true;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test.test_suite_name()) + "." + test.name();
  const CommandResult run =
      RunCommand({"/proc/self/exe", "--gtest_filter=" + name}, {std::string(kSettings) + "=" + settings}, {"", 120});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("[  PASSED  ] 1 test"));
  return false;
}

void OperateOnTwoDevices() {
  const auto live = OperateAtRandom(
      [](size_t bytes) {
        c10::cuda::set_device(static_cast<c10::DeviceIndex>(bytes % 2));
        if (bytes % 1000 == 0) pytorch::emptyCache();
        return pytorch::raw_alloc(bytes);
      },
      [](void* memory, size_t /*bytes*/) { pytorch::raw_delete(memory); }, 3 * kMiB / 2);
  ExpectExact();
  pytorch::emptyCache();
  ExpectExact();
  for (size_t i = 0; i < live.size(); ++i) {
    if (i % 2 == 0) pytorch::raw_delete(live[i].first);
  }
  pytorch::emptyCache();
  ExpectExact();
  for (size_t i = 1; i < live.size(); i += 2) pytorch::raw_delete(live[i].first);
  ExpectExact();
  pytorch::emptyCache();
  ExpectExact();
}

TEST_F(TorchTest, RandomOperationsAreExact) { OperateOnTwoDevices(); }

TEST_F(TorchTest, ExpandableSegmentsAreExact) {
  if (!IsInProcessWith("expandable_segments:True")) return;
  OperateOnTwoDevices();
  EXPECT_GT(fake_cuda_calls("cuMemMap"), 0);
}

[[gnu::noinline]] void* User(size_t bytes, uintptr_t* returns_to) {
  *returns_to = RETURNS_TO;
  return pytorch::raw_alloc(bytes);
}

TEST_F(TorchTest, StackBeginsInTheAllocator) {
  uintptr_t returns_to = 0;
  void* const memory = User(777, &returns_to);
  const std::vector<uint64_t> stack = StackOf(profiler_, 777);
  Dl_info innermost = {};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(stack.front() - 1), &innermost), 0);
  EXPECT_THAT(innermost.dli_fname, testing::EndsWith("libc10_cuda.so"));
  EXPECT_THAT(stack, testing::Contains(returns_to));
  pytorch::raw_delete(memory);
}

TEST_F(TorchTest, BlockCountsUntilItsStreamsHaveFinished) {
  c10::DataPtr tensor = pytorch::get()->allocate(3 * kMiB);
  pytorch::recordStream(tensor, c10::cuda::getStreamFromPool());
  tensor.clear();
  ExpectExact();
  const int64_t pending = InUse(profiler_, "GPU:0", MemoryKind::kDevice);
  EXPECT_GE(pending, static_cast<int64_t>(3 * kMiB));
  fake_cuda_fail("cudaEventQuery", 600, 0);  // cudaErrorNotReady
  void* const small = pytorch::raw_alloc(512);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), pending + 512);
  ExpectExact();
  pytorch::raw_delete(small);
  pytorch::raw_delete(pytorch::raw_alloc(512));
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), pending - static_cast<int64_t>(3 * kMiB));
  ExpectExact();
}

TEST_F(TorchTest, FinalOutOfMemoryIsReported) {
  std::vector<void*> blocks;
  const auto allocate = [&](size_t bytes) { blocks.push_back(pytorch::raw_alloc(bytes)); };
  for (int i = 0; i < 4; ++i) allocate(200 * kMiB);
  for (void* const block : blocks) pytorch::raw_delete(block);
  blocks.clear();
  EXPECT_EQ(OutOfMemoryReports("GPU:0", [&] { allocate(500 * kMiB); }), 0) << "PyTorch frees its cache and succeeds";
  EXPECT_EQ(OutOfMemoryReports("GPU:0", [&] { EXPECT_THROW(allocate(900 * kMiB), c10::OutOfMemoryError); }), 1);
  for (void* const block : blocks) pytorch::raw_delete(block);
  ExpectExact();
}

TEST_F(TorchTest, IsRecordedOnce) {
  const absl::Status again = TrackTorchAllocator();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists) << again;
}

// Begins to record when there are blocks, and a cache of freed ones.
void OperateFromBefore() {
  InitializeCuda();
  std::vector<void*> blocks;
  for (const size_t bytes : {size_t{777}, 3 * kMiB, 30 * kMiB, 5 * kMiB, 70 * kMiB}) {
    blocks.push_back(pytorch::raw_alloc(bytes));
  }
  for (const size_t freed : {1u, 2u}) pytorch::raw_delete(blocks[freed]);
  ASSERT_TRUE(TrackTorchAllocator().ok());
  ExpectExact();
  pytorch::emptyCache();
  ExpectExact();
  blocks[1] = pytorch::raw_alloc(40 * kMiB);
  ExpectExact();
  for (const size_t kept : {0u, 1u, 3u, 4u}) pytorch::raw_delete(blocks[kept]);
  pytorch::emptyCache();
  ExpectExact();
  EXPECT_EQ(InUse(Profiler::Default(), "GPU:0"), 0);
}
TEST(TorchFromBeforeTest, SegmentsAreExact) {
  if (IsInProcessWith("backend:native")) OperateFromBefore();
}
TEST(TorchFromBeforeTest, ExpandableSegmentsAreExact) {
  if (IsInProcessWith("expandable_segments:True")) OperateFromBefore();
}

TEST(TorchErrorsTest, AllocatorMustBeInitialized) {
  if (!IsInProcessWith("backend:native")) return;
  const absl::Status early = TrackTorchAllocator();
  EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(early.message(), HasSubstr("call TrackTorchAllocator after CUDA is initialized"));
  InitializeCuda();
  EXPECT_TRUE(TrackTorchAllocator().ok());
}

TEST(TorchErrorsTest, StreamOrderedBackendIsRefused) {
  if (!IsInProcessWith("backend:cudaMallocAsync")) return;
  InitializeCuda();
  const absl::Status status = TrackTorchAllocator();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("cudaMallocAsync"));
}

// The program of the example, which also runs under the injected library.
#if defined(HBMPROF_TORCH_EXAMPLE)
TEST(TorchExampleTest, UnderTheInjectedLibraryMemoryCountsOnce) {
  const std::string directory = hbmprof_test::NewDirectory();
  const std::string after = directory + "/after.pb.gz";
  const CommandResult run =
      RunCommand({HBMPROF_TORCH_EXAMPLE, directory + "/before.pb.gz", after}, {"LD_PRELOAD=" HBMPROF_INJECTED});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  long long requested = 0;
  long long allocated = 0;
  long long reserved = 0;
  ASSERT_EQ(std::sscanf(run.out.c_str(), "requested %lld B, allocated %lld B, reserved %lld B", &requested, &allocated,
                        &reserved),
            3)
      << run.out;
  const hbmprof_test::ProfileView view = hbmprof_test::ViewProfile(after);
  EXPECT_EQ(view.SumWhere("inuse_space", "kind", "device"), allocated)
      << "the sizes of the blocks, as under hbmprof run";
  EXPECT_EQ(view.Sum("inuse_space"), reserved);
  EXPECT_THAT(view.comments, testing::Not(testing::Contains(HasSubstr("warning"))));
  for (const char* key : {"foreign_frees", "replaced_records", "dropped_records"}) {
    EXPECT_EQ(view.Comment("tracker", key), "0") << key;
  }
}

#if defined(HBMPROF_TOOL)
TEST(TorchExampleTest, DiffShowsTheLeakFirst) {
  const std::string directory = hbmprof_test::NewDirectory();
  const std::string before = directory + "/before.pb.gz";
  const std::string after = directory + "/after.pb.gz";
  const CommandResult run = RunCommand({HBMPROF_TORCH_EXAMPLE, before, after});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  // Seven more requests keep 100,000 bytes each.
  EXPECT_EQ(run.out, "requested 3900000 B, allocated 3903488 B, reserved 23068672 B\n");
  const CommandResult diff =
      RunCommand({HBMPROF_TOOL, "diff", "--exact", "--own", "-w", "kind=device", "-n", "1", before, after});
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out,
              ContainsRegex("where\n\\+700000 B +[0-9.]+% +\\+700000 B +[0-9.]+% +200000 B +900000 B +GrowCache "));
  EXPECT_THAT(diff.out, HasSubstr("inuse_space: +700000 B"));
}
#endif
#endif

}  // namespace
