// The host memory of the tracker: at most Options::max_host_bytes, for any program. Beyond this limit, new records,
// sites and tags are dropped and counted. Events of known sites are still recorded.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/base/pages.h"
#include "tests/support/resident_bytes.h"

namespace hbmprof {
namespace {

using ::hbmprof_test::ResidentBytes;

constexpr int64_t kMiB = int64_t{1} << 20;

BufferId At(uint64_t i) { return BufferId(uint64_t{0x7f0000000000} + i * 0x10000); }

// Records and frees at the end of call stacks that are all different: each leaf of a binary tree of calls.
class ManyStacks {
 public:
  explicit ManyStacks(Profiler& profiler) : profiler_(profiler) {}

  void Run(int64_t stacks) {
    stacks_left_ = stacks;
    Left(23);
  }
  int64_t recorded() const { return recorded_; }
  int64_t dropped() const { return dropped_; }

 private:
  [[gnu::noinline]] void Left(int depth) {
    Next(depth);
    asm volatile("");
  }
  [[gnu::noinline]] void Right(int depth) {
    Next(depth);
    asm volatile("");
  }
  [[gnu::noinline]] void Next(int depth) {
    if (depth > 0) {
      if (stacks_left_ > 0) Left(depth - 1);
      if (stacks_left_ > 0) Right(depth - 1);
    } else {
      --stacks_left_;
      if (profiler_.RecordAlloc(At(1), 100)) {
        ++recorded_;
        EXPECT_EQ(profiler_.RecordFree(At(1)), 100);
      } else {
        ++dropped_;
      }
    }
    asm volatile("");
  }

  Profiler& profiler_;
  int64_t stacks_left_ = 0;
  int64_t recorded_ = 0;
  int64_t dropped_ = 0;
};

[[gnu::noinline]] bool RecordAtOnePlace(Profiler& profiler, uint64_t i) {
  const bool recorded = profiler.RecordAlloc(At(i), 64);
  asm volatile("");
  return recorded;
}

void ExpectSums(const Profiler& profiler) {
  const Snapshot snapshot = profiler.TakeSnapshot();
  int64_t in_use = 0;
  int64_t allocations = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    in_use += sample.inuse_bytes;
    allocations += sample.alloc_objects;
  }
  for (const Snapshot::Device& device : snapshot.devices) {
    for (const DeviceStats& stats : device.spaces) {
      in_use -= stats.bytes_in_use;
      allocations -= stats.num_allocs;
    }
  }
  EXPECT_EQ(in_use, 0);
  EXPECT_EQ(allocations, 0);
}

TEST(HostMemory, SixMillionStacksStayBelowTheLimit) {
  Options options;
  options.max_host_bytes = 64 * kMiB;
  options.max_sites = INT64_MAX;
  [[maybe_unused]] const int64_t before = ResidentBytes();  // not used under a sanitizer
  Profiler profiler(options);
  const auto fill = [&] {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr int64_t kStacks = 1000000;
#else
    constexpr int64_t kStacks = 6000000;
#endif
    ManyStacks many(profiler);
    many.Run(kStacks);
    EXPECT_EQ(many.recorded() + many.dropped(), kStacks);
    EXPECT_EQ(many.dropped(), 0);

    const TrackerStats stats = profiler.GetTrackerStats();
    EXPECT_EQ(stats.max_host_bytes, 64 * kMiB);
    EXPECT_LE(stats.host_bytes, stats.max_host_bytes + 4096);
    EXPECT_GT(stats.host_bytes, 32 * kMiB) << "the limit was used";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(ResidentBytes() - before, stats.max_host_bytes + 8 * kMiB);
#endif
  };

  // Known sites can still be recorded afterwards. The loop gives both halves the same stack.
  for (uint64_t i = 0; i < 200; ++i) {
    if (i == 100) fill();
    EXPECT_TRUE(RecordAtOnePlace(profiler, 100 + i));
    EXPECT_TRUE(profiler.RecordFree(At(100 + i)));
  }
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 0);
  ExpectSums(profiler);
}

TEST(HostMemory, StacksWithoutASiteTakeNone) {
  Options options;
  options.max_sites = 1000;
  Profiler profiler(options);
  ManyStacks many(profiler);
  int64_t before = 0;
  for (const int64_t stacks : {1000, 500000}) {  // the same ones again, and more
    before = profiler.GetTrackerStats().host_bytes;
    many.Run(stacks);
  }
  EXPECT_EQ(many.recorded(), 501000);
  EXPECT_EQ(profiler.GetTrackerStats().sites, 1001);
  // The cache of captured stacks has its own limit.
  EXPECT_LT(profiler.GetTrackerStats().host_bytes - before, 40 * kMiB);
}

TEST(HostMemory, NewThreadsRecordKnownSitesWhenFull) {
  Options options;
  options.max_host_bytes = internal::HostBytes() + 8 * kMiB;
  options.unwinder = Unwinder::kNone;
  Profiler profiler(options);
  const auto allocate = [&](uint64_t i) { return profiler.RecordAlloc(At(i), 64); };
  ASSERT_TRUE(allocate(0));
  // Attributes make sites.
  constexpr uint32_t kMostSites = 64 * 256 * 8;
  uint32_t site = 1;
  while (site < kMostSites &&
         profiler.RecordAlloc(At(1), 1,
                              {static_cast<DeviceId>(site % 64), static_cast<MemoryKind>(site / 64 % 8),
                               static_cast<AllocatorId>(site / 512)})) {
    ++site;
  }
  ASSERT_LT(site, kMostSites);
  EXPECT_GT(site, 10000u);
  profiler.RecordFree(At(1));
  const int64_t dropped = profiler.GetTrackerStats().dropped_records;
  EXPECT_EQ(dropped, 1);
  std::vector<std::thread> threads;
  std::atomic<int64_t> failures{0};
  for (uint64_t t = 0; t < 80; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; round < 100; ++round) {
        if (!allocate(100 + t)) failures.fetch_add(1);
        if (profiler.RecordFree(At(100 + t)) != 64) failures.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, dropped);
  EXPECT_LE(profiler.GetTrackerStats().host_bytes, options.max_host_bytes);
  ExpectSums(profiler);
}

TEST(HostMemory, BuffersSegmentsAndTagsKeepToTheLimit) {
  Options options;
  options.max_host_bytes = internal::HostBytes() + 24 * kMiB;
  options.unwinder = Unwinder::kNone;
  Profiler profiler(options);
  int64_t live = 0;
  for (uint64_t i = 0; i < 2000000; ++i) {
    if (profiler.RecordAlloc(At(i), 8)) ++live;
  }
  EXPECT_GT(live, 100000);
  EXPECT_LT(live, 2000000);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 2000000 - live);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 8 * live);
  int64_t segments = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    if (profiler.RecordSegment({}, BufferId((uint64_t{1} << 50) + i * 4096), 4096)) ++segments;
  }
  EXPECT_LT(segments, 200000);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 2000000 - live + 200000 - segments);
  const int64_t dropped_tags = profiler.GetTrackerStats().dropped_tag_values;
  for (int i = 0; i < 60000; ++i) {
    const ScopedTag one("one " + std::to_string(i / 1000), std::to_string(i % 1000));
    const ScopedTag two("two " + std::to_string(i % 60), std::to_string(i / 60));
  }
  EXPECT_GT(profiler.GetTrackerStats().dropped_tag_values, dropped_tags);
  EXPECT_LE(profiler.GetTrackerStats().host_bytes, options.max_host_bytes);
  ExpectSums(profiler);

  // Frees make space for new records.
  for (uint64_t i = 0; i < 2000000; ++i) profiler.RecordFree(At(i));
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 4096 * segments);
  for (uint64_t i = 0; i < static_cast<uint64_t>(live) / 2; ++i) ASSERT_TRUE(profiler.RecordAlloc(At(i), 8));
}

TEST(HostMemory, TinyLimitRecordsNothing) {
  Options options;
  options.max_host_bytes = 1;
  Profiler profiler(options);
  EXPECT_FALSE(profiler.RecordAlloc(At(1), 10));
  EXPECT_FALSE(profiler.RecordSegment({}, At(2), 10));
  EXPECT_FALSE(profiler.RecordBlock({}, At(3), 10));
  EXPECT_FALSE(profiler.RecordFree(At(1)));
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 3);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_bytes, 30);
  EXPECT_EQ(profiler.TakeSnapshot().samples.size(), 0u);
}

TEST(HostMemory, DestroyedProfilerFreesItsMemory) {
  const int64_t before = internal::HostBytes();
  {
    Options options;
    options.unwinder = Unwinder::kNone;
    const Profiler large(options);
    EXPECT_EQ(large.GetTrackerStats().max_host_bytes, options.max_host_bytes);
    options.max_host_bytes = 1000 * kMiB;
    Profiler small(options);
    for (uint64_t i = 0; i < 10000; ++i) ASSERT_TRUE(small.RecordAlloc(At(i), 1 + i));
    EXPECT_EQ(large.GetTrackerStats().max_host_bytes, 1000 * kMiB);
    EXPECT_GT(internal::HostBytes(), before);
  }
  // A thread's own memory and tables that profilers share are kept.
  EXPECT_EQ(internal::HostBytes(), before);
}

}  // namespace
}  // namespace hbmprof
