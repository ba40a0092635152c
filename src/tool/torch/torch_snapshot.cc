// See torch_snapshot.h.
//
// The state of a snapshot is that of its end. The trace holds the last events before it, and says nothing about the
// buffers that were live before the first of these. So the trace is read twice: first to find what was live at its
// start, then to make the events of the recording.
//
// All memory of a device is a set of pieces, which do not overlap: segments, or the mapped parts of an expandable one.
// Blocks do not overlap either.
#include "src/tool/torch/torch_snapshot.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "src/base/hash.h"
#include "src/export/known_code.h"
#include "src/export/utf8.h"
#include "src/symbolize/demangle.h"
#include "src/tool/reader/blocks.h"
#include "src/tool/reader/recording_in_memory.h"
#include "src/tool/torch/snapshot_contents.h"
#include "src/tool/torch/snapshot_pickle.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

using internal::DriverSample;
using internal::LostEvents;
using internal::RecordedEvent;
using internal::RecordedKind;
using internal::RecordingReader;
using internal::RecordingTables;

constexpr int64_t kStartTime = 1'000'000'000;
constexpr int64_t kMostMicros = int64_t{1} << 52;  // 142 years
// Steps over pieces and blocks. A trace that needs more was made to slow the reader down.
constexpr uint64_t kMostSteps = 100'000'000;
constexpr uint64_t kMostStepsPerEvent = 1000;

// Whether a file of this name, without its folder, is no source: "libc10.so", "libc.so.6", "python3.11", "server".
bool IsBinary(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view ending = name.substr(dot == name.npos ? name.size() : dot);
  return !name.empty() && name[0] != '<' && (ending.size() < 2 || ending == ".so" || absl::ascii_isdigit(ending[1]));
}

// A piece or a block.
struct Part {
  int64_t bytes = 0;
  uint32_t stack = 0;
  uint32_t metadata = 0;
};
using Parts = std::map<uint64_t, Part>;  // by address; they do not overlap

uint64_t EndOf(const Parts::value_type& part) { return part.first + static_cast<uint64_t>(part.second.bytes); }

// Returns the first part that ends after `address`.
Parts::iterator FirstAfter(Parts& parts, uint64_t address) {
  auto part = parts.upper_bound(address);
  if (part != parts.begin() && EndOf(*std::prev(part)) > address) --part;
  return part;
}
bool Overlaps(Parts& parts, uint64_t address, int64_t bytes) {
  const auto part = FirstAfter(parts, address);
  return part != parts.end() && part->first < address + static_cast<uint64_t>(bytes);
}

// Calls `visit(begin, bytes)` for each range of [address, address + bytes) that no part covers. `visit` may change the
// parts. Adds the number of the parts in the range to `steps`.
template <typename Visit>
void ForEachGap(Parts& parts, uint64_t address, int64_t bytes, uint64_t& steps, const Visit& visit) {
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  for (auto part = FirstAfter(parts, address); part != parts.end() && part->first < end; ++part) {
    if (part->first > address) gaps.emplace_back(address, part->first);
    address = EndOf(*part);
    ++steps;
  }
  if (address < end) gaps.emplace_back(address, end);
  for (const auto& [from, to] : gaps) visit(from, static_cast<int64_t>(to - from));
}

// Removes [address, address + bytes) from the parts. Parts that it covers only partly remain with the rest.
void Cut(Parts& parts, uint64_t address, int64_t bytes) {
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  for (auto part = FirstAfter(parts, address); part != parts.end() && part->first < end;) {
    const auto [begin, whole] = *part;
    const uint64_t part_end = EndOf(*part);
    part = parts.erase(part);
    if (begin < address) parts[begin] = {static_cast<int64_t>(address - begin), whole.stack, whole.metadata};
    if (part_end > end) parts[end] = {static_cast<int64_t>(part_end - end), whole.stack, whole.metadata};
  }
}

// What is live on a device: pieces and blocks, by address.
struct Live {
  Parts pieces;
  Parts blocks;
};

struct Device {
  uint32_t number = 0;          // as PyTorch has it
  std::vector<uint32_t> trace;  // numbers of events
  Live start;
  Live now;  // while the events are made
  Live end;  // the state of the snapshot
};

// The events of all traces, in order of time.
class Trace {
 public:
  Trace(const std::vector<TorchEvent>& events, const std::vector<Device>& devices) : events_(events) {
    for (const Device& device : devices) next_.push_back({&device.trace});
    for (const Next& next : next_) {
      const int64_t time = next.numbers->empty() ? 0 : events[next.numbers->front()].time_us;
      if (time > 0 && (first_ == 0 || time < first_)) first_ = time;
    }
    for (Next& next : next_) SetTime(next);
  }

  // The time of the first event, in microseconds since 1970. 0: the events have no times.
  int64_t first() const { return first_; }

  // Returns the next event; null at the end. Sets the index of its device, and its time in microseconds since first().
  // Events without a time are one microsecond apart.
  const TorchEvent* Step(size_t* device, int64_t* micros) {
    Next* earliest = nullptr;
    for (Next& next : next_) {
      if (!next.IsAtEnd() && (earliest == nullptr || next.micros < earliest->micros)) earliest = &next;
    }
    if (earliest == nullptr) return nullptr;
    *device = static_cast<size_t>(earliest - next_.data());
    *micros = earliest->micros;
    const TorchEvent& event = events_[(*earliest->numbers)[earliest->index++]];
    SetTime(*earliest);
    return &event;
  }

 private:
  struct Next {
    const std::vector<uint32_t>* numbers;
    size_t index = 0;
    int64_t micros = 0;
    bool IsAtEnd() const { return index == numbers->size(); }
  };
  void SetTime(Next& next) const {
    if (next.IsAtEnd()) return;
    const int64_t time = events_[(*next.numbers)[next.index]].time_us;
    next.micros = std::max(next.micros, time > 0 ? std::min(time - first_, kMostMicros) : next.micros + 1);
  }

  const std::vector<TorchEvent>& events_;
  std::vector<Next> next_;
  int64_t first_ = 0;
};

// Recorder fills it in.
class SnapshotRecording : public internal::RecordingInMemory {
 public:
  SnapshotRecording() { end_time_ = kStartTime; }

 private:
  friend class Recorder;
};

// Makes a recording of a snapshot.
class Recorder {
 public:
  Recorder(const TorchSnapshot& snapshot, SnapshotRecording& recording)
      : snapshot_(snapshot), recording_(recording), tables_(recording.tables_) {}

  // `modified` is the time of the file in nanoseconds since 1970, which stands for the times that the events lack.
  absl::Status Make(int64_t modified) {
    MakeNames();
    RETURN_IF_ERROR(FindEnd());
    RETURN_IF_ERROR(FindStart());
    Trace trace(snapshot_.events, devices_);
    tables_.start_time = kStartTime;
    tables_.start_unix_nanos = trace.first() > 0 ? std::min(trace.first(), kMostMicros) * 1000 : modified;
    tables_.names.time_unix_nanos = tables_.start_unix_nanos;
    if (trace.first() == 0 && !snapshot_.events.empty()) {
      tables_.names.warnings.emplace_back(
          "The trace of the snapshot has no times (PyTorch writes them since release 2.2): its events are shown one "
          "microsecond apart.");
    }
    if (snapshot_.left_out > 0) {
      tables_.names.warnings.push_back(
          Cat("The trace of the snapshot has ", snapshot_.left_out, " events of unknown kinds, which are left out."));
    }
    for (size_t device = 0; device < devices_.size(); ++device) SetStart(device);
    size_t device = 0;
    int64_t micros = 0;
    while (const TorchEvent* event = trace.Step(&device, &micros)) {
      time_ = kStartTime + micros * 1000;
      RETURN_IF_ERROR(Enter(*event, device));
      EndChange();
    }
    for (device = 0; device < devices_.size(); ++device) RETURN_IF_ERROR(BecomeEnd(device));
    if (differences_ > 0) {
      tables_.names.warnings.push_back(
          Cat("The trace of the snapshot does not lead to its state: ", differences_,
              " blocks or segments differ. They change at the end, which shows the state."));
    }
    recording_.end_time_ = time_;
    const internal::EventLimits limits = internal::LimitsOf(tables_);
    if (absl::c_all_of(recording_.events_, [&](const auto& event) { return internal::IsValidEvent(event, limits); })) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("a size or a time is out of range");
  }

 private:
  struct SiteKey {
    uint64_t words[2];
    bool operator==(const SiteKey& other) const { return std::equal(words, words + 2, other.words); }
  };
  struct SiteHash {
    size_t operator()(const SiteKey& key) const { return internal::HashWords(key.words, 2); }
  };

  void MakeNames() {
    Snapshot& names = tables_.names;
    std::vector<bool> is_interpreter;
    for (const TorchFrame& frame : snapshot_.frames) {
      const Snapshot::NamedFrame& named = names.named_frames.emplace_back(NameOf(frame));
      is_interpreter.push_back(named.line == 0 &&
                               internal::OwnerOf(named.function, named.file, "").role == internal::CodeRole::kRuntime);
    }
    for (const std::vector<uint32_t>& frames : snapshot_.stacks) {
      std::vector<uint64_t>& stack = names.stacks.emplace_back().return_addresses;
      // PyTorch writes some of the interpreter's frames inside of the functions that it calls.
      bool is_in_python = false;
      for (const uint32_t frame : frames) {
        is_in_python = is_in_python || absl::EndsWith(names.named_frames[frame].file, ".py");
        if (!is_in_python || !is_interpreter[frame]) stack.push_back(Snapshot::kNamedFrame | frame);
      }
    }
    before_stack_ = static_cast<uint32_t>(names.stacks.size());
    names.stacks.emplace_back().return_addresses.push_back(Snapshot::kNamedFrame | names.named_frames.size());
    names.named_frames.push_back({"[before the trace]", "", 0, 0});
    names.allocators = {"", "pytorch"};
    tables_.tag_sets.emplace_back();
    tables_.threads.emplace_back();
  }

  // Frames of C++ have their source file and line, or their binary and the offset in it, also without a function.
  Snapshot::NamedFrame NameOf(const TorchFrame& frame) const {
    std::string function = internal::ValidUtf8(snapshot_.texts.text(frame.function));
    std::string file = internal::ValidUtf8(snapshot_.texts.text(frame.file));
    const std::string name = file.substr(file.rfind('/') + 1);
    if (file == "??") return {internal::ShortenDemangled(function), "", frame.line, 0};
    if (!IsBinary(name)) return {std::move(function), std::move(file), frame.line, 0};
    if (function == "??") return {absl::StrCat(name, "+0x", absl::Hex(frame.line)), std::move(file), 0, 0};
    return {internal::ShortenDemangled(function), std::move(file), 0, 0};
  }

  // Returns the index in devices_ of a device of PyTorch, before they are sorted.
  size_t DeviceOf(uint32_t number) {
    if (device_indices_.size() <= number) device_indices_.resize(number + size_t{1}, SIZE_MAX);
    size_t& index = device_indices_[number];
    if (index != SIZE_MAX) return index;
    index = devices_.size();
    devices_.emplace_back().number = number;
    return index;
  }

  // Makes the devices that have memory or events, and their state at the end.
  absl::Status FindEnd() {
    for (uint32_t i = 0; i < snapshot_.traces.size(); ++i) {
      if (!snapshot_.traces[i].empty()) devices_[DeviceOf(i)].trace = snapshot_.traces[i];
    }
    std::vector<bool> is_added(snapshot_.segments.size());  // a list can have a segment many times
    for (const uint32_t i : snapshot_.state) {
      if (!is_added[i]) RETURN_IF_ERROR(AddSegment(snapshot_.segments[i]));
      is_added[i] = true;
    }
    std::sort(devices_.begin(), devices_.end(), [](const Device& a, const Device& b) { return a.number < b.number; });
    for (const Device& device : devices_) tables_.names.devices.emplace_back().name = Cat("GPU:", device.number);
    return absl::OkStatus();
  }
  absl::Status AddSegment(const TorchSegment& segment) {
    Live& end = devices_[DeviceOf(segment.device)].end;
    if (segment.bytes > 0 && !Overlaps(end.pieces, segment.address, segment.bytes)) {
      end.pieces[segment.address] = {segment.bytes, segment.stack, 0};
    }
    uint64_t address = segment.address;
    for (const uint32_t number : segment.blocks) {
      const TorchBlock& block = snapshot_.blocks[number];
      if (block.has_address) address = block.address;
      if (address < segment.address ||
          address + static_cast<uint64_t>(block.room) > segment.address + static_cast<uint64_t>(segment.bytes)) {
        return absl::InvalidArgumentError(
            Cat("a block of the segment at address ", segment.address, " lies outside of the segment"));
      }
      if (block.is_live && block.bytes > 0 && !Overlaps(end.blocks, address, block.bytes)) {
        end.blocks[address] = {block.bytes, block.stack, 0};
      }
      address += static_cast<uint64_t>(block.room);
    }
    return absl::OkStatus();
  }

  // Finds what was live before the first event: what is freed or unmapped without an event that made it, and what is
  // live at the end without one.
  absl::Status FindStart() {
    for (Device& device : devices_) {
      Live made;  // by the events so far
      for (const uint32_t number : device.trace) {
        const TorchEvent& event = snapshot_.events[number];
        if (event.bytes == 0) continue;
        RETURN_IF_ERROR(CheckSteps());
        switch (event.action) {
          case TorchAction::kAlloc:
            made.blocks[event.address] = {event.bytes, event.stack, 0};
            break;
          case TorchAction::kFreeRequested:
          case TorchAction::kFreeCompleted:
            if (made.blocks.erase(event.address) > 0 || event.action == TorchAction::kFreeCompleted) break;
            AddUnlessOverlaps(device.start.blocks, event.address, {event.bytes, before_stack_, 0});
            break;
          case TorchAction::kMap:
            AddGaps(made.pieces, event.address, {event.bytes, event.stack, 0});
            break;
          case TorchAction::kUnmap:
            ForEachGap(made.pieces, event.address, event.bytes, steps_, [&](uint64_t address, int64_t bytes) {
              AddGaps(device.start.pieces, address, {bytes, before_stack_, 0});
            });
            Cut(made.pieces, event.address, event.bytes);
            break;
          case TorchAction::kOutOfMemory:
          case TorchAction::kSnapshot:
            break;
        }
      }
      for (const auto& [address, piece] : device.end.pieces) {
        ForEachGap(made.pieces, address, piece.bytes, steps_, [&, stack = piece.stack](uint64_t at, int64_t bytes) {
          AddGaps(device.start.pieces, at, {bytes, stack, 0});
        });
      }
      for (const auto& [address, block] : device.end.blocks) {
        if (made.blocks.count(address) == 0) AddUnlessOverlaps(device.start.blocks, address, block);
      }
    }
    return absl::OkStatus();
  }
  absl::Status CheckSteps() const {
    if (steps_ <= kMostSteps + kMostStepsPerEvent * snapshot_.events.size()) return absl::OkStatus();
    return absl::ResourceExhaustedError("the blocks and segments of the trace overlap too often");
  }
  static void AddUnlessOverlaps(Parts& parts, uint64_t address, const Part& part) {
    if (!Overlaps(parts, address, part.bytes)) parts[address] = part;
  }
  // Adds the ranges of the part that no other part covers.
  void AddGaps(Parts& parts, uint64_t address, const Part& part) {
    ForEachGap(parts, address, part.bytes, steps_, [&](uint64_t from, int64_t bytes) {
      parts[from] = {bytes, part.stack, part.metadata};
    });
  }

  // --- Sites ---

  enum class SiteKind : uint8_t { kRequest, kSegment, kBlock };

  uint32_t SiteOf(size_t device, SiteKind kind, const Part& part) {
    const SiteKey key = {
        {uint64_t{part.stack} << 32 | part.metadata, uint64_t{device} << 8 | static_cast<uint64_t>(kind)}};
    const auto [site, is_new] = sites_.try_emplace(key, static_cast<uint32_t>(tables_.sites.size()));
    if (is_new) {
      Snapshot::Sample& sample = tables_.sites.emplace_back();
      sample.stack = part.stack;
      sample.device = static_cast<uint32_t>(device);
      sample.kind = kind == SiteKind::kSegment ? MemoryKind::kPool : MemoryKind::kDevice;
      sample.allocator = 1;
      if (part.metadata != 0) {
        sample.tags.emplace_back("user_metadata", internal::ValidUtf8(snapshot_.texts.text(part.metadata)));
      }
      tables_.site_pools.push_back(kind == SiteKind::kBlock ? 1 + sample.allocator : 0);
    }
    return site->second;
  }

  // Enters what is live at the start into the tables.
  void SetStart(size_t index) {
    Device& device = devices_[index];
    device.now = device.start;
    DeviceStats& stats = tables_.names.devices[index].spaces[static_cast<size_t>(MemorySpace::kDevice)];
    PoolStats& pool = tables_.names.devices[index].pools.emplace_back();
    pool.name = tables_.names.allocators[1];
    const auto add = [&](SiteKind kind, const Parts::value_type& part) {
      const uint32_t site = SiteOf(index, kind, part.second);
      Snapshot::Sample& sample = tables_.sites[site];
      ++sample.alloc_objects;
      sample.alloc_bytes += part.second.bytes;
      sample.peak_objects = ++sample.inuse_objects;
      sample.inuse_bytes += part.second.bytes;
      sample.peak_bytes = sample.inuse_bytes;
      if (kind == SiteKind::kBlock) {
        sample.pool_peak_objects = sample.inuse_objects;
        sample.pool_peak_bytes = sample.inuse_bytes;
        pool.bytes_allocated += part.second.bytes;
      } else {
        pool.bytes_reserved += part.second.bytes;
        ++pool.segments;
      }
      ++stats.num_allocs;
      ++stats.num_live;
      stats.largest_alloc_size = std::max(stats.largest_alloc_size, part.second.bytes);
      const uint64_t id = kind == SiteKind::kSegment ? part.first : BlockId(part.first);
      tables_.live.push_back({id, site, part.second.bytes});
    };
    for (const auto& piece : device.now.pieces) add(SiteKind::kSegment, piece);
    for (const auto& block : device.now.blocks) add(SiteKind::kBlock, block);
    stats.peak_bytes_in_use = stats.bytes_in_use = pool.peak_bytes_reserved = pool.bytes_reserved;
    pool.peak_bytes_allocated = pool.bytes_allocated;
  }

  // The id of a block of pool 1.
  static uint64_t BlockId(uint64_t address) { return address | uint64_t{1} << 63 | uint64_t{1} << 50; }

  // --- Events ---

  absl::Status Enter(const TorchEvent& event, size_t device) {
    Live& now = devices_[device].now;
    const Part part = {event.bytes, event.stack, event.metadata};
    RETURN_IF_ERROR(CheckSteps());
    switch (event.action) {
      case TorchAction::kAlloc:
        if (event.bytes > 0) AddBlock(device, event.address, part);
        return absl::OkStatus();
      case TorchAction::kFreeRequested:
      case TorchAction::kFreeCompleted:  // has an effect only if the trace lacks the request
        if (const auto block = now.blocks.find(event.address); block != now.blocks.end()) RemoveBlock(device, block);
        return absl::OkStatus();
      case TorchAction::kMap:
        Map(device, event.address, part);
        return absl::OkStatus();
      case TorchAction::kUnmap:
        Unmap(device, event.address, event.bytes);
        return absl::OkStatus();
      case TorchAction::kOutOfMemory: {
        Add(RecordedKind::kFailed, SiteOf(device, SiteKind::kRequest, part), device * kMemorySpaceCount, event.bytes);
        DriverSample& sample = recording_.samples_.emplace_back();
        sample.time = time_;
        sample.devices.emplace_back().device = static_cast<uint32_t>(device);
        sample.devices.back().bytes_free = static_cast<int64_t>(event.address);
        return absl::OkStatus();
      }
      case TorchAction::kSnapshot:
        if (tables_.marks.empty()) tables_.marks.push_back({"snapshot"});
        Add(RecordedKind::kMark, internal::kNoRecordedSite, 0, 0);
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  void Add(RecordedKind kind, uint32_t site, uint64_t id, int64_t bytes) {
    RecordedEvent& event = recording_.events_.emplace_back();
    event.time = time_;
    event.id = id;
    event.bytes = bytes;
    event.site = site;
    event.kind = kind;
    event.is_continued = true;
  }

  // Ends the change that consists of the events since the last one, if there are some.
  void EndChange() {
    if (!recording_.events_.empty()) recording_.events_.back().is_continued = false;
  }

  void AddBlock(size_t device, uint64_t address, const Part& block) {
    Parts& blocks = devices_[device].now.blocks;
    // The trace lacks the frees of blocks at the same place.
    const uint64_t end = address + static_cast<uint64_t>(block.bytes);
    for (auto old = FirstAfter(blocks, address); old != blocks.end() && old->first < end;) {
      old = RemoveBlock(device, old);
      ++differences_;
    }
    blocks[address] = block;
    Add(RecordedKind::kAlloc, SiteOf(device, SiteKind::kBlock, block), BlockId(address), block.bytes);
  }
  Parts::iterator RemoveBlock(size_t device, Parts::iterator block) {
    const auto [address, part] = *block;
    Add(RecordedKind::kFree, SiteOf(device, SiteKind::kBlock, part), BlockId(address), part.bytes);
    return devices_[device].now.blocks.erase(block);
  }
  void Map(size_t device, uint64_t address, const Part& piece) {
    Live& now = devices_[device].now;
    ForEachGap(now.pieces, address, piece.bytes, steps_, [&](uint64_t from, int64_t bytes) {
      AddPiece(device, from, {bytes, piece.stack, 0});
    });
  }
  void Unmap(size_t device, uint64_t address, int64_t bytes) {
    Live& now = devices_[device].now;
    const uint64_t end = address + static_cast<uint64_t>(bytes);
    Parts rest;  // of the pieces that are unmapped
    for (auto piece = FirstAfter(now.pieces, address); piece != now.pieces.end() && piece->first < end;) {
      rest.insert(*piece);
      const uint32_t site = SiteOf(device, SiteKind::kSegment, piece->second);
      Add(RecordedKind::kFree, site, piece->first, piece->second.bytes);
      piece = now.pieces.erase(piece);
    }
    Cut(rest, address, bytes);
    for (const auto& [from, piece] : rest) AddPiece(device, from, piece);
  }
  void AddPiece(size_t device, uint64_t address, const Part& piece) {
    Live& now = devices_[device].now;
    now.pieces[address] = piece;
    const uint32_t site = SiteOf(device, SiteKind::kSegment, piece);
    Add(RecordedKind::kAlloc, site, address, piece.bytes);
  }

  // Changes what is live into the state at the end.
  absl::Status BecomeEnd(size_t index) {
    Live& now = devices_[index].now;
    Live& end = devices_[index].end;
    for (auto block = now.blocks.begin(); block != now.blocks.end();) {
      const auto last = end.blocks.find(block->first);
      if (last != end.blocks.end() && last->second.bytes == block->second.bytes) {
        ++block;
        continue;
      }
      block = RemoveBlock(index, block);
      ++differences_;
      EndChange();
    }
    const Parts pieces = now.pieces;
    for (const auto& [address, piece] : pieces) {
      ForEachGap(end.pieces, address, piece.bytes, steps_, [&](uint64_t from, int64_t bytes) {
        if (!CheckSteps().ok()) return;
        Unmap(index, from, bytes);
        ++differences_;
      });
      RETURN_IF_ERROR(CheckSteps());
      EndChange();
    }
    for (const auto& [address, piece] : end.pieces) {
      RETURN_IF_ERROR(CheckSteps());
      const size_t before = recording_.events_.size();
      Map(index, address, piece);
      if (recording_.events_.size() > before) ++differences_;
      EndChange();
    }
    for (const auto& [address, block] : end.blocks) {
      RETURN_IF_ERROR(CheckSteps());
      if (now.blocks.count(address) > 0) continue;
      AddBlock(index, address, block);
      ++differences_;
      EndChange();
    }
    return absl::OkStatus();
  }

  const TorchSnapshot& snapshot_;
  SnapshotRecording& recording_;
  RecordingTables& tables_;    // those of recording_
  uint32_t before_stack_ = 0;  // of what was allocated before the trace
  std::vector<Device> devices_;
  std::vector<size_t> device_indices_;  // by number
  std::unordered_map<SiteKey, uint32_t, SiteHash> sites_;
  int64_t time_ = kStartTime;
  int64_t differences_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecordingReader>> OpenRecordingFile(const std::string& path) {
  if (!IsPickle(path)) return RecordingReader::Open(path);
  struct stat info = {};
  stat(path.c_str(), &info);
  TorchSnapshot snapshot;
  RETURN_IF_ERROR(ReadPickle(path, &snapshot));
  auto recording = std::make_unique<SnapshotRecording>();
  const int64_t modified = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  RETURN_IF_ERROR(In(path, Recorder(snapshot, *recording).Make(modified)));
  return recording;
}

absl::StatusOr<std::unique_ptr<RecordingReader>> OpenWholeRecording(const std::string& path) {
  absl::StatusOr<std::unique_ptr<RecordingReader>> reader = OpenRecordingFile(path);
  if (!absl::IsNotFound(reader.status())) return reader;
  return NotFound(path,
                  ": there is no such file; here, the file of a whole recording or of a snapshot is needed, not a "
                  "moment, a process, a URL or standard input");
}

}  // namespace hbmprof::tool
