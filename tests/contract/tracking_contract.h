// TrackingContract: with any upstream, the profiler's numbers of a TrackingAllocator equal those of the upstream.
// Include it in one file of a test program and instantiate it there (subject.h).
#ifndef HBMPROF_TESTS_CONTRACT_TRACKING_CONTRACT_H_
#define HBMPROF_TESTS_CONTRACT_TRACKING_CONTRACT_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/leak_check.h"
#include "tests/contract/ledger_allocator.h"
#include "tests/contract/subject.h"

namespace hbmprof {

class TrackingContract : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ledger_ = std::make_unique<LedgerAllocator>(subject_allocator());
    tracker_ = std::make_unique<TrackingAllocator>(*ledger_, "contract", profiler_);
  }

  LedgerAllocator& ledger() { return *ledger_; }
  TrackingAllocator& tracker() { return *tracker_; }
  Profiler& profiler() { return profiler_; }
  DeviceStats Stats() const { return profiler_.Stats(tracker_->device(), SpaceOf(tracker_->kind())); }

  void ExpectProfilerAgrees() {
    const LedgerAllocator::Totals totals = ledger().totals();
    const DeviceStats stats = Stats();
    EXPECT_EQ(stats.bytes_in_use, totals.bytes_in_use);
    EXPECT_EQ(stats.peak_bytes_in_use, totals.peak_bytes_in_use);
    EXPECT_EQ(stats.num_allocs, totals.num_allocs);
    EXPECT_EQ(stats.num_live, totals.num_live);
    EXPECT_EQ(stats.largest_alloc_size, totals.largest_alloc_size);
  }

  void ExpectSnapshotSumsToStats() {
    const Snapshot snapshot = profiler_.TakeSnapshot();
    int64_t in_use = 0, peak = 0, objects = 0, allocated = 0;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      in_use += sample.inuse_bytes;
      peak += sample.peak_bytes;
      objects += sample.inuse_objects;
      allocated += sample.alloc_objects;
    }
    const DeviceStats stats = Stats();
    EXPECT_EQ(in_use, stats.bytes_in_use);
    EXPECT_EQ(peak, stats.peak_bytes_in_use);
    EXPECT_EQ(objects, stats.num_live);
    EXPECT_EQ(allocated, stats.num_allocs);
  }

 private:
  Profiler profiler_;
  std::unique_ptr<LedgerAllocator> ledger_;
  std::unique_ptr<TrackingAllocator> tracker_;
};

TEST_P(TrackingContract, LeakCheckReportsUnfreedBuffersOnly) {
  const LeakCheck leaks(profiler());
  const absl::StatusOr<void*> kept = tracker().Allocate(256);
  const absl::StatusOr<void*> freed = tracker().Allocate(4096);
  ASSERT_TRUE(kept.ok() && freed.ok());
  ASSERT_TRUE(tracker().Free(*freed).ok());
  EXPECT_EQ(leaks.LeakedBytes(), 256);
  ASSERT_TRUE(tracker().Free(*kept).ok());
  EXPECT_EQ(leaks.LeakedBytes(), 0);
}

TEST_P(TrackingContract, StatsEqualUpstreamsAfterEveryCall) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::pair<void*, bool>> live;  // and whether it was allocated in stream order
  const auto free_one = [&] {
    std::swap(live[random() % live.size()], live.back());
    const auto [ptr, in_stream_order] = live.back();
    live.pop_back();
    const absl::Status freed = in_stream_order ? tracker().FreeAsync(ptr, stream(0)) : tracker().Free(ptr);
    EXPECT_TRUE(freed.ok()) << freed;
  };
  for (int step = 0; step < 3000; ++step) {
    if (live.empty() || random() % 100 < 55) {
      const size_t bytes = random() % 65536;
      const bool in_stream_order = random() % 2 == 0;
      const auto ptr = in_stream_order ? tracker().AllocateAsync(bytes, stream(0)) : tracker().Allocate(bytes);
      if (ptr.ok()) live.emplace_back(*ptr, in_stream_order);
      if (!ptr.ok()) free_one();
    } else {
      free_one();
    }
    ExpectProfilerAgrees();
    if (step % 500 == 0) ExpectSnapshotSumsToStats();
    if (HasFailure()) FAIL() << "at step " << step;
  }
  while (!live.empty()) free_one();
  ExpectProfilerAgrees();
  ExpectSnapshotSumsToStats();
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Stats().num_live, 0);
  const TrackerStats tracked = profiler().GetTrackerStats();
  EXPECT_EQ(tracked.foreign_frees, 0);
  EXPECT_EQ(tracked.replaced_records, 0);
  EXPECT_EQ(tracked.dropped_records, 0);
}

TEST_P(TrackingContract, SampleHasDeviceKindAndAllocatorName) {
  const auto ptr = tracker().Allocate(12345);
  ASSERT_TRUE(ptr.ok()) << ptr.status();
  const Snapshot snapshot = profiler().TakeSnapshot();
  ASSERT_EQ(snapshot.samples.size(), 1u);
  const Snapshot::Sample& sample = snapshot.samples[0];
  EXPECT_EQ(snapshot.devices[sample.device].name, subject_allocator().device_name());
  EXPECT_EQ(snapshot.allocators[sample.allocator], "contract");
  EXPECT_EQ(sample.kind, subject_allocator().kind());
  EXPECT_EQ(sample.inuse_bytes, 12345) << "as requested, not as rounded";
  EXPECT_TRUE(tracker().Free(*ptr).ok());
}

TEST_P(TrackingContract, RefusedAllocationIsNotRecorded) {
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  EXPECT_EQ(tracker().Allocate(kMost).status(), ledger().Allocate(kMost).status());
  EXPECT_EQ(tracker().Allocate(kMost).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tracker().AllocateAsync(kMost, stream(0)).status(), ledger().AllocateAsync(kMost, stream(0)).status());
  EXPECT_EQ(Stats().num_allocs, 0);
  EXPECT_EQ(Stats().peak_bytes_in_use, 0);
}

TEST_P(TrackingContract, ZeroBytesAreNotRecorded) {
  EXPECT_EQ(*tracker().Allocate(0), nullptr);
  EXPECT_EQ(*tracker().AllocateAsync(0, stream(0)), nullptr);
  EXPECT_TRUE(tracker().Free(nullptr).ok());
  EXPECT_TRUE(tracker().FreeAsync(nullptr, stream(0)).ok());
  EXPECT_EQ(Stats().num_allocs, 0);
  EXPECT_EQ(profiler().GetTrackerStats().foreign_frees, 0);
}

TEST_P(TrackingContract, RefusedFreeEndsTheRecordAndIsCounted) {
  const auto ptr = tracker().Allocate(5000);
  ASSERT_TRUE(ptr.ok());
  ledger().FailFrees(absl::InternalError("the driver is gone"));
  EXPECT_EQ(tracker().Free(*ptr), absl::InternalError("the driver is gone"));
  EXPECT_EQ(tracker().FreeAsync(*ptr, stream(0)), absl::InternalError("the driver is gone"));
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(profiler().GetTrackerStats().refused_frees, 1);
  EXPECT_EQ(profiler().GetTrackerStats().foreign_frees, 1) << "the second one";
  ledger().FailFrees(absl::OkStatus());
  EXPECT_TRUE(tracker().Free(*ptr).ok());
}

TEST_P(TrackingContract, ForeignFreesAreForwardedAndCounted) {
  const auto untracked = ledger().Allocate(4096);
  const auto tracked = tracker().Allocate(100);
  ASSERT_TRUE(untracked.ok() && tracked.ok());
  EXPECT_TRUE(tracker().Free(*untracked).ok()) << "upstream knows it";
  EXPECT_EQ(profiler().GetTrackerStats().foreign_frees, 1);
  EXPECT_EQ(Stats().bytes_in_use, 100);

  EXPECT_TRUE(tracker().Free(*tracked).ok());
  EXPECT_EQ(tracker().Free(*tracked).code(), absl::StatusCode::kInvalidArgument) << "upstream's own answer";
  EXPECT_EQ(profiler().GetTrackerStats().foreign_frees, 2);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Stats().num_live, 0);
}

TEST_P(TrackingContract, ABufferMayBeFreedOnAnotherThread) {
  const auto ptr = tracker().Allocate(4096);
  ASSERT_TRUE(ptr.ok());
  std::thread([&] { EXPECT_TRUE(tracker().Free(*ptr).ok()); }).join();
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(profiler().GetTrackerStats().foreign_frees, 0);
}

// The memory is upstream's again before the free returns:
//
//   thread A: Free(p)                     thread B: Allocate
//   RecordFree(p)
//   upstream frees p
//     held here until B is done           upstream returns p again
//                                         RecordAlloc(p)
//   upstream's free returns
//
// B's record must survive. A tracker that removed p's record only after upstream's free returned would remove B's.
TEST_P(TrackingContract, ReusedAddressKeepsItsNewRecord) {
  const auto first = tracker().Allocate(4096);
  ASSERT_TRUE(first.ok());
  std::mutex mutex;
  std::condition_variable changed;
  bool freed_upstream = false, allocated_again = false;
  ledger().OnFreed([&] {
    std::unique_lock<std::mutex> lock(mutex);
    freed_upstream = true;
    changed.notify_all();
    changed.wait(lock, [&] { return allocated_again; });
  });

  std::thread a([&] { EXPECT_TRUE(tracker().Free(*first).ok()); });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return freed_upstream; });
  }
  const auto second = tracker().Allocate(4096);
  {
    std::lock_guard<std::mutex> lock(mutex);
    allocated_again = true;
    changed.notify_all();
  }
  a.join();
  ledger().OnFreed(nullptr);

  ASSERT_TRUE(second.ok()) << second.status();
  if (GetParam().reuses_addresses_at_once) {
    ASSERT_EQ(*second, *first) << "the race was not forced";
  }
  EXPECT_EQ(Stats().bytes_in_use, 4096);
  EXPECT_EQ(Stats().num_live, 1);
  EXPECT_EQ(Stats().peak_bytes_in_use, 4096) << "never both";
  EXPECT_TRUE(tracker().Free(*second).ok());
  EXPECT_EQ(Stats().bytes_in_use, 0);
  const TrackerStats tracked = profiler().GetTrackerStats();
  EXPECT_EQ(tracked.foreign_frees, 0);
  EXPECT_EQ(tracked.replaced_records, 0);
}

TEST_P(TrackingContract, ThreadsReusingAddressesEndAtZero) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kThreads = 8;
  constexpr int kSteps = 2000;
  // Few sizes, so that addresses are reused at once, also by other threads.
  const size_t unit = GetParam().capacity == 0 ? size_t{1} << 16 : GetParam().capacity / 64;
  std::atomic<int64_t> allocated{0}, allocated_bytes{0};
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      const DeviceStats stats = Stats();
      EXPECT_GE(stats.bytes_in_use, 0);
      EXPECT_GE(stats.num_live, 0);
      EXPECT_LE(stats.bytes_in_use, stats.peak_bytes_in_use);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      std::vector<std::pair<void*, bool>> mine;  // and whether it was allocated in stream order
      const auto free_last = [&] {
        const auto [ptr, in_stream_order] = mine.back();
        mine.pop_back();
        const absl::Status freed = in_stream_order ? tracker().FreeAsync(ptr, stream(t % 2)) : tracker().Free(ptr);
        EXPECT_TRUE(freed.ok()) << freed;
      };
      for (int step = 0; step < kSteps; ++step) {
        const size_t bytes = unit * (1 + random() % 3);
        const bool in_stream_order = random() % 2 == 0;
        const auto ptr = in_stream_order ? tracker().AllocateAsync(bytes, stream(t % 2)) : tracker().Allocate(bytes);
        if (ptr.ok()) {
          ++allocated;
          allocated_bytes += static_cast<int64_t>(bytes);
          mine.emplace_back(*ptr, in_stream_order);
        }
        while (mine.size() > 4 || (!ptr.ok() && !mine.empty())) free_last();
      }
      while (!mine.empty()) free_last();
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();

  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(Stats().num_live, 0);
  EXPECT_EQ(Stats().num_allocs, allocated);
  EXPECT_EQ(ledger().totals().bytes_in_use, 0);
  ExpectSnapshotSumsToStats();
  int64_t recorded_bytes = 0;
  for (const Snapshot::Sample& sample : profiler().TakeSnapshot().samples) recorded_bytes += sample.alloc_bytes;
  EXPECT_EQ(recorded_bytes, allocated_bytes);
  const TrackerStats tracked = profiler().GetTrackerStats();
  EXPECT_EQ(tracked.foreign_frees, 0);
  EXPECT_EQ(tracked.replaced_records, 0);
  EXPECT_EQ(tracked.dropped_records, 0);
  EXPECT_EQ(tracked.live_records, 0);
}

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_CONTRACT_TRACKING_CONTRACT_H_
