// MadeRecording: a recording that a test writes by hand, without a file.
//
//   MadeRecording recording;
//   const uint32_t page = recording.Site({{"llm::KvCache::AllocatePage"}, {"main"}});
//   recording.Alloc(10, 0x1000, 8 << 20, page).Free(20, 0x1000);
#ifndef HBMPROF_TESTS_SUPPORT_MADE_RECORDING_H_
#define HBMPROF_TESTS_SUPPORT_MADE_RECORDING_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/recording/writer.h"
#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"

namespace hbmprof_test {

class MadeRecording : public hbmprof::internal::RecordingInMemory {
 public:
  using DriverSample = hbmprof::internal::DriverSample;
  using LostEvents = hbmprof::internal::LostEvents;
  using RecordedEvent = hbmprof::internal::RecordedEvent;
  using RecordedKind = hbmprof::internal::RecordedKind;
  using RecordingTables = hbmprof::internal::RecordingTables;

  // A frame with a file is a named frame (a Python function). A frame without one has a return address.
  struct Frame {
    std::string function;
    std::string file = {};
    int64_t line = 0;
  };
  struct SiteOptions {
    uint32_t device = 0;
    hbmprof::MemoryKind kind = hbmprof::MemoryKind::kDevice;
    std::string allocator = {};
    std::vector<std::pair<std::string, std::string>> tags = {};  // sorted by key
    std::optional<std::string> from = {};                        // the name of the pool that has handed out the memory
  };
  static constexpr int64_t kStart = 1'000'000'000;                  // the time at which the recording starts
  static constexpr int64_t kStartUnix = 1'700'000'000'000'000'000;  // of the same instant
  static constexpr uint64_t kCode = 0x400000;                       // the first address of the only module

  // A recording of one device with the name `device` and one thread.
  explicit MadeRecording(const std::string& device = "GPU:0", int64_t limit = int64_t{64} << 20) {
    tables_.start_time = end_time_ = kStart;
    tables_.start_unix_nanos = kStartUnix;
    tables_.names.process_id = 4242;
    tables_.names.host = "host0";
    tables_.names.time_unix_nanos = kStartUnix;
    tables_.names.allocators.emplace_back();
    tables_.names.modules.push_back({kCode, kCode + 0x1000000, 0, 0, "/usr/bin/llm_server", "17ee0e4d"});
    tables_.tag_sets.emplace_back();
    Device(device, limit);
    Thread(4242, "llm_server");
  }

  // Each of these functions adds an element to a table and returns its number.
  uint32_t Device(const std::string& name, int64_t limit) {
    hbmprof::Snapshot::Device device;
    device.name = name;
    device.spaces[static_cast<int>(hbmprof::MemorySpace::kDevice)].bytes_limit = limit;
    tables_.names.devices.push_back(device);
    return static_cast<uint32_t>(tables_.names.devices.size() - 1);
  }
  // `frames`: innermost first.
  uint32_t Site(const std::vector<Frame>& frames, const SiteOptions& options) {
    hbmprof::Snapshot::Sample site;
    site.stack = Stack(frames);
    site.device = options.device;
    site.kind = options.kind;
    site.allocator = Allocator(options.allocator);
    site.tags = options.tags;
    tables_.sites.push_back(site);
    tables_.site_pools.push_back(options.from.has_value() ? 1 + Allocator(*options.from) : 0);
    return static_cast<uint32_t>(tables_.sites.size() - 1);
  }
  uint32_t Site(const std::vector<Frame>& frames) { return Site(frames, SiteOptions()); }
  uint16_t Thread(int64_t id, const std::string& name) {
    tables_.threads.push_back({id, name});
    return static_cast<uint16_t>(tables_.threads.size() - 1);
  }
  uint32_t TagSet(std::vector<std::pair<std::string, std::string>> tags) {
    tables_.tag_sets.push_back(std::move(tags));
    return static_cast<uint32_t>(tables_.tag_sets.size() - 1);
  }

  // Adds a buffer that is live at the start of the recording. Must precede the events.
  MadeRecording& Live(uint64_t id, int64_t bytes, uint32_t site) {
    tables_.live.push_back({id, site, bytes});
    live_[id] = {site, bytes};
    hbmprof::Snapshot::Sample& sample = tables_.sites[site];
    sample.alloc_objects += 1;
    sample.alloc_bytes += bytes;
    sample.inuse_objects += 1;
    sample.inuse_bytes += bytes;
    hbmprof::DeviceStats& space =
        tables_.names.devices[sample.device].spaces[static_cast<int>(hbmprof::SpaceOf(sample.kind))];
    space.num_allocs += 1;
    space.num_live += 1;
    if (tables_.IsOfPool(site)) {
      hbmprof::PoolStats& pool = PoolOf(sample.device, tables_.site_pools[site] - 1);
      pool.peak_bytes_allocated = pool.bytes_allocated += bytes;
      sample.pool_peak_objects = sample.inuse_objects;
      sample.pool_peak_bytes = sample.inuse_bytes;
    } else {
      space.bytes_in_use += bytes;
    }
    if (tables_.IsSegment(site)) {
      hbmprof::PoolStats& pool = PoolOf(sample.device, sample.allocator);
      pool.peak_bytes_reserved = pool.bytes_reserved += bytes;
    }
    if (space.bytes_in_use <= space.peak_bytes_in_use) return *this;
    space.peak_bytes_in_use = space.bytes_in_use;
    for (hbmprof::Snapshot::Sample& of_space : tables_.sites) {
      if (of_space.device != sample.device || hbmprof::SpaceOf(of_space.kind) != hbmprof::SpaceOf(sample.kind))
        continue;
      of_space.peak_objects = of_space.inuse_objects;
      of_space.peak_bytes = of_space.inuse_bytes;
    }
    return *this;
  }

  // Each of these functions adds an event, `time` nanoseconds after the start. Times must not decrease.
  MadeRecording& Alloc(int64_t time, uint64_t id, int64_t bytes, uint32_t site, uint16_t thread = 0) {
    live_[id] = {site, bytes};
    return Add({kStart + time, id, bytes, site, thread, RecordedKind::kAlloc});
  }
  MadeRecording& Free(int64_t time, uint64_t id, uint16_t thread = 0) {
    const Buffer buffer = Take(id);
    return Add({kStart + time, id, buffer.bytes, buffer.site, thread, RecordedKind::kFree});
  }
  // Returns the id of a block at this address: that of a block of pool 1.
  static uint64_t BlockId(uint64_t address) { return address | uint64_t{1} << 63 | uint64_t{1} << 50; }
  // The live buffer gets another site, and `bytes` bytes.
  MadeRecording& Move(int64_t time, uint64_t id, int64_t bytes, uint32_t site, uint16_t thread = 0) {
    const Buffer buffer = Take(id);
    live_[id] = {site, bytes};
    Add({kStart + time, id, buffer.bytes, buffer.site, thread, RecordedKind::kMoveFrom, true});
    return Add({kStart + time, id, bytes, site, thread, RecordedKind::kMoveTo});
  }
  // An allocation of the site failed. `bytes` is 0 if the size is not known.
  MadeRecording& Failed(int64_t time, int64_t bytes, uint32_t site, uint16_t thread = 0) {
    const hbmprof::Snapshot::Sample& sample = tables_.sites[site];
    const uint64_t account =
        uint64_t{sample.device} * hbmprof::kMemorySpaceCount + static_cast<uint64_t>(hbmprof::SpaceOf(sample.kind));
    return Add({kStart + time, account, bytes, site, thread, RecordedKind::kFailed});
  }
  MadeRecording& SetTags(int64_t time, uint32_t tag_set, uint16_t thread = 0) {
    return Add({kStart + time, tag_set, 0, hbmprof::internal::kNoRecordedSite, thread, RecordedKind::kTags});
  }
  MadeRecording& Mark(int64_t time, const std::string& name) {
    tables_.marks.push_back({name});
    return Add(
        {kStart + time, tables_.marks.size() - 1, 0, hbmprof::internal::kNoRecordedSite, 0, RecordedKind::kMark});
  }
  // Adds any event. Its time is that of the clock, not relative to the start.
  MadeRecording& Add(const RecordedEvent& event) {
    if (event.time < end_time_) std::abort();  // a mistake of the test
    end_time_ = event.time;
    events_.push_back(event);
    return *this;
  }
  // `sample.time` is relative to the start.
  MadeRecording& Sample(DriverSample sample) {
    sample.time += kStart;
    end_time_ = std::max(end_time_, sample.time);
    samples_.push_back(std::move(sample));
    return *this;
  }
  MadeRecording& Lost(int64_t from, int64_t to, int64_t count) {
    lost_.push_back({kStart + from, kStart + to, count});
    return *this;
  }

  // Writes the recording and finishes it. The order of the blocks is that of a recorder with one event buffer.
  absl::Status WriteTo(hbmprof::internal::RecordingWriter& writer) const {
    absl::Status status = writer.AddTables(tables_);
    if (status.ok()) status = writer.AddEvents(events_.data(), events_.size());
    for (const DriverSample& sample : samples_) {
      if (status.ok()) status = writer.AddSample(sample);
    }
    for (const LostEvents& lost : lost_) {
      if (status.ok()) status = writer.AddLost(lost);
    }
    if (status.ok()) status = writer.Flush(end_time_);
    return status.ok() ? writer.Finish(end_time_) : status;
  }

  RecordingTables& mutable_tables() { return tables_; }
  const std::vector<RecordedEvent>& events() const { return events_; }

 private:
  struct Buffer {
    uint32_t site;
    int64_t bytes;
  };

  Buffer Take(uint64_t id) {
    const auto entry = live_.find(id);
    if (entry == live_.end()) std::abort();  // a mistake of the test
    const Buffer buffer = entry->second;
    live_.erase(entry);
    return buffer;
  }

  hbmprof::PoolStats& PoolOf(uint32_t device, uint32_t allocator) {
    std::vector<hbmprof::PoolStats>& pools = tables_.names.devices[device].pools;
    const std::string& name = tables_.names.allocators[allocator];
    for (hbmprof::PoolStats& pool : pools) {
      if (pool.name == name) return pool;
    }
    pools.emplace_back().name = name;
    return pools.back();
  }

  uint32_t Allocator(const std::string& name) {
    std::vector<std::string>& names = tables_.names.allocators;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) names.push_back(name);
    return static_cast<uint32_t>(std::find(names.begin(), names.end(), name) - names.begin());
  }

  uint64_t Word(const Frame& frame) {
    if (!frame.file.empty()) {
      tables_.names.named_frames.push_back({frame.function, frame.file, frame.line, 0});
      return hbmprof::Snapshot::kNamedFrame | (tables_.names.named_frames.size() - 1);
    }
    const auto [entry, is_new] = addresses_.try_emplace(frame.function, kCode + 16 * (addresses_.size() + 1));
    if (is_new) tables_.functions[entry->second - 1] = {frame.function, frame.function};
    return entry->second;
  }

  uint32_t Stack(const std::vector<Frame>& frames) {
    hbmprof::Snapshot::Stack stack;
    for (const Frame& frame : frames) stack.return_addresses.push_back(Word(frame));
    tables_.names.stacks.push_back(std::move(stack));
    return static_cast<uint32_t>(tables_.names.stacks.size() - 1);
  }

  std::unordered_map<uint64_t, Buffer> live_;
  std::unordered_map<std::string, uint64_t> addresses_;  // of functions
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_MADE_RECORDING_H_
