// DeviceAllocatorContract: the contract of every DeviceAllocator (hbmprof/device_allocator.h). Include it in one file
// of a test program and instantiate it there (subject.h).
#ifndef HBMPROF_TESTS_CONTRACT_DEVICE_ALLOCATOR_CONTRACT_H_
#define HBMPROF_TESTS_CONTRACT_DEVICE_ALLOCATOR_CONTRACT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/mutex.h"
#include "tests/contract/subject.h"

namespace hbmprof {

// The address ranges that are live now. Add after the allocation, Remove before the free: another thread may be given
// the same addresses in between. Thread-safe.
class LiveRanges {
 public:
  // False if it overlaps a live range.
  bool Add(void* ptr, size_t bytes) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(ptr);
    internal::MutexLock lock(mutex_);
    const auto after = ranges_.lower_bound(start);
    if (after != ranges_.end() && after->first < start + bytes) return false;
    if (after != ranges_.begin() && std::prev(after)->second > start) return false;
    ranges_.emplace(start, start + bytes);
    return true;
  }
  void Remove(void* ptr) {
    internal::MutexLock lock(mutex_);
    ranges_.erase(reinterpret_cast<uintptr_t>(ptr));
  }

 private:
  internal::Mutex mutex_;
  std::map<uintptr_t, uintptr_t> ranges_ ABSL_GUARDED_BY(mutex_);  // start -> one past the end
};

class DeviceAllocatorContract : public ContractTest {
 protected:
  // Expects that everything was freed and that the whole device can be allocated as one buffer again.
  void ExpectAllFree() {
    SynchronizeAll();
    if (GetParam().capacity == 0) return;
    const auto whole = subject_allocator().Allocate(GetParam().capacity);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_TRUE(subject_allocator().Free(*whole).ok());
  }

  void ExpectRefused(void* ptr) {
    EXPECT_EQ(subject_allocator().Free(ptr).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(subject_allocator().FreeAsync(ptr, stream(0)).code(), absl::StatusCode::kInvalidArgument);
  }
};

TEST_P(DeviceAllocatorContract, BuffersAreDisjointAndLargeEnough) {
  LiveRanges live;
  std::vector<std::pair<void*, bool>> buffers;  // and whether it was allocated in stream order
  for (const size_t bytes : {1, 2, 255, 256, 257, 4095, 4096, 65537}) {
    for (const bool in_stream_order : {false, true}) {
      const auto ptr =
          in_stream_order ? subject_allocator().AllocateAsync(bytes, stream(0)) : subject_allocator().Allocate(bytes);
      ASSERT_TRUE(ptr.ok()) << ptr.status();
      ASSERT_NE(*ptr, nullptr);
      EXPECT_TRUE(live.Add(*ptr, bytes)) << bytes << " bytes at " << *ptr;
      buffers.emplace_back(*ptr, in_stream_order);
    }
  }
  for (const auto& [ptr, in_stream_order] : buffers) {
    const absl::Status freed =
        in_stream_order ? subject_allocator().FreeAsync(ptr, stream(0)) : subject_allocator().Free(ptr);
    EXPECT_TRUE(freed.ok()) << freed;
  }
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, ZeroBytesGiveNullAndOk) {
  const auto plain = subject_allocator().Allocate(0);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(*plain, nullptr);
  const auto async = subject_allocator().AllocateAsync(0, stream(0));
  ASSERT_TRUE(async.ok()) << async.status();
  EXPECT_EQ(*async, nullptr);
}

TEST_P(DeviceAllocatorContract, FreeOfNullIsIgnored) {
  EXPECT_TRUE(subject_allocator().Free(nullptr).ok());
  EXPECT_TRUE(subject_allocator().FreeAsync(nullptr, stream(0)).ok());
}

TEST_P(DeviceAllocatorContract, FreedMemoryIsReused) {
  if (GetParam().capacity == 0) {
    // One after the other, far more than any device can hold at once.
    for (int i = 0; i < 1000; ++i) {
      const auto ptr = subject_allocator().Allocate(size_t{1} << 30);
      ASSERT_TRUE(ptr.ok()) << ptr.status();
      ASSERT_TRUE(subject_allocator().Free(*ptr).ok());
    }
    return;
  }
  for (int i = 0; i < 100; ++i) {
    const auto ptr = subject_allocator().Allocate(GetParam().capacity);
    ASSERT_TRUE(ptr.ok()) << ptr.status();
    ASSERT_TRUE(subject_allocator().Free(*ptr).ok());
  }
}

TEST_P(DeviceAllocatorContract, FreedAddressIsReusedAtOnce) {
  if (!GetParam().reuses_addresses_at_once) GTEST_SKIP() << GetParam().name << " does not promise it";
  const auto kept = subject_allocator().Allocate(4096);
  ASSERT_TRUE(kept.ok());
  const auto first = subject_allocator().Allocate(4096);
  ASSERT_TRUE(first.ok() && subject_allocator().Free(*first).ok());
  const auto second = subject_allocator().Allocate(4096);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*second, *first);
  EXPECT_TRUE(subject_allocator().Free(*second).ok());
  EXPECT_TRUE(subject_allocator().Free(*kept).ok());
}

TEST_P(DeviceAllocatorContract, RefusesADoubleFree) {
  const auto kept = subject_allocator().Allocate(4096);
  const auto freed = subject_allocator().Allocate(4096);
  ASSERT_TRUE(kept.ok() && freed.ok());
  ASSERT_TRUE(subject_allocator().Free(*freed).ok());
  ExpectRefused(*freed);
  EXPECT_TRUE(subject_allocator().Free(*kept).ok());
  ExpectRefused(*kept);
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, RefusesAnInnerPointer) {
  const auto buffer = subject_allocator().Allocate(4096);
  ASSERT_TRUE(buffer.ok());
  int on_stack = 0;
  const auto on_heap = std::make_unique<int>(0);
  ExpectRefused(&on_stack);
  ExpectRefused(on_heap.get());
  ExpectRefused(static_cast<char*>(*buffer) + 256);
  EXPECT_TRUE(subject_allocator().Free(*buffer).ok());
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, HugeSizesAreOutOfMemory) {
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  for (const size_t bytes : {kMost, kMost - 255, kMost / 2 + 1, kMost / 2, size_t{1} << 60}) {
    const auto plain = subject_allocator().Allocate(bytes);
    EXPECT_EQ(plain.status().code(), absl::StatusCode::kResourceExhausted) << bytes << ": " << plain.status();
    const auto async = subject_allocator().AllocateAsync(bytes, stream(0));
    EXPECT_EQ(async.status().code(), absl::StatusCode::kResourceExhausted) << bytes << ": " << async.status();
  }
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, FullDeviceRecoversAfterAFree) {
  if (GetParam().capacity == 0) GTEST_SKIP() << GetParam().name << " is too large to fill";
  const size_t bytes = GetParam().capacity / 16;
  std::vector<void*> buffers;
  absl::Status last;
  while (buffers.size() < 100) {
    const auto ptr = subject_allocator().Allocate(bytes);
    last = ptr.status();
    if (!ptr.ok()) break;
    buffers.push_back(*ptr);
  }
  EXPECT_EQ(last.code(), absl::StatusCode::kResourceExhausted) << last;
  EXPECT_FALSE(last.message().empty());
  EXPECT_EQ(buffers.size(), 16u);

  ASSERT_TRUE(subject_allocator().Free(buffers.back()).ok());
  const auto again = subject_allocator().Allocate(bytes);
  ASSERT_TRUE(again.ok()) << again.status();
  buffers.back() = *again;
  for (void* ptr : buffers) EXPECT_TRUE(subject_allocator().Free(ptr).ok());
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, StreamOrderedFreesReleaseMemory) {
  for (int i = 0; i < 100; ++i) {
    const size_t bytes = GetParam().capacity == 0 ? size_t{1} << 20 : GetParam().capacity / 2;
    const auto ptr = subject_allocator().AllocateAsync(bytes, stream(i % 2));
    ASSERT_TRUE(ptr.ok()) << ptr.status();
    ASSERT_TRUE(subject_allocator().FreeAsync(*ptr, stream(i % 2)).ok());
    subject_allocator().FreeAsync(nullptr, stream(i % 2)).IgnoreError();
    if (i % 3 == 0) SynchronizeAll();
  }
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, RefusesASecondStreamOrderedFree) {
  const auto ptr = subject_allocator().AllocateAsync(4096, stream(0));
  ASSERT_TRUE(ptr.ok());
  ASSERT_TRUE(subject_allocator().FreeAsync(*ptr, stream(0)).ok());
  ExpectRefused(*ptr);
  SynchronizeAll();
  ExpectRefused(*ptr);
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, FreeAcceptsStreamOrderedBuffers) {
  const auto ptr = subject_allocator().AllocateAsync(4096, stream(1));
  ASSERT_TRUE(ptr.ok());
  SynchronizeAll();
  EXPECT_TRUE(subject_allocator().Free(*ptr).ok());
  ExpectAllFree();
}

TEST_P(DeviceAllocatorContract, ReportsConsistentLimits) {
  const std::string name = subject_allocator().device_name();
  EXPECT_FALSE(name.empty());
  const auto ptr = subject_allocator().Allocate(65536);
  ASSERT_TRUE(ptr.ok());
  EXPECT_EQ(subject_allocator().device_name(), name);
  const DeviceProbe probe = subject_allocator().Probe();
  if (probe.bytes_limit.has_value()) {
    EXPECT_GE(probe.bytes_limit, 65536);
    EXPECT_LE(probe.driver_bytes_in_use, probe.bytes_limit);
    EXPECT_LE(probe.largest_free_block_bytes, *probe.bytes_limit - 65536);
  }
  if (probe.driver_bytes_in_use.has_value()) {
    EXPECT_GE(probe.driver_bytes_in_use, 65536);
  }
  EXPECT_TRUE(subject_allocator().Free(*ptr).ok());
}

TEST_P(DeviceAllocatorContract, BuffersOfThreadsNeverOverlap) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kThreads = 8;
  // All threads together request up to the whole memory of a small device.
  const size_t most = GetParam().capacity == 0 ? size_t{1} << 20 : GetParam().capacity / kThreads / 4;
  LiveRanges live;
  std::atomic<int> overlaps{0};
  std::atomic<int> allocated{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      std::vector<std::pair<void*, bool>> mine;  // and whether it was allocated in stream order
      const auto free_one = [&] {
        std::swap(mine[random() % mine.size()], mine.back());
        const auto [ptr, in_stream_order] = mine.back();
        mine.pop_back();
        live.Remove(ptr);
        const absl::Status freed =
            in_stream_order ? subject_allocator().FreeAsync(ptr, stream(t % 2)) : subject_allocator().Free(ptr);
        EXPECT_TRUE(freed.ok()) << freed;
      };
      for (int step = 0; step < 500; ++step) {
        const size_t bytes = 1 + random() % most;
        const bool in_stream_order = random() % 2 == 0;
        const auto ptr = in_stream_order ? subject_allocator().AllocateAsync(bytes, stream(t % 2))
                                         : subject_allocator().Allocate(bytes);
        if (ptr.ok()) {
          ++allocated;
          overlaps += !live.Add(*ptr, bytes);
          mine.emplace_back(*ptr, in_stream_order);
        }
        while (mine.size() > 6 || (!ptr.ok() && !mine.empty())) free_one();
      }
      while (!mine.empty()) free_one();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(overlaps, 0);
  EXPECT_GT(allocated, kThreads);
  ExpectAllFree();
}

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_CONTRACT_DEVICE_ALLOCATOR_CONTRACT_H_
