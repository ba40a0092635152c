// The snapshot of PyTorch's memory_viz: a pickle of protocol 2.
//
// The viewer begins with the segments at the end of the recording and reads the events backwards. It stops if a live
// block is in no segment at some instant. So a buffer that is in no segment of a pool gets a segment of its own.
//
// Blocks of PyTorch's expandable segments lie in several pieces, each of which is a segment in the recording. So all
// segments are written as pieces of such ones: they are mapped and unmapped, and adjacent ones are one segment at the
// end, because the viewer joins all that is mapped.
#include "absl/container/flat_hash_set.h"
#include "src/tool/convert/format.h"

namespace hbmprof::tool {
namespace {

// Makes a pickle of protocol 2 with the few opcodes that the viewer's reader knows. Equal texts are written once.
class Pickle {
 public:
  std::string& bytes() { return bytes_; }

  void Dict() { bytes_ += "}("; }
  void EndDict() { bytes_ += 'u'; }
  void List() { bytes_ += "]("; }
  // To be called after each element of a long list: readers keep the elements on a stack until they are appended.
  void NextElement(size_t number) {
    if (number % 1000 == 999) bytes_ += "e(";
  }
  void EndList() { bytes_ += 'e'; }
  void Integer(int64_t value) {
    if (value >= 0 && value < 256) {
      bytes_ += {'K', static_cast<char>(value)};
      return;
    }
    const bool is_short = value >= INT32_MIN && value <= INT32_MAX;
    bytes_ += is_short ? std::string_view("J") : std::string_view("\x8a\x08");
    AppendLittleEndian(static_cast<uint64_t>(value), is_short ? 4 : 8);
  }
  void Text(std::string_view text) {
    const auto [number, is_new] = numbers_.try_emplace(std::string(text), memo_size_);
    if (!is_new) return Get(number->second);
    bytes_ += 'X';
    const std::string visible = Visible(text);  // readers refuse a text that is not UTF-8
    AppendLittleEndian(visible.size(), 4);
    bytes_ += visible;
    Put();
  }
  uint32_t Put() {
    bytes_ += 'r';
    AppendLittleEndian(memo_size_, 4);
    return memo_size_++;
  }
  void Get(uint32_t number) {
    const bool is_short = number < 256;
    bytes_ += is_short ? 'h' : 'j';
    AppendLittleEndian(number, is_short ? 1 : 4);
  }
  void End() { bytes_ += '.'; }

 private:
  void AppendLittleEndian(uint64_t value, size_t count) {
    bytes_.append(reinterpret_cast<const char*>(&value), count);  // x86-64 and aarch64 are little-endian
  }

  std::string bytes_ = "\x80\x02";
  absl::flat_hash_map<std::string, uint32_t> numbers_;  // of texts, in the memo
  uint32_t memo_size_ = 0;
};

// The segments and blocks of one account, and the events that change them.
class MemoryVizWriter : RecordingConverter {
 public:
  using RecordingConverter::RecordingConverter;

  absl::Status Write() {
    // The viewer identifies a device by a number. Device memory gets the number of its device. The other memory spaces
    // get the numbers after these.
    std::vector<size_t> accounts;
    for (const bool are_devices : {true, false}) {
      for (size_t i = 0; i < totals_.account_count(); ++i) {
        const bool is_device = i % kMemorySpaceCount == 0;
        if (is_device == are_devices && (is_device || totals_.account(i).is_used)) accounts.push_back(i);
      }
    }
    std::vector<Trace> at_end;
    pickle_.Dict();
    pickle_.Text("device_traces");
    pickle_.List();
    for (const size_t account : accounts) {
      trace_ = Trace{account, totals_.account(account).in_use};
      pickle_.List();
      if (totals_.account(account).is_used) RETURN_IF_ERROR(WriteTrace());
      pickle_.EndList();
      JoinPieces(trace_.segments);
      at_end.push_back(std::move(trace_));
    }
    pickle_.EndList();
    pickle_.Text("segments");
    pickle_.List();
    size_t count = 0;
    for (size_t i = 0; i < at_end.size(); ++i) {
      for (const auto& [address, segment] : at_end[i].segments) {
        WriteSegment(i, address, segment, at_end[i].blocks);
        pickle_.NextElement(count++);
        RETURN_IF_ERROR(Flush(pickle_.bytes()));
      }
    }
    pickle_.EndList();
    pickle_.EndDict();
    pickle_.End();
    return Flush(pickle_.bytes());
  }

 private:
  using Numbers = std::vector<std::optional<uint32_t>>;  // in the pickle

  // Whole numbers above 2^53 lose digits in the viewer. Handles are larger than 2^53. So buffers with handles get
  // artificial addresses, which begin here.
  static constexpr uint64_t kFirstMadeAddress = uint64_t{1} << 48;
  static constexpr uint64_t kAddressLimit = uint64_t{1} << 53;

  struct Segment {
    int64_t size = 0;
    uint32_t site = 0;
    bool is_own = false;  // made for the one block in it
  };
  struct Block {
    int64_t size = 0;
    uint32_t site = 0;
  };
  using Segments = std::map<uint64_t, Segment>;  // by address
  using Blocks = std::map<uint64_t, Block>;
  using Ranges = std::map<uint64_t, uint64_t>;  // address and end; they do not overlap
  static inline const Ranges kNoRanges;
  // The state of the account that is being written.
  struct Trace {
    size_t account = 0;
    int64_t in_use = 0;
    Segments segments;
    Blocks blocks;
    absl::flat_hash_set<uint64_t> nested;  // ids of live segments inside of blocks
    absl::flat_hash_map<uint64_t, uint64_t> made_addresses;
    std::optional<int64_t> device_free;
    size_t entries = 0;
    // What the change that is being written unmaps and maps. PyTorch unmaps parts of pieces, whose rest is a new piece
    // of the recording: only the difference is written.
    Ranges ended;
    Ranges begun;
  };

  bool IsSegment(uint32_t site) const { return tables_.IsSegment(site); }
  bool IsHere(const RecordedEvent& event) const {
    if (event.kind == RecordedKind::kMark) return true;
    // The site of a failed allocation may be unknown; its id is the account.
    if (event.site < tables_.sites.size()) return AccountOf(tables_.sites[event.site]) == trace_.account;
    return event.kind == RecordedKind::kFailed && event.id == trace_.account;
  }

  static void JoinPieces(Segments& segments) {
    for (auto segment = segments.begin(); segment != segments.end();) {
      const auto next = std::next(segment);
      if (next == segments.end() || next->first != segment->first + static_cast<uint64_t>(segment->second.size)) {
        segment = next;
      } else {
        segment->second.size += next->second.size;
        segments.erase(next);
      }
    }
  }

  absl::Status WriteTrace() {
    for (const bool are_segments : {true, false}) {
      for (const RecordingTables::Live& live : tables_.live) {
        const bool is_here = AccountOf(tables_.sites[live.site]) == trace_.account;
        if (is_here && IsSegment(live.site) == are_segments) Begin(live.id, live.bytes, live.site, false);
      }
    }
    RecordedEvent event;
    std::vector<RecordedEvent> change;
    cursor_.Rewind();
    while (cursor_.Next(&event)) {
      if (IsHere(event)) change.push_back(event);
      if (event.is_continued || change.empty()) continue;
      WriteChange(change);
      change.clear();
      RETURN_IF_ERROR(Flush(pickle_.bytes()));
    }
    return absl::OkStatus();
  }

  // The parts of a change are one instant. So the blocks that end are written before the segments that end, and the
  // blocks that begin after the segments that begin.
  void WriteChange(std::vector<RecordedEvent>& change) {
    time_us_ = Plus(tables_.start_unix_nanos, Minus(change[0].time, tables_.start_time)) / 1000;
    ReadSamples(change[0].time);
    if (change.size() > 1) MoveSegments(change);
    trace_.ended.clear();
    trace_.begun.clear();
    for (const RecordedEvent& event : change) {
      if (!internal::Begins(event.kind) || !IsSegment(event.site) || event.bytes <= 0) continue;
      const uint64_t address = AddressOf(event.id, event.bytes);
      trace_.begun[address] = address + static_cast<uint64_t>(event.bytes);
    }
    for (const bool are_segments : {false, true}) {
      for (const RecordedEvent& event : change) {
        if (internal::Ends(event.kind) && IsSegment(event.site) == are_segments) End(event);
      }
    }
    for (const bool are_segments : {true, false}) {
      for (const RecordedEvent& event : change) {
        if (!internal::Begins(event.kind) || IsSegment(event.site) != are_segments) continue;
        Begin(event.id, event.bytes, event.site, true);
      }
    }
    for (const RecordedEvent& event : change) {
      const bool counts = event.site < tables_.sites.size() && !tables_.IsOfPool(event.site);
      if (counts) AddTo(trace_.in_use, SiteTotals::ChangeOf(event));
      if (event.kind == RecordedKind::kFailed) {
        WriteFailed(event);
      } else if (event.kind == RecordedKind::kMark) {
        WriteEntry("snapshot", 0, 0, std::nullopt);
      }
    }
  }
  // If a segment only moves to another site, its blocks stay in it. Removes the two events of such a move from
  // `change`.
  void MoveSegments(std::vector<RecordedEvent>& change) {
    for (size_t i = 0; i + 1 < change.size(); ++i) {
      const RecordedEvent& from = change[i];
      const RecordedEvent& to = change[i + 1];
      if (from.kind != RecordedKind::kMoveFrom || to.kind != RecordedKind::kMoveTo || from.id != to.id) continue;
      if (!IsSegment(from.site) || !IsSegment(to.site)) continue;
      const auto found = trace_.segments.find(AddressOf(to.id, 0));
      if (found != trace_.segments.end()) found->second.site = to.site;
      change.erase(change.begin() + static_cast<std::ptrdiff_t>(i),
                   change.begin() + static_cast<std::ptrdiff_t>(i) + 2);
      --i;
    }
  }

  // Returns the address of a buffer. `bytes`: the size of a buffer that begins; 0 for one that exists.
  uint64_t AddressOf(uint64_t id, int64_t bytes) {
    const std::optional<uint64_t> address = internal::AddressOfBuffer(id);
    if (address.has_value() && *address < kFirstMadeAddress) return *address;
    const auto [entry, is_new] = trace_.made_addresses.try_emplace(id, next_made_address_);
    if (is_new) {
      constexpr uint64_t kAlignment = 512;
      next_made_address_ +=
          (static_cast<uint64_t>(std::max<int64_t>(bytes, 1)) + kAlignment - 1) / kAlignment * kAlignment;
      if (next_made_address_ >= kAddressLimit) next_made_address_ = kFirstMadeAddress;
    }
    return entry->second;
  }

  static Segments::iterator SegmentAt(Segments& segments, uint64_t address) {
    auto after = segments.upper_bound(address);
    if (after == segments.begin()) return segments.end();
    --after;
    return address - after->first < static_cast<uint64_t>(after->second.size) ? after : segments.end();
  }

  // Enters a buffer that begins. Writes its event if `write` is true; false is for the buffers that are live at the
  // start of the recording, which the viewer finds itself.
  void Begin(uint64_t id, int64_t bytes, uint32_t site, bool write) {
    if (bytes <= 0) return;
    const uint64_t address = AddressOf(id, bytes);
    auto segment = SegmentAt(trace_.segments, address);
    if (IsSegment(site)) {
      if (segment != trace_.segments.end()) {  // a pool in a block of another pool: only its blocks are shown
        trace_.nested.insert(id);
        return;
      }
      BeginSegment(address, {bytes, site, false}, write);
      return;
    }
    if (segment == trace_.segments.end()) segment = BeginSegment(address, {bytes, site, true}, write);
    const Block block = {RoomAt(segment, address, bytes), site};
    if (!trace_.blocks.try_emplace(address, block).second) return;
    if (write) WriteEntry("alloc", address, block.size, site);
  }
  // Returns how many of the bytes from `address`, which is in the segment, lie in it or in the pieces next to it.
  int64_t RoomAt(Segments::const_iterator segment, uint64_t address, int64_t bytes) const {
    const uint64_t wanted = address + static_cast<uint64_t>(bytes);
    uint64_t end = segment->first + static_cast<uint64_t>(segment->second.size);
    for (++segment; end < wanted && segment != trace_.segments.end() && segment->first == end; ++segment) {
      end += static_cast<uint64_t>(segment->second.size);
    }
    return static_cast<int64_t>(std::min(end, wanted) - address);
  }
  static std::vector<std::pair<uint64_t, uint64_t>> Without(const Ranges& others, uint64_t address, int64_t size) {
    std::vector<std::pair<uint64_t, uint64_t>> parts;
    const uint64_t end = address + static_cast<uint64_t>(size);
    auto other = others.upper_bound(address);
    if (other != others.begin()) --other;
    for (; other != others.end() && other->first < end; ++other) {
      if (other->first > address) parts.emplace_back(address, other->first);
      address = std::max(address, other->second);
    }
    if (address < end) parts.emplace_back(address, end);
    return parts;
  }
  Segments::iterator BeginSegment(uint64_t address, const Segment& segment, bool write) {
    const Ranges& mapped = segment.is_own ? kNoRanges : trace_.ended;
    for (const auto& [from, to] : Without(mapped, address, write ? segment.size : 0)) {
      WriteEntry("segment_map", from, static_cast<int64_t>(to - from), segment.site);
    }
    return trace_.segments.insert_or_assign(address, segment).first;
  }

  void End(const RecordedEvent& event) {
    if (event.bytes <= 0 || trace_.nested.erase(event.id) > 0) return;
    const uint64_t address = AddressOf(event.id, event.bytes);
    if (IsSegment(event.site)) {
      EndSegment(address, event);
    } else {
      EndBlock(address, event);
    }
    trace_.made_addresses.erase(event.id);
  }

  void EndBlock(uint64_t address, const RecordedEvent& event) {
    const auto block = trace_.blocks.find(address);
    // A block that is not in trace_.blocks is taken as one that was live at the start of the recording.
    const Block ended = block != trace_.blocks.end() ? block->second : Block{event.bytes, event.site};
    if (block != trace_.blocks.end()) trace_.blocks.erase(block);
    WriteEntry("free_requested", address, ended.size, event.site);
    WriteEntry("free_completed", address, ended.size, event.site);
    const auto segment = SegmentAt(trace_.segments, address);
    if (segment != trace_.segments.end() && !segment->second.is_own) return;
    WriteEntry("segment_unmap", address, ended.size, event.site);
    if (segment != trace_.segments.end()) trace_.segments.erase(segment);
  }
  void EndSegment(uint64_t address, const RecordedEvent& event) {
    const auto segment = trace_.segments.find(address);
    const int64_t size = segment != trace_.segments.end() ? segment->second.size : event.bytes;
    if (segment != trace_.segments.end()) trace_.segments.erase(segment);
    for (const auto& [from, to] : Without(trace_.begun, address, size)) EndRange(from, to, event.site);
    trace_.ended[address] = address + static_cast<uint64_t>(size);
  }
  // Blocks that outlive their segment get segments of their own.
  void EndRange(uint64_t address, uint64_t end, uint32_t site) {
    std::vector<std::pair<uint64_t, Block>> left;
    for (auto block = trace_.blocks.lower_bound(address); block != trace_.blocks.end() && block->first < end;) {
      left.emplace_back(*block);
      block = trace_.blocks.erase(block);
    }
    for (const auto& [at, block] : left) {
      WriteEntry("free_requested", at, block.size, block.site);
      WriteEntry("free_completed", at, block.size, block.site);
    }
    WriteEntry("segment_unmap", address, static_cast<int64_t>(end - address), site);
    for (auto& [at, block] : left) {
      block.size = std::min(block.size, static_cast<int64_t>(end - at));
      BeginSegment(at, {block.size, block.site, true}, true);
      trace_.blocks.try_emplace(at, block);
      WriteEntry("alloc", at, block.size, block.site);
    }
  }

  void WriteFailed(const RecordedEvent& event) {
    const auto& space =
        tables_.names.devices[trace_.account / kMemorySpaceCount].spaces[trace_.account % kMemorySpaceCount];
    const int64_t left = std::max<int64_t>(0, Minus(space.bytes_limit.value_or(trace_.in_use), trace_.in_use));
    WriteEntry("oom", static_cast<uint64_t>(trace_.device_free.value_or(left)), event.bytes,
               event.site < tables_.sites.size() ? std::optional(event.site) : std::nullopt, "device_free");
  }
  // `name`: what the number `address` is.
  void WriteEntry(const char* action, uint64_t address, int64_t size, std::optional<uint32_t> site,
                  const char* name = "addr") {
    pickle_.Dict();
    AddFields("action", action, name, address, "size", size, "stream", 0, "time_us", time_us_, "frames",
              [&] { WriteFrames(site); });
    if (site.has_value() && !tables_.sites[*site].tags.empty()) {
      AddFields("user_metadata", absl::StrJoin(tables_.sites[*site].tags, " ", absl::PairFormatter("=")));
    }
    pickle_.EndDict();
    pickle_.NextElement(trace_.entries++);
  }

  // Lists of frames are written once, innermost frame first.
  void WriteFrames(std::optional<uint32_t> site) {
    std::optional<uint32_t>& number = site.has_value() ? stack_numbers_[tables_.sites[*site].stack] : no_frames_;
    if (number.has_value()) return pickle_.Get(*number);
    pickle_.List();
    if (site.has_value()) {
      for (const uint32_t frame : stacks_.stack(tables_.sites[*site].stack)) WriteFrame(frame);
    }
    pickle_.EndList();
    number = pickle_.Put();
  }
  void WriteFrame(uint32_t frame) {
    std::optional<uint32_t>& number = frame_numbers_[frame];
    if (number.has_value()) return pickle_.Get(*number);
    const RecordedStacks::Frame& text = stacks_.frames()[frame];
    Dict("filename", text.file, "line", text.line, "name", text.name);
    number = pickle_.Put();
  }

  // Writes a dictionary of names and values: numbers, texts, or functions that write the value.
  template <typename... Fields>
  void Dict(const Fields&... fields) {
    pickle_.Dict();
    AddFields(fields...);
    pickle_.EndDict();
  }
  template <typename Value, typename... Fields>
  void AddFields(const char* name, const Value& value, const Fields&... more) {
    pickle_.Text(name);
    if constexpr (std::is_integral_v<Value>) {
      pickle_.Integer(static_cast<int64_t>(value));
    } else if constexpr (std::is_invocable_v<Value>) {
      value();
    } else {
      pickle_.Text(value);
    }
    if constexpr (sizeof...(more) > 0) AddFields(more...);
  }

  void WriteSegment(size_t device, uint64_t address, const Segment& segment, const Blocks& blocks) {
    const uint64_t end = address + static_cast<uint64_t>(segment.size);
    const auto first = blocks.lower_bound(address);
    const auto last = blocks.lower_bound(end);
    int64_t active = 0;
    for (auto block = first; block != last; ++block) active += block->second.size;
    const auto write_blocks = [&] {
      pickle_.List();
      size_t count = 0;
      uint64_t at = address;
      for (auto block = first; block != last; ++block) {
        if (block->first > at) WriteBlock(at, block->first - at, std::nullopt, &count);
        // Blocks of a damaged recording may overlap.
        const uint64_t begin = std::max(at, block->first);
        const uint64_t block_end = std::min(end, block->first + static_cast<uint64_t>(block->second.size));
        if (block_end <= begin) continue;
        WriteBlock(begin, block_end - begin, block->second.site, &count);
        at = block_end;
      }
      if (at < end) WriteBlock(at, end - at, std::nullopt, &count);
      pickle_.EndList();
    };
    Dict(
        "device", device, "address", address, "total_size", segment.size, "allocated_size", active, "active_size",
        active, "requested_size", active, "stream", 0, "segment_type", "large", "segment_pool_id",
        [&] { pickle_.bytes() += std::string_view("K\0K\0\x86", 5); }, "frames", [&] { WriteFrames(segment.site); },
        "blocks", write_blocks);
  }
  void WriteBlock(uint64_t address, uint64_t size, std::optional<uint32_t> site, size_t* count) {
    Dict("address", address, "size", size, "requested_size", site.has_value() ? size : 0, "state",
         site.has_value() ? "active_allocated" : "inactive", "frames", [&] { WriteFrames(site); });
    pickle_.NextElement((*count)++);
  }

  // Takes the free bytes of the device from the samples up to `time`.
  void ReadSamples(int64_t time) {
    while (const DriverSample* sample = cursor_.NextSample(time)) {
      for (const DriverSample::Device& device : sample->devices) {
        if (device.device == trace_.account / kMemorySpaceCount && device.bytes_free.has_value()) {
          trace_.device_free = device.bytes_free;
        }
      }
    }
  }

  Pickle pickle_;
  // By stack: the number of its list of frames.
  Numbers stack_numbers_ = Numbers(tables_.names.stacks.size());
  Numbers frame_numbers_ = Numbers(stacks_.frames().size());
  std::optional<uint32_t> no_frames_;
  Trace trace_;
  uint64_t next_made_address_ = kFirstMadeAddress;
  int64_t time_us_ = 0;
};

}  // namespace

const Format kMemoryVizFormat = {"memory-viz", &WriteWith<MemoryVizWriter>, nullptr, ".pickle"};

}  // namespace hbmprof::tool
