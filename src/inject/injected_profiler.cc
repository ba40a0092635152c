// The injected library's side of core/joined/injected.h: the program can link a copy of hbmprof. That copy records into
// the injected library's profiler, which also records the driver's calls.
//
// Memory that the driver has allocated has one record, made by the wrapped calls, because these see its exact begin and
// end. If the program records the whole of such memory, the driver's record gets the stack, the tags and the allocator
// name of that call. If it records a part, the part becomes a block of that memory.
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "src/api/output/exit_writer.h"
#include "src/api/public/default_profiler.h"
#include "src/api/recording/recorder.h"
#include "src/backends/cuda/driver/driver_ranges.h"
#include "src/backends/cuda/driver/driver_shim.h"
#include "src/base/completes.h"
#include "src/base/fork.h"
#include "src/base/thread_state.h"
#include "src/core/joined/injected.h"
#include "src/core/joined/snapshot_bytes.h"
#include "src/core/profiler_impl.h"
#include "src/core/scoped_caller.h"
#include "src/core/tables/tags.h"
#include "src/inject/frameworks/driver_blocks.h"

namespace hbmprof::internal {
namespace {

// Memory that the driver has allocated, and its live record.
struct DriverMemory {
  CudaDriverRanges::Range range;
  uint64_t start;  // of the range
  LiveBuffer live;

  bool is_segment() const { return live.attributes.kind == MemoryKind::kPool; }
  // Whether the memory can become a segment with blocks. Memory of graphs must keep its kind, and memory spaces other
  // than kDevice have no segments.
  bool is_plain() const {
    const MemoryKind kind = live.attributes.kind;
    return !range.is_mapped && !range.record.is_handle() &&
           (kind == MemoryKind::kDevice || kind == MemoryKind::kExternal || kind == MemoryKind::kVmm || is_segment());
  }
};

// The last result of this thread. Most records of a pool lie in the same memory.
struct LastFound {
  CudaDriverRanges::Found found;  // the range is null if its record has ended
  LiveBuffer live;
};
__thread LastFound last_found __attribute__((tls_model("initial-exec"))) = {};

std::optional<DriverMemory> DriverMemoryAt(BufferId id) {
  if (IsOff()) return std::nullopt;
  const auto memory = [](const LastFound& known) -> std::optional<DriverMemory> {
    if (known.found.range.record.is_null()) return std::nullopt;
    return DriverMemory{known.found.range, known.found.first, known.live};
  };
  {
    const ReentryGuard guard;
    if (!guard.entered()) return std::nullopt;  // nothing is recorded inside the tracker
    const CudaDriverRanges::Found& found = last_found.found;
    const bool is_near = id.value() >= found.first && id.value() <= found.last;
    if (is_near && found.changes == CudaDriverRanges::changes()) return memory(last_found);
  }
  CudaDriverRanges& ranges = CudaDriverRanges::Instance();
  LastFound now;
  now.found = ranges.Find(id);
  if (!now.found.range.record.is_null()) {
    const std::optional<LiveBuffer> live = Profiler::Default().FindBuffer(now.found.range.record);
    if (live.has_value()) {
      now.live = *live;
    } else {
      ranges.Remove(now.found.first);
      now.found.range = {};
    }
  }
  const ReentryGuard guard;
  if (guard.entered()) last_found = now;
  return memory(now);
}

// REQUIRES: !IsOff().
ProfilerImpl& Impl() { return ProfilerAccess::ImplOf(Profiler::Default()); }

// Returns the allocator to add to the driver's record; none if that record has one already.
AllocatorId AllocatorFor(const DriverMemory& memory, AllocatorId wanted) {
  // The label of stream-ordered memory must stay: a reset of the device uses it.
  return memory.range.has_allocator ? AllocatorId{} : wanted;
}

// Makes the memory a segment. Returns whether it is one.
bool BecomesSegment(const Caller& caller, DriverMemory& memory, AllocatorId allocator) {
  if (memory.is_segment()) return true;
  if (!memory.is_plain()) return false;
  const Attributes attributes = {memory.live.attributes.device, MemoryKind::kPool, AllocatorFor(memory, allocator)};
  const auto bytes = static_cast<size_t>(memory.live.bytes);
  const bool is_first = Profiler::Default().RecordSegmentFrom(caller, memory.range.record, bytes, attributes);
  CudaDriverRanges::Changed();
  if (is_first) return true;
  // Another thread can have made it a segment first.
  const std::optional<DriverMemory> now = DriverMemoryAt(memory.range.record);
  return now.has_value() && now->is_segment();
}

bool RecordInside(DriverMemory& memory, const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes,
                  bool is_block) {
  const bool is_start = id.value() == memory.range.record.value();
  // A view counts no bytes. A view at the start of the memory would have the id of the driver's record, so it is not
  // recorded.
  if (attributes.kind == MemoryKind::kAlias) {
    return !is_start && Profiler::Default().RecordAllocFrom(caller, id, bytes, attributes);
  }
  const bool is_whole = is_start && (id.is_handle() || bytes == static_cast<size_t>(memory.live.bytes));
  if (is_whole && !is_block && !memory.is_segment()) {
    return Impl().Refine(caller, id, AllocatorFor(memory, attributes.allocator));
  }
  return BecomesSegment(caller, memory, {}) && Profiler::Default().RecordBlockFrom(caller, id, bytes, attributes);
}

// Whether the memory is a part of memory that the driver's calls count, at an unknown address: it has a handle, as
// PJRT's buffers do, and lies on a device whose allocations the driver's calls record.
bool IsCountedByDriver(BufferId id, const Attributes& attributes) {
  return id.is_handle() && SpaceOf(attributes.kind) == MemorySpace::kDevice &&
         Impl().probes.HasFixed(attributes.device);
}

// --- The functions of the table. A copy that joins calls Start first, so the profiler exists. Functions that can wait
// or read a file are not noexcept, because a thread can be cancelled there. ---

int Start() {
  return Completes([] {
    Profiler::Default();
    StartThreads();
    WriteBeforeOlderExitHandlers();
  });
}

template <bool is_block>
bool Record(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) noexcept {
  Profiler& profiler = Profiler::Default();
  if (!profiler.enabled()) return false;
  std::optional<DriverMemory> memory = DriverMemoryAt(id);
  if (memory.has_value()) return RecordInside(*memory, caller, id, bytes, attributes, is_block);
  if (IsCountedByDriver(id, attributes)) return false;
  return is_block ? profiler.RecordBlockFrom(caller, id, bytes, attributes)
                  : profiler.RecordAllocFrom(caller, id, bytes, attributes);
}

bool RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) noexcept {
  Profiler& profiler = Profiler::Default();
  if (!profiler.enabled()) return false;
  std::optional<DriverMemory> memory = DriverMemoryAt(address);
  if (!memory.has_value()) return profiler.RecordSegmentFrom(caller, address, bytes, attributes);
  const bool is_start = address.value() == memory->range.record.value();
  if (!BecomesSegment(caller, *memory, is_start ? attributes.allocator : AllocatorId{})) return false;
  if (is_start) CudaDriverRanges::Instance().Declare(address.value());
  return true;
}

int64_t RecordFree(BufferId id) noexcept {
  Profiler& profiler = Profiler::Default();
  const std::optional<DriverMemory> memory = DriverMemoryAt(id);
  if (!memory.has_value()) return profiler.RecordFree(id).value_or(-1);
  const bool is_start = id.value() == memory->range.record.value();
  const bool ends_block = memory->is_segment() && !(is_start && memory->range.is_declared);
  if (ends_block && Impl().FindBlock(id).has_value()) return profiler.RecordBlockFree(id).value_or(-1);
  if (is_start) return memory->live.bytes;
  return profiler.FindBuffer(id).has_value() ? profiler.RecordFree(id).value_or(-1) : -1;
}

int64_t RecordBlockFree(BufferId address) noexcept {
  const std::optional<DriverMemory> memory = DriverMemoryAt(address);
  // This memory of the driver cannot hold blocks. A part of it was never recorded, so this is not a foreign free.
  if (memory.has_value() && !memory->is_plain()) return -1;
  return Profiler::Default().RecordBlockFree(address).value_or(-1);
}

// Memory that the driver has allocated keeps the driver's size. Blocks in it can be resized.
bool RecordResize(BufferId id, size_t bytes) noexcept {
  Profiler& profiler = Profiler::Default();
  const std::optional<DriverMemory> memory = DriverMemoryAt(id);
  if (!memory.has_value()) return profiler.RecordResize(id, bytes);
  return memory->is_segment() && profiler.RecordBlockResize(id, bytes);
}

bool RecordBlockResize(BufferId address, size_t bytes) noexcept {
  return Profiler::Default().RecordBlockResize(address, bytes);
}

bool SplitSegment(BufferId address, size_t bytes) noexcept {
  return !DriverMemoryAt(address).has_value() && Profiler::Default().SplitSegment(address, bytes);
}

bool MergeSegments(BufferId first, BufferId second) noexcept {
  return !DriverMemoryAt(first).has_value() && !DriverMemoryAt(second).has_value() &&
         Profiler::Default().MergeSegments(first, second);
}

uint32_t KeepSite(const Caller& caller, size_t bytes, const Attributes& attributes) noexcept {
  return Profiler::Default().KeepSite(caller, bytes, attributes);
}

bool RecordAllocAt(uint32_t site, BufferId id, size_t bytes) noexcept {
  return Profiler::Default().RecordAllocAt(site, id, bytes);
}

void RecordRefusedFree() noexcept { Profiler::Default().RecordRefusedFree(); }
void RecordDropped(size_t bytes) noexcept { Profiler::Default().RecordDropped(bytes); }

bool FindBuffer(BufferId id, LiveBuffer* buffer) noexcept {
  const std::optional<DriverMemory> memory = DriverMemoryAt(id);
  std::optional<LiveBuffer> live;
  if (memory.has_value() && memory->is_segment()) live = Impl().FindBlock(id);
  if (!live.has_value()) live = Profiler::Default().FindBuffer(id);
  if (live.has_value()) *buffer = *live;
  return live.has_value();
}

int Device(const char* name, size_t size, uint32_t* number) {
  return Completes([&] { *number = static_cast<uint32_t>(Profiler::Default().Device({name, size})); });
}

int Allocator(const char* name, size_t size, uint32_t* number) {
  return Completes([&] { *number = static_cast<uint32_t>(Profiler::Default().Allocator({name, size})); });
}

// A device probe that the program has set.
class LinkedProbe {
 public:
  LinkedProbe(InjectedProfiler::Probe* probe, void* argument, void (*end)(void*))
      : probe_(probe), argument_(argument), end_(end) {}
  ~LinkedProbe() { end_(argument_); }
  LinkedProbe(const LinkedProbe&) = delete;
  LinkedProbe& operator=(const LinkedProbe&) = delete;

  DeviceProbe Query() const {
    Answer<DeviceProbe> answer;
    if (probe_(argument_, &Answer<DeviceProbe>::Receive, &answer) == 0 || !answer.complete) throw std::bad_alloc();
    return std::move(answer.value);
  }

 private:
  InjectedProfiler::Probe* const probe_;
  void* const argument_;
  void (*const end_)(void*);
};

int SetDeviceProbe(DeviceId device, InjectedProfiler::Probe* probe, void* argument, void (*end)(void*),
                   const void* owner) {
  if (IsOff()) {
    end(argument);
    return 1;
  }
  std::shared_ptr<LinkedProbe> linked;
  if (!Completes([&] { linked = std::make_shared<LinkedProbe>(probe, argument, end); })) {
    end(argument);
    return 0;
  }
  return Completes([&] {
    Impl().probes.Set(
        device, [linked] { return linked->Query(); }, owner, /*is_replaceable=*/true);
  });
}

void RemoveDeviceProbe(DeviceId device, const void* owner) {
  if (!IsOff()) Impl().probes.Remove(device, owner, /*is_replaceable=*/true);
}

int SetCounter(const char* name, size_t name_size, int64_t value) {
  return Completes([&] { Profiler::Default().SetCounter({name, name_size}, value); });
}

// Passes text or data to the program's copy. Allocations that the copy makes to receive it are not recorded.
void Pass(std::string_view bytes, InjectedProfiler::Receive* receive, void* argument) {
  const ReentryGuard guard;
  receive(argument, bytes.data(), bytes.size());
}

int Read(InjectedPart part, DeviceId device, MemorySpace space, InjectedProfiler::Receive* receive, void* argument) {
  std::string bytes;
  const bool is_read = Completes([&] {
    const Profiler& profiler = Profiler::Default();
    switch (part) {
      case kInjectedSnapshot:
        bytes = ToBytes(profiler.TakeSnapshot());
        break;
      case kInjectedExitSnapshot:
        bytes = ToBytes(ExitSnapshot());
        break;
      case kInjectedDeviceStats:
        bytes = ToBytes(profiler.Stats(device, space));
        break;
      default:
        bytes = ToBytes(profiler.GetTrackerStats());
    }
  });
  if (!is_read) return 0;
  Pass(bytes, receive, argument);
  return 1;
}

void ResetPeak(DeviceId device) noexcept { Profiler::Default().ResetPeak(device); }

int DropDevice(DeviceId device, int32_t survivor, const BufferId* kept, size_t count) {
  // The driver's wrapped calls end the records of its devices.
  if (IsOff() || Impl().probes.HasFixed(device)) return 1;
  return Completes([&] {
    std::optional<AllocatorId> allocator;
    if (survivor >= 0) allocator = static_cast<AllocatorId>(survivor);
    Profiler::Default().DropDevice(device, allocator, {kept, kept + count});
  });
}

uint32_t ExtendThreadTags(const char* key, size_t key_size, const char* value, size_t value_size) noexcept {
  const TagSetId before = current_tags;
  SetCurrentTags(ExtendTags(before, {key, key_size}, {value, value_size}));
  return before;
}

void SetTags(uint32_t tags) noexcept { SetCurrentTags(tags); }

bool BeginThreadScope(const Caller& caller) noexcept { return BeginScope(caller); }

int FindBufferAt(BufferId address, InjectedProfiler::Receive* receive, void* argument) {
  std::string bytes;
  bool is_found = false;
  const bool is_complete = Completes([&] {
    const std::optional<FoundBuffer> found = Profiler::Default().FindBufferAt(address);
    is_found = found.has_value();
    if (is_found) bytes = ToBytes(*found);
  });
  if (!is_complete) return -1;
  if (is_found) Pass(bytes, receive, argument);
  return is_found ? 1 : 0;
}

void RecordFailureOfCaller(const Caller& caller, DeviceId device, MemorySpace space, int64_t bytes) noexcept {
  if (!IsOff()) RecordFailure(Impl(), caller, device, space, bytes);
}

// Calls act(), which returns an absl::Status, for a function that returns the code.
template <typename Act>
int CodeOf(const Act& act, InjectedProfiler::Receive* receive, void* argument) {
  absl::Status status;
  if (!Completes([&] { status = act(); })) {
    Pass("the host has no memory for the recording", receive, argument);
    return static_cast<int>(absl::StatusCode::kResourceExhausted);
  }
  const absl::string_view message = status.message();
  if (!status.ok()) Pass({message.data(), message.size()}, receive, argument);
  return static_cast<int>(status.code());
}

int StartRecordingOfProgram(const char* path, size_t path_size, const InjectedRecording* options,
                            InjectedProfiler::Receive* receive, void* argument) {
  RecordingOptions recording;
  recording.max_bytes = options->max_bytes;
  recording.buffer_bytes = options->buffer_bytes;
  recording.sample_interval = std::chrono::milliseconds(options->sample_millis);
  return CodeOf([&] { return StartRecording({path, path_size}, recording); }, receive, argument);
}

int StopRecordingOfProgram(InjectedProfiler::Receive* receive, void* argument) {
  return CodeOf([] { return StopRecording(); }, receive, argument);
}

int SaveFlightOfProgram(const char* path, size_t path_size, InjectedProfiler::Receive* receive, void* argument) {
  return CodeOf([&] { return SaveFlightRecording({path, path_size}); }, receive, argument);
}

void BeginMarkOfProgram(const char* name, size_t name_size) {
  if (!Completes([&] { BeginMark({name, name_size}); })) EndMark();
}

constexpr InjectedProfiler MakeTable() {
  InjectedProfiler table = {};
  table.struct_size = sizeof(table);
  table.version = kInjectedVersion;
  table.copy = &found_injected;
  table.start = &Start;
  table.RecordAlloc = &Record<false>;
  table.RecordSegment = &RecordSegment;
  table.RecordBlock = &Record<true>;
  table.record_free = &RecordFree;
  table.record_block_free = &RecordBlockFree;
#define HBMPROF_SET(Result, Name, parameters, arguments) table.Name = &Name;
  HBMPROF_FORWARDED(HBMPROF_SET)
#undef HBMPROF_SET
  table.find_buffer = &FindBuffer;
  table.device = &Device;
  table.allocator = &Allocator;
  table.set_device_probe = &SetDeviceProbe;
  table.RemoveDeviceProbe = &RemoveDeviceProbe;
  table.set_counter = &SetCounter;
  table.read = &Read;
  table.ResetPeak = &ResetPeak;
  table.drop_device = &DropDevice;
  table.extend_tags = &ExtendThreadTags;
  table.set_tags = &SetTags;
  table.begin_scope = &BeginThreadScope;
  table.end_scope = &EndScope;
  table.find_buffer_at = &FindBufferAt;
  table.record_failure = &RecordFailureOfCaller;
  table.start_recording = &StartRecordingOfProgram;
  table.stop_recording = &StopRecordingOfProgram;
  table.save_flight_recording = &SaveFlightOfProgram;
  table.begin_mark = &BeginMarkOfProgram;
  table.end_mark = &EndMark;
  return table;
}
constexpr InjectedProfiler kTable = MakeTable();

// Makes the driver's memory at `address` a segment, and returns it. Returns nullopt if it cannot be a segment.
std::optional<DriverMemory> SegmentAt(const Caller& caller, uint64_t address, AllocatorId allocator) {
  std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(address));
  if (memory.has_value() && memory->range.is_mapped) {
    const auto rename = [](BufferId from, BufferId to) { return Impl().Rename(from, to); };
    if (!NameCudaMappingByAddress(memory->start, rename)) return std::nullopt;
    memory = DriverMemoryAt(BufferId(address));
  }
  if (!memory.has_value() || !BecomesSegment(caller, *memory, allocator)) return std::nullopt;
  return memory;
}

// Addresses that this thread has found to be in segments of one device. A block can lie in many of them (PyTorch's
// expandable segments), and later blocks mostly lie there too. Valid while CudaDriverRanges::changes() is `changes`.
struct KnownSegments {
  uint64_t first;
  uint64_t limit;
  uint64_t changes;
  DeviceId device;
};
__thread KnownSegments known_segments __attribute__((tls_model("initial-exec"))) = {};

// Makes the driver's memory at these addresses segments. Returns kRecorded if they are segments of `*device`.
DriverBlock MakeSegments(const Caller& caller, uint64_t address, uint64_t bytes, AllocatorId allocator,
                         std::optional<DeviceId>* device) {
  KnownSegments now = {};
  now.changes = CudaDriverRanges::changes();
  {
    const ReentryGuard guard;
    const KnownSegments& known = known_segments;
    if (guard.entered() && known.changes == now.changes && address >= known.first && address < known.limit &&
        bytes <= known.limit - address && device->value_or(known.device) == known.device) {
      *device = known.device;
      return DriverBlock::kRecorded;
    }
  }
  for (uint64_t at = address; at - address < bytes;) {
    const std::optional<DriverMemory> memory = SegmentAt(caller, at, allocator);
    if (!memory.has_value()) return DriverBlock::kOutside;
    const DeviceId found = memory->live.attributes.device;
    if (device->value_or(found) != found) return DriverBlock::kOtherDevice;
    *device = found;
    if (at == address) now.first = memory->start;
    at = memory->start + static_cast<uint64_t>(memory->live.bytes);
    now.limit = at;
    now.device = found;
  }
  const ReentryGuard guard;
  if (guard.entered()) known_segments = now;
  return DriverBlock::kRecorded;
}

}  // namespace

DriverBlock RecordDriverBlock(const Caller& caller, uint64_t address, uint64_t bytes, AllocatorId allocator,
                              std::optional<DeviceId>* device) {
  if (IsOff()) return DriverBlock::kDropped;
  const DriverBlock made = MakeSegments(caller, address, bytes, allocator, device);
  if (made != DriverBlock::kRecorded) return made;
  if (Impl().FindBlock(BufferId(address)).has_value()) return DriverBlock::kLive;
  const Attributes attributes = {device->value_or(kDefaultDevice), MemoryKind::kDevice, allocator};
  return Profiler::Default().RecordBlockFrom(caller, BufferId(address), bytes, attributes) ? DriverBlock::kRecorded
                                                                                           : DriverBlock::kDropped;
}

bool IsDriverSegment(uint64_t address) {
  const std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(address));
  return memory.has_value() && memory->is_segment();
}

std::optional<int64_t> DriverBlockBytes(DeviceId device, AllocatorId allocator) {
  return IsOff() ? std::nullopt : Impl().BlockBytes(device, allocator);
}

void EndDriverBlocks(DeviceId device, AllocatorId allocator) {
  if (!IsOff()) Impl().EndBlocks(device, allocator);
}

}  // namespace hbmprof::internal

extern "C" [[gnu::visibility("default")]] const hbmprof::internal::InjectedProfiler* hbmprof_cuda_profiler() {
  // The first use of the profiler can come from the copy in the program.
  hbmprof::internal::PrepareCudaTracking();
  return &hbmprof::internal::kTable;
}
