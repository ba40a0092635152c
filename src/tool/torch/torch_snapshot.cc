// See torch_snapshot.h.
//
// The state of a snapshot is that of its end. The trace holds the last events before it, and says nothing about the
// buffers that were live before the first of these. So the trace is read twice: first backwards, to find what was live
// at its start, then to make the events of the recording.
//
// All memory of a device is a set of pieces, which do not overlap: segments, or the mapped parts of an expandable one.
// Blocks do not overlap either.
#include "src/tool/torch/torch_snapshot.h"

#include <sys/stat.h>

#include <cerrno>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "src/export/known_code.h"
#include "src/export/utf8.h"
#include "src/symbolize/demangle.h"
#include "src/tool/reader/blocks.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

using internal::DriverSample;
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
  std::vector<uint32_t> trace;  // numbers of events
  Live start;
  Live now;  // while the events are made
  Live end;  // the state of the snapshot
};

// Recorder fills it in.
class SnapshotRecording : public internal::RecordingInMemory {
  friend class Recorder;
};

class Recorder {
 public:
  Recorder(const TorchSnapshot& snapshot, SnapshotRecording& recording)
      : snapshot_(snapshot), recording_(recording), tables_(recording.tables_) {}

  // `modified` is the time of the file in nanoseconds since 1970, which stands for the times that the events lack.
  absl::Status Make(int64_t modified) {
    MakeNames();
    RETURN_IF_ERROR(FindEnd());
    RETURN_IF_ERROR(FindStart());
    // In microseconds since 1970; 0: the events have no times.
    int64_t first = 0;
    for (const Device& device : devices_) {
      const int64_t time = device.trace.empty() ? 0 : snapshot_.events[device.trace.front()].time_us;
      if (time > 0 && (first == 0 || time < first)) first = time;
    }
    tables_.start_time = recording_.end_time_ = kStartTime;
    tables_.start_unix_nanos = first > 0 ? std::min(first, kMostMicros) * 1000 : modified;
    tables_.names.time_unix_nanos = tables_.start_unix_nanos;
    if (const std::string settings = internal::ValidUtf8(snapshot_.texts[snapshot_.settings]); !settings.empty()) {
      tables_.names.environment.emplace_back("PYTORCH_CUDA_ALLOC_CONF", settings);
    }
    if (first == 0 && !snapshot_.events.empty()) {
      tables_.names.warnings.emplace_back(
          "The trace of the snapshot has no times (PyTorch writes them since release 2.2): its events are shown one "
          "microsecond apart.");
    }
    if (snapshot_.left_out > 0) {
      tables_.names.warnings.push_back(
          Cat("The trace of the snapshot has ", snapshot_.left_out, " events of unknown kinds, which are left out."));
    }
    for (size_t device = 0; device < devices_.size(); ++device) SetStart(device);
    for (size_t device = 0; device < devices_.size(); ++device) {
      int64_t micros = 0;
      for (const uint32_t number : devices_[device].trace) {
        const TorchEvent& event = snapshot_.events[number];
        // Events without a time are one microsecond apart.
        const int64_t own = event.time_us > 0 ? std::min(event.time_us - first, kMostMicros) : micros + 1;
        micros = std::max(micros, own);
        time_ = kStartTime + micros * 1000;
        RETURN_IF_ERROR(Enter(event, device));
        EndChange();
      }
      recording_.end_time_ = std::max(recording_.end_time_, time_);
    }
    time_ = recording_.end_time_;
    for (size_t device = 0; device < devices_.size(); ++device) RETURN_IF_ERROR(BecomeEnd(device));
    // Parts of a change have one time and stay together.
    const auto is_earlier = [](const auto& a, const auto& b) { return a.time < b.time; };
    absl::c_stable_sort(recording_.samples_, is_earlier);
    if (devices_.size() > 1) absl::c_stable_sort(recording_.events_, is_earlier);
    if (differences_ > 0) {
      tables_.names.warnings.push_back(
          Cat("The trace of the snapshot does not lead to its state: ", differences_,
              " blocks or segments differ. They change at the end, which shows the state."));
    }
    const internal::EventLimits limits = internal::LimitsOf(tables_);
    if (absl::c_all_of(recording_.events_, [&](const auto& event) { return internal::IsValidEvent(event, limits); })) {
      return absl::OkStatus();
    }
    return InvalidArgument("a size or a time is out of range");
  }

 private:
  void MakeNames() {
    Snapshot& names = tables_.names;
    std::vector<bool> is_interpreter;
    for (const TorchFrame& frame : snapshot_.frames) {
      const Snapshot::NamedFrame& named = names.named_frames.emplace_back(NameOf(frame));
      is_interpreter.push_back(named.line == 0 &&
                               internal::OwnerOf(named.function, named.file, "").role == internal::CodeRole::kRuntime);
    }
    for (uint32_t i = 0; i < snapshot_.stacks.size(); ++i) {
      std::vector<uint64_t>& stack = names.stacks.emplace_back().return_addresses;
      // PyTorch writes some of the interpreter's frames inside of the functions that it calls.
      bool is_in_python = false;
      for (const uint32_t frame : snapshot_.stacks[i]) {
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
    std::string function = internal::ValidUtf8(snapshot_.texts[frame.function]);
    std::string file = internal::ValidUtf8(snapshot_.texts[frame.file]);
    const std::string name = file.substr(file.rfind('/') + 1);
    if (file == "??") return {internal::ShortenDemangled(function), "", frame.line, 0};
    if (!IsBinary(name)) return {std::move(function), std::move(file), frame.line, 0};
    if (function == "??") return {absl::StrCat(name, "+0x", absl::Hex(frame.line)), std::move(file), 0, 0};
    return {internal::ShortenDemangled(function), std::move(file), 0, 0};
  }

  // Makes the devices that have memory or events, and their state at the end.
  absl::Status FindEnd() {
    std::map<uint32_t, Device> devices;  // by PyTorch's numbers
    for (uint32_t i = 0; i < snapshot_.traces.size(); ++i) {
      if (!snapshot_.traces[i].empty()) devices[i].trace = snapshot_.traces[i];
    }
    std::vector<bool> is_added(snapshot_.segments.size());  // a list can have a segment many times
    for (const uint32_t i : snapshot_.state) {
      const TorchSegment& segment = snapshot_.segments[i];
      if (!is_added[i]) RETURN_IF_ERROR(AddSegment(segment, devices[segment.device].end));
      is_added[i] = true;
    }
    for (auto& [number, device] : devices) {
      tables_.names.devices.emplace_back().name = Cat("GPU:", number);
      devices_.push_back(std::move(device));
    }
    return absl::OkStatus();
  }
  absl::Status AddSegment(const TorchSegment& segment, Live& end) {
    if (segment.bytes > 0 && !Overlaps(end.pieces, segment.address, segment.bytes)) {
      end.pieces[segment.address] = {segment.bytes, segment.stack, 0};
    }
    uint64_t address = segment.address;
    for (const uint32_t number : segment.blocks) {
      const TorchBlock& block = snapshot_.blocks[number];
      if (block.has_address) address = block.address;
      if (address < segment.address ||
          address + static_cast<uint64_t>(block.room) > segment.address + static_cast<uint64_t>(segment.bytes)) {
        return InvalidArgument("a block of the segment at address ", segment.address, " lies outside of the segment");
      }
      if (block.is_live && block.bytes > 0 && !Overlaps(end.blocks, address, block.bytes)) {
        end.blocks[address] = {block.bytes, block.stack, 0};
      }
      address += static_cast<uint64_t>(block.room);
    }
    return absl::OkStatus();
  }

  // Finds what was live before the first event: takes the events back, from the last one on.
  absl::Status FindStart() {
    for (Device& device : devices_) {
      device.start = device.end;
      auto& [pieces, blocks] = device.start;
      for (auto number = device.trace.rbegin(); number != device.trace.rend(); ++number) {
        const TorchEvent& event = snapshot_.events[*number];
        if (event.bytes == 0) continue;
        RETURN_IF_ERROR(CheckSteps());
        const Part before = {event.bytes, before_stack_, 0};
        if (event.action == TorchAction::kAlloc) blocks.erase(event.address);
        if (event.action == TorchAction::kFreeRequested && !Overlaps(blocks, event.address, event.bytes)) {
          blocks[event.address] = before;
        }
        if (event.action == TorchAction::kMap) Cut(pieces, event.address, event.bytes);
        if (event.action == TorchAction::kUnmap) {
          ForEachGap(pieces, event.address, event.bytes, steps_, [&, &all = pieces](uint64_t from, int64_t bytes) {
            all[from] = {bytes, before.stack, 0};
          });
        }
      }
    }
    return absl::OkStatus();
  }
  absl::Status CheckSteps() const {
    if (steps_ <= kMostSteps + kMostStepsPerEvent * snapshot_.events.size()) return absl::OkStatus();
    return ResourceExhausted("the blocks and segments of the trace overlap too often");
  }

  enum class SiteKind : uint8_t { kRequest, kSegment, kBlock };

  uint32_t SiteOf(size_t device, SiteKind kind, const Part& part) {
    const auto [site, is_new] = sites_.try_emplace({device, kind, part.stack, part.metadata}, tables_.sites.size());
    if (is_new) {
      Snapshot::Sample& sample = tables_.sites.emplace_back();
      sample.stack = part.stack;
      sample.device = static_cast<uint32_t>(device);
      sample.kind = kind == SiteKind::kSegment ? MemoryKind::kPool : MemoryKind::kDevice;
      sample.allocator = 1;
      if (part.metadata != 0) {
        sample.tags.emplace_back("user_metadata", internal::ValidUtf8(snapshot_.texts[part.metadata]));
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
    for (auto block = now.blocks.begin(); block != now.blocks.end(); EndDifference()) {
      const auto last = end.blocks.find(block->first);
      const bool stays = last != end.blocks.end() && last->second.bytes == block->second.bytes;
      block = stays ? std::next(block) : RemoveBlock(index, block);
    }
    for (const auto& [address, piece] : Parts(now.pieces)) {
      RETURN_IF_ERROR(CheckSteps());
      ForEachGap(end.pieces, address, piece.bytes, steps_,
                 [&](uint64_t from, int64_t bytes) { Unmap(index, from, bytes); });
      EndDifference();
    }
    for (const auto& [address, piece] : end.pieces) {
      RETURN_IF_ERROR(CheckSteps());
      Map(index, address, piece);
      EndDifference();
    }
    for (const auto& [address, block] : end.blocks) {
      RETURN_IF_ERROR(CheckSteps());
      if (now.blocks.count(address) == 0) AddBlock(index, address, block);
      EndDifference();
    }
    return absl::OkStatus();
  }
  // Ends a change without an event of the trace, if there is one.
  void EndDifference() {
    if (!recording_.events_.empty() && recording_.events_.back().is_continued) ++differences_;
    EndChange();
  }

  const TorchSnapshot& snapshot_;
  SnapshotRecording& recording_;
  RecordingTables& tables_;    // those of recording_
  uint32_t before_stack_ = 0;  // of what was allocated before the trace
  std::vector<Device> devices_;
  absl::flat_hash_map<std::tuple<size_t, SiteKind, uint32_t, uint32_t>, uint32_t> sites_;
  int64_t time_ = kStartTime;
  int64_t differences_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecordingReader>> OpenRecordingFile(const std::string& path, TorchSnapshot* snapshot) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0 && errno == ENOENT) {
    return NotFound(path,
                    ": there is no such file; here, the file of a whole recording or of a snapshot is needed, not a "
                    "moment, a process or standard input");
  }
  CountInput(static_cast<size_t>(info.st_size));
  if (!IsPickle(path)) return RecordingReader::Open(path);
  TorchSnapshot own;
  if (snapshot == nullptr) snapshot = &own;
  RETURN_IF_ERROR(ReadPickle(path, snapshot));
  auto recording = std::make_unique<SnapshotRecording>();
  const int64_t modified = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  RETURN_IF_ERROR(In(path, Recorder(*snapshot, *recording).Make(modified)));
  return recording;
}

}  // namespace hbmprof::tool
