// SimulatedDevice: comparison with a naive model, cases computed by hand, and threads that check the data in buffers.
// Not in this file: the contract of every DeviceAllocator (tests/contract).
#include "hbmprof/simulated_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hbmprof {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<SimulatedDevice> MakeDevice(size_t capacity, size_t alignment = 256, std::string name = "sim:0") {
  SimulatedDevice::Options options;
  options.name = std::move(name);
  options.capacity = capacity;
  options.alignment = alignment;
  auto device = SimulatedDevice::Create(options);
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

// The device as an array of units of the alignment, each with one owner. Slow and simple: a block is a
// longest run of units with the same owner, so it is coalesced by definition.
class NaiveDevice {
 public:
  static constexpr int64_t kFree = 0;  // > 0: the live buffer of this number; < 0: pending on stream -owner - 1

  NaiveDevice(size_t units, size_t unit_bytes) : owners_(units, kFree), unit_bytes_(unit_bytes) {}

  static int64_t Pending(StreamId stream) { return -static_cast<int64_t>(stream) - 1; }

  // The first unit of the new buffer, or nothing. Units of `preferred`, a Pending(), are taken before free ones.
  std::optional<size_t> Allocate(size_t bytes, int64_t preferred = kFree) {
    const size_t units = (bytes + unit_bytes_ - 1) / unit_bytes_;
    if (units > owners_.size()) return std::nullopt;
    std::optional<size_t> at = BestFit(preferred, units);
    if (!at) at = BestFit(kFree, units);
    if (!at) {
      SynchronizeAll();
      at = BestFit(kFree, units);
    }
    if (!at) return std::nullopt;
    ++num_allocs_;
    for (size_t i = 0; i < units; ++i) owners_[*at + i] = num_allocs_;
    peak_units_ = std::max(peak_units_, owners_.size() - Count(kFree));
    return at;
  }

  void Free(size_t at, int64_t becomes = kFree) {
    const int64_t owner = owners_[at];
    std::replace(owners_.begin(), owners_.end(), owner, becomes);
  }
  void Synchronize(StreamId stream) { std::replace(owners_.begin(), owners_.end(), Pending(stream), kFree); }
  void SynchronizeAll() {
    for (int64_t& owner : owners_) owner = std::max(owner, kFree);
  }

  bool IsLiveStart(size_t at) const { return owners_[at] > 0 && (at == 0 || owners_[at - 1] != owners_[at]); }

  SimulatedDevice::Stats GetStats() const {
    SimulatedDevice::Stats stats;
    const auto bytes = [this](size_t units) { return static_cast<int64_t>(units * unit_bytes_); };
    stats.bytes_limit = bytes(owners_.size());
    stats.free_bytes = bytes(Count(kFree));
    stats.bytes_in_use = stats.bytes_limit - stats.free_bytes;
    stats.peak_bytes_in_use = bytes(peak_units_);
    stats.pending_free_bytes =
        bytes(std::count_if(owners_.begin(), owners_.end(), [](int64_t owner) { return owner < 0; }));
    stats.num_allocs = num_allocs_;
    for (size_t i = 0; i < owners_.size(); ++i) stats.num_live += IsLiveStart(i);
    size_t largest = 0;
    for (const auto& [at, units] : Runs(kFree)) largest = std::max(largest, units);
    stats.largest_free_block_bytes = bytes(largest);
    if (stats.free_bytes > 0) stats.fragmentation = 1 - double(stats.largest_free_block_bytes) / stats.free_bytes;
    return stats;
  }

 private:
  size_t Count(int64_t owner) const { return std::count(owners_.begin(), owners_.end(), owner); }

  // Start and length of each longest run, by address.
  std::vector<std::pair<size_t, size_t>> Runs(int64_t owner) const {
    std::vector<std::pair<size_t, size_t>> runs;
    for (size_t i = 0; i < owners_.size();) {
      size_t end = i;
      while (end < owners_.size() && owners_[end] == owner) ++end;
      if (end > i) runs.emplace_back(i, end - i);
      i = end + 1;
    }
    return runs;
  }

  std::optional<size_t> BestFit(int64_t owner, size_t units) const {
    std::optional<std::pair<size_t, size_t>> best;
    for (const auto& run : Runs(owner)) {
      if (run.second >= units && (!best || run.second < best->second)) best = run;
    }
    if (!best) return std::nullopt;
    return best->first;
  }

  std::vector<int64_t> owners_;
  size_t unit_bytes_;
  int64_t num_allocs_ = 0;
  size_t peak_units_ = 0;
};

void ExpectEqual(const SimulatedDevice::Stats& got, const SimulatedDevice::Stats& want) {
  EXPECT_EQ(got.bytes_in_use, want.bytes_in_use);
  EXPECT_EQ(got.peak_bytes_in_use, want.peak_bytes_in_use);
  EXPECT_EQ(got.pending_free_bytes, want.pending_free_bytes);
  EXPECT_EQ(got.num_allocs, want.num_allocs);
  EXPECT_EQ(got.num_live, want.num_live);
  EXPECT_EQ(got.bytes_limit, want.bytes_limit);
  EXPECT_EQ(got.free_bytes, want.free_bytes);
  EXPECT_EQ(got.largest_free_block_bytes, want.largest_free_block_bytes);
  EXPECT_DOUBLE_EQ(got.fragmentation, want.fragmentation);
}

// HBMPROF_TEST_SEED, or a new one each run.
uint64_t Seed() {
  const char* text = std::getenv("HBMPROF_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
}

TEST(SimulatedDeviceTest, MatchesANaiveModel) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr size_t kUnits = 96;
  for (const size_t alignment : {size_t{1}, size_t{64}, size_t{256}, size_t{1} << 16}) {
    SCOPED_TRACE("alignment " + std::to_string(alignment));
    auto device = MakeDevice(kUnits * alignment, alignment);
    ASSERT_NE(device, nullptr);
    NaiveDevice model(kUnits, alignment);
    // An empty device's first buffer is its lowest address.
    char* const base = static_cast<char*>(*device->Allocate(1));
    ASSERT_EQ(model.Allocate(1), 0u);
    std::vector<size_t> live = {0};
    int failures = 0;

    for (int step = 0; step < 6000; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const uint64_t what = random() % 100;
      const StreamId stream = random() % 3;
      const bool in_stream_order = random() % 2 == 0;
      const int64_t pending_or_free = in_stream_order ? NaiveDevice::Pending(stream) : NaiveDevice::kFree;
      if (what < 50) {
        // Mostly small, sometimes more than there is.
        const size_t units = 1 + (random() % 8 == 0 ? random() % (kUnits + 4) : random() % 6);
        const size_t bytes = units * alignment - random() % alignment;
        const auto want = model.Allocate(bytes, pending_or_free);
        const auto got = in_stream_order ? device->AllocateAsync(bytes, stream) : device->Allocate(bytes);
        ASSERT_EQ(got.ok(), want.has_value()) << bytes << " bytes: " << got.status();
        if (want) {
          ASSERT_EQ(static_cast<char*>(*got) - base, static_cast<ptrdiff_t>(*want * alignment)) << bytes << " bytes";
          ASSERT_EQ(reinterpret_cast<uintptr_t>(*got) % alignment, 0u);
          live.push_back(*want);
        } else {
          ASSERT_EQ(got.status().code(), absl::StatusCode::kResourceExhausted);
          ++failures;
        }
      } else if (what < 90 && !live.empty()) {
        const size_t index = random() % live.size();
        const size_t at = live[index];
        live[index] = live.back();
        live.pop_back();
        model.Free(at, pending_or_free);
        char* const ptr = base + at * alignment;
        const absl::Status freed = in_stream_order ? device->FreeAsync(ptr, stream) : device->Free(ptr);
        ASSERT_TRUE(freed.ok()) << freed;
      } else if (what < 94) {
        // Any unit that starts no live buffer.
        const size_t at = random() % kUnits;
        if (!model.IsLiveStart(at)) {
          char* const ptr = base + at * alignment;
          const absl::Status freed = in_stream_order ? device->FreeAsync(ptr, stream) : device->Free(ptr);
          ASSERT_EQ(freed.code(), absl::StatusCode::kInvalidArgument);
        }
      } else if (what < 99) {
        device->Synchronize(stream);
        model.Synchronize(stream);
      } else {
        device->SynchronizeAll();
        model.SynchronizeAll();
      }
      ExpectEqual(device->GetStats(), model.GetStats());
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(failures, 0) << "the test never ran out of memory";
  }
}

TEST(SimulatedDeviceTest, LiveBuffersNeverOverlapInThreads) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
  constexpr int kThreads = 8;
  constexpr int kSteps = 4000;
  auto device = MakeDevice(size_t{1} << 20);
  ASSERT_NE(device, nullptr);

  // Every word of a buffer identifies its writer; the thread that frees it checks all words. Buffers move between
  // threads through the mailboxes.
  struct Buffer {
    uint64_t* words = nullptr;
    size_t count = 0;
    uint64_t stamp = 0;
  };
  std::vector<std::atomic<Buffer*>> mailboxes(kThreads);
  std::atomic<int64_t> overwritten{0};
  std::atomic<int64_t> allocated{0};

  const auto release = [&](Buffer* buffer, std::mt19937_64& random) {
    for (size_t i = 0; i < buffer->count; ++i) overwritten += buffer->words[i] != buffer->stamp + i;
    const bool later = random() % 2 == 0;
    const absl::Status freed = later ? device->FreeAsync(buffer->words, random() % 4) : device->Free(buffer->words);
    EXPECT_TRUE(freed.ok()) << freed;
    delete buffer;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int step = 0; step < kSteps; ++step) {
        const size_t bytes = 8 * (1 + random() % 512);
        const bool in_stream_order = random() % 2 == 0;
        const auto ptr = in_stream_order ? device->AllocateAsync(bytes, random() % 4) : device->Allocate(bytes);
        Buffer* buffer = nullptr;
        if (ptr.ok()) {
          ++allocated;
          buffer = new Buffer{static_cast<uint64_t*>(*ptr), bytes / 8, random()};
          for (size_t i = 0; i < buffer->count; ++i) buffer->words[i] = buffer->stamp + i;
        }
        // Gives the buffer to another thread and frees the buffer that was in that slot.
        if (Buffer* old = mailboxes[random() % kThreads].exchange(buffer)) release(old, random);
        if (random() % 64 == 0) device->Synchronize(random() % 4);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::mt19937_64 random(seed);
  for (auto& mailbox : mailboxes) {
    if (Buffer* old = mailbox.exchange(nullptr)) release(old, random);
  }
  EXPECT_EQ(overwritten, 0);
  EXPECT_GT(allocated, 0);

  device->SynchronizeAll();
  const SimulatedDevice::Stats stats = device->GetStats();
  EXPECT_EQ(stats.bytes_in_use, 0);
  EXPECT_EQ(stats.num_live, 0);
  EXPECT_EQ(stats.num_allocs, allocated);
  EXPECT_EQ(stats.largest_free_block_bytes, stats.bytes_limit) << "everything free is one block again";
}

TEST(SimulatedDeviceTest, ReportsFragmentation) {
  // 10 units of 256: A is 2 units, B 1, C 3, D 1; 3 units stay free at the end.
  auto device = MakeDevice(10 * 256);
  ASSERT_NE(device, nullptr);
  void* a = *device->Allocate(2 * 256);
  void* b = *device->Allocate(256);
  void* c = *device->Allocate(3 * 256);
  void* d = *device->Allocate(1);  // takes a whole unit
  EXPECT_EQ(device->GetStats().fragmentation, 0) << "one free block";

  ASSERT_TRUE(device->Free(a).ok());
  ASSERT_TRUE(device->Free(c).ok());
  // Free: 2 at A, 3 at C, 3 at the end: 8 units, the largest 3.
  SimulatedDevice::Stats stats = device->GetStats();
  EXPECT_EQ(stats.free_bytes, 8 * 256);
  EXPECT_EQ(stats.largest_free_block_bytes, 3 * 256);
  EXPECT_DOUBLE_EQ(stats.fragmentation, 1 - 3.0 / 8);
  EXPECT_EQ(stats.bytes_in_use, 2 * 256);
  EXPECT_EQ(stats.peak_bytes_in_use, 7 * 256);

  // 8 units are free, but no 4 adjacent ones; the message says so.
  const auto too_large = device->Allocate(4 * 256);
  EXPECT_EQ(too_large.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(too_large.status().message(),
            "sim:0: out of memory: requested 1024 bytes, 2048 of 2560 bytes free, largest free block 768 bytes");

  // 3 units fit at C and at the end: the lower address. 2 fit best at A.
  EXPECT_EQ(*device->Allocate(3 * 256), c);
  EXPECT_EQ(*device->Allocate(2 * 256), a);

  for (void* ptr : {a, b, c, d}) ASSERT_TRUE(device->Free(ptr).ok());
  stats = device->GetStats();
  EXPECT_EQ(stats.largest_free_block_bytes, 10 * 256);
  EXPECT_EQ(stats.fragmentation, 0);
  EXPECT_EQ(*device->Allocate(10 * 256), a) << "the whole device in one piece";
  EXPECT_EQ(device->GetStats().fragmentation, 0) << "nothing free";
}

TEST(SimulatedDeviceTest, PendingFreeIsReusedByItsStreamOnly) {
  auto device = MakeDevice(8 * 256);
  ASSERT_NE(device, nullptr);
  void* a = *device->AllocateAsync(2 * 256, 1);
  ASSERT_TRUE(device->FreeAsync(a, 1).ok());
  SimulatedDevice::Stats stats = device->GetStats();
  EXPECT_EQ(stats.bytes_in_use, 2 * 256);
  EXPECT_EQ(stats.pending_free_bytes, 2 * 256);
  EXPECT_EQ(stats.num_live, 0);

  void* b = *device->AllocateAsync(256, 2);
  EXPECT_NE(b, a) << "another stream may not have reached the free";
  void* c = *device->Allocate(256);
  EXPECT_NE(c, a) << "no stream may not have reached the free";
  EXPECT_EQ(*device->AllocateAsync(256, 1), a) << "the same stream comes after it";
  stats = device->GetStats();
  EXPECT_EQ(stats.pending_free_bytes, 256) << "what the reuse left over";
  EXPECT_EQ(stats.bytes_in_use, 4 * 256);

  device->Synchronize(2);
  EXPECT_EQ(device->GetStats().pending_free_bytes, 256) << "not this stream's";
  device->Synchronize(1);
  stats = device->GetStats();
  EXPECT_EQ(stats.pending_free_bytes, 0);
  EXPECT_EQ(stats.bytes_in_use, 3 * 256);
  EXPECT_EQ(*device->Allocate(256), static_cast<char*>(a) + 256) << "the smallest free block";
}

TEST(SimulatedDeviceTest, SynchronizeAllCompletesAllStreams) {
  auto device = MakeDevice(4 * 256);
  ASSERT_NE(device, nullptr);
  for (StreamId stream : {0, 1, 2, 3}) ASSERT_TRUE(device->FreeAsync(*device->Allocate(256), stream).ok());
  EXPECT_EQ(device->GetStats().pending_free_bytes, 4 * 256);
  device->SynchronizeAll();
  EXPECT_EQ(device->GetStats().pending_free_bytes, 0);
  EXPECT_EQ(device->GetStats().largest_free_block_bytes, 4 * 256);
}

TEST(SimulatedDeviceTest, CompletesPendingFreesBeforeFailing) {
  auto device = MakeDevice(4 * 256);
  ASSERT_NE(device, nullptr);
  void* a = *device->Allocate(2 * 256);
  void* b = *device->Allocate(2 * 256);
  ASSERT_TRUE(device->FreeAsync(a, 1).ok());
  ASSERT_TRUE(device->FreeAsync(b, 2).ok());
  const auto whole = device->Allocate(4 * 256);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(*whole, a);
  EXPECT_EQ(device->GetStats().pending_free_bytes, 0);
  EXPECT_EQ(device->GetStats().peak_bytes_in_use, 4 * 256);
}

TEST(SimulatedDeviceTest, PendingBufferCannotBeFreed) {
  auto device = MakeDevice(4 * 256);
  ASSERT_NE(device, nullptr);
  void* a = *device->Allocate(256);
  ASSERT_TRUE(device->FreeAsync(a, 1).ok());
  EXPECT_EQ(device->Free(a).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->FreeAsync(a, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->GetStats().pending_free_bytes, 256);
}

TEST(SimulatedDeviceTest, BadFreeNamesDeviceAndPointer) {
  auto device = MakeDevice(4 * 256, 256, "sim:7");
  ASSERT_NE(device, nullptr);
  char* a = static_cast<char*>(*device->Allocate(512));
  const auto hex = [](const void* ptr) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(ptr)));
    return std::string(text);
  };
  EXPECT_THAT(std::string(device->Free(a + 256).message()),
              AllOf(HasSubstr("sim:7"), HasSubstr(hex(a + 256)), HasSubstr("not the start of a live buffer")));
  EXPECT_THAT(std::string(device->Free(&device).message()),
              AllOf(HasSubstr("sim:7"), HasSubstr(hex(&device)), HasSubstr("not memory of this device")));
  EXPECT_EQ(device->GetStats().num_live, 1);
}

TEST(SimulatedDeviceTest, DevicesHaveSeparateMemory) {
  auto first = MakeDevice(4096, 256, "sim:0");
  auto second = MakeDevice(8192, 256, "sim:1");
  ASSERT_TRUE(first && second);
  char* a = static_cast<char*>(*first->Allocate(4096));
  char* b = static_cast<char*>(*second->Allocate(8192));
  EXPECT_TRUE(a + 4096 <= b || b + 8192 <= a);
  EXPECT_EQ(second->Free(a).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(first->GetStats().bytes_in_use, 4096);
  EXPECT_EQ(second->GetStats().bytes_in_use, 8192);
  EXPECT_EQ(first->device_name(), "sim:0");
  EXPECT_EQ(second->device_name(), "sim:1");
}

TEST(SimulatedDeviceTest, CapacityIsRoundedUp) {
  auto device = MakeDevice(1, 1 << 21);
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(device->GetStats().bytes_limit, 1 << 21);
  const auto whole = device->Allocate(1 << 21);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*whole) % (1 << 21), 0u);
  std::memset(*whole, 1, 1 << 21);
}

TEST(SimulatedDeviceTest, UntouchedMemoryTakesNoHostMemory) {
  // More memory than the machines of this test have.
  auto device = MakeDevice(size_t{1} << 38);
  ASSERT_NE(device, nullptr);
  char* whole = static_cast<char*>(*device->Allocate(size_t{1} << 38));
  whole[0] = 1;
  whole[(size_t{1} << 38) - 1] = 2;
  EXPECT_EQ(whole[0] + whole[(size_t{1} << 38) - 1], 3);
}

TEST(SimulatedDeviceTest, RefusesInvalidOptions) {
  const auto create = [](size_t capacity, size_t alignment) {
    SimulatedDevice::Options options;
    options.capacity = capacity;
    options.alignment = alignment;
    return SimulatedDevice::Create(options).status().code();
  };
  EXPECT_EQ(create(0, 256), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(4096, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(4096, 384), absl::StatusCode::kInvalidArgument);
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  EXPECT_EQ(create(kMost, 256), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(create(kMost / 4, 256), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(create(1, kMost / 2 + 1), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(create(size_t{1} << 60, size_t{1} << 60), absl::StatusCode::kResourceExhausted);
}

TEST(SimulatedDeviceTest, ProbeReportsItsNumbers) {
  auto device = MakeDevice(10 * 256);
  ASSERT_NE(device, nullptr);
  void* a = *device->Allocate(100);
  ASSERT_TRUE(device->Allocate(200).ok());
  ASSERT_TRUE(device->FreeAsync(a, 1).ok());
  const DeviceProbe probe = device->Probe();
  EXPECT_EQ(probe.bytes_limit, 10 * 256);
  EXPECT_EQ(probe.largest_free_block_bytes, 8 * 256);
  EXPECT_EQ(probe.driver_bytes_in_use, 2 * 256) << "rounded up, the pending one included";
}

}  // namespace
}  // namespace hbmprof
