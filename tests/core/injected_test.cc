// The functions of core for a copy of the library that has joined the injected library's profiler: snapshots as bytes,
// refined records, replaceable probes. Tests with the two copies in one process: tests/inject/joined_test.cc.
#include "src/core/joined/injected.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/joined/snapshot_bytes.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {
namespace {

constexpr uint64_t kAddress = uint64_t{1} << 40;

[[gnu::noinline]] bool DriverAllocates(Profiler& profiler, uint64_t address, size_t bytes) {
  return profiler.RecordAlloc(BufferId(address), bytes, {profiler.Device("GPU:0"), MemoryKind::kDevice, {}});
}
[[gnu::noinline]] bool ProgramRefines(Profiler& profiler, uint64_t address, AllocatorId allocator) {
  const Caller caller = Caller::OfThisFunction();
  return ProfilerAccess::ImplOf(profiler).Refine(caller, BufferId(address), allocator);
}

Snapshot Everything() {
  Profiler profiler;
  const ScopedTag phase("phase", "load");
  const ScopedTag empty("none", "");
  EXPECT_TRUE(DriverAllocates(profiler, kAddress, 1000));
  EXPECT_TRUE(ProgramRefines(profiler, kAddress, profiler.Allocator("pages")));
  EXPECT_TRUE(DriverAllocates(profiler, 2 * kAddress, 2000));
  EXPECT_TRUE(profiler.RecordFree(BufferId(2 * kAddress)));
  profiler.SetDeviceProbe(profiler.Device("GPU:0"), [] {
    DeviceProbe probe;
    probe.driver_bytes_in_use = 1;
    probe.driver_scope = DriverScope::kProcess;
    probe.baseline = -3;
    probe.uuid = "GPU-1234";
    probe.processes = {{17, 5000, true}, {18, std::nullopt, false}};
    return probe;
  });
  const Pool pool = {profiler.Device("GPU:0"), profiler.Allocator("slabs")};
  EXPECT_TRUE(profiler.RecordSegment(pool, BufferId(4 * kAddress), 512));
  EXPECT_TRUE(profiler.RecordBlock(pool, BufferId(4 * kAddress), 300));
  profiler.SetCounter("requests", -1);
  profiler.RecordDropped(5);
  ProfilerAccess::ImplOf(profiler).SetSnapshotFinisher([](Snapshot* snapshot) {
    snapshot->warnings.push_back(std::to_string(snapshot->samples.size()) + " samples");
    snapshot->environment.emplace_back("RANK", "3");
  });
  Snapshot snapshot = profiler.TakeSnapshot();
  snapshot.named_frames = {{"Model.forward", "/srv/model.py", 41, 30}};
  snapshot.python = {"3.11.7", "turned off"};
  return snapshot;
}

TEST(MakeSegmentTest, TakesAHandleAndChangesNoTotal) {
  Profiler profiler;
  const DeviceId gpu = profiler.Device("GPU:0");
  const Pool pool = {gpu, profiler.Allocator("pool")};
  const BufferId physical = BufferId::Handle(4, 1);
  ASSERT_TRUE(profiler.RecordAlloc(physical, 4096, {gpu, MemoryKind::kVmm, {}}));
  const DeviceStats before = profiler.Stats(gpu);
  ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
  EXPECT_FALSE(impl.MakeSegment(BufferId::Handle(4, 2), pool)) << "it is not live";
  EXPECT_FALSE(impl.MakeSegment(physical, {profiler.Device("GPU:1"), pool.allocator})) << "another device";
  EXPECT_TRUE(impl.MakeSegment(physical, pool));
  EXPECT_TRUE(impl.MakeSegment(physical, pool)) << "it is one already";
  EXPECT_FALSE(impl.MakeSegment(physical, {gpu, profiler.Allocator("other")}));
  EXPECT_EQ(impl.FindBuffer(physical)->attributes.kind, MemoryKind::kPool);
  EXPECT_EQ(impl.ReservedBytes(pool), 4096);
  const DeviceStats after = profiler.Stats(gpu);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(after.num_allocs, before.num_allocs);
  EXPECT_EQ(after.num_live, before.num_live);
  EXPECT_EQ(after.idle_bytes, 4096);
  EXPECT_TRUE(profiler.RecordFree(physical));
  EXPECT_EQ(impl.ReservedBytes(pool), 0);
}

TEST(EndBlocksTest, EndsOnlyBlocksThatThePoolHandedOut) {
  Profiler profiler;
  const Pool ours = {kDefaultDevice, profiler.Allocator("ours")};
  const Pool theirs = {kDefaultDevice, profiler.Allocator("theirs")};
  const Pool elsewhere = {profiler.Device("other"), ours.allocator};
  ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
  const Caller caller = Caller::OfThisFunction();
  for (const Pool& pool : {ours, theirs, elsewhere}) {
    const BufferId address((static_cast<uint64_t>(pool.device) * 16 + static_cast<uint64_t>(pool.allocator)) << 40);
    ASSERT_TRUE(profiler.RecordSegment(pool, address, 4096));
    ASSERT_TRUE(profiler.RecordBlock(pool, address, 512));
  }
  ASSERT_TRUE(impl.RecordBlockIn(caller, {kDefaultDevice, {}}, ours, BufferId(kAddress / 2), 64)) << "a pool inside it";
  impl.EndBlocks(ours);
  EXPECT_EQ(impl.StatsOf(ours).bytes_allocated, 0);
  EXPECT_EQ(impl.StatsOf(ours).bytes_reserved, 4096);
  EXPECT_EQ(impl.StatsOf(theirs).bytes_allocated, 512);
  EXPECT_EQ(impl.StatsOf(elsewhere).bytes_allocated, 512);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 2 * 4096);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).idle_bytes, 2 * 4096 - 512);

  ASSERT_TRUE(profiler.RecordBlock(ours, BufferId(kAddress), 64));
  ASSERT_TRUE(profiler.RecordBlock(ours, BufferId(kAddress + 1024), 64));
  impl.EndBlocksIn(ours, kAddress + 1024, 1024);
  EXPECT_TRUE(impl.FindBlock(ours, BufferId(kAddress)).has_value());
  EXPECT_FALSE(impl.FindBlock(ours, BufferId(kAddress + 1024)).has_value());
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
}

TEST(SnapshotBytes, RoundTripIsUnchanged) {
  const Snapshot before = Everything();
  ASSERT_EQ(before.samples.size(), 5u);
  const std::string bytes = ToBytes(before);
  Snapshot after;
  ASSERT_TRUE(FromBytes(bytes, &after));
  EXPECT_EQ(ToBytes(after), bytes);
  EXPECT_EQ(after.samples[0].tags, before.samples[0].tags);
  EXPECT_EQ(after.samples[0].inuse_bytes, 1000);
  EXPECT_EQ(after.allocators, before.allocators);
  EXPECT_EQ(after.counters, before.counters);
  EXPECT_EQ(after.warnings, std::vector<std::string>{"5 samples"});
  EXPECT_EQ(after.host, before.host);
  EXPECT_EQ(after.environment.back(), (std::pair<std::string, std::string>("RANK", "3")));
  EXPECT_EQ(after.process_id, before.process_id);
  ASSERT_EQ(after.stacks.size(), before.stacks.size());
  EXPECT_EQ(after.stacks[1].return_addresses, before.stacks[1].return_addresses);
  ASSERT_EQ(after.modules.size(), before.modules.size());
  EXPECT_EQ(after.modules[0].path, before.modules[0].path);
  ASSERT_EQ(after.devices.size(), 1u);
  EXPECT_EQ(after.devices[0].name, "GPU:0");
  ASSERT_EQ(after.devices[0].pools.size(), 1u);
  EXPECT_EQ(after.devices[0].pools[0].name, "slabs");
  EXPECT_EQ(after.devices[0].pools[0].peak_bytes_allocated, 300);
  EXPECT_EQ(after.devices[0].pools[0].idle_bytes, 212);
  EXPECT_EQ(after.devices[0].spaces[0].idle_bytes, 212);
  EXPECT_EQ(after.devices[0].spaces[0].baseline, -3);
  EXPECT_EQ(after.devices[0].spaces[1].baseline, std::nullopt);
  EXPECT_EQ(after.devices[0].spaces[0].driver_scope, DriverScope::kProcess);
  EXPECT_EQ(after.devices[0].uuid, "GPU-1234");
  ASSERT_EQ(after.devices[0].processes.size(), 2u);
  EXPECT_EQ(after.devices[0].processes[0].process_id, 17);
  EXPECT_EQ(after.devices[0].processes[0].bytes, 5000);
  EXPECT_TRUE(after.devices[0].processes[0].is_this);
  EXPECT_EQ(after.devices[0].processes[1].bytes, std::nullopt);
  EXPECT_EQ(after.tracker.dropped_bytes, 5);
  EXPECT_EQ(after.tracker.unwinder, before.tracker.unwinder);
}

TEST(SnapshotBytes, InvalidBytesAreRefused) {
  const std::string bytes = ToBytes(Everything());
  Snapshot snapshot;
  for (size_t size = 0; size < bytes.size(); size += size < 2000 ? 1 : 97) {
    EXPECT_FALSE(FromBytes(bytes.substr(0, size), &snapshot)) << size;
  }
  EXPECT_FALSE(FromBytes(bytes + "x", &snapshot));
  EXPECT_FALSE(FromBytes(std::string(8, '\xff'), &snapshot)) << "a count beyond all bounds";
  DeviceStats stats;
  EXPECT_FALSE(FromBytes("", &stats));
}

TEST(Refine, ReplacesStackTagsAllocatorAndKeepsSums) {
  Profiler profiler;
  ASSERT_TRUE(DriverAllocates(profiler, kAddress, 1000));
  const DeviceId gpu = profiler.Device("GPU:0");
  const DeviceStats before = profiler.Stats(gpu);
  {
    const ScopedTag tag("phase", "load");
    ASSERT_TRUE(ProgramRefines(profiler, kAddress, profiler.Allocator("pages")));
    ASSERT_TRUE(ProgramRefines(profiler, kAddress, {})) << "the allocator stays";
  }
  const DeviceStats after = profiler.Stats(gpu);
  EXPECT_EQ(after.bytes_in_use, 1000);
  EXPECT_EQ(after.peak_bytes_in_use, 1000);
  EXPECT_EQ(after.num_allocs, before.num_allocs);
  EXPECT_EQ(after.pool_bytes, 0);
  const Snapshot snapshot = profiler.TakeSnapshot();
  int64_t peak = 0;
  int64_t allocated = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    peak += sample.peak_bytes;
    allocated += sample.alloc_bytes;
    if (sample.inuse_bytes == 0) continue;
    EXPECT_EQ(sample.inuse_bytes, 1000);
    EXPECT_EQ(sample.alloc_objects, 1);
    EXPECT_EQ(snapshot.allocators[sample.allocator], "pages");
    ASSERT_EQ(sample.tags.size(), 1u);
    EXPECT_EQ(sample.tags[0].second, "load");
  }
  EXPECT_EQ(peak, 1000);
  EXPECT_EQ(allocated, 1000);
  EXPECT_TRUE(profiler.RecordFree(BufferId(kAddress)));
  EXPECT_FALSE(ProgramRefines(profiler, kAddress, {})) << "it is not live";
  EXPECT_EQ(profiler.GetTrackerStats().replaced_records, 0);
}

TEST(Probe, YieldingProbeDoesNotReplaceAnother) {
  Profiler profiler;
  ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
  const auto limit = [&] { return profiler.Stats(kDefaultDevice).bytes_limit; };
  const auto probe = [](int64_t bytes) {
    return [bytes] {
      DeviceProbe answer;
      answer.bytes_limit = bytes;
      return answer;
    };
  };
  EXPECT_FALSE(impl.probes.HasFixed(kDefaultDevice));
  impl.probes.Set(kDefaultDevice, probe(1), nullptr, /*is_replaceable=*/true);
  EXPECT_FALSE(impl.probes.HasFixed(kDefaultDevice));
  EXPECT_EQ(limit(), 1);
  impl.probes.Set(kDefaultDevice, probe(2), nullptr, /*is_replaceable=*/false);
  EXPECT_TRUE(impl.probes.HasFixed(kDefaultDevice));
  EXPECT_EQ(limit(), 2);
  impl.probes.Set(kDefaultDevice, probe(3), nullptr, /*is_replaceable=*/true);
  EXPECT_EQ(limit(), 2);
  impl.probes.Remove(kDefaultDevice, nullptr, /*is_replaceable=*/true);
  EXPECT_EQ(limit(), 2) << "not its own";
  impl.probes.Remove(kDefaultDevice, nullptr);
  EXPECT_FALSE(impl.probes.HasFixed(kDefaultDevice));
  EXPECT_EQ(limit(), std::nullopt);
}

// After the removal of a probe, the caller may destroy the objects that the probe uses.
TEST(Probe, RemovalWaitsForYieldedProbe) {
  Profiler profiler;
  ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
  std::atomic<bool> runs{false};
  std::atomic<bool> ends{false};
  std::atomic<bool> has_ended{false};
  const int owner = 0;
  impl.probes.Set(
      kDefaultDevice,
      [&] {
        runs = true;
        while (!ends) std::this_thread::yield();
        has_ended = true;
        return DeviceProbe();
      },
      &owner, /*is_replaceable=*/true);
  std::thread asks([&] { profiler.Stats(kDefaultDevice); });
  while (!runs) std::this_thread::yield();
  std::thread replaces([&] {
    impl.probes.Set(
        kDefaultDevice, [] { return DeviceProbe(); }, nullptr);
  });
  while (!impl.probes.HasFixed(kDefaultDevice)) std::this_thread::yield();
  std::thread lets_it_end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ends = true;
  });
  impl.probes.Remove(kDefaultDevice, &owner, /*is_replaceable=*/true);
  EXPECT_TRUE(has_ended);
  asks.join();
  replaces.join();
  lets_it_end.join();
}

}  // namespace
}  // namespace hbmprof::internal
