// PyTorch's own reactions to a full device are not repeated: with other settings it reacts in another way. So segments
// that it returned have one of two reasons. If it then took memory at once, for a block of the same call stack, and the
// device cannot have had room for both, the device was full. Otherwise the program called empty_cache().
#include <set>

#include "src/tool/simulate/simulate.h"

namespace hbmprof::tool {
namespace {

using Kind = AllocatorCall::Kind;

class HistoryMaker {
 public:
  void SetTime(int64_t time) { time_ = time; }

  // The segments have changed by `bytes`, with one at `address`.
  void Reserve(int64_t bytes, uint64_t address, uint32_t stack) {
    if (bytes < 0 && mapped_ > 0) Settle();
    if (bytes < 0) release_stack_ = stack;
    if (bytes > 0) segment_ = address;
    (bytes < 0 ? released_ : mapped_) += Magnitude(bytes);
    AddTo(reserved_, bytes);
    history_.reserved_peak = std::max(history_.reserved_peak, reserved_);
  }
  void Allocate(uint64_t block, int64_t bytes, int64_t stream, uint32_t stack, bool has_failed = false) {
    Settle(stack, has_failed);
    AllocatorCall& call = Add(Kind::kAllocate);
    call.has_failed = has_failed;
    call.stack = stack;
    call.block = block;
    call.bytes = bytes;
    call.stream = stream;
    call.segment = std::exchange(segment_, 0);
    if (has_failed) return;
    ++history_.allocations;
    streams_.insert(stream);
    AddTo(allocated_, bytes);
    allocated_peak_ = std::max(allocated_peak_, allocated_);
  }
  void Free(Kind kind, uint64_t block, int64_t bytes) {
    Settle();
    // Nearly all requests are completed at once.
    std::vector<AllocatorCall>& calls = history_.calls;
    const bool is_requested = !calls.empty() && calls.back().kind == Kind::kRequestFree && calls.back().block == block;
    if (kind == Kind::kFree && is_requested) calls.pop_back();
    Add(kind).block = block;
    AddTo(allocated_, -bytes);
  }
  void SetOther(int64_t bytes) { Add(Kind::kOther).bytes = other_ = bytes; }

  History Finish(bool is_snapshot) {
    Settle();
    const int64_t most = history_.limit.value_or(history_.reserved_peak) - history_.outside;
    for (size_t i = 0; i + 1 < history_.calls.size(); ++i) {
      AllocatorCall& call = history_.calls[i];
      if (call.kind != Kind::kEmptyCache || call.bytes <= most) continue;
      call.kind = Kind::kNothing;
      history_.calls[i + 1].was_full = true;
    }
    if (!is_snapshot) history_.allocated_peak = allocated_peak_;
    history_.streams = streams_.size();
    return std::move(history_);
  }

  History& history() { return history_; }

 private:
  AllocatorCall& Add(Kind kind) {
    AllocatorCall& call = history_.calls.emplace_back();
    call.kind = kind;
    call.time = time_;
    call.reserved = reserved_;
    return call;
  }
  // Enters the segments that were returned before a call. If it allocates with `stack`, the bytes of kEmptyCache are
  // those that would have been in use without the return.
  void Settle(std::optional<uint32_t> stack = std::nullopt, bool has_failed = false) {
    const int64_t released = std::exchange(released_, 0);
    const int64_t mapped = std::exchange(mapped_, 0);
    if (released == 0 || has_failed) return;
    const bool may_be_full = stack.has_value() && mapped > 0 && (release_stack_ == 0 || release_stack_ == *stack);
    Add(Kind::kEmptyCache).bytes = may_be_full ? reserved_ + released + other_ : 0;
  }

  History history_;
  int64_t time_ = 0;
  int64_t reserved_ = 0;
  int64_t allocated_ = 0;
  int64_t allocated_peak_ = 0;
  int64_t other_ = 0;
  // Since the last call.
  int64_t released_ = 0;
  int64_t mapped_ = 0;
  uint64_t segment_ = 0;
  uint32_t release_stack_ = 0;
  std::set<int64_t> streams_;
};

enum class Role : uint8_t { kNone, kBlock, kSegment, kOther };

// Returns the roles of the sites in the memory of a device: blocks and segments of PyTorch, and what else the driver
// has handed out.
std::vector<Role> RolesOf(const RecordingTables& tables, uint32_t device) {
  const RecordedPools pools(tables);
  const auto is_torch = [&](uint32_t pool) {
    return pool != RecordedPools::kNone && pools.all()[pool].device == device && pools.all()[pool].name == "pytorch";
  };
  std::vector<Role> roles;
  for (uint32_t site = 0; site < tables.sites.size(); ++site) {
    const bool is_here = AccountOf(tables.sites[site]) == size_t{device} * kMemorySpaceCount;
    roles.push_back(is_torch(pools.from(site))                            ? Role::kBlock
                    : is_torch(pools.segment_of(site))                    ? Role::kSegment
                    : is_here && pools.from(site) == RecordedPools::kNone ? Role::kOther
                                                                          : Role::kNone);
  }
  return roles;
}

// Returns PyTorch's number of the stream of a block.
int64_t StreamOf(const Snapshot::Sample& site) {
  const auto tag = absl::c_find_if(site.tags, [](const auto& one) { return one.first == "stream"; });
  int64_t stream = 0;
  return tag != site.tags.end() && absl::SimpleAtoi(tag->second, &stream) ? stream : 0;
}

// Enters the events of a device from the trace of a snapshot.
void EnterTrace(const TorchSnapshot& snapshot, const std::vector<uint32_t>& trace, HistoryMaker& maker) {
  int64_t first = 0;
  int64_t micros = 0;
  for (const uint32_t number : trace) {
    const TorchEvent& event = snapshot.events[number];
    if (first == 0) first = event.time_us;
    micros = event.time_us == 0 ? micros + 1 : std::max(micros, event.time_us - first);
    maker.SetTime(micros * 1000);
    switch (event.action) {
      case TorchAction::kAlloc:
        if (event.bytes > 0) maker.Allocate(event.address, event.bytes, event.stream, event.stack);
        break;
      case TorchAction::kFreeRequested:
        maker.Free(Kind::kRequestFree, event.address, event.bytes);
        break;
      case TorchAction::kFreeCompleted:
        maker.Free(Kind::kFree, event.address, 0);
        break;
      case TorchAction::kMap:
        maker.Reserve(event.bytes, event.address, event.stack);
        break;
      case TorchAction::kUnmap:
        maker.Reserve(-event.bytes, event.address, event.stack);
        break;
      case TorchAction::kOutOfMemory:
        maker.Allocate(0, event.bytes, event.stream, event.stack, true);
        break;
      case TorchAction::kSnapshot:
        break;
    }
  }
}

// Enters what was live at the start, and the events: those of the trace, if it is not null.
void EnterHistory(RecordingReader& recording, const TorchSnapshot* snapshot, const std::vector<uint32_t>* trace,
                  uint32_t device, HistoryMaker& maker) {
  const RecordingTables& tables = recording.tables();
  const std::vector<Role> roles = RolesOf(tables, device);
  RecordingCursor cursor(recording);
  // The sums after the last whole change, and what the present one adds.
  int64_t segments = 0;
  int64_t other = 0;
  int64_t more_segments = 0;
  int64_t more_other = 0;
  uint64_t segment = 0;
  const auto add = [&](uint32_t site, uint64_t id, int64_t bytes) {
    if (roles[site] == Role::kOther) AddTo(more_other, bytes);
    if (roles[site] != Role::kSegment) return;
    AddTo(more_segments, bytes);
    segment = internal::AddressOfBuffer(id).value_or(0);
  };
  const auto end_change = [&] {
    AddTo(segments, more_segments);
    AddTo(other, more_other);
    if (more_segments != 0) maker.Reserve(more_segments, segment, 0);
    if (more_other != 0) maker.SetOther(other);
    more_segments = more_other = 0;
  };
  const auto take_samples = [&](int64_t until) {
    while (const DriverSample* const sample = cursor.NextSample(until)) {
      for (const DriverSample::Device& of_device : sample->devices) {
        if (of_device.device != device) continue;
        if (of_device.bytes_limit.has_value()) maker.history().limit = of_device.bytes_limit;
        if (!of_device.bytes_in_use.has_value()) continue;
        int64_t& outside = maker.history().outside;
        outside = std::max(outside, Unaccounted(of_device, Plus(segments, other)));
      }
    }
  };
  std::map<uint64_t, RecordingTables::Live> blocks;  // by address
  for (const RecordingTables::Live& live : tables.live) {
    add(live.site, live.id, live.bytes);
    if (roles[live.site] == Role::kBlock) blocks[internal::AddressOfBuffer(live.id).value_or(0)] = live;
  }
  end_change();
  for (const auto& [address, live] : blocks) {
    const Snapshot::Sample& site = tables.sites[live.site];
    maker.Allocate(address, live.bytes, StreamOf(site), site.stack);
  }
  if (trace != nullptr) return EnterTrace(*snapshot, *trace, maker);
  RecordedEvent event;
  while (cursor.Next(&event)) {
    take_samples(event.time - 1);
    maker.SetTime(Minus(event.time, tables.start_time));
    const bool has_site = event.site < tables.sites.size();
    const uint32_t stack = has_site ? tables.sites[event.site].stack : 0;
    const bool is_here = event.id == uint64_t{device} * kMemorySpaceCount;
    if (event.kind == RecordedKind::kFailed && is_here) maker.Allocate(0, event.bytes, 0, stack, true);
    const bool begins = internal::Begins(event.kind);
    if (has_site && (begins || internal::Ends(event.kind))) {
      add(event.site, event.id, begins ? event.bytes : -event.bytes);
      const uint64_t address = internal::AddressOfBuffer(event.id).value_or(0);
      const bool is_block = roles[event.site] == Role::kBlock;
      if (is_block && begins) maker.Allocate(address, event.bytes, StreamOf(tables.sites[event.site]), stack);
      if (is_block && !begins) maker.Free(Kind::kFree, address, event.bytes);
    }
    if (!event.is_continued) end_change();
  }
  take_samples(INT64_MAX);
}

}  // namespace

absl::StatusOr<History> HistoryOf(RecordingReader& recording, const TorchSnapshot* snapshot,
                                  const std::string& memory) {
  std::optional<History> found;
  const std::vector<Snapshot::Device>& devices = recording.tables().names.devices;
  for (uint32_t device = 0; device < devices.size(); ++device) {
    const std::string& name = devices[device].name;
    if (!memory.empty() && memory != name) continue;
    HistoryMaker maker;
    maker.history().memory = name;
    const std::vector<uint32_t> no_trace;
    const std::vector<uint32_t>* trace = nullptr;
    if (snapshot != nullptr) {
      maker.history().settings = snapshot->texts[snapshot->settings];
      size_t number = 0;  // PyTorch's
      const bool has_number = absl::SimpleAtoi(name.substr(name.find(':') + 1), &number);
      trace = has_number && number < snapshot->traces.size() ? &snapshot->traces[number] : &no_trace;
    }
    EnterHistory(recording, snapshot, trace, device, maker);
    History history = maker.Finish(snapshot != nullptr);
    if (history.allocations == 0) continue;
    if (!found.has_value() || history.reserved_peak > found->reserved_peak) found = std::move(history);
  }
  if (found.has_value()) return *std::move(found);
  return InvalidArgument(memory.empty() ? "" : memory + ": ", "has no blocks of PyTorch's allocator");
}

}  // namespace hbmprof::tool
