// TrackingAllocator on the simulated device and on small upstream allocators: stacks, devices, kinds, probes, lifetimes
// and limits. Not in this file: comparison of its numbers with upstream's (tests/contract/tracking_contract.h).
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/profiler.h"
#include "hbmprof/simulated_device.h"

namespace hbmprof {
namespace {

std::unique_ptr<SimulatedDevice> MakeDevice(std::string name = "sim:0", size_t capacity = size_t{1} << 20) {
  SimulatedDevice::Options options;
  options.name = std::move(name);
  options.capacity = capacity;
  return SimulatedDevice::Create(options).value();
}

// An upstream that implements only the required functions.
class HostAllocator : public DeviceAllocator {
 public:
  explicit HostAllocator(MemoryKind kind = MemoryKind::kDevice) : kind_(kind) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override { return std::malloc(bytes); }
  absl::Status Free(void* ptr) override {
    std::free(ptr);
    return absl::OkStatus();
  }
  std::string device_name() const override { return "host:0"; }
  MemoryKind kind() const override { return kind_; }

 private:
  MemoryKind kind_;
};

TEST(TrackingAllocatorTest, FailureIsReturnedIfItsReportFails) {
  class Full : public HostAllocator {
   public:
    absl::StatusOr<void*> Allocate(size_t) override { return absl::ResourceExhaustedError("full"); }
    std::string device_name() const override {
      if (has_no_memory) throw std::bad_alloc();
      return "host:0";
    }
    bool has_no_memory = false;
  };
  Full full;
  Profiler profiler;
  TrackingAllocator tracker(full, {}, profiler);
  full.has_no_memory = true;
  EXPECT_EQ(tracker.Allocate(100).status().message(), "full");
  EXPECT_EQ(tracker.AllocateAsync(100, 1).status().message(), "full");
}

struct Made {
  void* ptr;
  uintptr_t returns_to;  // the return address of the function that called the allocator
};
[[gnu::noinline]] Made MakePlain(DeviceAllocator& allocator) {
  const auto ptr = allocator.Allocate(4096);
  return {ptr.value_or(nullptr), reinterpret_cast<uintptr_t>(__builtin_return_address(0))};
}
[[gnu::noinline]] Made MakeAsync(DeviceAllocator& allocator) {
  const auto ptr = allocator.AllocateAsync(4096, 1);
  return {ptr.value_or(nullptr), reinterpret_cast<uintptr_t>(__builtin_return_address(0))};
}

TEST(TrackingAllocatorTest, StackBeginsAtTheCaller) {
  for (Made (*make)(DeviceAllocator&) : {&MakePlain, &MakeAsync}) {
    auto device = MakeDevice();
    Profiler profiler;
    TrackingAllocator tracker(*device, {}, profiler);
    const Made made = make(tracker);
    ASSERT_NE(made.ptr, nullptr);
    const Snapshot snapshot = profiler.TakeSnapshot();
    ASSERT_EQ(snapshot.samples.size(), 1u);
    const auto& stack = snapshot.stacks[snapshot.samples[0].stack].return_addresses;
    ASSERT_GE(stack.size(), 2u);
    EXPECT_EQ(stack[1], made.returns_to) << "the first frame is the caller's, the second the caller's caller";
  }
}

TEST(TrackingAllocatorTest, UnnamedAllocatorHasNoLabel) {
  auto device = MakeDevice();
  Profiler profiler;
  TrackingAllocator tracker(*device, {}, profiler);
  ASSERT_TRUE(tracker.Allocate(100).ok());
  const Snapshot snapshot = profiler.TakeSnapshot();
  ASSERT_EQ(snapshot.samples.size(), 1u);
  EXPECT_EQ(snapshot.samples[0].allocator, 0u);
}

TEST(TrackingAllocatorTest, DevicesAreCountedSeparately) {
  auto device0 = MakeDevice("sim:0");
  auto device1 = MakeDevice("sim:1");
  Profiler profiler;
  TrackingAllocator tracker0(*device0, {}, profiler);
  TrackingAllocator tracker1(*device1, {}, profiler);
  ASSERT_NE(tracker0.device(), tracker1.device());
  const auto a = tracker0.Allocate(1000);
  const auto b = tracker1.Allocate(200);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(profiler.Stats(tracker0.device()).bytes_in_use, 1000);
  EXPECT_EQ(profiler.Stats(tracker1.device()).bytes_in_use, 200);
  EXPECT_TRUE(tracker1.Free(*b).ok());
  EXPECT_EQ(profiler.Stats(tracker0.device()).bytes_in_use, 1000);
  EXPECT_EQ(profiler.Stats(tracker1.device()).bytes_in_use, 0);
}

TEST(TrackingAllocatorTest, StatsShowProbeAndUnaccounted) {
  auto device = MakeDevice("sim:0", 4096);
  Profiler profiler;
  TrackingAllocator tracker(*device, {}, profiler);
  ASSERT_TRUE(tracker.Allocate(100).ok());   // 256 on the device
  ASSERT_TRUE(device->Allocate(1024).ok());  // not tracked
  DeviceStats stats = profiler.Stats(tracker.device());
  EXPECT_EQ(stats.bytes_in_use, 100);
  EXPECT_EQ(stats.bytes_limit, 4096);
  EXPECT_EQ(stats.driver_bytes_in_use, 256 + 1024);
  EXPECT_EQ(stats.largest_free_block_bytes, 4096 - 256 - 1024);
  EXPECT_TRUE(stats.unaccounted.has_value());
  EXPECT_EQ(stats.unaccounted, 256 + 1024 - 100);
}

TEST(TrackingAllocatorTest, OtherMemorySpacesAreNotInTotal) {
  HostAllocator managed(MemoryKind::kManaged);
  Profiler profiler;
  TrackingAllocator tracker(managed, {}, profiler);
  const auto ptr = tracker.Allocate(512);
  ASSERT_TRUE(ptr.ok());
  EXPECT_EQ(profiler.Stats(tracker.device(), MemorySpace::kManaged).bytes_in_use, 512);
  EXPECT_EQ(profiler.Stats(tracker.device(), MemorySpace::kDevice).bytes_in_use, 0);
  EXPECT_TRUE(tracker.Free(*ptr).ok());
  EXPECT_EQ(profiler.Stats(tracker.device(), MemorySpace::kManaged).bytes_in_use, 0);
}

TEST(TrackingAllocatorTest, UpstreamWithoutStreamsGetsPlainCalls) {
  HostAllocator host;
  Profiler profiler;
  TrackingAllocator tracker(host, {}, profiler);
  const auto ptr = tracker.AllocateAsync(512, 3);
  ASSERT_TRUE(ptr.ok());
  ASSERT_NE(*ptr, nullptr);
  EXPECT_EQ(profiler.Stats(tracker.device()).bytes_in_use, 512);
  EXPECT_EQ(profiler.Stats(tracker.device()).bytes_limit, std::nullopt) << "it knows nothing of itself";
  EXPECT_FALSE(profiler.Stats(tracker.device()).unaccounted.has_value());
  EXPECT_TRUE(tracker.FreeAsync(*ptr, 3).ok());
  EXPECT_EQ(profiler.Stats(tracker.device()).bytes_in_use, 0);
}

TEST(TrackingAllocatorTest, RecordsOutliveTheAllocator) {
  auto device = MakeDevice();
  Profiler profiler;
  void* ptr = nullptr;
  DeviceId id;
  {
    TrackingAllocator first(*device, "first", profiler);
    id = first.device();
    ptr = first.Allocate(300).value();
  }
  EXPECT_EQ(profiler.Stats(id).bytes_in_use, 300);
  TrackingAllocator second(*device, "second", profiler);
  EXPECT_EQ(second.device(), id);
  EXPECT_TRUE(second.Free(ptr).ok());
  EXPECT_EQ(profiler.Stats(id).bytes_in_use, 0);
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
}

TEST(TrackingAllocatorTest, NoProbeAfterAllocatorIsDestroyed) {
  Profiler profiler;
  DeviceId id;
  {
    auto device = MakeDevice("sim:0", 4096);
    TrackingAllocator tracker(*device, {}, profiler);
    id = tracker.device();
    ASSERT_TRUE(tracker.Allocate(300).ok());
    EXPECT_EQ(profiler.Stats(id).bytes_limit, 4096);
  }
  const DeviceStats stats = profiler.Stats(id);
  EXPECT_EQ(stats.bytes_in_use, 300);
  EXPECT_EQ(stats.bytes_limit, std::nullopt);
  EXPECT_EQ(stats.largest_free_block_bytes, std::nullopt);
  EXPECT_EQ(stats.driver_bytes_in_use, std::nullopt);
  EXPECT_FALSE(stats.unaccounted.has_value());
}

TEST(TrackingAllocatorTest, LastAllocatorOfADeviceIsProbed) {
  auto device = MakeDevice("sim:0", 4096);
  Profiler profiler;
  auto first = std::make_unique<TrackingAllocator>(*device, "first", profiler);
  TrackingAllocator second(*device, "second", profiler);
  first.reset();
  EXPECT_EQ(profiler.Stats(second.device()).bytes_limit, 4096);
}

TEST(TrackingAllocatorTest, AllocatorsChangeDuringProbe) {
  Profiler profiler;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      for (const Snapshot::Device& device : profiler.TakeSnapshot().devices) {
        const DeviceStats& stats = device.spaces[static_cast<int>(MemorySpace::kDevice)];
        EXPECT_TRUE(stats.bytes_limit == std::nullopt || stats.bytes_limit == 4096) << *stats.bytes_limit;
      }
    }
  });
  for (int i = 0; i < 300; ++i) {
    auto device = MakeDevice("sim:0", 4096);
    TrackingAllocator tracker(*device, {}, profiler);
    const auto ptr = tracker.Allocate(100);
    ASSERT_TRUE(ptr.ok());
    EXPECT_TRUE(tracker.Free(*ptr).ok());
  }
  done = true;
  reader.join();
}

TEST(TrackingAllocatorTest, AllocationsBeyondLimitSucceedAsDropped) {
  auto device = MakeDevice();
  Options options;
  options.max_live_buffers = 1;
  Profiler profiler(options);
  TrackingAllocator tracker(*device, {}, profiler);
  const auto first = tracker.Allocate(1000);
  const auto second = tracker.Allocate(200);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(device->GetStats().num_live, 2);
  EXPECT_EQ(profiler.Stats(tracker.device()).bytes_in_use, 1000);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 1);
  EXPECT_EQ(profiler.GetTrackerStats().dropped_bytes, 200);
  EXPECT_TRUE(tracker.Free(*second).ok());
  EXPECT_TRUE(tracker.Free(*first).ok());
  EXPECT_EQ(device->GetStats().num_live, 0);
}

TEST(TrackingAllocatorTest, CallsReachUpstreamWhileOff) {
  auto device = MakeDevice();
  Options options;
  options.enabled = false;
  Profiler profiler(options);
  TrackingAllocator tracker(*device, {}, profiler);
  const auto ptr = tracker.Allocate(1000);
  ASSERT_TRUE(ptr.ok());
  EXPECT_EQ(device->GetStats().num_live, 1);
  EXPECT_EQ(profiler.Stats(tracker.device()).num_allocs, 0);
  EXPECT_TRUE(tracker.Free(*ptr).ok());
  EXPECT_EQ(device->GetStats().num_live, 0);
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
}

}  // namespace
}  // namespace hbmprof
