// The Profiler as its user sees it: one thread's events, bad input, limits, pools, snapshots.
//
// Not in this file: exactness under many threads (tests/stress), processes that fork or exit (tests/programs).

#include "hbmprof/profiler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/pprof.h"
#include "hbmprof/tag.h"
#include "src/base/pages.h"
#include "src/base/thread_state.h"
#include "src/core/device_driver.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"

// Frames of functions in this section are known by their addresses.
extern "C" {
extern const char __start_hbmprof_test_frames[];  // NOLINT: the linker's name
extern const char __stop_hbmprof_test_frames[];   // NOLINT
}

namespace hbmprof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// The addresses of buffers that are not really allocated.
BufferId At(uint64_t i) { return BufferId(uint64_t{0x7f0000000000} + i * 0x10000); }

using Value = int64_t Snapshot::Sample::*;

int64_t Sum(const Snapshot& snapshot, Value value, const std::function<bool(const Snapshot::Sample&)>& selects) {
  int64_t sum = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    if (selects(sample)) sum += sample.*value;
  }
  return sum;
}

const Snapshot::Device* FindDevice(const Snapshot& snapshot, std::string_view name) {
  for (const Snapshot::Device& device : snapshot.devices) {
    if (device.name == name) return &device;
  }
  return nullptr;
}

// Expects the invariants of every snapshot: indices are valid, sums equal the totals, the labels of a sample are
// distinct.
void ExpectSound(const Snapshot& snapshot) {
  std::set<std::string> labels;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    ASSERT_LT(sample.stack, snapshot.stacks.size());
    ASSERT_LT(sample.device, snapshot.devices.size());
    ASSERT_LT(sample.allocator, snapshot.allocators.size());
    std::string label = std::to_string(sample.stack) + "," + std::to_string(sample.device) + "," +
                        std::string(MemoryKindName(sample.kind)) + "," + std::to_string(sample.allocator);
    for (const auto& [key, value] : sample.tags) label.append(",").append(key).append("=").append(value);
    EXPECT_TRUE(labels.insert(label).second) << "twice: " << label;
    for (const Value value :
         {&Snapshot::Sample::alloc_objects, &Snapshot::Sample::alloc_bytes, &Snapshot::Sample::peak_objects,
          &Snapshot::Sample::peak_bytes, &Snapshot::Sample::inuse_objects, &Snapshot::Sample::inuse_bytes,
          &Snapshot::Sample::reserved_objects, &Snapshot::Sample::reserved_bytes, &Snapshot::Sample::pool_peak_objects,
          &Snapshot::Sample::pool_peak_bytes}) {
      EXPECT_GE(sample.*value, 0) << label;
    }
    if (sample.kind == MemoryKind::kPool) {
      EXPECT_THAT(sample.born, IsEmpty());
      continue;
    }
    Snapshot::Sample::Born sum;
    for (const Snapshot::Sample::Born& born : sample.born) {
      sum.objects += born.objects;
      sum.bytes += born.bytes;
    }
    EXPECT_EQ(sum.objects, sample.inuse_objects) << label;
    EXPECT_EQ(sum.bytes, sample.inuse_bytes) << label;
  }
  EXPECT_THAT(snapshot.allocators, Not(IsEmpty()));
  int64_t live = 0;
  for (uint32_t device = 0; device < snapshot.devices.size(); ++device) {
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      SCOPED_TRACE(snapshot.devices[device].name + ", " + std::string(MemorySpaceName(MemorySpace(space))));
      const auto here = [&](const Snapshot::Sample& sample) {
        return sample.device == device && SpaceOf(sample.kind) == MemorySpace(space);
      };
      const auto idle = [&](const Snapshot::Sample& sample) {
        return here(sample) && sample.kind == MemoryKind::kPool;
      };
      const auto leaf = [&](const Snapshot::Sample& sample) {
        return here(sample) && sample.kind != MemoryKind::kPool;
      };
      const DeviceStats& stats = snapshot.devices[device].spaces[space];
      int64_t segments = 0;
      if (MemorySpace(space) == MemorySpace::kDevice) {
        for (const PoolStats& pool : snapshot.devices[device].pools) segments += pool.segments;
      }
      EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::inuse_bytes, here), stats.bytes_in_use);
      EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::reserved_bytes, here), stats.bytes_in_use);
      EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::peak_bytes, here), stats.peak_bytes_in_use);
      EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::inuse_objects, leaf) + segments, stats.num_live);
      EXPECT_LE(Sum(snapshot, &Snapshot::Sample::alloc_objects, leaf), stats.num_allocs) << "segments are not shown";
      EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::inuse_bytes, idle), stats.idle_bytes);
      EXPECT_GE(stats.peak_bytes_in_use, stats.bytes_in_use);
      EXPECT_GE(stats.pool_bytes, stats.idle_bytes);
      live += stats.num_live;
    }
  }
  EXPECT_EQ(snapshot.tracker.live_records, live);
}

// Returns a snapshot as text for comparisons, without the values that change by themselves.
std::string Describe(const Snapshot& snapshot) {
  std::multiset<std::string> lines;
  const auto number = [](int64_t value) { return std::to_string(value) + " "; };
  for (const Snapshot::Sample& sample : snapshot.samples) {
    std::string line = snapshot.devices[sample.device].name + " " + std::string(MemoryKindName(sample.kind)) + " " +
                       snapshot.allocators[sample.allocator] + " ";
    for (const uint64_t address : snapshot.stacks[sample.stack].return_addresses) line += std::to_string(address) + ">";
    for (const auto& [key, value] : sample.tags) line.append(" ").append(key).append("=").append(value);
    lines.insert(line + " alloc " + number(sample.alloc_objects) + number(sample.alloc_bytes) + "peak " +
                 number(sample.peak_objects) + number(sample.peak_bytes) + "inuse " + number(sample.inuse_objects) +
                 number(sample.inuse_bytes));
  }
  for (const Snapshot::Device& device : snapshot.devices) {
    for (const DeviceStats& stats : device.spaces) {
      lines.insert(device.name + ": " + number(stats.bytes_in_use) + number(stats.peak_bytes_in_use) +
                   number(stats.num_allocs) + number(stats.num_live) + number(stats.largest_alloc_size) +
                   number(stats.pool_bytes) + number(stats.idle_bytes));
    }
  }
  return std::accumulate(lines.begin(), lines.end(), std::string(),
                         [](std::string text, const std::string& line) { return std::move(text) + line + "\n"; });
}

class ProfilerTest : public ::testing::Test {
 protected:
  ~ProfilerTest() override { ExpectSound(profiler_.TakeSnapshot()); }

  DeviceStats Stats(MemorySpace space = MemorySpace::kDevice) const { return profiler_.Stats(kDefaultDevice, space); }
  TrackerStats Tracker() const { return profiler_.GetTrackerStats(); }

  Profiler profiler_;
};

// --- Plain events -----------------------------------------------------------------------------------------------

TEST_F(ProfilerTest, CountsAllocatedFreedAndPeak) {
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), 1000));
  EXPECT_TRUE(profiler_.RecordAlloc(At(2), 500));
  EXPECT_EQ(profiler_.RecordFree(At(1)), 1000);
  const DeviceStats stats = Stats();
  EXPECT_EQ(stats.bytes_in_use, 500);
  EXPECT_EQ(stats.peak_bytes_in_use, 1500);
  EXPECT_EQ(stats.num_allocs, 2);
  EXPECT_EQ(stats.num_live, 1);
  EXPECT_EQ(stats.largest_alloc_size, 1000);
  EXPECT_EQ(Tracker().live_records, 1);
  EXPECT_EQ(Tracker().sites, 2);
}

TEST_F(ProfilerTest, IsEmptyAtFirst) {
  const Snapshot snapshot = profiler_.TakeSnapshot();
  EXPECT_THAT(snapshot.samples, IsEmpty());
  EXPECT_THAT(snapshot.allocators, ElementsAre(""));
  EXPECT_EQ(snapshot.process_id, getpid());
  EXPECT_GT(snapshot.time_unix_nanos, int64_t{1700000000} * 1000000000);
  EXPECT_FALSE(snapshot.host.empty());
  const DeviceStats stats = Stats();
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.bytes_limit, std::nullopt);
  EXPECT_FALSE(stats.unaccounted.has_value());
}

TEST_F(ProfilerTest, FindBufferNeedsTheExactId) {
  const DeviceId device = profiler_.Device("GPU:3");
  const AllocatorId allocator = profiler_.Allocator("arena");
  profiler_.RecordAlloc(At(1), 77, {device, MemoryKind::kManaged, allocator});
  const std::optional<LiveBuffer> found = profiler_.FindBuffer(At(1));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->bytes, 77);
  EXPECT_EQ(found->attributes.device, device);
  EXPECT_EQ(found->attributes.kind, MemoryKind::kManaged);
  EXPECT_EQ(found->attributes.allocator, allocator);
  EXPECT_FALSE(profiler_.FindBuffer(BufferId(At(1).value() + 1)).has_value());
  EXPECT_FALSE(profiler_.FindBuffer(BufferId()).has_value());
  profiler_.RecordFree(At(1));
  EXPECT_FALSE(profiler_.FindBuffer(At(1)).has_value());
}

TEST_F(ProfilerTest, FindBufferAtFindsTheInnermostBuffer) {
  constexpr uint64_t kStart = uint64_t{1} << 40;
  const DeviceId device = profiler_.Device("GPU:3");
  const auto at = [&](uint64_t offset) { return profiler_.FindBufferAt(BufferId(kStart + offset)); };
  EXPECT_FALSE(at(0).has_value());
  const Pool outer = {device, profiler_.Allocator("outer")};
  const Pool inner = {device, profiler_.Allocator("inner")};
  ASSERT_TRUE(profiler_.RecordSegment(outer, BufferId(kStart), 4096));
  {
    const ScopedTag tag("phase", "load");
    ASSERT_TRUE(profiler_.RecordBlock(outer, BufferId(kStart), 1024));
  }
  ASSERT_TRUE(profiler_.RecordBlock(outer, BufferId(kStart + 1024), 1024));
  ASSERT_TRUE(profiler_.RecordSegment(inner, BufferId(kStart + 1024), 1024));  // a pool in the pool
  ASSERT_TRUE(profiler_.RecordBlock(inner, BufferId(kStart + 1024), 1024));    // as large as its segment
  ASSERT_TRUE(profiler_.RecordAlloc(BufferId(kStart + 4096), 0));
  ASSERT_TRUE(profiler_.RecordAlloc(BufferId::Handle(33, 5), 1 << 20));

  const std::optional<FoundBuffer> block = at(1023);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->address, kStart);
  EXPECT_EQ(block->bytes, 1024);
  EXPECT_EQ(block->attributes.device, device);
  EXPECT_EQ(block->attributes.kind, MemoryKind::kDevice);
  EXPECT_THAT(block->tags, ElementsAre(Pair("phase", "load")));
  const Snapshot snapshot = profiler_.TakeSnapshot();
  const auto has_stack = [&](const Snapshot::Sample& sample) {
    return snapshot.stacks[sample.stack].return_addresses == block->stack.return_addresses;
  };
  EXPECT_TRUE(std::any_of(snapshot.samples.begin(), snapshot.samples.end(), has_stack));
  EXPECT_EQ(at(0)->bytes, 1024);
  EXPECT_EQ(at(1024)->attributes.kind, MemoryKind::kDevice) << "the block, not its segment";
  EXPECT_EQ(at(2048)->bytes, 4096) << "idle bytes of the outer segment";
  EXPECT_EQ(at(2048)->attributes.kind, MemoryKind::kPool);
  EXPECT_EQ(at(4095)->address, kStart);
  EXPECT_FALSE(at(4096).has_value()) << "a buffer without bytes";
  EXPECT_FALSE(profiler_.FindBufferAt(BufferId::Handle(33, 5)).has_value());
  EXPECT_FALSE(profiler_.FindBufferAt(BufferId()).has_value());
  profiler_.RecordFree(BufferId(kStart));
  EXPECT_FALSE(at(0).has_value());
}

TEST_F(ProfilerTest, FindBufferAtFindsLiveBuffersWhileThreadsRecord) {
  constexpr uint64_t kStep = 4096;
  constexpr uint64_t kKept = 100;
  const auto address = [](uint64_t thread, uint64_t i) { return ((thread + 1) << 40) + i * kStep; };
  for (uint64_t i = 0; i < kKept; ++i) ASSERT_TRUE(profiler_.RecordAlloc(BufferId(address(0, i)), kStep));
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 1; thread <= 2; ++thread) {
    threads.emplace_back([&, thread] {
      while (!ends) {  // the table grows and shrinks
        for (uint64_t i = 0; i < 2000; ++i) profiler_.RecordAlloc(BufferId(address(thread, i)), kStep);
        for (uint64_t i = 0; i < 2000; ++i) profiler_.RecordFree(BufferId(address(thread, i)));
      }
    });
  }
  for (uint64_t i = 0; i < 200; ++i) {
    const std::optional<FoundBuffer> found = profiler_.FindBufferAt(BufferId(address(0, i % kKept) + i));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->address, address(0, i % kKept));
    const std::optional<FoundBuffer> other = profiler_.FindBufferAt(BufferId(address(1, i) + 1));
    EXPECT_EQ(other.has_value() ? other->address : address(1, i), address(1, i));
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

// An id with the highest bit is that of a block. Handles and addresses do not have it.
TEST_F(ProfilerTest, IdWithTheHighestBitIsDropped) {
  const BufferId id(At(1).value() | uint64_t{1} << 63);
  EXPECT_FALSE(profiler_.RecordAlloc(id, 50));
  EXPECT_FALSE(profiler_.RecordSegment({}, id, 50));
  EXPECT_EQ(Tracker().dropped_records, 2);
  EXPECT_EQ(Tracker().dropped_bytes, 100);
  ASSERT_TRUE(profiler_.RecordBlock({}, At(1), 4096));
  EXPECT_EQ(Stats().bytes_in_use, 4096);
  EXPECT_EQ(Tracker().replaced_records, 0);
  EXPECT_FALSE(profiler_.FindBuffer(id).has_value());
  EXPECT_FALSE(profiler_.RecordFree(id));
  EXPECT_EQ(Tracker().foreign_frees, 1);
  EXPECT_EQ(Stats().bytes_in_use, 4096);
  EXPECT_TRUE(profiler_.RecordBlockFree({}, At(1)));
  ExpectSound(profiler_.TakeSnapshot());
}

TEST_F(ProfilerTest, HandlesNeverCollideWithAddresses) {
  const BufferId ids[] = {BufferId::Handle(32, 0x1000), BufferId::Handle(63, 0x1000), BufferId(uint64_t{0x1000})};
  int64_t bytes = 1;
  for (const BufferId id : ids) EXPECT_TRUE(profiler_.RecordAlloc(id, static_cast<size_t>(bytes *= 10)));
  EXPECT_EQ(Tracker().replaced_records, 0);
  bytes = 1;
  for (const BufferId id : ids) EXPECT_EQ(profiler_.RecordFree(id), bytes *= 10);
}

TEST_F(ProfilerTest, NameSpacesOfHbmprofAreRefused) {
  for (const int space : {0, 1, 10, 31, 64, 255}) {
    const BufferId id = BufferId::Handle(static_cast<uint8_t>(space), 7);
    EXPECT_FALSE(profiler_.RecordAlloc(id, 100)) << space;
    EXPECT_FALSE(profiler_.RecordSegment({}, id, 100)) << space;
    EXPECT_FALSE(profiler_.RecordBlock({}, id, 100)) << space;
    EXPECT_FALSE(profiler_.RecordFree(id)) << space;
  }
  EXPECT_EQ(Tracker().dropped_records, 6 * 3) << "not silently";
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_TRUE(profiler_.RecordAlloc(BufferId::Handle(32, 7), 100));
}

TEST_F(ProfilerTest, ProfilersAreIndependent) {
  Profiler other;
  profiler_.RecordAlloc(At(1), 10);
  EXPECT_FALSE(other.RecordFree(At(1)));
  EXPECT_EQ(other.Stats(kDefaultDevice).bytes_in_use, 0);
  EXPECT_EQ(Stats().bytes_in_use, 10);
}

// --- Bad input --------------------------------------------------------------------------------------------------

TEST_F(ProfilerTest, DoubleFreeIsAForeignFree) {
  profiler_.RecordAlloc(At(1), 10);
  profiler_.RecordAlloc(At(2), 20);
  EXPECT_TRUE(profiler_.RecordFree(At(1)));
  EXPECT_FALSE(profiler_.RecordFree(At(1)));
  EXPECT_EQ(Tracker().foreign_frees, 1);
  EXPECT_EQ(Stats().bytes_in_use, 20);
  EXPECT_EQ(Stats().num_live, 1);
}

TEST_F(ProfilerTest, UnknownFreesAreCountedAndNullFreesAreNot) {
  EXPECT_FALSE(profiler_.RecordFree(nullptr));
  EXPECT_FALSE(profiler_.RecordBlockFree({}, nullptr));
  EXPECT_EQ(Tracker().foreign_frees, 0);
  EXPECT_EQ(profiler_.RecordFree(At(1)), std::nullopt);
  EXPECT_FALSE(profiler_.RecordBlockFree({}, At(1)));
  EXPECT_FALSE(profiler_.RecordFree(BufferId(~uint64_t{0})));
  EXPECT_EQ(Tracker().foreign_frees, 3);
}

TEST_F(ProfilerTest, NullIsNeitherRecordedNorDropped) {
  EXPECT_FALSE(profiler_.RecordAlloc(nullptr, 10));
  EXPECT_FALSE(profiler_.RecordBlock({}, nullptr, 10));
  EXPECT_FALSE(profiler_.RecordSegment({}, nullptr, 10));
  EXPECT_EQ(Tracker().dropped_records, 0);
  EXPECT_EQ(Stats().num_allocs, 0);
}

TEST_F(ProfilerTest, BufferOfZeroBytesIsAnObject) {
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), 0));
  EXPECT_EQ(Stats().num_live, 1);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Stats().peak_bytes_in_use, 0);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  ASSERT_THAT(snapshot.samples, SizeIs(1));
  EXPECT_EQ(snapshot.samples[0].inuse_objects, 1);
  EXPECT_EQ(profiler_.RecordFree(At(1)), 0);
}

TEST_F(ProfilerTest, HugeSizesAreDroppedAndCounted) {
  constexpr size_t kMost = (size_t{1} << 40) - 1;
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), kMost));
  EXPECT_EQ(Stats().bytes_in_use, static_cast<int64_t>(kMost));
  EXPECT_FALSE(profiler_.RecordAlloc(At(2), kMost + 1));
  EXPECT_FALSE(profiler_.RecordBlock({}, At(2), kMost + 1));
  EXPECT_FALSE(profiler_.RecordSegment({}, At(2), kMost + 1));
  EXPECT_EQ(Tracker().dropped_records, 3);
  EXPECT_EQ(Tracker().dropped_bytes, 3 * (int64_t{1} << 40));
  EXPECT_FALSE(profiler_.RecordAlloc(At(2), SIZE_MAX));
  EXPECT_FALSE(profiler_.RecordAlloc(At(2), SIZE_MAX));
  EXPECT_EQ(Tracker().dropped_records, 5);
  EXPECT_EQ(Tracker().dropped_bytes, INT64_MAX);
  EXPECT_EQ(Stats().num_live, 1);
  EXPECT_EQ(profiler_.RecordFree(At(1)), static_cast<int64_t>(kMost));
}

TEST_F(ProfilerTest, AttributesOutOfRangeAreClamped) {
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), 10, {DeviceId{9999}, static_cast<MemoryKind>(200), AllocatorId{9999}}));
  EXPECT_EQ(profiler_.Stats(DeviceId{63}).bytes_in_use, 10);
  EXPECT_EQ(profiler_.Stats(DeviceId{9999}).bytes_in_use, 0);
  profiler_.ResetPeak(DeviceId{9999});
  ExpectSound(profiler_.TakeSnapshot());
}

TEST(ProfilerLimits, FullTableDropsAndCountsUntilAFree) {
  Options options;
  options.max_live_buffers = 100;
  Profiler profiler(options);
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(profiler.RecordAlloc(At(i), 8));
  EXPECT_FALSE(profiler.RecordAlloc(At(101), 1000));
  EXPECT_FALSE(profiler.RecordSegment({}, At(102), 2000));
  EXPECT_FALSE(profiler.RecordBlock({}, At(103), 4000));
  Snapshot snapshot = profiler.TakeSnapshot();
  EXPECT_EQ(snapshot.tracker.dropped_records, 3);
  EXPECT_EQ(snapshot.tracker.dropped_bytes, 7000);
  EXPECT_EQ(snapshot.tracker.live_records, 100);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 800);
  ExpectSound(snapshot);

  EXPECT_FALSE(profiler.RecordFree(At(101))) << "it was never recorded";
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 1);
  EXPECT_TRUE(profiler.RecordFree(At(1)));
  EXPECT_TRUE(profiler.RecordAlloc(At(101), 1000));
  EXPECT_FALSE(profiler.RecordAlloc(At(1), 1));
  ExpectSound(profiler.TakeSnapshot());
}

TEST(ProfilerLimits, FullTableReplacesALiveId) {
  Options options;
  options.max_live_buffers = 2;
  Profiler profiler(options);
  profiler.RecordAlloc(At(1), 10);
  profiler.RecordAlloc(At(2), 20);
  EXPECT_TRUE(profiler.RecordAlloc(At(1), 5));
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 25);
  EXPECT_EQ(profiler.GetTrackerStats().replaced_records, 1);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 0);
}

TEST(ProfilerLimits, LimitCanBeOneLiveBuffer) {
  Options options;
  options.max_live_buffers = 1;
  Profiler profiler(options);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(profiler.RecordAlloc(At(1), 10));
    EXPECT_FALSE(profiler.RecordAlloc(At(2), 10));
    EXPECT_TRUE(profiler.RecordFree(At(1)));
  }
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 3);
}

// A full table of sites must not make bytes disappear: neither of buffers nor of pools.
TEST(ProfilerLimits, SitesBeyondTheLimitShareOne) {
  Options options;
  options.max_sites = 5;
  Profiler profiler(options);
  for (uint64_t i = 1; i <= 5; ++i) {
    const ScopedTag tag("number", std::to_string(i));
    EXPECT_TRUE(profiler.RecordAlloc(At(i), i * 10));
  }
  EXPECT_THAT(profiler.TakeSnapshot().warnings, IsEmpty());
  for (uint64_t i = 6; i <= 10; ++i) {
    const ScopedTag tag("number", std::to_string(i));
    EXPECT_TRUE(profiler.RecordAlloc(At(i), i * 10));
    EXPECT_TRUE(profiler.RecordResize(At(i), i * 100));
  }
  EXPECT_TRUE(profiler.RecordResize(At(1), 1000)) << "it keeps its site";
  ExpectSound(profiler.TakeSnapshot());
  ASSERT_TRUE(profiler.RecordSegment({}, At(20), 1 << 20));
  for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(profiler.RecordBlock({}, BufferId(At(20).value() + i * 4096), 100 + i));
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 0);
  EXPECT_EQ(profiler.GetTrackerStats().sites, 8) << "of buffers, segments and blocks";
  const int64_t in_use = 1000 + 20 + 30 + 40 + 50 + 100 * (6 + 7 + 8 + 9 + 10) + (1 << 20);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, in_use);
  const Snapshot snapshot = profiler.TakeSnapshot();
  EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::inuse_bytes, [](const Snapshot::Sample&) { return true; }), in_use);
  int64_t others = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    const std::vector<uint64_t>& stack = snapshot.stacks[sample.stack].return_addresses;
    if (stack.size() != 1 || (stack[0] & Snapshot::kNamedFrame) == 0) continue;
    if (sample.kind == MemoryKind::kPool && sample.inuse_bytes != 0) continue;  // the idle memory
    EXPECT_EQ(snapshot.named_frames.at(stack[0] & ~Snapshot::kNamedFrame).function, "[other call stacks]");
    EXPECT_THAT(sample.tags, IsEmpty());
    others += sample.inuse_bytes;
  }
  EXPECT_EQ(others, 100 * (6 + 7 + 8 + 9 + 10) + 10 * 100 + 45) << "buffers and blocks";
  ASSERT_THAT(snapshot.warnings, SizeIs(1));
  EXPECT_THAT(snapshot.warnings[0], HasSubstr("HBMPROF_MAX_SITES"));
  for (uint64_t i = 1; i <= 10; ++i) EXPECT_TRUE(profiler.RecordFree(At(i)));
  EXPECT_TRUE(profiler.RecordFree(At(20)));
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 0);
  EXPECT_EQ(profiler.GetTrackerStats().live_records, 0);
}

TEST_F(ProfilerTest, LiveIdIsFreedBeforeItIsRecordedAgain) {
  profiler_.RecordAlloc(At(1), 100);
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), 150));
  EXPECT_EQ(Tracker().replaced_records, 1);
  EXPECT_EQ(Stats().bytes_in_use, 150);
  EXPECT_EQ(Stats().peak_bytes_in_use, 150) << "the two were never live together";
  EXPECT_EQ(Stats().num_live, 1);
  EXPECT_EQ(Stats().num_allocs, 2);
  EXPECT_EQ(profiler_.RecordFree(At(1)), 150);
  EXPECT_EQ(Stats().bytes_in_use, 0);
}

TEST_F(ProfilerTest, LiveIdIsFreedIfItsReplacementIsDropped) {
  profiler_.RecordAlloc(At(1), 100);
  EXPECT_FALSE(profiler_.RecordAlloc(At(1), SIZE_MAX));
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Tracker().replaced_records, 1);
  EXPECT_FALSE(profiler_.RecordFree(At(1)));
}

TEST_F(ProfilerTest, ReplacementMayChangeDeviceAndKind) {
  const DeviceId other = profiler_.Device("GPU:1");
  profiler_.RecordAlloc(At(1), 100);
  profiler_.RecordAlloc(At(1), 150, {other, MemoryKind::kPinnedHost, {}});
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(profiler_.Stats(other, MemorySpace::kPinnedHost).bytes_in_use, 150);
}

// --- Kinds and names --------------------------------------------------------------------------------------------

TEST_F(ProfilerTest, AliasCountsAsAnObjectOfZeroBytes) {
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), 1000, {kDefaultDevice, MemoryKind::kAlias, {}}));
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Stats().peak_bytes_in_use, 0);
  EXPECT_EQ(Stats().num_live, 1);
  EXPECT_EQ(profiler_.RecordFree(At(1)), 0);
}

TEST_F(ProfilerTest, AliasOfAnySizeCanBeRecorded) {
  EXPECT_TRUE(profiler_.RecordAlloc(At(1), SIZE_MAX, {kDefaultDevice, MemoryKind::kAlias, {}}));
  EXPECT_EQ(Tracker().dropped_records, 0);
}

TEST_F(ProfilerTest, DeviceTotalExcludesManagedAndPinned) {
  profiler_.RecordAlloc(At(1), 1);
  profiler_.RecordAlloc(At(2), 10, {kDefaultDevice, MemoryKind::kManaged, {}});
  profiler_.RecordAlloc(At(3), 100, {kDefaultDevice, MemoryKind::kPinnedHost, {}});
  EXPECT_EQ(Stats().bytes_in_use, 1);
  EXPECT_EQ(Stats(MemorySpace::kManaged).bytes_in_use, 10);
  EXPECT_EQ(Stats(MemorySpace::kPinnedHost).bytes_in_use, 100);
  profiler_.RecordFree(At(2));
  EXPECT_EQ(Stats(MemorySpace::kManaged).peak_bytes_in_use, 10);
  EXPECT_EQ(Stats(MemorySpace::kManaged).bytes_in_use, 0);
  // The values of the probe apply only to the device's own memory.
  profiler_.SetDeviceProbe(kDefaultDevice, [] { return DeviceProbe{1000, 600, 500, 300}; });
  EXPECT_EQ(Stats(MemorySpace::kPinnedHost).bytes_limit, std::nullopt);
  EXPECT_FALSE(Stats(MemorySpace::kPinnedHost).unaccounted.has_value());
}

TEST_F(ProfilerTest, EveryOtherKindIsInTheDevicesTotal) {
  int64_t expected = 0;
  for (int kind = 0; kind < kMemoryKindCount; ++kind) {
    const auto bytes = int64_t{1} << kind;
    profiler_.RecordAlloc(At(static_cast<uint64_t>(kind)), static_cast<size_t>(bytes),
                          {kDefaultDevice, MemoryKind(kind), {}});
    if (SpaceOf(MemoryKind(kind)) == MemorySpace::kDevice && MemoryKind(kind) != MemoryKind::kAlias) expected += bytes;
  }
  EXPECT_EQ(Stats().bytes_in_use, expected);
  EXPECT_THAT(profiler_.TakeSnapshot().samples, SizeIs(kMemoryKindCount - 1)) << "kPool is recorded as kDevice";
}

TEST(MemoryNames, AreTheLabelsOfTheProfile) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kMemoryKindCount; ++kind) names.insert(MemoryKindName(MemoryKind(kind)));
  EXPECT_THAT(names, ElementsAre("alias", "array", "device", "executable", "external", "graph", "managed",
                                 "pinned_host", "pool", "vmm"));
  EXPECT_EQ(MemoryKindName(MemoryKind::kPinnedHost), "pinned_host");
  EXPECT_EQ(MemorySpaceName(MemorySpace::kDevice), "device");
  EXPECT_EQ(MemorySpaceName(MemorySpace::kManaged), "managed");
  EXPECT_EQ(MemorySpaceName(MemorySpace::kPinnedHost), "pinned_host");
}

TEST_F(ProfilerTest, DeviceBeyondTheLimitIsOther) {
  EXPECT_EQ(profiler_.Device("GPU:0"), kDefaultDevice);
  std::set<DeviceId> ids = {kDefaultDevice};
  for (int i = 1; i <= 62; ++i) ids.insert(profiler_.Device("GPU:" + std::to_string(i)));
  EXPECT_EQ(ids.size(), 63u);
  EXPECT_EQ(profiler_.Device("GPU:5"), profiler_.Device("GPU:5"));
  const DeviceId other = profiler_.Device("GPU:63");
  EXPECT_EQ(ids.count(other), 0u);
  EXPECT_EQ(profiler_.Device("GPU:64"), other);
  EXPECT_EQ(profiler_.Device("other"), other);
  EXPECT_EQ(ids.count(profiler_.Device("GPU:62")), 1u);
  profiler_.RecordAlloc(At(1), 5, {profiler_.Device("GPU:99"), MemoryKind::kDevice, {}});
  const Snapshot snapshot = profiler_.TakeSnapshot();
  ASSERT_NE(FindDevice(snapshot, "other"), nullptr);
  EXPECT_EQ(FindDevice(snapshot, "other")->spaces[0].bytes_in_use, 5);
  EXPECT_EQ(FindDevice(snapshot, "GPU:63"), nullptr);
}

TEST_F(ProfilerTest, DeviceNamesAreCutAt64Bytes) {
  const std::string longest(64, 'x');
  EXPECT_EQ(profiler_.Device(longest), profiler_.Device(longest + "tail"));
  EXPECT_NE(FindDevice(profiler_.TakeSnapshot(), longest), nullptr);
}

TEST_F(ProfilerTest, Has255AllocatorsByName) {
  EXPECT_EQ(profiler_.Allocator(""), AllocatorId{});
  std::set<AllocatorId> ids;
  for (int i = 1; i <= 254; ++i) ids.insert(profiler_.Allocator("pool" + std::to_string(i)));
  EXPECT_EQ(ids.size(), 254u);
  EXPECT_EQ(ids.count(AllocatorId{}), 0u);
  const AllocatorId other = profiler_.Allocator("one more");
  EXPECT_EQ(profiler_.Allocator("and another"), other);
  EXPECT_EQ(ids.count(other), 0u);
  EXPECT_THAT(profiler_.TakeSnapshot().allocators, SizeIs(256));
  EXPECT_EQ(profiler_.TakeSnapshot().allocators.back(), "other");
}

TEST_F(ProfilerTest, NamedDeviceIsShownWithoutAllocations) {
  profiler_.Device("GPU:0");
  const Snapshot snapshot = profiler_.TakeSnapshot();
  ASSERT_THAT(snapshot.devices, SizeIs(1));
  EXPECT_EQ(snapshot.devices[0].name, "GPU:0");
}

TEST(ProcessTagsTest, LabelAllSamplesByTheRulesOfThreadsTags) {
  Options options;
  options.tags = {{"model", "first"}, {"model", "llama"}, {"device", "x"}, {"", "y"}, {std::string(200, 'k'), "z"}};
  Profiler profiler(options);
  profiler.RecordAlloc(BufferId(4096), 100);
  {
    const ScopedTag scope("model", "gpt");
    const ScopedTag phase("phase", "load");
    profiler.RecordAlloc(BufferId(8192), 200);
  }
  const Snapshot snapshot = profiler.TakeSnapshot();
  using Tags = std::vector<std::pair<std::string, std::string>>;
  const std::string key(128, 'k');
  ASSERT_EQ(snapshot.samples.size(), 2u);
  for (const Snapshot::Sample& sample : snapshot.samples) {
    const Tags expected = sample.inuse_bytes == 100
                              ? Tags{{key, "z"}, {"model", "llama"}, {"tag_device", "x"}}
                              : Tags{{key, "z"}, {"model", "gpt"}, {"phase", "load"}, {"tag_device", "x"}};
    EXPECT_EQ(sample.tags, expected);
  }
}

// --- Refused frees, kept sites ----------------------------------------------------------------------------------

TEST_F(ProfilerTest, RefusedFreeIsCountedAndItsRecordStaysEnded) {
  profiler_.RecordAlloc(At(1), 100);
  EXPECT_EQ(profiler_.RecordFree(At(1)), 100);
  profiler_.RecordRefusedFree();
  EXPECT_EQ(Tracker().refused_frees, 1);
  EXPECT_EQ(Tracker().live_records, 0);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  profiler_.SetEnabled(false);
  profiler_.RecordRefusedFree();
  EXPECT_EQ(Tracker().refused_frees, 1);
}

TEST_F(ProfilerTest, KeptSiteIsThatOfEachOfItsAllocations) {
  uint32_t site = 0;
  {
    const ScopedTag tag("phase", "capture");
    site = profiler_.KeepSite(Caller::OfThisFunction(), 100, {kDefaultDevice, MemoryKind::kGraph, {}});
  }
  ASSERT_NE(site, 0u);
  EXPECT_EQ(Stats().num_allocs, 0);
  for (int i = 1; i <= 3; ++i) {
    const ScopedTag tag("phase", "launch");
    EXPECT_TRUE(profiler_.RecordAllocAt(site, At(1), 100));
    EXPECT_EQ(profiler_.FindBuffer(At(1))->attributes.kind, MemoryKind::kGraph);
    EXPECT_EQ(Stats().num_allocs, i);
    EXPECT_EQ(Stats().bytes_in_use, 100);
    const Snapshot snapshot = profiler_.TakeSnapshot();
    ASSERT_THAT(snapshot.samples, SizeIs(1));
    EXPECT_THAT(snapshot.samples[0].tags, ElementsAre(Pair("phase", "capture")));
    EXPECT_EQ(profiler_.RecordFree(At(1)), 100);
  }
  EXPECT_EQ(Stats().peak_bytes_in_use, 100);

  EXPECT_FALSE(profiler_.RecordAllocAt(0, At(1), 100));
  EXPECT_EQ(Tracker().dropped_records, 0);
  EXPECT_EQ(profiler_.KeepSite(Caller::OfThisFunction(), size_t{1} << 40, {}), 0u) << "too large";
  EXPECT_FALSE(profiler_.RecordAllocAt(site + 1000, At(1), 100)) << "no such site";
  EXPECT_EQ(Tracker().dropped_records, 2);
  profiler_.SetEnabled(false);
  EXPECT_EQ(profiler_.KeepSite(Caller::OfThisFunction(), 1, {}), 0u);
  EXPECT_FALSE(profiler_.RecordAllocAt(site, At(1), 100));
}

// --- Pools ------------------------------------------------------------------------------------------------------

constexpr size_t kSegment = 10000;

TEST_F(ProfilerTest, BlocksAndOtherBuffersDiffer) {
  profiler_.RecordSegment({}, At(1), kSegment);
  profiler_.RecordBlock({}, At(1), 100);
  EXPECT_EQ(profiler_.FindBuffer(At(1))->bytes, static_cast<int64_t>(kSegment));
  EXPECT_EQ(profiler_.RecordBlockFree({}, At(1)), 100);
  EXPECT_FALSE(profiler_.RecordBlockFree({}, At(1)));
  EXPECT_EQ(profiler_.RecordFree(At(1)), static_cast<int64_t>(kSegment));
}

TEST_F(ProfilerTest, BlocksOfOneCallSiteAreOneSample) {
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(profiler_.RecordSegment({}, At(i), kSegment * i));
  for (uint64_t i = 1; i <= 3; ++i) profiler_.RecordBlock({}, At(i), 64);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  int samples = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    if (sample.kind != MemoryKind::kDevice) continue;
    ++samples;
    EXPECT_EQ(sample.inuse_objects, 3);
    EXPECT_EQ(sample.inuse_bytes, 192);
  }
  EXPECT_EQ(samples, 1);
}

TEST_F(ProfilerTest, NameSpacesSeparatePoolsWithEqualAddresses) {
  const Pool pools[] = {{profiler_.Device("TPU:0"), {}}, {profiler_.Device("TPU:1"), {}}};
  const auto at = [](int device, uint64_t address) {
    return BufferId::Handle(static_cast<uint8_t>(device + 32), address);
  };
  const auto idle = [&](int device) { return profiler_.Stats(pools[device].device).idle_bytes; };
  for (const int device : {0, 1}) {
    ASSERT_TRUE(profiler_.RecordSegment(pools[device], at(device, 0x1000), kSegment));
    ASSERT_TRUE(profiler_.RecordBlock(pools[device], at(device, 0x1000), 100));
    ASSERT_TRUE(profiler_.RecordBlock(pools[device], at(device, 0x2000), 10));
  }
  EXPECT_EQ(Tracker().replaced_records, 0);
  for (const int device : {0, 1}) {
    EXPECT_EQ(idle(device), static_cast<int64_t>(kSegment) - 110);
    EXPECT_EQ(profiler_.RecordBlockFree(pools[device], at(device, 0x2000)), 10);
    EXPECT_EQ(idle(device), static_cast<int64_t>(kSegment) - 100);
  }
  ASSERT_TRUE(profiler_.RecordSegment(pools[0], at(0, 0x10000), kSegment));
  EXPECT_TRUE(profiler_.RecordFree(at(0, 0x1000)));
  EXPECT_EQ(profiler_.Stats(pools[0].device).num_live, 1) << "the block went with its segment";
  EXPECT_EQ(profiler_.Stats(pools[1].device).num_live, 2);
}

// --- Whole devices ----------------------------------------------------------------------------------------------

TEST_F(ProfilerTest, DropDeviceKeepsCumulativeCounters) {
  const DeviceId other = profiler_.Device("GPU:1");
  profiler_.RecordAlloc(At(1), 100);
  profiler_.RecordAlloc(At(2), 10, {kDefaultDevice, MemoryKind::kPinnedHost, {}});
  profiler_.RecordAlloc(At(3), 1, {other, MemoryKind::kDevice, {}});
  profiler_.RecordSegment({}, At(4), kSegment);
  profiler_.RecordBlock({}, At(4), 1000);
  profiler_.DropDevice(kDefaultDevice);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Stats().num_live, 0);
  EXPECT_EQ(Stats().idle_bytes, 0);
  EXPECT_EQ(Stats().num_allocs, 3);
  EXPECT_EQ(Stats().peak_bytes_in_use, 10100);
  EXPECT_EQ(Stats(MemorySpace::kPinnedHost).bytes_in_use, 0);
  EXPECT_EQ(profiler_.Stats(other).bytes_in_use, 1);
  EXPECT_FALSE(profiler_.RecordFree(At(1)));
  EXPECT_TRUE(profiler_.RecordSegment({}, At(4), kSegment)) << "the old segment is gone";
}

TEST_F(ProfilerTest, DropDeviceKeepsTheSurvivingAllocator) {
  const AllocatorId survivor = profiler_.Allocator("cudaMallocAsync");
  profiler_.RecordAlloc(At(1), 100);
  profiler_.RecordAlloc(At(2), 10, {kDefaultDevice, MemoryKind::kDevice, survivor});
  profiler_.DropDevice(kDefaultDevice, survivor);
  EXPECT_EQ(Stats().bytes_in_use, 10);
  EXPECT_TRUE(profiler_.FindBuffer(At(2)).has_value());
  profiler_.DropDevice(kDefaultDevice, AllocatorId{});
  EXPECT_EQ(Stats().bytes_in_use, 0) << "id 0 spares those without an allocator";
}

TEST_F(ProfilerTest, ResetPeakStartsFromThePresent) {
  const DeviceId other = profiler_.Device("GPU:1");
  profiler_.RecordAlloc(At(1), 1000);
  profiler_.RecordAlloc(At(2), 500);
  profiler_.RecordAlloc(At(3), 7, {kDefaultDevice, MemoryKind::kManaged, {}});
  profiler_.RecordAlloc(At(4), 9, {other, MemoryKind::kDevice, {}});
  for (uint64_t i : {1, 3, 4}) profiler_.RecordFree(At(i));
  profiler_.ResetPeak(kDefaultDevice);
  EXPECT_EQ(Stats().peak_bytes_in_use, 500);
  EXPECT_EQ(Stats(MemorySpace::kManaged).peak_bytes_in_use, 0);
  EXPECT_EQ(profiler_.Stats(other).peak_bytes_in_use, 9);
  Snapshot snapshot = profiler_.TakeSnapshot();
  for (const Snapshot::Sample& sample : snapshot.samples) {
    if (snapshot.devices[sample.device].name == "GPU:0" && sample.inuse_bytes == 0) {
      EXPECT_EQ(sample.peak_bytes, 0);
      EXPECT_EQ(sample.peak_objects, 0);
    }
  }
  ExpectSound(snapshot);
  profiler_.RecordAlloc(At(5), 1);
  EXPECT_EQ(Stats().peak_bytes_in_use, 501);
}

// --- Off --------------------------------------------------------------------------------------------------------

TEST_F(ProfilerTest, IgnoresEventsWhileOff) {
  profiler_.RecordAlloc(At(1), 100);
  EXPECT_TRUE(profiler_.enabled());
  profiler_.SetEnabled(false);
  EXPECT_FALSE(profiler_.enabled());
  EXPECT_FALSE(profiler_.RecordAlloc(At(2), 10));
  EXPECT_FALSE(profiler_.RecordSegment({}, At(3), 10));
  EXPECT_FALSE(profiler_.RecordBlock({}, At(4), 10));
  EXPECT_FALSE(profiler_.RecordFree(At(1)));
  EXPECT_FALSE(profiler_.RecordBlockFree({}, At(1)));
  EXPECT_EQ(Tracker().foreign_frees, 0);
  EXPECT_EQ(Tracker().dropped_records, 0);
  profiler_.SetEnabled(true);
  EXPECT_EQ(Stats().bytes_in_use, 100);
  EXPECT_FALSE(profiler_.RecordFree(At(2)));
  EXPECT_TRUE(profiler_.RecordFree(At(1)));
}

TEST(ProfilerOptions, ProfilerCanBeMadeOff) {
  Options options;
  options.enabled = false;
  Profiler profiler(options);
  EXPECT_FALSE(profiler.enabled());
  EXPECT_FALSE(profiler.RecordAlloc(At(1), 1));
}

TEST(ProfilerOptions, ValuesOutOfRangeAreClamped) {
  Options options;
  options.max_stack_depth = -1;
  options.max_sites = -1;
  options.max_live_buffers = -1;
  Profiler profiler(options);
  EXPECT_TRUE(profiler.RecordAlloc(At(1), 1));
  EXPECT_FALSE(profiler.RecordAlloc(At(2), 1)) << "the least that can be live is one buffer";
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 1);
  options.max_stack_depth = INT_MAX;
  options.max_sites = INT64_MAX;
  options.max_live_buffers = INT64_MAX;
  Profiler large(options);
  EXPECT_TRUE(large.RecordAlloc(At(1), 1));
  ExpectSound(large.TakeSnapshot());
}

// --- Stacks -----------------------------------------------------------------------------------------------------

// Called after another call, so that this other call is not compiled as a jump.
void AfterTheCall() { asm volatile("" ::: "memory"); }

[[gnu::noinline, gnu::section("hbmprof_test_frames")]] bool KnownCaller(Profiler& profiler, uint64_t i, size_t bytes) {
  const bool recorded = profiler.RecordAlloc(At(i), bytes);
  AfterTheCall();
  return recorded;
}
[[gnu::noinline, gnu::section("hbmprof_test_frames")]] bool KnownSegmentCaller(Profiler& profiler, uint64_t i) {
  const bool recorded = profiler.RecordSegment({}, At(i), kSegment);
  AfterTheCall();
  return recorded;
}
[[gnu::noinline, gnu::section("hbmprof_test_frames")]] bool KnownBlockCaller(Profiler& profiler, uint64_t i) {
  const bool recorded = profiler.RecordBlock({}, At(i), 100);
  AfterTheCall();
  return recorded;
}
// A wrapper: its own frame must not show.
[[gnu::noinline]] bool Wrapper(Profiler& profiler, uint64_t i) {
  const Caller caller = Caller::OfThisFunction();
  const bool recorded = profiler.RecordAllocFrom(caller, At(i), 1, {});
  AfterTheCall();
  return recorded;
}
[[gnu::noinline, gnu::section("hbmprof_test_frames")]] bool KnownWrapperCaller(Profiler& profiler, uint64_t i) {
  const bool recorded = Wrapper(profiler, i);
  AfterTheCall();
  return recorded;
}
[[gnu::noinline]] bool Recurse(Profiler& profiler, uint64_t i, int depth) {
  const bool recorded = depth == 0 ? KnownCaller(profiler, i, 1) : Recurse(profiler, i, depth - 1);
  AfterTheCall();
  return recorded;
}

bool IsKnownFrame(uint64_t return_address) {
  const auto start = reinterpret_cast<uintptr_t>(__start_hbmprof_test_frames);
  const auto stop = reinterpret_cast<uintptr_t>(__stop_hbmprof_test_frames);
  return start < return_address && return_address <= stop;
}

class StackTest : public ::testing::Test {
 protected:
  static Options TheOptions() {
    Options options;
    options.max_stack_depth = 16;
    return options;
  }
  Profiler profiler_{TheOptions()};
};

TEST_F(StackTest, FirstFrameIsTheFunctionThatRecorded) {
  ASSERT_TRUE(KnownCaller(profiler_, 1, 1));
  ASSERT_TRUE(KnownSegmentCaller(profiler_, 2));
  ASSERT_TRUE(KnownBlockCaller(profiler_, 2));
  ASSERT_TRUE(KnownWrapperCaller(profiler_, 3));
  const Snapshot snapshot = profiler_.TakeSnapshot();
  ASSERT_THAT(snapshot.samples, SizeIs(5));
  EXPECT_THAT(snapshot.stacks, SizeIs(5));
  for (const Snapshot::Stack& stack : snapshot.stacks) {
    ASSERT_THAT(stack.return_addresses, Not(IsEmpty()));
    if (Snapshot::IsNamedFrame(stack.return_addresses[0])) continue;  // the idle memory
    EXPECT_TRUE(IsKnownFrame(stack.return_addresses[0]));
  }
}

TEST_F(StackTest, DeepStackIsTruncatedAndMarked) {
  ASSERT_TRUE(Recurse(profiler_, 1, 40));
  const Snapshot snapshot = profiler_.TakeSnapshot();
  ASSERT_THAT(snapshot.stacks, SizeIs(1));
  ASSERT_THAT(snapshot.stacks[0].return_addresses, SizeIs(16));
  EXPECT_TRUE(snapshot.stacks[0].truncated);
  EXPECT_TRUE(IsKnownFrame(snapshot.stacks[0].return_addresses[0]));
  // Next comes Recurse, which called KnownCaller once and then itself, always from the same call site.
  for (size_t i = 3; i < 16; ++i) {
    EXPECT_EQ(snapshot.stacks[0].return_addresses[i], snapshot.stacks[0].return_addresses[2]) << i;
  }
  EXPECT_EQ(snapshot.tracker.truncated_stacks, 1);
}

TEST(ProfilerStacks, AreCompleteWithinTheLimit) {
  Options options;
  options.max_stack_depth = 512;
  Profiler profiler(options);
  ASSERT_TRUE(Recurse(profiler, 1, 40));
  const Snapshot snapshot = profiler.TakeSnapshot();
  EXPECT_GT(snapshot.stacks[0].return_addresses.size(), 42u);
  EXPECT_FALSE(snapshot.stacks[0].truncated);
  EXPECT_EQ(snapshot.tracker.truncated_stacks, 0);
}

TEST(ProfilerStacks, TruncatedStackIsCountedOnce) {
  constexpr int kTimes = 100;
  Options options;
  options.max_stack_depth = 16;
  Profiler profiler(options);
  for (int i = 1; i <= kTimes; ++i) ASSERT_TRUE(Recurse(profiler, static_cast<uint64_t>(i), 40));
  EXPECT_EQ(profiler.GetTrackerStats().truncated_stacks, 1);
}

// The cached site of a repeated stack also depends on the profiler, the kind and the tags, but not on the size.
TEST(ProfilerStacks, RepeatedStackDiffersByProfilerKindAndTags) {
  constexpr uint64_t kRounds = 200;
  constexpr size_t kSizes = 3;
  Profiler profilers[2];
  // The number of a site of one profiler is another site, or none, in the other profiler.
  const BufferId first(uint64_t{1} << 20);
  ASSERT_TRUE(profilers[1].RecordAlloc(first, 7));
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (uint64_t variant = 0; variant < 2 * kSizes * 2 * 2; ++variant) {
      Profiler& profiler = profilers[variant % 2];
      const size_t bytes = 100 + variant / 2 % kSizes;
      const MemoryKind kind = variant / 2 / kSizes % 2 == 0 ? MemoryKind::kDevice : MemoryKind::kManaged;
      std::optional<ScopedTag> tag;
      if (variant / 4 / kSizes == 1) tag.emplace("phase", "decode");
      ASSERT_TRUE(profiler.RecordAlloc(BufferId(1 + round * 64 + variant), bytes, {kDefaultDevice, kind}));
    }
  }
  profilers[1].RecordFree(first);
  for (Profiler& profiler : profilers) {
    Snapshot snapshot = profiler.TakeSnapshot();
    if (&profiler == &profilers[1]) snapshot.samples.erase(snapshot.samples.begin());
    EXPECT_THAT(snapshot.samples, SizeIs(2 * 2));
    for (const Snapshot::Sample& sample : snapshot.samples) {
      EXPECT_EQ(sample.inuse_objects, static_cast<int64_t>(kRounds * kSizes));
      EXPECT_EQ(sample.inuse_bytes, static_cast<int64_t>(kRounds * (100 + 101 + 102)));
    }
  }
}

// Records a buffer with one of 2^`levels` stacks.
[[gnu::noinline]] void RecordAtPath(Profiler& profiler, uint64_t path, int levels, BufferId id, size_t bytes) {
  if (levels == 0) {
    ASSERT_TRUE(profiler.RecordAlloc(id, bytes));
  } else if (path % 2 == 0) {
    RecordAtPath(profiler, path / 2, levels - 1, id, bytes);
    asm volatile("" ::"r"(0));
  } else {
    RecordAtPath(profiler, path / 2, levels - 1, id, bytes);
    asm volatile("" ::"r"(1));
  }
}

TEST(ProfilerStacks, ManySizesTakeNoPlaceAmongTheSites) {
  constexpr uint64_t kPaths = 1100;
  const auto profile_with = [&](uint64_t sizes) {
    Profiler profiler;
    int64_t bytes = 0;
    for (uint64_t i = 0; i < kPaths * sizes; ++i) {
      const size_t size = 256 * (1 + i / kPaths);
      RecordAtPath(profiler, i % kPaths, 11, At(i), size);
      bytes += static_cast<int64_t>(size);
    }
    const Snapshot snapshot = profiler.TakeSnapshot();
    EXPECT_THAT(snapshot.warnings, IsEmpty());
    EXPECT_THAT(snapshot.samples, SizeIs(kPaths));
    EXPECT_EQ(snapshot.tracker.sites, static_cast<int64_t>(kPaths));
    EXPECT_EQ(snapshot.tracker.dropped_records, 0);
    EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::inuse_bytes, [](const auto&) { return true; }), bytes);
    ExpectSound(snapshot);
    return SerializePprof(snapshot, nullptr)->size();
  };
  const size_t of_one_size = profile_with(1);
  EXPECT_LT(profile_with(256), 2 * of_one_size);
}

TEST(ProfilerStacks, WithoutUnwinderHaveTotalsAndLabels) {
  Options options;
  options.unwinder = Unwinder::kNone;
  Profiler profiler(options);
  ASSERT_TRUE(Recurse(profiler, 1, 40));
  ASSERT_TRUE(KnownCaller(profiler, 2, 1));
  const Snapshot snapshot = profiler.TakeSnapshot();
  ASSERT_THAT(snapshot.samples, SizeIs(1));
  EXPECT_THAT(snapshot.stacks[0].return_addresses, IsEmpty());
  EXPECT_EQ(snapshot.samples[0].inuse_objects, 2);
  EXPECT_EQ(snapshot.tracker.unwinder, "none");
  ExpectSound(snapshot);
}

// --- Tags, probes, snapshots ------------------------------------------------------------------------------------

TEST_F(ProfilerTest, SamplesCarryTheTagsOfTheirAllocation) {
  {
    ScopedTag phase("phase", "prefill");
    ScopedTag model("model", "llama");
    profiler_.RecordAlloc(At(1), 1);
  }
  profiler_.RecordAlloc(At(2), 2);
  {
    ScopedTag later("phase", "decode");
    profiler_.RecordFree(At(1));
  }
  for (const Snapshot::Sample& sample : profiler_.TakeSnapshot().samples) {
    if (sample.alloc_bytes == 1) {
      EXPECT_THAT(sample.tags, ElementsAre(Pair("model", "llama"), Pair("phase", "prefill")));
      EXPECT_EQ(sample.inuse_objects, 0);
    } else {
      EXPECT_THAT(sample.tags, IsEmpty());
    }
  }
}

TEST_F(ProfilerTest, ProbeValuesAppearInStats) {
  profiler_.RecordAlloc(At(1), 400);
  profiler_.SetDeviceProbe(kDefaultDevice, [] { return DeviceProbe{1000, 600, 500, 300}; });
  const DeviceStats stats = Stats();
  EXPECT_EQ(stats.bytes_limit, 1000);
  EXPECT_EQ(stats.bytes_free, 600);
  EXPECT_EQ(stats.largest_free_block_bytes, 500);
  EXPECT_EQ(stats.driver_bytes_in_use, 300);
  EXPECT_TRUE(stats.unaccounted.has_value());
  EXPECT_EQ(stats.unaccounted, -100) << "signed, never clamped";
  EXPECT_EQ(FindDevice(profiler_.TakeSnapshot(), "GPU:0")->spaces[0].unaccounted, -100);
  profiler_.SetDeviceProbe(kDefaultDevice, [] { return DeviceProbe{2000}; });
  EXPECT_EQ(Stats().bytes_limit, 2000) << "a later probe replaces the one before";
  EXPECT_FALSE(Stats().unaccounted.has_value());
}

TEST_F(ProfilerTest, ProbeThatThrowsKnowsNothing) {
  profiler_.RecordAlloc(At(1), 400);
  profiler_.SetDeviceProbe(kDefaultDevice, []() -> DeviceProbe { throw std::runtime_error("lost device"); });
  EXPECT_EQ(Stats().bytes_in_use, 400);
  EXPECT_EQ(Stats().bytes_limit, std::nullopt);
  EXPECT_EQ(profiler_.TakeSnapshot().devices.size(), 1u);
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
}

TEST_F(ProfilerTest, OnlyOwnerRemovesProbe) {
  const int mine = 0;
  const int theirs = 0;
  profiler_.SetDeviceProbe(
      kDefaultDevice, [] { return DeviceProbe{1000}; }, &mine);
  profiler_.RemoveDeviceProbe(kDefaultDevice, &theirs);
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
  profiler_.RemoveDeviceProbe(DeviceId{5}, &mine);
  EXPECT_EQ(Stats().bytes_limit, 1000);
  profiler_.SetDeviceProbe(
      kDefaultDevice, [] { return DeviceProbe{2000}; }, &theirs);
  profiler_.RemoveDeviceProbe(kDefaultDevice, &mine);
  EXPECT_EQ(Stats().bytes_limit, 2000) << "it is the other's now";
  profiler_.RemoveDeviceProbe(kDefaultDevice, &theirs);
  EXPECT_EQ(Stats().bytes_limit, std::nullopt);
}

TEST_F(ProfilerTest, RemovedProbeDoesNotRun) {
  std::atomic<bool> entered{false};
  std::atomic<bool> removing{false};
  std::atomic<bool> left{false};
  profiler_.SetDeviceProbe(kDefaultDevice, [&] {
    entered.store(true);
    while (!removing.load()) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    left.store(true);
    return DeviceProbe{};
  });
  std::thread asker([&] { profiler_.Stats(kDefaultDevice); });
  while (!entered.load()) std::this_thread::yield();
  removing.store(true);
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
  EXPECT_TRUE(left.load());
  asker.join();
}

TEST_F(ProfilerTest, ProbeMayCallTheProfilerAndRemoveItself) {
  profiler_.RecordAlloc(At(1), 400);
  int calls = 0;
  profiler_.SetDeviceProbe(kDefaultDevice, [&] {
    ++calls;
    const DeviceStats inside = profiler_.Stats(kDefaultDevice);
    EXPECT_EQ(inside.bytes_in_use, 400);
    EXPECT_EQ(inside.bytes_limit, std::nullopt) << "no device is asked from inside a probe";
    EXPECT_EQ(profiler_.TakeSnapshot().devices.size(), 1u);
    profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
    return DeviceProbe{5};
  });
  EXPECT_EQ(Stats().bytes_limit, 5);
  EXPECT_EQ(Stats().bytes_limit, std::nullopt);
  EXPECT_EQ(calls, 1);
}

TEST_F(ProfilerTest, ProbeRemovalWaitsForAllCalls) {
  constexpr int kThreads = 4;
  auto running = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> ends{false};
  profiler_.SetDeviceProbe(kDefaultDevice, [&ends, running] {
    running->fetch_add(1);
    while (!ends.load()) std::this_thread::yield();
    running->fetch_sub(1);
    return DeviceProbe{5};
  });
  std::vector<std::thread> askers;
  for (int i = 0; i < kThreads; ++i) askers.emplace_back([&] { EXPECT_EQ(Stats().bytes_limit, 5); });
  while (running->load() < kThreads) std::this_thread::yield();
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ends.store(true);
  });
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
  EXPECT_EQ(running->load(), 0);
  EXPECT_EQ(running.use_count(), 1) << "what the probe held is destroyed";
  for (std::thread& asker : askers) asker.join();
  ender.join();
}

TEST_F(ProfilerTest, LongReservedTagOfTheProcessKeepsItsName) {
  const std::string name = "pprof::" + std::string(121, 'x');
  internal::ProfilerImpl& impl = internal::ProfilerAccess::ImplOf(profiler_);
  impl.names.tags.Set(name, "a");
  impl.names.tags.Set("b", "c");
  profiler_.RecordAlloc(At(1), 1);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  EXPECT_THAT(snapshot.samples.at(0).tags, ElementsAre(Pair("b", "c"), Pair("tag_" + name, "a")));
  impl.names.tags.Set(name, "");
  EXPECT_THAT(profiler_.TakeSnapshot().samples.at(0).tags, ElementsAre(Pair("b", "c")));
}

// Returns what `is_right` returns in a forked child.
template <typename IsRight>
bool IsRightInChild(const IsRight& is_right) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(is_right() ? 7 : 8);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

TEST_F(ProfilerTest, ChildForkedInsideTheTrackerRecordsNothing) {
  ASSERT_TRUE(profiler_.RecordAlloc(At(1), 100));
  std::optional<internal::ReentryGuard> guard(std::in_place);  // as in a signal handler that interrupted the tracker
  EXPECT_TRUE(IsRightInChild([&] {
    guard.reset();
    profiler_.SetEnabled(true);
    return !profiler_.RecordAlloc(At(2), 10) && !profiler_.enabled();
  }));
}

TEST_F(ProfilerTest, ForkedChildDoesNotCallTheDriverOfItsParent) {
  static constexpr internal::DeviceDriver kDriver = {};
  internal::device_driver.store(&kDriver);
  EXPECT_TRUE(IsRightInChild([] { return internal::device_driver.load() == nullptr; }));
  EXPECT_EQ(internal::device_driver.exchange(nullptr), &kDriver);
}

TEST_F(ProfilerTest, ForkIsSafeDuringAProbe) {
  profiler_.RecordAlloc(At(1), 1);
  std::atomic<bool> entered{false};
  std::atomic<bool> ends{false};
  const auto stats_in_child = [&] {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      const bool right =
          profiler_.Stats(kDefaultDevice).bytes_limit == std::nullopt && !profiler_.FindBuffer(At(1)).has_value();
      profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
      _exit(right ? 7 : 8);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  profiler_.SetDeviceProbe(kDefaultDevice, [&] {
    EXPECT_EQ(stats_in_child(), 7) << "forked in a probe";
    entered.store(true);
    while (!ends.load()) std::this_thread::yield();
    return DeviceProbe{5};
  });
  std::thread asker([&] { EXPECT_EQ(Stats().bytes_limit, 5); });
  while (!entered.load()) std::this_thread::yield();
  EXPECT_EQ(stats_in_child(), 7);
  ends.store(true);
  asker.join();
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
}

TEST_F(ProfilerTest, OtherThreadsRecordWhileAProbeRuns) {
  profiler_.SetDeviceProbe(kDefaultDevice, [&] {
    std::thread([&] {
      EXPECT_TRUE(profiler_.RecordAlloc(At(1), 10));
      EXPECT_TRUE(profiler_.RecordFree(At(1)));
    }).join();
    return DeviceProbe{5};
  });
  EXPECT_EQ(Stats().bytes_limit, 5);
  profiler_.TakeSnapshot();
  EXPECT_EQ(Stats().num_allocs, 3) << "one per question, the third being this one";
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
}

TEST_F(ProfilerTest, ProbeMayRecordNameAndTag) {
  profiler_.RecordAlloc(At(9), 90);
  bool is_first = true;
  profiler_.SetDeviceProbe(kDefaultDevice, [&] {
    const ScopedTag tag("asked", "yes");
    const DeviceId device = profiler_.Device("asked:0");
    const AllocatorId allocator = profiler_.Allocator("probe");
    EXPECT_NE(device, kDefaultDevice);
    EXPECT_NE(allocator, AllocatorId{});
    profiler_.SetCounter("questions", 7);
    if (!std::exchange(is_first, false)) return DeviceProbe{};
    EXPECT_TRUE(profiler_.RecordAlloc(At(1), 10, {device, MemoryKind::kDevice, allocator}));
    EXPECT_TRUE(profiler_.RecordFree(At(9)));
    return DeviceProbe{};
  });
  Stats();
  const Snapshot snapshot = profiler_.TakeSnapshot();
  profiler_.RemoveDeviceProbe(kDefaultDevice, nullptr);
  ExpectSound(snapshot);
  EXPECT_THAT(snapshot.counters, ElementsAre(Pair("questions", 7)));
  ASSERT_NE(FindDevice(snapshot, "asked:0"), nullptr);
  EXPECT_EQ(FindDevice(snapshot, "asked:0")->spaces[0].bytes_in_use, 10);
  const auto made = std::find_if(snapshot.samples.begin(), snapshot.samples.end(),
                                 [](const Snapshot::Sample& sample) { return sample.inuse_bytes == 10; });
  ASSERT_NE(made, snapshot.samples.end());
  EXPECT_THAT(made->tags, ElementsAre(Pair("asked", "yes")));
  EXPECT_EQ(snapshot.allocators[made->allocator], "probe");
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Tracker().reentrant_events, 0);
  EXPECT_EQ(Tracker().foreign_frees, 0);
}

TEST_F(ProfilerTest, ResizesNeverLowerTheBytesEverAllocated) {
  profiler_.RecordAlloc(At(1), 10);
  int64_t allocated = 10;
  size_t size = 10;
  for (const size_t next : {20, 10, 30, 5, 6, 30, 10, 0, 40, 20}) {
    ASSERT_TRUE(profiler_.RecordResize(At(1), next));
    if (next > size) allocated += static_cast<int64_t>(next - size);
    size = next;
    const Snapshot snapshot = profiler_.TakeSnapshot();
    EXPECT_EQ(Sum(snapshot, &Snapshot::Sample::alloc_bytes, [](const Snapshot::Sample&) { return true; }), allocated)
        << "resized to " << next;
    ExpectSound(snapshot);
  }
}

TEST_F(ProfilerTest, BytesEverAllocatedStayAtTheLargestNumber) {
  constexpr int64_t kHalf = INT64_MAX / 2;
  profiler_.RecordAlloc(At(1), 100);
  internal::Ledger& ledger = internal::ProfilerAccess::ImplOf(profiler_).ledger();
  const auto add = [&](int count) {
    for (int i = 0; i < count; ++i) {
      {
        internal::Ledger::Event event(ledger, internal::Ledger::Locks::kOwnShard);
        const auto counter = event.Prepare(/*site=*/0, 0);
        ASSERT_NE(counter, nullptr);
        event.Alloc(counter, 1, /*site=*/0, kHalf);
        event.Free(counter, 1, {/*site=*/0, internal::PresentGeneration(), kHalf});
      }
      const Snapshot snapshot = profiler_.TakeSnapshot();
      EXPECT_EQ(snapshot.samples.at(0).inuse_bytes, 100);
      EXPECT_GE(snapshot.samples.at(0).alloc_bytes, kHalf);
    }
  };
  add(1);
  EXPECT_EQ(profiler_.TakeSnapshot().samples.at(0).alloc_bytes, kHalf + 100);
  std::thread(add, 1).join();  // another shard
  add(5);
  EXPECT_EQ(profiler_.TakeSnapshot().samples.at(0).alloc_bytes, INT64_MAX);
  EXPECT_TRUE(profiler_.RecordFree(At(1)));
  EXPECT_EQ(profiler_.TakeSnapshot().samples.at(0).inuse_bytes, 0);
  EXPECT_EQ(profiler_.TakeSnapshot().samples.at(0).alloc_bytes, INT64_MAX);
}

TEST_F(ProfilerTest, LaterEventsDoNotChangeASnapshot) {
  profiler_.RecordAlloc(At(1), 100);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  const std::string before = Describe(snapshot);
  profiler_.RecordFree(At(1));
  profiler_.RecordAlloc(At(2), 5000);
  EXPECT_EQ(Describe(snapshot), before);
}

TEST_F(ProfilerTest, SnapshotsTotalsAreThoseOfStats) {
  const DeviceId other = profiler_.Device("GPU:1");
  for (uint64_t i = 0; i < 200; ++i) {
    const auto kind = MemoryKind(i % kMemoryKindCount);
    profiler_.RecordAlloc(At(i + 1), i * 10, {i % 2 == 0 ? other : kDefaultDevice, kind, {}});
    if (i % 3 == 0) profiler_.RecordFree(At(i / 2 + 1));
  }
  const Snapshot snapshot = profiler_.TakeSnapshot();
  for (const auto& [name, id] : {std::pair("GPU:1", other), std::pair("GPU:0", kDefaultDevice)}) {
    const Snapshot::Device* device = FindDevice(snapshot, name);
    ASSERT_NE(device, nullptr);
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const DeviceStats stats = profiler_.Stats(id, MemorySpace(space));
      EXPECT_EQ(device->spaces[space].bytes_in_use, stats.bytes_in_use);
      EXPECT_EQ(device->spaces[space].peak_bytes_in_use, stats.peak_bytes_in_use);
      EXPECT_EQ(device->spaces[space].num_allocs, stats.num_allocs);
      EXPECT_EQ(device->spaces[space].num_live, stats.num_live);
      EXPECT_EQ(device->spaces[space].largest_alloc_size, stats.largest_alloc_size);
    }
  }
  ExpectSound(snapshot);
}

TEST_F(ProfilerTest, SnapshotListsTheModuleOfEveryFrame) {
  ASSERT_TRUE(KnownCaller(profiler_, 1, 1));
  const Snapshot snapshot = profiler_.TakeSnapshot();
  ASSERT_THAT(snapshot.modules, Not(IsEmpty()));
  EXPECT_THAT(snapshot.modules[0].path, HasSubstr("profiler_test"));
  for (const uint64_t address : snapshot.stacks[0].return_addresses) {
    int modules = 0;
    for (const Snapshot::Module& module : snapshot.modules) {
      modules += module.start < address && address <= module.limit ? 1 : 0;
    }
    EXPECT_EQ(modules, 1) << std::hex << address;
  }
}

TEST_F(ProfilerTest, CallSiteWithManySizesStaysExact) {
  int64_t bytes = 0;
  for (uint64_t i = 1; i <= 5000; ++i) {
    ASSERT_TRUE(KnownCaller(profiler_, i, i * 3));
    bytes += static_cast<int64_t>(i) * 3;
  }
  EXPECT_EQ(Stats().bytes_in_use, bytes);
  EXPECT_LT(Tracker().sites, 300);
  ExpectSound(profiler_.TakeSnapshot());
}

TEST_F(ProfilerTest, BuffersOutliveTheirThreads) {
  for (uint64_t i = 0; i < 200; ++i) {
    std::thread([&, i] {
      ScopedTag tag("thread", "short");
      profiler_.RecordAlloc(At(2 * i + 1), 10);
      profiler_.RecordAlloc(At(2 * i + 2), 20);
      if (i > 0) {
        EXPECT_EQ(profiler_.RecordFree(At(2 * i)), 20) << "of the thread before";
      }
    }).join();
  }
  EXPECT_EQ(Stats().num_live, 201);
  EXPECT_EQ(Stats().bytes_in_use, 2020);
}

}  // namespace
}  // namespace hbmprof
