// A device is dropped, or a record is freed or changed, during an event of another thread: at every step that a test
// can force, and at random. In each order, no value is negative and no record without an owner is left.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/core/injected/injected.h"
#include "src/core/ledger/trace.h"
#include "src/core/snapshot_builder.h"

namespace hbmprof {
namespace {

// Runs when the thread that set it next reaches the step `step_to_meet`.
thread_local std::function<void()> at_step;
thread_local internal::EventStep step_to_meet;
// Runs at the next event that this thread enters into the ledger, with the ledger's locks held.
thread_local std::function<void()> at_ledger;

void RunOnce(std::function<void()>* action) {
  std::function<void()> taken;
  taken.swap(*action);
  if (taken) taken();
}

}  // namespace

namespace internal {
void TraceLedger(uint64_t) {
  if (at_ledger) RunOnce(&at_ledger);
}
void TraceStep(EventStep step) {
  if (at_step && step == step_to_meet) RunOnce(&at_step);
}
}  // namespace internal

namespace {

constexpr int64_t kSegment = int64_t{1} << 30;
constexpr int64_t kBlock = 4096;
const BufferId kAddress(uint64_t{1} << 40);
const BufferId kBlockAddress((uint64_t{1} << 40) + (1 << 20));

class DropRaceTest : public ::testing::Test {
 protected:
  // Calls `event`. At the step `step` of `event`, another thread calls `meanwhile`.
  template <typename Event, typename Meanwhile>
  void Force(internal::EventStep step, const Event& event, const Meanwhile& meanwhile) {
    step_to_meet = step;
    bool met = false;
    at_step = [&] {
      met = true;
      std::thread(meanwhile).join();
    };
    event();
    at_step = nullptr;
    EXPECT_TRUE(met);
  }

  // Expects that every account and site is correct, and that everything is empty after a last drop.
  void ExpectSound() {
    for (int round = 0; round < 2; ++round) {
      const Snapshot snapshot = profiler_.TakeSnapshot();
      int64_t bytes = 0;
      for (const Snapshot::Sample& sample : snapshot.samples) {
        EXPECT_GE(sample.inuse_bytes, 0) << MemoryKindName(sample.kind);
        EXPECT_GE(sample.inuse_objects, 0) << MemoryKindName(sample.kind);
        bytes += sample.inuse_bytes;
      }
      const DeviceStats stats = profiler_.Stats(device_);
      EXPECT_EQ(bytes, stats.bytes_in_use);
      EXPECT_GE(stats.idle_bytes, 0);
      EXPECT_GE(stats.pool_bytes, 0);
      EXPECT_EQ(profiler_.GetTrackerStats().live_records, stats.num_live);
      if (round == 1) {
        EXPECT_EQ(stats.bytes_in_use, 0);
        EXPECT_EQ(stats.pool_bytes, 0);
        EXPECT_EQ(stats.idle_bytes, 0);
        EXPECT_EQ(stats.num_live, 0);
        for (const PoolStats& pool : snapshot.devices.at(0).pools) {
          EXPECT_EQ(pool.bytes_reserved, 0);
          EXPECT_EQ(pool.bytes_allocated, 0);
        }
      }
      profiler_.DropDevice(device_);
    }
  }

  Profiler profiler_;
  const DeviceId device_ = profiler_.Device("GPU:0");
  const Pool pool_ = {device_, profiler_.Allocator("pool")};
  const Pool inner_ = {device_, profiler_.Allocator("inner")};
};

// Runs `meanwhile` in another thread until it has ended or waits for the event that this thread is in.
class Beside {
 public:
  template <typename Meanwhile>
  void Start(const Meanwhile& meanwhile) {
    thread_ = std::thread([this, meanwhile] {
      meanwhile();
      ended_.store(true);
    });
    for (int i = 0; i < 200 && !ended_.load(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void Join() { thread_.join(); }

 private:
  std::thread thread_;
  std::atomic<bool> ended_{false};
};

TEST_F(DropRaceTest, WhileABufferIsRecorded) {
  Force(
      internal::EventStep::kSiteFound, [&] { profiler_.RecordAlloc(kAddress, kSegment, {device_}); },
      [&] { profiler_.DropDevice(device_); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kSegment) << "it is recorded after the drop";
  ExpectSound();
}

TEST_F(DropRaceTest, WhileARecordBecomesASegment) {
  for (const bool is_freed : {false, true}) {
    profiler_.RecordAlloc(kAddress, kSegment, {device_});
    Beside beside;
    at_ledger = [&] {
      beside.Start([&] {
        if (is_freed) {
          profiler_.RecordFree(kAddress);
        } else {
          profiler_.DropDevice(device_);
        }
      });
    };
    EXPECT_TRUE(profiler_.RecordSegment(pool_, kAddress, kSegment));
    at_ledger = nullptr;
    beside.Join();
    EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0);
    ExpectSound();
    profiler_.DropDevice(device_);
  }
}

TEST_F(DropRaceTest, WhileASegmentIsResized) {
  profiler_.RecordSegment(pool_, kAddress, kSegment);
  Beside beside;
  at_ledger = [&] { beside.Start([&] { profiler_.RecordFree(kAddress); }); };
  EXPECT_TRUE(profiler_.RecordResize(kAddress, 2 * kSegment));
  at_ledger = nullptr;
  beside.Join();
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0);
  ExpectSound();
}

// What another thread does in the moment in which a segment with live blocks ends.
TEST_F(DropRaceTest, WhileASegmentEnds) {
  const std::function<void()> actions[] = {
      [&] { profiler_.DropDevice(device_); },
      [&] { EXPECT_EQ(profiler_.RecordBlockFree(pool_, kBlockAddress).value_or(kBlock), kBlock); },
      [&] { EXPECT_FALSE(profiler_.RecordFree(kAddress)); },
      [&] { EXPECT_TRUE(profiler_.RecordSegment(pool_, kAddress, kSegment)); },
      [&] { EXPECT_TRUE(profiler_.RecordAlloc(kAddress, kSegment, {device_})); },
      [&] { profiler_.TakeSnapshot(); },
  };
  for (const std::function<void()>& action : actions) {
    profiler_.RecordSegment(pool_, kAddress, kSegment);
    profiler_.RecordBlock(pool_, kBlockAddress, kBlock);
    profiler_.RecordSegment(inner_, kBlockAddress, kBlock);
    profiler_.RecordBlock(inner_, kBlockAddress, kBlock / 2);
    Beside beside;
    at_ledger = [&] { beside.Start(action); };
    EXPECT_EQ(profiler_.RecordFree(kAddress), kSegment);
    at_ledger = nullptr;
    beside.Join();
    EXPECT_LE(profiler_.Stats(device_).num_live, 1);
    EXPECT_EQ(profiler_.TakeSnapshot().warnings.size(), 0u);
    ExpectSound();
  }
}

// A segment with a live block ends just before totals are read, while the pool has another segment: so nothing but the
// reading ends the block.
TEST_F(DropRaceTest, WhenASegmentEndsBeforeTotalsAreReadItsBlocksHaveEnded) {
  const std::function<int64_t()> readings[] = {
      [&] { return profiler_.Stats(device_).num_live - 1; },
      [&] { return internal::ProfilerAccess::ImplOf(profiler_).StatsOf(pool_).bytes_allocated; },
      [&] { return profiler_.GetTrackerStats().live_records - 1; },
      [&] {
        return internal::SnapshotOf(profiler_, internal::SnapshotParts::kDevices).devices[0].spaces[0].num_live - 1;
      },
      [&] {
        int64_t bytes = 0;
        for (const Snapshot::Sample& sample : profiler_.TakeSnapshot().samples) {
          if (sample.kind != MemoryKind::kPool) bytes += sample.inuse_bytes;
        }
        return bytes;
      },
      [&] {
        profiler_.ResetPeak(device_);
        return internal::ProfilerAccess::ImplOf(profiler_).StatsOf(pool_).peak_bytes_allocated;
      },
      [&] {
        // As a recording does at its start and at its end.
        int64_t instant = 0;
        return internal::ProfilerAccess::ImplOf(profiler_).ledger().Snapshot(&instant).pools[1].bytes_allocated;
      },
  };
  const BufferId other(kAddress.value() + kSegment);
  int number = 0;
  for (const std::function<int64_t()>& read : readings) {
    SCOPED_TRACE(number++);
    profiler_.RecordSegment(pool_, kAddress, kSegment);
    profiler_.RecordSegment(pool_, other, kSegment);
    profiler_.RecordBlock(pool_, kBlockAddress, kBlock);
    int64_t found = 0;
    Force(
        internal::EventStep::kTotals, [&] { found = read(); }, [&] { profiler_.RecordFree(kAddress); });
    EXPECT_EQ(found, 0);
    profiler_.DropDevice(device_);
  }
}

TEST_F(DropRaceTest, AtRandom) {
  constexpr int kRounds = 5000;
  std::atomic<bool> stop{false};
  std::vector<std::thread> droppers;
  for (int i = 0; i < 2; ++i) {
    droppers.emplace_back([&] {
      while (!stop.load()) profiler_.DropDevice(device_);
    });
  }
  std::vector<std::thread> recorders;
  for (uint64_t i = 0; i < 3; ++i) {
    recorders.emplace_back([&, i] {
      const uint64_t address = kAddress.value() + i * kSegment;
      const auto at = [&](uint64_t offset) { return BufferId(address + offset); };
      for (int round = 0; round < kRounds; ++round) {
        if (round % 2 == 0) profiler_.RecordAlloc(at(0), kSegment, {device_});
        profiler_.RecordSegment(pool_, at(0), kSegment);
        profiler_.RecordBlock(pool_, at(4096), kBlock);
        profiler_.RecordBlock(pool_, at(8192), kBlock);
        if (round % 7 == 0) profiler_.RecordSegment(inner_, at(8192), kBlock);
        if (round % 7 == 0) profiler_.RecordBlock(inner_, at(8192), kBlock);
        if (round % 14 == 0) profiler_.RecordSegmentFree(inner_, at(8192));
        if (round % 4 == 0) profiler_.RecordResize(at(0), kSegment / 2);
        // Threads change and end one block at once, though no program should.
        profiler_.RecordBlock(pool_, kBlockAddress, kBlock);
        profiler_.RecordBlockResize(pool_, kBlockAddress, static_cast<size_t>(2 + round % 3) * kBlock);
        if (round % 2 == 0) profiler_.RecordBlockFree(pool_, kBlockAddress);
        profiler_.RecordBlockResize(pool_, at(8192), 2 * kBlock);
        profiler_.RecordBlockFree(pool_, at(4096));
        if (round % 3 == 0) profiler_.RecordFree(at(0));
        if (round % 3 == 1) profiler_.RecordSegmentFree(pool_, at(0));
      }
    });
  }
  for (std::thread& recorder : recorders) recorder.join();
  stop.store(true);
  for (std::thread& dropper : droppers) dropper.join();
  profiler_.DropDevice(device_);
  ExpectSound();
}

}  // namespace
}  // namespace hbmprof
