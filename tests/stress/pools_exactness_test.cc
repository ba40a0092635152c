// Pools under concurrency: threads run random programs of buffers, segments, nested pools and blocks. Each program has
// addresses of its own, all use the same pools, and a program goes from thread to thread. Another thread takes
// snapshots and resets peaks. The ledger reports the order of the events; the naive model replays them in that order,
// and every snapshot must equal it in all values.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/core/ledger/pools.h"
#include "src/core/ledger/trace.h"
#include "tests/support/pools_model.h"
#include "tests/support/sanitized.h"

namespace hbmprof {
namespace {

using hbmprof_test::ModeledPools;
using hbmprof_test::PoolOperation;
using hbmprof_test::PoolsModel;
using hbmprof_test::RandomPools;

constexpr int kThreads = 8;
constexpr int kPrograms = 12;
constexpr int64_t kUnitsOfProgram = 60;
constexpr int kStepsPerTurn = 50;

// One call of the hook: an event at its position in the ledger's order.
struct Step {
  uint64_t order;
  const PoolOperation* operation;  // that the thread was in
  uint64_t id;                     // of the record; 0: of none
};
struct ThreadLog {
  std::deque<PoolOperation> operations;  // stable addresses
  std::deque<Snapshot> snapshots;
  std::vector<Step> steps;
};
std::atomic<uint64_t> next_order{0};
thread_local ThreadLog* log_of_this_thread = nullptr;

void Begin(const PoolOperation& operation) { log_of_this_thread->operations.push_back(operation); }

PoolsModel::Key KeyOf(uint64_t id) {
  const int from = internal::Pools::IsBlockId(id) ? static_cast<int>(id >> 50 & internal::kMaxPools) : 0;
  const uint64_t offset = internal::Pools::AddressOf(id) - ModeledPools::kBase;
  return {from, static_cast<int64_t>(offset) / ModeledPools::kUnit};
}

}  // namespace

namespace internal {
void TraceLedger(uint64_t id) {
  ThreadLog* log = log_of_this_thread;
  if (log == nullptr) return;
  log->steps.push_back({next_order.fetch_add(1, std::memory_order_relaxed), &log->operations.back(), id});
}
void TraceStep(EventStep) {}
}  // namespace internal

namespace {

Options WithoutStacks() {
  Options options;
  options.unwinder = Unwinder::kNone;
  return options;
}

// Replays the steps. An event is that of the thread's operation, or it ends a record in the memory of a segment that
// has ended.
class Replay {
 public:
  void Apply(const Step& step) {
    const PoolOperation& operation = *step.operation;
    if (step.id == 0) {
      // ResetPeak is an event for each memory space, the device's first.
      if (&operation == last_reset_) return;
      if (operation.kind == PoolOperation::kResetPeak) last_reset_ = &operation;
      return operation.Apply(&model_);
    }
    const PoolsModel::Key key = KeyOf(step.id);
    const bool is_own = key == operation.key && operation.kind != PoolOperation::kResetPeak &&
                        operation.kind != PoolOperation::kSnapshot;
    if (!is_own) {
      ++ended_;
      ASSERT_TRUE(IsInEndedMemory(key)) << "pool " << key.from << " at " << key.start;
    }
    const auto record = model_.records().find(key);
    const PoolsModel::Record before = record == model_.records().end() ? PoolsModel::Record{} : record->second;
    if (is_own) {
      operation.Apply(&model_);
    } else {
      model_.End(key);
    }
    if (::testing::Test::HasFatalFailure() || before.segment_of == 0) return;
    const auto after = model_.records().find(key);
    const bool is_segment = after != model_.records().end() && after->second.segment_of != 0;
    const int64_t kept = is_segment ? after->second.units : 0;
    if (kept < before.units) ended_memory_.push_back({before.segment_of, key.start + kept, key.start + before.units});
  }
  const PoolsModel& model() const { return model_; }
  int64_t ended() const { return ended_; }

 private:
  struct Range {
    int pool;
    int64_t start;
    int64_t end;
  };
  bool IsInEndedMemory(const PoolsModel::Key& key) const {
    return std::any_of(ended_memory_.rbegin(), ended_memory_.rend(), [&](const Range& range) {
      return range.pool == key.from && range.start <= key.start && key.start < range.end;
    });
  }

  PoolsModel model_;
  std::vector<Range> ended_memory_;  // of segments
  int64_t ended_ = 0;
  const PoolOperation* last_reset_ = nullptr;
};

// HBMPROF_TEST_EVENTS: the calls of each thread.
TEST(PoolsExactness, EverySnapshotEqualsTheModel) {
  const char* chosen = std::getenv("HBMPROF_TEST_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device{}();
  std::printf("seed %llu (HBMPROF_TEST_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  const char* events = std::getenv("HBMPROF_TEST_EVENTS");
  constexpr int kUsual = hbmprof_test::kSanitized ? 4000 : 20000;
  const int count = events != nullptr ? std::atoi(events) : kUsual;

  Profiler profiler(WithoutStacks());
  const ModeledPools pools(&profiler);
  std::vector<ThreadLog> logs(kThreads + 1);
  log_of_this_thread = &logs[kThreads];
  for (int pool = 1; pool <= PoolsModel::kPools; ++pool) {  // so that their numbers are those of the model
    const PoolsModel::Key key = {0, pool};
    PoolsModel::Record record = {1, 0, PoolsModel::DeviceOf(pool), pool};
    const ScopedTag tag("t", "0");
    Begin({PoolOperation::kAdd, key, record});
    ASSERT_TRUE(profiler.RecordSegment(pools.pool(pool), ModeledPools::At(pool), ModeledPools::Bytes(1)));
  }

  std::mutex mutex;
  std::deque<std::unique_ptr<RandomPools>> idle;
  for (int i = 0; i < kPrograms; ++i) {
    const int64_t base = 1000 + i * kUnitsOfProgram;
    idle.push_back(std::make_unique<RandomPools>(pools, seed + static_cast<uint64_t>(i), base, kUnitsOfProgram, Begin,
                                                 [](const PoolsModel::Key&) {}));
  }
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      log_of_this_thread = &logs[static_cast<size_t>(thread)];
      for (int i = 0; i < count && !::testing::Test::HasFailure(); i += kStepsPerTurn) {
        std::unique_ptr<RandomPools> program;
        {
          std::lock_guard<std::mutex> hold(mutex);
          program = std::move(idle.front());
          idle.pop_front();
        }
        for (int step = 0; step < kStepsPerTurn; ++step) program->Step();
        std::lock_guard<std::mutex> hold(mutex);
        idle.push_back(std::move(program));
      }
      log_of_this_thread = nullptr;
      running.fetch_sub(1);
    });
  }
  const auto take = [&] {
    Snapshot& snapshot = log_of_this_thread->snapshots.emplace_back();
    PoolOperation operation{PoolOperation::kSnapshot};
    operation.snapshot = &snapshot;
    Begin(operation);
    snapshot = profiler.TakeSnapshot();
  };
  std::mt19937_64 random(seed + kPrograms);
  while (running.load() > 0) {
    if (log_of_this_thread->snapshots.size() < 400) take();
    if (random() % 4 == 0) {
      PoolOperation operation{PoolOperation::kResetPeak};
      operation.device = static_cast<int>(random() % PoolsModel::kDevices);
      Begin(operation);
      profiler.ResetPeak(pools.device(operation.device));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4));
  }
  for (std::thread& thread : threads) thread.join();
  take();
  for (const std::unique_ptr<RandomPools>& program : idle) program->Finish();
  take();
  log_of_this_thread = nullptr;

  std::vector<Step> steps;
  for (const ThreadLog& log : logs) steps.insert(steps.end(), log.steps.begin(), log.steps.end());
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.order < b.order; });
  Replay replay;
  for (const Step& step : steps) {
    replay.Apply(step);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "step " << step.order;
  }
  EXPECT_GT(replay.ended(), 100) << "records in the memory of ended segments";
  EXPECT_EQ(profiler.GetTrackerStats().live_records, PoolsModel::kPools);
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
  EXPECT_EQ(profiler.GetTrackerStats().replaced_records, 0);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 0);
  std::printf("%zu events, %zu snapshots, each equal to the model\n", steps.size(), logs[kThreads].snapshots.size());
}

}  // namespace
}  // namespace hbmprof
