// LeakCheck and PeakCheck in GoogleTest tests.
#include "hbmprof/leak_check.h"

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/simulated_device.h"
#include "hbmprof/tag.h"
#include "src/capture/given_stack.h"
#include "src/capture/python/named_frames.h"

// Functions whose names the tests look for in the report.
[[gnu::noinline]] void* AllocatePage(hbmprof::DeviceAllocator& allocator, size_t bytes) {
  void* page = allocator.Allocate(bytes).value();
  asm volatile("" ::: "memory");  // no jump instead of the call
  return page;
}

namespace hbmprof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LeakCheckTest : public testing::Test {
 protected:
  Profiler profiler_;
  std::unique_ptr<SimulatedDevice> device_ = SimulatedDevice::Create({}).value();
  TrackingAllocator allocator_{*device_, "pages", profiler_};
};

TEST_F(LeakCheckTest, PassesIfEverythingIsFreed) {
  const LeakCheck leaks(profiler_);
  void* page = AllocatePage(allocator_, 256);
  EXPECT_EQ(leaks.LeakedBytes(), 256);
  ASSERT_TRUE(allocator_.Free(page).ok());
  EXPECT_EQ(leaks.LeakedBytes(), 0);
  EXPECT_EQ(leaks.Report(), "");
}

TEST_F(LeakCheckTest, FailsWithTheStackOfALeakOf256Bytes) {
  void* page = nullptr;
  EXPECT_NONFATAL_FAILURE(
      {
        const LeakCheck leaks(profiler_);
        page = AllocatePage(allocator_, 256);
      },
      "device memory allocated in this scope was not freed: 256 B in 1 buffer\n"
      "  256 B in 1 buffer on sim:0, device, allocator pages\n"
      "    #0 AllocatePage\n");
  ASSERT_TRUE(allocator_.Free(page).ok());
}

// Failed before: the new device had the addresses of the old one, so its buffer replaced the record of the first leak.
TEST_F(LeakCheckTest, FindsTheLeakOfACallSiteThatHasLeakedOnAnEarlierDevice) {
  for (int i = 0; i < 3; ++i) {
    const std::unique_ptr<SimulatedDevice> device = SimulatedDevice::Create({}).value();
    TrackingAllocator allocator(*device, "pages", profiler_);
    LeakCheck leaks(profiler_);
    AllocatePage(allocator, 256);
    EXPECT_EQ(leaks.LeakedBytes(), 256) << i;
    leaks.Dismiss();
  }
}

TEST_F(LeakCheckTest, NamesPythonFunctions) {
  const LeakCheck leaks(profiler_);
  const uintptr_t stack[] = {internal::InternNamedFrame("Cache.grow", "cache.py", 26, 20),
                             reinterpret_cast<uintptr_t>(&AllocatePage) + 1};
  ASSERT_TRUE(profiler_.RecordAllocFrom(internal::CallerOfStack(stack, 2), BufferId(uint64_t{4096}), 100, {}));
  EXPECT_THAT(leaks.Report(), HasSubstr("    #0 Cache.grow cache.py:26\n    #1 AllocatePage\n"));
  profiler_.RecordFree(BufferId(uint64_t{4096}));
}

TEST_F(LeakCheckTest, CountsOtherThreadsAndNotOlderBuffers) {
  void* before = AllocatePage(allocator_, 4096);
  LeakCheck leaks(profiler_);
  void* kept = nullptr;
  std::thread([&] {
    kept = AllocatePage(allocator_, 512);
    void* freed = AllocatePage(allocator_, 1024);
    EXPECT_TRUE(allocator_.Free(freed).ok());
  }).join();
  EXPECT_EQ(leaks.LeakedBytes(), 512);
  EXPECT_THAT(leaks.Report(), AllOf(HasSubstr("512 B in 1 buffer"), Not(HasSubstr("4096"))));
  leaks.Dismiss();
  ASSERT_TRUE(allocator_.Free(kept).ok());
  ASSERT_TRUE(allocator_.Free(before).ok());
}

TEST_F(LeakCheckTest, ResizedOlderBufferIsNoLeak) {
  void* older[2];
  for (void*& page : older) page = AllocatePage(allocator_, 4096);
  LeakCheck leaks(profiler_);
  ASSERT_TRUE(profiler_.RecordResize(BufferId(older[0]), 8192));
  EXPECT_EQ(leaks.Report(), "");
  ASSERT_TRUE(profiler_.RecordResize(BufferId(older[0]), 2048));
  EXPECT_EQ(leaks.Report(), "");
  void* kept = AllocatePage(allocator_, 512);
  EXPECT_GT(leaks.LeakedBytes(), 0) << "though the call site has fewer bytes than before";
  for (void* const page : {kept, older[0], older[1]}) ASSERT_TRUE(allocator_.Free(page).ok());
  EXPECT_EQ(leaks.Report(), "");
}

TEST_F(LeakCheckTest, ListsTheLargestFirstWithTheirTags) {
  LeakCheck leaks(profiler_);
  void* small = AllocatePage(allocator_, 256);
  void* large = nullptr;
  {
    const ScopedTag tag("phase", "decode");
    large = AllocatePage(allocator_, 1 << 20);
  }
  const std::string report = leaks.Report();
  EXPECT_THAT(report, HasSubstr("1048832 B in 2 buffers"));
  EXPECT_LT(report.find("1048576 B in 1 buffer on sim:0, device, allocator pages, phase=decode"),
            report.find("256 B in 1 buffer on sim:0"));
  ASSERT_TRUE(allocator_.Free(small).ok());
  ASSERT_TRUE(allocator_.Free(large).ok());
}

TEST_F(LeakCheckTest, FailsIfRecordingIsOff) {
  EXPECT_NONFATAL_FAILURE(
      {
        profiler_.SetEnabled(false);
        const LeakCheck leaks(profiler_);
      },
      "recording is off");
  profiler_.SetEnabled(true);
  EXPECT_NONFATAL_FAILURE(
      {
        const LeakCheck leaks(profiler_);
        profiler_.SetEnabled(false);
      },
      "recording is off");
  profiler_.SetEnabled(true);
}

TEST_F(LeakCheckTest, FailsWithTheOptionsOfHbmprof0) {
  Options options;
  options.enabled = false;
  Profiler profiler(options);
  EXPECT_NONFATAL_FAILURE({ const LeakCheck leaks(profiler); }, "is HBMPROF=0 set?");
}

TEST_F(LeakCheckTest, FailsIfAllocationsWereDropped) {
  Options options;
  options.max_live_buffers = 1;
  Profiler profiler(options);
  static char buffers[2];
  EXPECT_NONFATAL_FAILURE(
      {
        const LeakCheck leaks(profiler);
        EXPECT_TRUE(profiler.RecordAlloc(&buffers[0], 1));
        EXPECT_FALSE(profiler.RecordAlloc(&buffers[1], 1));
        EXPECT_TRUE(profiler.RecordFree(&buffers[0]));
      },
      "1 allocations in this scope were not recorded");
}

TEST_F(LeakCheckTest, IgnoresLoadedCode) {
  hbmprof::Attributes attributes;
  attributes.kind = hbmprof::MemoryKind::kExecutable;
  const LeakCheck check(profiler_);
  profiler_.RecordAlloc(&attributes, 256, attributes);
  EXPECT_EQ(check.LeakedBytes(), 0);
}

TEST_F(LeakCheckTest, IgnoresIdleMemoryOfPools) {
  const LeakCheck leaks(profiler_);
  static char segment[4096];
  profiler_.RecordSegment({}, segment, sizeof(segment));
  profiler_.RecordBlock({}, segment, 256);
  EXPECT_EQ(leaks.LeakedBytes(), 256);
  profiler_.RecordBlockFree({}, segment);
  EXPECT_EQ(leaks.LeakedBytes(), 0);
}

using PeakCheckTest = LeakCheckTest;

TEST_F(PeakCheckTest, PassesUpToTheLimit) {
  void* before = AllocatePage(allocator_, 1 << 20);
  const PeakCheck peak(4096, profiler_);
  EXPECT_EQ(peak.PeakBytes(), 0) << "what is in use at the start does not count";
  void* page = AllocatePage(allocator_, 4096);
  ASSERT_TRUE(allocator_.Free(page).ok());
  EXPECT_EQ(peak.PeakBytes(), 4096);
  EXPECT_EQ(peak.Report(), "");
  ASSERT_TRUE(allocator_.Free(before).ok());
}

TEST_F(PeakCheckTest, FailsWithTheStacksThatHeldTheMemoryAtThePeak) {
  void* older = AllocatePage(allocator_, 512);
  EXPECT_NONFATAL_FAILURE(
      {
        const PeakCheck peak(4096, profiler_);
        void* small = AllocatePage(allocator_, 256);
        void* large = nullptr;
        {
          const ScopedTag tag("phase", "decode");
          large = AllocatePage(allocator_, 8192);
        }
        EXPECT_TRUE(allocator_.Free(large).ok());
        EXPECT_TRUE(allocator_.Free(small).ok());
        EXPECT_TRUE(allocator_.Free(AllocatePage(allocator_, 2048)).ok());  // after the peak
      },
      "this scope used 8448 B of sim:0 at its peak, more than 4096 B; the call stacks with the most at that time:\n"
      "  8192 B in 1 buffer on sim:0, device, allocator pages, phase=decode\n"
      "    #0 AllocatePage\n");
  ASSERT_TRUE(allocator_.Free(older).ok());
}

TEST_F(PeakCheckTest, ShowsWhatWasAddedToTheStartOnly) {
  void* older = AllocatePage(allocator_, 512);
  PeakCheck peak(0, profiler_);
  void* page = AllocatePage(allocator_, 256);
  EXPECT_THAT(peak.Report(), AllOf(HasSubstr("  256 B in 1 buffer on sim:0"), Not(HasSubstr("512 B"))));
  peak.Dismiss();
  for (void* const one : {older, page}) ASSERT_TRUE(allocator_.Free(one).ok());
}

TEST_F(PeakCheckTest, FewerButLargerBuffersAreNoNegativeNumberOfBuffers) {
  std::vector<void*> pages;
  std::optional<PeakCheck> peak;
  for (const size_t bytes : {256, 256, 256, 4096}) {  // one call stack
    if (bytes == 4096) {
      peak.emplace(0, profiler_);
      for (void* const page : pages) ASSERT_TRUE(allocator_.Free(page).ok());
    }
    pages.push_back(AllocatePage(allocator_, bytes));
  }
  EXPECT_EQ(peak->PeakBytes(), 4096 - 3 * 256);
  EXPECT_THAT(peak->Report(), HasSubstr("  3328 B in larger buffers on sim:0"));
  peak->Dismiss();
  ASSERT_TRUE(allocator_.Free(pages.back()).ok());
}

TEST_F(PeakCheckTest, IdleMemoryOfPoolsCountsAndPinnedMemoryDoesNot) {
  PeakCheck peak(0, profiler_);
  static char segment[4096];
  static char pinned[100];
  profiler_.RecordSegment({}, segment, sizeof(segment));
  profiler_.RecordBlock({}, segment, 256);
  ASSERT_TRUE(profiler_.RecordAlloc(pinned, sizeof(pinned), {kDefaultDevice, MemoryKind::kPinnedHost}));
  EXPECT_EQ(peak.PeakBytes(), 4096);
  EXPECT_THAT(peak.Report(), AllOf(HasSubstr("  3840 B in 1 buffer on GPU:0, pool"), Not(HasSubstr("pinned"))));
  peak.Dismiss();
}

TEST_F(PeakCheckTest, CountsEachDeviceByItself) {
  SimulatedDevice::Options options;
  options.name = "sim:1";
  const std::unique_ptr<SimulatedDevice> second = SimulatedDevice::Create(options).value();
  TrackingAllocator other(*second, "others", profiler_);
  PeakCheck peak(1024, profiler_);
  void* first = AllocatePage(allocator_, 1024);
  void* page = AllocatePage(other, 1536);
  EXPECT_EQ(peak.PeakBytes(), 1536);
  EXPECT_THAT(peak.Report(), AllOf(HasSubstr("used 1536 B of sim:1"), Not(HasSubstr("sim:0"))));
  peak.Dismiss();
  ASSERT_TRUE(allocator_.Free(first).ok());
  ASSERT_TRUE(other.Free(page).ok());
}

TEST_F(PeakCheckTest, FailsIfItBeginsInsideAnother) {
  const PeakCheck outer(1 << 20, profiler_);
  EXPECT_NONFATAL_FAILURE({ const PeakCheck inner(1 << 20, profiler_); },
                          "the peak could not be checked: its scope begins inside that of another PeakCheck\n");
  Profiler other;
  const PeakCheck of_another_profiler(1 << 20, other);
}

TEST_F(PeakCheckTest, WarnsIfNothingWasEverRecorded) {
  const auto printed = [](Profiler& profiler) {
    testing::internal::CaptureStderr();
    { const PeakCheck peak(0, profiler); }
    { const LeakCheck leaks(profiler); }
    return testing::internal::GetCapturedStderr();
  };
  Profiler unused;
  EXPECT_THAT(printed(unused), AllOf(HasSubstr("leak_check_test.cc:"),
                                     HasSubstr(": warning: the peak: nothing was checked, because no device memory"),
                                     HasSubstr(": warning: leaks: nothing was checked, because no device memory")));
  void* page = AllocatePage(allocator_, 256);
  EXPECT_EQ(printed(profiler_), "");
  EXPECT_TRUE(allocator_.Free(page).ok());
}

TEST_F(PeakCheckTest, FailsIfRecordingIsOff) {
  EXPECT_NONFATAL_FAILURE(
      {
        profiler_.SetEnabled(false);
        const PeakCheck peak(1 << 20, profiler_);
      },
      "the peak could not be checked: recording is off");
  profiler_.SetEnabled(true);
}

}  // namespace
}  // namespace hbmprof
