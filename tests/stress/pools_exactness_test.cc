// Pools under concurrency: threads record and free blocks that lie across segments, while others split, merge, resize,
// nest and declare those segments, and another takes snapshots and resets the peak. The ledger reports the order of the
// events; the naive model of every unit replays them in that order, and every snapshot must equal it.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/ledger/trace.h"
#include "tests/support/interval_model.h"
#include "tests/support/sanitized.h"

namespace hbmprof {
namespace {

using hbmprof_test::IntervalModel;

constexpr uint64_t kBase = uint64_t{1} << 32;
constexpr int64_t kUnit = 4096;
constexpr int kBlockThreads = 6;
constexpr int kUnitsPerThread = 10;
constexpr int kShared = kBlockThreads * kUnitsPerThread;  // the blocks' range, in segments that are split and merged
constexpr int kOwn = 32;                                  // the range of the thread that nests and resizes
constexpr int kUnits = kShared + kOwn;

BufferId At(int unit) { return BufferId(kBase + static_cast<uint64_t>(unit) * kUnit); }
size_t Bytes(int units) { return static_cast<size_t>(units) * kUnit; }

struct Operation {
  enum Kind : uint8_t { kBlock, kSegment, kMakeSegment, kFree, kSetEnd, kSplit, kMerge, kResetPeak, kSnapshot };
  Kind kind;
  int start = 0;
  int end = 0;  // for kSplit and kMerge: where the second segment begins
  int tag = 0;
  bool is_segment = false;
  bool has_block_id = false;
  const Snapshot* snapshot = nullptr;
};
struct Step {
  uint64_t order;
  const Operation* operation;
};
struct ThreadLog {
  std::deque<Operation> operations;
  std::deque<Snapshot> snapshots;
  std::vector<Step> steps;
};
std::atomic<uint64_t> next_order{0};
thread_local ThreadLog* log_of_this_thread = nullptr;

void Begin(const Operation& operation) { log_of_this_thread->operations.push_back(operation); }

}  // namespace

namespace internal {
void TraceLedger() {
  ThreadLog* log = log_of_this_thread;
  if (log == nullptr) return;
  log->steps.push_back({next_order.fetch_add(1, std::memory_order_relaxed), &log->operations.back()});
}
void TraceStep(EventStep) {}
}  // namespace internal

namespace {

class PoolsExactness : public ::testing::Test {
 protected:
  static Options WithoutStacks() {
    Options options;
    options.unwinder = Unwinder::kNone;
    return options;
  }

  void Block(int start, int end, int tag) {
    ScopedTag scope("t", std::to_string(tag));
    Begin({Operation::kBlock, start, end, tag});
    EXPECT_TRUE(profiler_.RecordBlock(At(start), Bytes(end - start)));
  }
  void BlockFree(int start, int end, bool is_segment = false) {
    Begin({Operation::kFree, start, end, 0, is_segment, true});
    EXPECT_EQ(profiler_.RecordBlockFree(At(start)), static_cast<int64_t>(Bytes(end - start)));
  }
  void Segment(int start, int end, int tag) {
    ScopedTag scope("t", std::to_string(tag));
    Begin({Operation::kSegment, start, end, tag, true});
    EXPECT_TRUE(profiler_.RecordSegment(At(start), Bytes(end - start)));
  }

  void TakeSnapshot() {
    Snapshot& snapshot = log_of_this_thread->snapshots.emplace_back();
    Begin({Operation::kSnapshot, 0, 0, 0, false, false, &snapshot});
    snapshot = profiler_.TakeSnapshot();
  }

  void RecordBlocks(int thread, int events, std::mt19937_64 random) {
    const int low = thread * kUnitsPerThread;
    std::vector<std::pair<int, int>> live;
    for (int i = 0; i < events; ++i) {
      if (i % 2000 == 1999) TakeSnapshot();
      const int start = low + static_cast<int>(random() % kUnitsPerThread);
      const int end = start + 1 + static_cast<int>(random() % 5);
      const bool fits = end <= low + kUnitsPerThread && std::none_of(live.begin(), live.end(), [&](const auto& block) {
                          return start < block.second && block.first < end;
                        });
      if (fits) {
        Block(start, end, thread);
        live.emplace_back(start, end);
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        BlockFree(live.back().first, live.back().second);
        live.pop_back();
      }
    }
    for (const auto& [start, end] : live) BlockFree(start, end);
  }

  // Splits and merges the segments under the blocks.
  void SplitAndMerge(std::mt19937_64 random) {
    std::vector<int> starts = {0};
    while (blocks_running_.load() > 0) {
      const int at = 1 + static_cast<int>(random() % (kShared - 1));
      const auto next = std::lower_bound(starts.begin(), starts.end(), at);
      if (next != starts.end() && *next == at) {
        const int first = *(next - 1);
        Begin({Operation::kMerge, first, at});
        EXPECT_TRUE(profiler_.MergeSegments(At(first), At(at)));
        starts.erase(next);
      } else {
        const int first = *(next - 1);
        Begin({Operation::kSplit, first, at});
        EXPECT_TRUE(profiler_.SplitSegment(At(first), Bytes(at - first)));
        starts.insert(next, at);
      }
    }
  }

  // A pool of its own: declared late, resized, with a pool inside.
  void NestAndResize(std::mt19937_64 random) {
    const int base = kShared;
    const auto set_end = [&](int end) {
      Begin({Operation::kSetEnd, base, end, 0, true});
      EXPECT_TRUE(profiler_.RecordResize(At(base), Bytes(end - base)));
    };
    while (blocks_running_.load() > 0) {
      Block(base + 2, base + 6, 6);
      Segment(base, base + 16, 7);
      const int end = base + 17 + static_cast<int>(random() % 15);
      set_end(end);
      Block(base, base + 2, 6);
      Begin({Operation::kMakeSegment, base, base + 2, 6});
      EXPECT_TRUE(profiler_.RecordSegment(At(base), Bytes(2)));
      Block(base, base + 1, 6);
      if (random() % 2 == 0) BlockFree(base, base + 1);
      if (random() % 2 == 0) set_end(base + 8 + static_cast<int>(random() % 8));
      if (random() % 2 == 0) Segment(base + 2, base + 7, 5);  // late, around the first block
      Begin({Operation::kFree, base, 0, 0, true, false});
      EXPECT_GT(profiler_.RecordFree(At(base)), 0);
    }
  }

  static void Apply(const Operation& operation, IntervalModel* model) {
    const auto find = [&](int start, bool is_segment, bool has_block_id) {
      for (size_t i = 0; i < model->size(); ++i) {
        const IntervalModel::Interval& interval = (*model)[i];
        if (interval.start == start && interval.is_segment == is_segment &&
            (!is_segment || interval.has_block_id == has_block_id)) {
          return i;
        }
      }
      ADD_FAILURE() << "nothing begins at " << start;
      return size_t{0};
    };
    switch (operation.kind) {
      case Operation::kBlock:
        return model->Add({operation.start, operation.end, operation.tag, false, true});
      case Operation::kSegment:
        return model->Add({operation.start, operation.end, operation.tag, true, false});
      case Operation::kMakeSegment:
        return model->MakeSegment(find(operation.start, false, true));
      case Operation::kFree:
        return model->Remove(find(operation.start, operation.is_segment, operation.has_block_id));
      case Operation::kSetEnd:
        return model->SetEnd(find(operation.start, true, false), operation.end);
      case Operation::kSplit:
        return model->Split(find(operation.start, true, false), operation.end);
      case Operation::kMerge:
        return model->Merge(find(operation.start, true, false), find(operation.end, true, false));
      case Operation::kResetPeak:
        return model->ResetPeak();
      case Operation::kSnapshot:
        return;
    }
  }

  static void ExpectSame(const Snapshot& snapshot, const IntervalModel& model) {
    IntervalModel::Held held;
    IntervalModel::Held at_peak;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      const auto tag = static_cast<size_t>(std::stoi(sample.tags.at(0).second));
      const bool is_pool = sample.kind == MemoryKind::kPool;
      (is_pool ? held.idle : held.blocks)[tag] += sample.inuse_bytes / kUnit;
      (is_pool ? at_peak.idle : at_peak.blocks)[tag] += sample.peak_bytes / kUnit;
    }
    ASSERT_EQ(held.blocks, model.held().blocks);
    ASSERT_EQ(held.idle, model.held().idle);
    ASSERT_EQ(at_peak.blocks, model.held_at_peak().blocks);
    ASSERT_EQ(at_peak.idle, model.held_at_peak().idle);
    const DeviceStats& stats = snapshot.devices.at(0).spaces[0];
    ASSERT_EQ(stats.bytes_in_use, model.in_use() * kUnit);
    ASSERT_EQ(stats.peak_bytes_in_use, model.peak() * kUnit);
    ASSERT_EQ(stats.pool_bytes, model.pool_units() * kUnit);
    ASSERT_EQ(stats.bytes_reserved, model.idle_units() * kUnit);
    ASSERT_EQ(stats.num_live, static_cast<int64_t>(model.size()));
  }

  Profiler profiler_{WithoutStacks()};
  std::atomic<int> blocks_running_{kBlockThreads};
};

// HBMPROF_TEST_EVENTS: of each thread that records blocks. By default the threads record a million together.
TEST_F(PoolsExactness, EverySnapshotEqualsTheModelWhileSegmentsChange) {
  const char* chosen = std::getenv("HBMPROF_TEST_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device{}();
  std::printf("seed %llu (HBMPROF_TEST_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  const char* events = std::getenv("HBMPROF_TEST_EVENTS");
  constexpr int kUsual = hbmprof_test::kSanitized ? 10000 : 165000;
  const int count = events != nullptr ? std::atoi(events) : kUsual;

  constexpr int kThreads = kBlockThreads + 2;
  std::vector<ThreadLog> logs(kThreads + 1);
  log_of_this_thread = &logs[kThreads];
  Segment(0, kShared, 7);
  std::mt19937_64 random_of_resets(seed + kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      log_of_this_thread = &logs[static_cast<size_t>(thread)];
      const std::mt19937_64 random(seed + static_cast<uint64_t>(thread));
      if (thread == kBlockThreads) {
        SplitAndMerge(random);
      } else if (thread == kBlockThreads + 1) {
        NestAndResize(random);
      } else {
        RecordBlocks(thread, count, random);
        blocks_running_.fetch_sub(1);
      }
      log_of_this_thread = nullptr;
    });
  }
  while (blocks_running_.load() > 0) {
    TakeSnapshot();
    if (random_of_resets() % 4 == 0) {
      Begin({Operation::kResetPeak});
      profiler_.ResetPeak(kDefaultDevice);
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  TakeSnapshot();
  log_of_this_thread = nullptr;

  std::vector<Step> steps;
  for (const ThreadLog& log : logs) steps.insert(steps.end(), log.steps.begin(), log.steps.end());
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.order < b.order; });
  IntervalModel model(kUnits);
  int snapshots = 0;
  const Operation* last_reset = nullptr;
  for (const Step& step : steps) {
    // ResetPeak is one event for each memory space, the device's first. One thread calls it.
    if (step.operation == last_reset) continue;
    if (step.operation->kind == Operation::kResetPeak) last_reset = step.operation;
    Apply(*step.operation, &model);
    if (step.operation->kind == Operation::kSnapshot) {
      ExpectSame(*step.operation->snapshot, model);
      ++snapshots;
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(profiler_.Stats(kDefaultDevice).bytes_in_use, kShared * kUnit);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 0);
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 0);
  EXPECT_EQ(profiler_.GetTrackerStats().dropped_records, 0);
  std::printf("%zu events, %d snapshots, each equal to the model\n", steps.size(), snapshots);
}

}  // namespace
}  // namespace hbmprof
