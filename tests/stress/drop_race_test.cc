// A device is dropped, or a segment is freed or changed, during an event of another thread: at every step that a test
// can force, and at random. In each order, no value is negative and no record without an owner is left.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/core/ledger/trace.h"

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
      EXPECT_GE(stats.bytes_reserved, 0);
      EXPECT_GE(stats.pool_bytes, 0);
      EXPECT_EQ(profiler_.GetTrackerStats().live_records, stats.num_live);
      if (round == 1) {
        EXPECT_EQ(stats.bytes_in_use, 0);
        EXPECT_EQ(stats.pool_bytes, 0);
        EXPECT_EQ(stats.bytes_reserved, 0);
        EXPECT_EQ(stats.num_live, 0);
        // No segment is left at the address: a block there is not in a segment, and a new segment is recorded.
        EXPECT_TRUE(profiler_.RecordBlock(kBlockAddress, kBlock, {device_}));
        EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kBlock);
        EXPECT_TRUE(profiler_.RecordBlockFree(kBlockAddress));
        EXPECT_TRUE(profiler_.RecordSegment(kAddress, kSegment, {device_}));
        EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kSegment);
      }
      profiler_.DropDevice(device_);
    }
  }

  Profiler profiler_;
  const DeviceId device_ = profiler_.Device("GPU:0");
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

TEST_F(DropRaceTest, WhileASegmentIsDeclared) {
  Force(
      internal::EventStep::kSegmentPlaced, [&] { profiler_.RecordSegment(kAddress, kSegment, {device_}); },
      [&] { profiler_.DropDevice(device_); });
  ExpectSound();
}

TEST_F(DropRaceTest, WhileSegmentIsDeclaredInsideDroppedOne) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  Force(
      internal::EventStep::kSegmentPlaced,
      [&] { EXPECT_TRUE(profiler_.RecordSegment(kBlockAddress, kBlock, {device_})); },
      [&] { profiler_.DropDevice(device_); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kBlock);
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
    EXPECT_TRUE(profiler_.RecordSegment(kAddress, kSegment, {device_}));
    at_ledger = nullptr;
    beside.Join();
    EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0);
    ExpectSound();
    profiler_.DropDevice(device_);
  }
}

TEST_F(DropRaceTest, WhileASegmentIsResized) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  Beside beside;
  at_ledger = [&] { beside.Start([&] { profiler_.RecordFree(kAddress); }); };
  EXPECT_TRUE(profiler_.RecordResize(kAddress, 2 * kSegment));
  at_ledger = nullptr;
  beside.Join();
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0);
  ExpectSound();
}

TEST_F(DropRaceTest, WhileASegmentIsFreed) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  profiler_.RecordBlock(kBlockAddress, kBlock, {device_});
  Force(
      internal::EventStep::kSegmentFreed, [&] { profiler_.RecordFree(kAddress); },
      [&] { profiler_.DropDevice(device_); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0);
  ExpectSound();
}

TEST_F(DropRaceTest, WhileFreedSegmentIsDroppedAndDeclaredAgain) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  Force(
      internal::EventStep::kSegmentFreed, [&] { profiler_.RecordFree(kAddress); },
      [&] {
        profiler_.DropDevice(device_);
        EXPECT_TRUE(profiler_.RecordSegment(kAddress, kSegment, {device_}));
      });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0) << "the free ends the new one";
  ExpectSound();
}

TEST_F(DropRaceTest, WhileMergedOrSplitSegmentIsFreed) {
  const BufferId second(kAddress.value() + kSegment);
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  profiler_.RecordSegment(second, kSegment, {device_});
  Force(
      internal::EventStep::kSegmentFreed, [&] { profiler_.RecordFree(second); },
      [&] { EXPECT_TRUE(profiler_.MergeSegments(kAddress, second)); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 2 * kSegment);
  Force(
      internal::EventStep::kSegmentFreed, [&] { profiler_.RecordFree(kAddress); },
      [&] { EXPECT_TRUE(profiler_.SplitSegment(kAddress, kSegment)); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kSegment) << "the half that it did not free";
  ExpectSound();
}

TEST_F(DropRaceTest, WhileResizedSegmentIsFreed) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  std::optional<int64_t> freed;
  Force(
      internal::EventStep::kSegmentFreed, [&] { freed = profiler_.RecordFree(kAddress); },
      [&] { EXPECT_TRUE(profiler_.RecordResize(kAddress, 2 * kSegment)); });
  EXPECT_EQ(freed, 2 * kSegment) << "the record at the time of the free";
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, 0);
  ExpectSound();
}

TEST_F(DropRaceTest, OneOfTwoFreesOfASegmentGetsItsRecord) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  std::optional<int64_t> first;
  std::optional<int64_t> second;
  Force(
      internal::EventStep::kSegmentFreed, [&] { first = profiler_.RecordFree(kAddress); },
      [&] { second = profiler_.RecordFree(kAddress); });
  EXPECT_FALSE(first);
  EXPECT_EQ(second, kSegment);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 1);
  ExpectSound();
}

TEST_F(DropRaceTest, WhileABufferReplacesASegment) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  Force(
      internal::EventStep::kSegmentFreed, [&] { EXPECT_TRUE(profiler_.RecordAlloc(kAddress, kBlock, {device_})); },
      [&] { profiler_.DropDevice(device_); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kBlock);
  ExpectSound();
}

TEST_F(DropRaceTest, WhileABlockIsRecorded) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  Force(
      internal::EventStep::kBlockPlaced, [&] { profiler_.RecordBlock(kBlockAddress, kBlock, {device_}); },
      [&] { profiler_.DropDevice(device_); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kBlock) << "it is recorded after the drop";
  ExpectSound();
}

TEST_F(DropRaceTest, WhileSegmentOfRecordedBlockIsDeclared) {
  Force(
      internal::EventStep::kBlockPlaced, [&] { profiler_.RecordBlock(kBlockAddress, kBlock, {device_}); },
      [&] { EXPECT_TRUE(profiler_.RecordSegment(kAddress, kSegment, {device_})); });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kSegment);
  EXPECT_EQ(profiler_.Stats(device_).bytes_reserved, kSegment - kBlock);
  ExpectSound();
}

TEST_F(DropRaceTest, WhileBlockIsRecordedInSegmentDeclaredAgain) {
  profiler_.RecordSegment(kAddress, kSegment, {device_});
  Force(
      internal::EventStep::kBlockPlaced, [&] { profiler_.RecordBlock(kBlockAddress, kBlock, {device_}); },
      [&] {
        EXPECT_TRUE(profiler_.RecordFree(kAddress));
        EXPECT_TRUE(profiler_.RecordSegment(kAddress, kSegment, {device_}));
      });
  EXPECT_EQ(profiler_.Stats(device_).bytes_in_use, kSegment);
  ExpectSound();
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
      for (int round = 0; round < kRounds; ++round) {
        if (round % 2 == 0) profiler_.RecordAlloc(BufferId(address), kSegment, {device_});
        if (round % 5 == 0) profiler_.RecordBlock(BufferId(address + 12288), kBlock, {device_});
        profiler_.RecordSegment(BufferId(address), kSegment, {device_});
        profiler_.RecordBlock(BufferId(address + 4096), kBlock, {device_});
        profiler_.RecordBlock(BufferId(address + 8192), kBlock, {device_});
        if (round % 7 == 0) profiler_.RecordSegment(BufferId(address + 8192), kBlock, {device_});
        if (round % 4 == 0) profiler_.RecordResize(BufferId(address), kSegment / 2);
        if (round % 4 == 1) profiler_.SplitSegment(BufferId(address), 16384);
        profiler_.RecordBlockResize(BufferId(address + 8192), 2 * kBlock);
        if (round % 8 == 1) profiler_.MergeSegments(BufferId(address), BufferId(address + 16384));
        profiler_.RecordBlockFree(BufferId(address + 4096));
        if (round % 3 == 0) profiler_.RecordFree(BufferId(address));
        if (round % 4 == 1) profiler_.RecordFree(BufferId(address + 16384));
      }
    });
  }
  for (std::thread& recorder : recorders) recorder.join();
  stop.store(true);
  for (std::thread& dropper : droppers) dropper.join();
  ExpectSound();
}

TEST(GuardCheckTest, FindsAThreadThatStaysInsideTheTracker) {
  EXPECT_DEATH(
      {
        const internal::GuardCheck check;
        internal::ReentryGuard::Enter();
      },
      "");
  const internal::GuardCheck check;
  const internal::ReentryGuard guard;
}

}  // namespace
}  // namespace hbmprof
