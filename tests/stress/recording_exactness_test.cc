// Recordings under concurrency: threads record at random, also pools, take snapshots and reset peaks.
// The recording is replayed, and at the instant of each snapshot the replayed state must equal the snapshot in every
// value of every site. exactness_test and pools_exactness_test compare such snapshots with a naive model.
//
// HBMPROF_TEST_EVENTS=N and HBMPROF_TEST_INSTANTS=N set the sizes.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/recording/recorder/recorder.h"
#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof {
namespace {

using internal::ProfilerAccess;
using internal::RecordedEvent;
using internal::RecordedKind;
using internal::RecordingReader;
using internal::RecordingState;

constexpr int kThreads = 8;
constexpr int kDevices = 2;
constexpr uint64_t kSlotsPerThread = 64;
constexpr uint64_t kSlotBytes = uint64_t{1} << 20;

int64_t FromEnvironment(const char* name, int64_t fallback) {
  const char* const value = std::getenv(name);
  return value == nullptr ? fallback : std::atoll(value);
}

int64_t Events() { return FromEnvironment("HBMPROF_TEST_EVENTS", 60'000); }
int64_t Instants() { return FromEnvironment("HBMPROF_TEST_INSTANTS", 30); }

// The samples of a snapshot as text keys and values. Sites without values are left out.
using Values = std::array<int64_t, 10>;
std::map<std::string, Values> SamplesOf(const Snapshot& snapshot) {
  std::map<std::string, Values> samples;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    const Values values = {sample.alloc_objects,     sample.alloc_bytes,     sample.peak_objects,
                           sample.peak_bytes,        sample.inuse_objects,   sample.inuse_bytes,
                           sample.pool_peak_objects, sample.pool_peak_bytes, sample.reserved_objects,
                           sample.reserved_bytes};
    if (values == Values{}) continue;
    std::string key = snapshot.devices[sample.device].name + " " + std::string(MemoryKindName(sample.kind)) + " " +
                      snapshot.allocators[sample.allocator];
    for (const auto& [name, value] : sample.tags) key += " " + name + "=" + value;
    for (const uint64_t address : snapshot.stacks[sample.stack].return_addresses) {
      // The row of a pool's idle memory: its frame has a name, and a number of the process.
      if (Snapshot::IsNamedFrame(address)) continue;
      key += " " + std::to_string(address);
    }
    Values& sum = samples[key];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return samples;
}

std::map<std::string, std::vector<int64_t>> TotalsOf(const Snapshot& snapshot) {
  std::map<std::string, std::vector<int64_t>> totals;
  for (const Snapshot::Device& device : snapshot.devices) {
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const DeviceStats& stats = device.spaces[space];
      if (stats.num_allocs == 0) continue;
      totals[device.name + " " + std::to_string(space)] = {stats.bytes_in_use, stats.peak_bytes_in_use,
                                                           stats.pool_bytes, stats.idle_bytes};
    }
    for (const PoolStats& pool : device.pools) {
      if (pool.peak_bytes_reserved == 0) continue;
      totals[device.name + " " + pool.name] = {pool.bytes_reserved,      pool.bytes_allocated,
                                               pool.idle_bytes,          pool.segments,
                                               pool.peak_bytes_reserved, pool.peak_bytes_allocated};
    }
  }
  return totals;
}

// Makes the peaks 0.
Snapshot WithoutPeaks(Snapshot snapshot) {
  for (Snapshot::Sample& sample : snapshot.samples) {
    sample.peak_objects = sample.peak_bytes = sample.pool_peak_objects = sample.pool_peak_bytes = 0;
  }
  for (Snapshot::Device& device : snapshot.devices) {
    for (DeviceStats& stats : device.spaces) stats.peak_bytes_in_use = 0;
    for (PoolStats& pool : device.pools) pool.peak_bytes_reserved = pool.peak_bytes_allocated = 1;
  }
  return snapshot;
}

void ExpectSame(const Snapshot& replayed, const Snapshot& taken, const std::string& instant) {
  EXPECT_EQ(TotalsOf(replayed), TotalsOf(taken)) << instant;
  const std::map<std::string, Values> expected = SamplesOf(taken);
  const std::map<std::string, Values> actual = SamplesOf(replayed);
  int shown = 0;
  for (const auto& [key, values] : expected) {
    const auto found = actual.find(key);
    if (found != actual.end() && found->second == values) continue;
    ADD_FAILURE() << instant << ": " << key.substr(0, 80) << (found == actual.end() ? ": missing" : ": differs");
    for (size_t i = 0; i < values.size() && found != actual.end(); ++i) {
      EXPECT_EQ(found->second[i], values[i]) << "value " << i;
    }
    if (++shown == 5) return;
  }
  EXPECT_EQ(actual.size(), expected.size()) << instant;
}

[[gnu::noinline]] bool AllocateA(Profiler& profiler, BufferId id, size_t bytes, const Attributes& attributes) {
  const bool recorded = profiler.RecordAlloc(id, bytes, attributes);
  asm volatile("");
  return recorded;
}
[[gnu::noinline]] bool AllocateB(Profiler& profiler, BufferId id, size_t bytes, const Attributes& attributes) {
  const bool recorded = profiler.RecordAlloc(id, bytes, attributes);
  asm volatile("");
  return recorded;
}

// Threads that record at random until each has made its number of events.
class Load {
 public:
  // `instant` is called by the threads, about Instants() times in all.
  Load(Profiler& profiler, int64_t events, std::function<void()> instant)
      : profiler_(profiler), events_per_thread_(events / kThreads), instant_(std::move(instant)) {
    profiler_.RecordAlloc(BufferId(4096), 4096);  // a snapshot of a profiler without events has no mark
    for (int device = 0; device < kDevices; ++device) {
      devices_.push_back(profiler_.Device("device:" + std::to_string(device)));
      outer_.push_back({devices_.back(), profiler_.Allocator("outer")});
      inner_.push_back({devices_.back(), profiler_.Allocator("inner")});
    }
  }

  void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { RunThread(i); });
    for (std::thread& thread : threads) thread.join();
    instant_();  // a snapshot ends the blocks of segments that have ended, which is part of the recording then
  }

 private:
  struct Slot {
    enum State : uint8_t { kFree, kBuffer, kSegment };
    State state = kFree;
    size_t device = 0;          // of a segment
    std::set<uint64_t> blocks;  // addresses
    uint64_t inner = 0;         // the block that is a segment of the inner pool; 0: none
  };

  // Returns the address of a slot of a thread.
  static uint64_t AddressOf(uint64_t thread, uint64_t slot) {
    return (uint64_t{1} << 40) + (thread * kSlotsPerThread + slot) * kSlotBytes;
  }
  // Whether the buffer at a slot's address waits to be freed by another thread.
  std::atomic<bool>& IsHanded(uint64_t address) { return is_handed_[(address - AddressOf(0, 0)) / kSlotBytes]; }

  void RunThread(int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::vector<Slot> slots(kSlotsPerThread);
    const int64_t per_instant = std::max<int64_t>(events_per_thread_ * kThreads / Instants(), 1);
    for (int64_t i = 0; i < events_per_thread_; ++i) {
      if ((i + number * per_instant / kThreads) % per_instant == 0) instant_();
      const uint64_t slot = random() % kSlotsPerThread;
      std::optional<ScopedTag> tag;
      if (random() % 4 == 0) tag.emplace("phase", random() % 2 == 0 ? "prefill" : "decode");
      const uint64_t address = AddressOf(static_cast<uint64_t>(number), slot);
      if (IsHanded(address).load(std::memory_order_acquire)) continue;
      Step(slots[slot], address, random);
      // Another thread frees some buffers. As in a program, an address is not used again before that.
      if (slots[slot].state == Slot::kBuffer && random() % 8 == 0) {
        IsHanded(address).store(true, std::memory_order_relaxed);
        slots[slot].state = Slot::kFree;
        const uint64_t other = handed_[random() % handed_.size()].exchange(address);
        if (other != 0) {
          profiler_.RecordFree(BufferId(other));
          IsHanded(other).store(false, std::memory_order_release);
        }
      }
    }
  }

  void Step(Slot& slot, uint64_t address, std::mt19937& random) {
    const Attributes attributes = {devices_[random() % devices_.size()],
                                   random() % 5 == 0 ? MemoryKind::kPinnedHost : MemoryKind::kDevice};
    const size_t bytes = (1 + random() % 4) * 4096;
    switch (slot.state) {
      case Slot::kFree:
        if (random() % 8 == 0) {
          const uint32_t site = profiler_.KeepSite(Caller::OfThisFunction(), bytes, attributes);
          if (random() % 2 == 0) return;
          profiler_.RecordAllocAt(site, BufferId(address), bytes);
        } else if (random() % 6 == 0) {
          slot.state = Slot::kSegment;
          slot.device = random() % kDevices;
          profiler_.RecordSegment(outer_[slot.device], BufferId(address), kSlotBytes);
          return;
        } else {
          (random() % 2 == 0 ? AllocateA : AllocateB)(profiler_, BufferId(address), bytes, attributes);
        }
        slot.state = Slot::kBuffer;
        return;
      case Slot::kBuffer:
        if (random() % 4 == 0) {
          profiler_.RecordResize(BufferId(address), bytes);
        } else if (random() % 8 == 0) {
          for (slot.device = 0; slot.device < kDevices; ++slot.device) {
            if (!profiler_.RecordSegment(outer_[slot.device], BufferId(address), bytes)) continue;
            profiler_.RecordResize(BufferId(address), kSlotBytes);
            slot.state = Slot::kSegment;
            return;
          }
        } else if (random() % 16 == 0) {  // its free was not seen
          AllocateB(profiler_, BufferId(address), bytes, attributes);
        } else {
          profiler_.RecordFree(BufferId(address));
          slot.state = Slot::kFree;
        }
        return;
      case Slot::kSegment:
        return StepSegment(slot, address, random);
    }
  }

  void StepSegment(Slot& slot, uint64_t address, std::mt19937& random) {
    const uint64_t block = address + random() % 16 * (kSlotBytes / 16);
    const unsigned choice = random() % 64;
    const Pool& outer = outer_[slot.device];
    const Pool& inner = inner_[slot.device];
    if (choice == 0) {  // with live blocks
      profiler_.RecordFree(BufferId(address));
      slot = Slot();
    } else if (choice < 4 && slot.inner == 0 && slot.blocks.count(block) != 0) {
      if (profiler_.RecordSegment(inner, BufferId(block), kSlotBytes / 32)) slot.inner = block;
    } else if (choice < 8 && slot.inner != 0) {
      profiler_.RecordBlock(inner, BufferId(slot.inner + random() % 4 * 4096), 4096);
    } else if (choice == 8 && slot.inner != 0) {
      profiler_.RecordSegmentFree(inner, BufferId(std::exchange(slot.inner, 0)));
    } else if (choice == 9 && slot.blocks.count(block) != 0) {
      profiler_.RecordBlockResize(outer, BufferId(block), (1 + random() % 4) * 8192);
    } else if (slot.blocks.insert(block).second) {
      profiler_.RecordBlock(outer, BufferId(block), kSlotBytes / 32);
    } else {
      profiler_.RecordBlockFree(outer, BufferId(block));
      if (slot.inner == block) slot.inner = 0;
      slot.blocks.erase(block);
    }
  }

  Profiler& profiler_;
  const int64_t events_per_thread_;
  const std::function<void()> instant_;
  std::vector<DeviceId> devices_;
  std::vector<Pool> outer_;  // of each device
  std::vector<Pool> inner_;
  std::array<std::atomic<uint64_t>, 16> handed_ = {};  // addresses; 0: none
  std::array<std::atomic<bool>, kThreads* kSlotsPerThread> is_handed_ = {};
};

class RecordingExactness : public ::testing::Test {
 protected:
  // Takes a snapshot with the mark "NUMBER". After some of them, resets a peak.
  void TakeSnapshot() {
    size_t number;
    Snapshot* snapshot;
    {
      const std::lock_guard<std::mutex> hold(mutex_);
      number = snapshots_.size();
      snapshot = &snapshots_.emplace_back();
    }
    const internal::ScopedMark mark(std::to_string(number));
    *snapshot = profiler_.TakeSnapshot();
    if (number % 3 == 0) profiler_.ResetPeak(DeviceId(number % (kDevices + 1)));
  }
  Load NewLoad() {
    return Load(profiler_, Events(), [this] { TakeSnapshot(); });
  }

  // Replays the recording and compares it with the snapshots at their marks. Returns the number of compared snapshots.
  // `knows_peaks`: the recording has the peaks of the time before its start.
  size_t Compare(const std::string& path, bool knows_peaks = true) {
    absl::StatusOr<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(path);
    if (!reader.ok()) {
      ADD_FAILURE() << reader.status();
      return 0;
    }
    EXPECT_TRUE((*reader)->is_complete()) << (*reader)->problem();
    EXPECT_EQ((*reader)->problem(), "");
    EXPECT_TRUE((*reader)->lost().empty());
    EXPECT_TRUE((*reader)->tables().live_is_complete);
    RecordingState state((*reader)->tables());
    size_t compared = 0;
    RecordedEvent event;
    while ((*reader)->Next(&event)) {
      state.Apply(event);
      ++events_;
      if (event.kind != RecordedKind::kMark) continue;
      const std::string& name = (*reader)->tables().marks[event.id].name;
      const Snapshot& taken = snapshots_.at(static_cast<size_t>(std::atoi(name.c_str())));
      if (knows_peaks) {
        ExpectSame(state.ToSnapshot(), taken, "mark " + name);
      } else {
        ExpectSame(WithoutPeaks(state.ToSnapshot()), WithoutPeaks(taken), "mark " + name);
      }
      ++compared;
    }
    Snapshot now = profiler_.TakeSnapshot();
    Snapshot end = state.ToSnapshot();
    if (!knows_peaks) {
      // The highest reserved bytes of a pool have no time, so those of before a short recording are not known.
      for (Snapshot* snapshot : {&now, &end}) {
        for (Snapshot::Device& device : snapshot->devices) {
          for (PoolStats& pool : device.pools) pool.peak_bytes_reserved = 1;
        }
      }
    }
    ExpectSame(end, now, "the end");
    // The live buffers are those of the profiler.
    std::map<uint64_t, std::pair<uint32_t, int64_t>> replayed;
    for (const auto& [id, buffer] : state.live()) replayed[id] = {buffer.site, buffer.bytes};
    std::map<uint64_t, std::pair<uint32_t, int64_t>> live;
    impl().live().ForEach([&](uint64_t id, const internal::LiveRecord& record) {
      live[id] = {record.site, record.bytes};
    });
    EXPECT_EQ(replayed.size(), live.size());
    for (const auto& [id, buffer] : live) {
      if (replayed.count(id) != 0 && replayed[id] == buffer) continue;
      ADD_FAILURE() << "buffer " << std::hex << id << (replayed.count(id) != 0 ? " differs" : " is missing");
      break;
    }
    return compared;
  }

  internal::ProfilerImpl& impl() { return ProfilerAccess::ImplOf(profiler_); }
  RecordingOptions Options() const {
    RecordingOptions options;
    options.max_bytes = 0;
    options.buffer_bytes =
        std::clamp<int64_t>(Events() * 2 * int64_t{sizeof(RecordedEvent)}, 16 << 20, int64_t{512} << 20);
    options.sample_interval = std::chrono::milliseconds(10);
    return options;
  }

  const std::string directory_ = hbmprof_test::NewDirectory();
  Profiler profiler_;
  std::mutex mutex_;
  std::deque<Snapshot> snapshots_;  // elements are written by the threads that added them
  int64_t events_ = 0;
};

TEST_F(RecordingExactness, ReplayEqualsSnapshots) {
  const std::string path = directory_ + "/a.hbmrec";
  ASSERT_TRUE(internal::StartRecorder(impl(), path, Options()).ok());
  Load load = NewLoad();
  load.Run();
  const absl::Status stopped = internal::StopRecorder();
  ASSERT_TRUE(stopped.ok()) << stopped;
  EXPECT_EQ(Compare(path), snapshots_.size());
  EXPECT_GT(events_, Events() / 2);
  std::printf("%lld events, %zu instants\n", static_cast<long long>(events_), snapshots_.size());
}

TEST_F(RecordingExactness, StartsWhileThreadsRecord) {
  const std::string path = directory_ + "/a.hbmrec";
  Load load = NewLoad();
  std::thread threads([&] { load.Run(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const absl::Status started = internal::StartRecorder(impl(), path, Options());
  threads.join();
  ASSERT_TRUE(started.ok()) << started;
  const absl::Status stopped = internal::StopRecorder();
  ASSERT_TRUE(stopped.ok()) << stopped;
  Compare(path);
}

TEST_F(RecordingExactness, FlightRecorderHasTheLastEvents) {
  for (const size_t events : {size_t{100'000'000} / sizeof(RecordedEvent), size_t{20'000}}) {
    SCOPED_TRACE(events);
    const std::string path = directory_ + "/" + std::to_string(events) + ".hbmrec";
    ASSERT_TRUE(internal::StartFlightRecorder(impl(), events, /*nanos=*/0));
    Load load = NewLoad();
    load.Run();
    const absl::Status status = internal::WriteFlight(path);
    ASSERT_TRUE(status.ok()) << status;
    // The short recording may contain a new peak. Then the peak before it is not known at earlier instants.
    Compare(path, /*knows_peaks=*/events > 20'000);
    internal::StopFlightRecorder();
    snapshots_.clear();
  }
}

}  // namespace
}  // namespace hbmprof
