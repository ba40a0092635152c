// Functions that the tests of the adapters share: random operations on several threads, sums of a snapshot, and the
// reports of failed allocations.
#ifndef HBMPROF_TESTS_ADAPTERS_ADAPTER_TESTS_H_
#define HBMPROF_TESTS_ADAPTERS_ADAPTER_TESTS_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/base/message.h"
#include "tests/support/sanitized.h"

namespace adapter_tests {

inline constexpr int kThreads = 4;
// Of each thread.
inline constexpr int kOperations = hbmprof_test::kSanitized ? 2500 : 25000;

// Calls allocate(bytes), which returns a pointer or null, and free(pointer, bytes) in a random order, on four threads.
// Returns the addresses and sizes of the blocks that are still allocated.
template <typename Allocate, typename Free>
std::vector<std::pair<void*, size_t>> OperateAtRandom(const Allocate& allocate, const Free& free,
                                                      size_t max_bytes = 20000) {
  std::vector<std::pair<void*, size_t>> live[kThreads];
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      auto& mine = live[i];
      for (int operation = 0; operation < kOperations; ++operation) {
        if (mine.empty() || random() % 100 < (mine.size() < 100 ? 60u : 40u)) {
          const size_t bytes = random() % max_bytes + 1;
          void* const memory = allocate(bytes);
          if (memory != nullptr) mine.push_back({memory, bytes});
        } else {
          std::swap(mine[random() % mine.size()], mine.back());
          free(mine.back().first, mine.back().second);
          mine.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::pair<void*, size_t>> all;
  for (const auto& mine : live) all.insert(all.end(), mine.begin(), mine.end());
  return all;
}

// The bytes in use of a device, by kind.
inline int64_t InUse(const hbmprof::Profiler& profiler, std::string_view device, hbmprof::MemoryKind kind) {
  const hbmprof::Snapshot snapshot = profiler.TakeSnapshot();
  int64_t sum = 0;
  for (const auto& sample : snapshot.samples) {
    if (sample.kind == kind && snapshot.devices[sample.device].name == device) sum += sample.inuse_bytes;
  }
  return sum;
}
inline int64_t InUse(hbmprof::Profiler& profiler, std::string_view device) {
  return profiler.Stats(profiler.Device(device)).bytes_in_use;
}

// The return addresses of the stack of the live buffers or blocks of `bytes` bytes, innermost first.
inline std::vector<uint64_t> StackOf(const hbmprof::Profiler& profiler, size_t bytes) {
  const hbmprof::Snapshot snapshot = profiler.TakeSnapshot();
  for (const auto& sample : snapshot.samples) {
    if (sample.inuse_objects != 0 && sample.inuse_bytes == static_cast<int64_t>(bytes) * sample.inuse_objects &&
        sample.kind != hbmprof::MemoryKind::kPool) {
      return snapshot.stacks[sample.stack].return_addresses;
    }
  }
  ADD_FAILURE() << "nothing of " << bytes << " bytes is live";
  return {0, 0};
}

// Expects that the stack begins in the function that returns to `returns_to`.
inline void ExpectBeginsIn(const std::vector<uint64_t>& stack, uintptr_t returns_to) {
  ASSERT_GE(stack.size(), 2u);
  EXPECT_EQ(stack[1], returns_to) << "the first frame is the caller's, the second the caller's caller";
}
#define RETURNS_TO reinterpret_cast<uintptr_t>(__builtin_return_address(0))

// Expects that the tracker has dropped nothing and has seen no unexpected event.
inline void ExpectNoLosses(const hbmprof::Profiler& profiler) {
  const hbmprof::TrackerStats stats = profiler.GetTrackerStats();
  EXPECT_EQ(stats.foreign_frees, 0);
  EXPECT_EQ(stats.replaced_records, 0);
  EXPECT_EQ(stats.dropped_records, 0);
}

// Runs `run` and returns how many reports of failed allocations on `device` it has written. Such reports are limited to
// one a minute for each device, so each call needs its own device name.
template <typename Run>
int OutOfMemoryReports(std::string_view device, const Run& run) {
  testing::internal::CaptureStderr();
  hbmprof::internal::UseStandardError();
  run();
  const std::string text = testing::internal::GetCapturedStderr();
  hbmprof::internal::UseStandardError();
  const std::string line = "hbmprof: out of memory on " + std::string(device) + ":";
  int reports = 0;
  for (size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) ++reports;
  return reports;
}

}  // namespace adapter_tests

#endif  // HBMPROF_TESTS_ADAPTERS_ADAPTER_TESTS_H_
