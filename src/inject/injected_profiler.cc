// The injected library's side of core/joined/injected.h: the program can link a copy of hbmprof. That copy records into
// the injected library's profiler, which also records the driver's calls.
//
// Memory that the driver has allocated has one record, made by the wrapped calls, because these see its exact begin and
// end. If the program records the whole of such memory, the driver's record gets the stack, the tags and the allocator
// name of that call. If it records a part, the part becomes a block of that memory.
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "src/api/output/exit_writer.h"
#include "src/api/public/default_profiler.h"
#include "src/backends/cuda/driver/driver_ranges.h"
#include "src/base/completes.h"
#include "src/base/fork.h"
#include "src/base/thread_state.h"
#include "src/core/joined/injected.h"
#include "src/core/joined/snapshot_bytes.h"
#include "src/core/profiler_impl.h"
#include "src/core/scoped_caller.h"
#include "src/core/tables/site_table.h"
#include "src/core/tables/tags.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof::internal {
namespace {

// Memory that the driver has allocated, and its live record.
struct DriverMemory {
  CudaDriverRanges::Found found;  // the range is null if its record has ended
  LiveBuffer live;

  uint64_t start() const { return found.first; }
  BufferId record() const { return found.range.record; }
  bool is_segment() const { return live.attributes.kind == MemoryKind::kPool; }
  // The pool whose segment it is.
  Pool pool() const { return PoolNamed(live.attributes.allocator); }
  // The device of blocks is that of their memory, also if the program names another one.
  Pool PoolNamed(AllocatorId allocator) const { return {live.attributes.device, allocator}; }
  // Whether the memory is a segment or can become one. Memory of graphs must keep its kind, and memory spaces other
  // than kDevice have no segments.
  bool can_hold_blocks() const {
    const MemoryKind kind = live.attributes.kind;
    return kind == MemoryKind::kDevice || kind == MemoryKind::kExternal || kind == MemoryKind::kVmm || is_segment();
  }
};

// The last result of this thread. Most records of a pool lie in the same memory.
__thread DriverMemory last_found __attribute__((tls_model("initial-exec"))) = {};

std::optional<DriverMemory> DriverMemoryAt(BufferId id) {
  if (IsOff()) return std::nullopt;
  const auto memory = [](const DriverMemory& known) {
    return known.record().is_null() ? std::nullopt : std::optional<DriverMemory>(known);
  };
  {
    const ReentryGuard guard;
    if (!guard.entered()) return std::nullopt;  // nothing is recorded inside the tracker
    const CudaDriverRanges::Found& found = last_found.found;
    const bool is_near = id.value() >= found.first && id.value() <= found.last;
    if (is_near && found.changes == CudaDriverRanges::changes()) return memory(last_found);
  }
  CudaDriverRanges& ranges = CudaDriverRanges::Instance();
  DriverMemory now;
  now.found = ranges.Find(id);
  if (!now.record().is_null()) {
    const std::optional<LiveBuffer> live = Profiler::Default().FindBuffer(now.record());
    if (live.has_value()) {
      now.live = *live;
    } else {
      ranges.Remove(now.start());
      now.found.range = {};
    }
  }
  const ReentryGuard guard;
  if (guard.entered()) last_found = now;
  return memory(now);
}

// REQUIRES: !IsOff().
ProfilerImpl& Impl() { return ProfilerAccess::ImplOf(Profiler::Default()); }

// Makes the memory a segment of the pool of this name, unless it is a segment already. Returns the pool whose segment
// it is then.
std::optional<Pool> PoolOf(const DriverMemory& memory, AllocatorId allocator) {
  if (memory.is_segment()) return memory.pool();
  if (!memory.can_hold_blocks()) return std::nullopt;
  const Pool pool = memory.PoolNamed(allocator);
  const bool is_made = Impl().MakeSegment(memory.record(), pool);
  CudaDriverRanges::Changed();
  if (is_made) return pool;
  // Another thread can have made it a segment first.
  const std::optional<DriverMemory> now = DriverMemoryAt(BufferId(memory.start()));
  return now.has_value() && now->is_segment() ? std::optional(now->pool()) : std::nullopt;
}

// The names of the pools whose blocks the program has recorded in the driver's memory: a bit for each AllocatorId.
std::atomic<uint64_t> block_names[kMaxAllocators / 64];

// Returns the pool that has a live block at `address`, which the program has recorded in this memory.
std::optional<Pool> PoolOfBlock(const DriverMemory& memory, BufferId address) {
  if (!memory.is_segment()) return std::nullopt;
  for (int i = 0; i < kMaxAllocators; ++i) {
    if ((block_names[i / 64].load(std::memory_order_relaxed) >> (i % 64) & 1) == 0) continue;
    const Pool pool = memory.PoolNamed(AllocatorId(i));
    if (Impl().FindBlock(pool, address).has_value()) return pool;
  }
  return std::nullopt;
}

bool RecordBlockOf(const DriverMemory& memory, const Caller& caller, BufferId address, size_t bytes,
                   AllocatorId allocator) {
  const std::optional<Pool> around = PoolOf(memory, allocator);
  if (!around.has_value()) return false;
  const auto name = static_cast<uint32_t>(allocator);
  std::atomic<uint64_t>& names = block_names[name / 64 % std::size(block_names)];
  const uint64_t bit = uint64_t{1} << name % 64;
  if ((names.load(std::memory_order_relaxed) & bit) == 0) names.fetch_or(bit, std::memory_order_relaxed);
  return Impl().RecordBlockIn(caller, memory.PoolNamed(allocator), *around, address, bytes);
}

bool RecordInside(const DriverMemory& memory, const Caller& caller, BufferId id, size_t bytes,
                  const Attributes& attributes) {
  const bool is_start = id.value() == memory.start();
  // A view counts no bytes. A view at the start of the memory would have the id of the driver's record, so it is not
  // recorded.
  if (attributes.kind == MemoryKind::kAlias) {
    return !is_start && Profiler::Default().RecordAllocFrom(caller, id, bytes, attributes);
  }
  const bool is_whole = is_start && (id.is_handle() || bytes == static_cast<size_t>(memory.live.bytes));
  if (!is_whole || memory.is_segment()) return RecordBlockOf(memory, caller, id, bytes, attributes.allocator);
  // The label of stream-ordered memory must stay: a reset of the device uses it.
  const AllocatorId allocator = memory.found.range.has_allocator ? AllocatorId{} : attributes.allocator;
  return Impl().Refine(caller, memory.record(), allocator);
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

bool RecordAlloc(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) noexcept {
  Profiler& profiler = Profiler::Default();
  if (!profiler.enabled()) return false;
  const std::optional<DriverMemory> memory = DriverMemoryAt(id);
  if (memory.has_value()) return RecordInside(*memory, caller, id, bytes, attributes);
  return !IsCountedByDriver(id, attributes) && profiler.RecordAllocFrom(caller, id, bytes, attributes);
}

bool RecordBlock(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) noexcept {
  Profiler& profiler = Profiler::Default();
  if (!profiler.enabled()) return false;
  const std::optional<DriverMemory> memory = DriverMemoryAt(address);
  if (memory.has_value()) return RecordBlockOf(*memory, caller, address, bytes, pool.allocator);
  return profiler.RecordBlockFrom(caller, pool, address, bytes);
}

bool RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) noexcept {
  Profiler& profiler = Profiler::Default();
  if (!profiler.enabled()) return false;
  const std::optional<DriverMemory> memory = DriverMemoryAt(address);
  if (!memory.has_value()) return profiler.RecordSegmentFrom(caller, pool, address, bytes);
  if (!memory->is_segment()) return PoolOf(*memory, pool.allocator).has_value();
  // A block becomes a segment of an inner pool. Without a block, a new segment would count the memory twice.
  const bool is_block =
      Impl().FindBlock(memory->pool(), address).has_value() || PoolOfBlock(*memory, address).has_value();
  return is_block && profiler.RecordSegmentFrom(caller, memory->PoolNamed(pool.allocator), address, bytes);
}

int64_t RecordFree(BufferId id) noexcept {
  Profiler& profiler = Profiler::Default();
  const std::optional<DriverMemory> memory = DriverMemoryAt(id);
  if (!memory.has_value()) return profiler.RecordFree(id).value_or(-1);
  const std::optional<Pool> pool = PoolOfBlock(*memory, id);
  if (pool.has_value()) return profiler.RecordBlockFree(*pool, id).value_or(-1);
  if (id.value() == memory->start()) return memory->live.bytes;
  return profiler.FindBuffer(id).has_value() ? profiler.RecordFree(id).value_or(-1) : -1;
}

// The driver's memory stays a segment until the driver frees it.
int64_t RecordSegmentFree(const Pool& pool, BufferId address) noexcept {
  Profiler& profiler = Profiler::Default();
  const std::optional<DriverMemory> memory = DriverMemoryAt(address);
  if (!memory.has_value()) return profiler.RecordSegmentFree(pool, address).value_or(-1);
  if (!memory->is_segment()) return -1;
  if (memory->pool().allocator == pool.allocator) return memory->live.bytes;
  return profiler.RecordSegmentFree(memory->PoolNamed(pool.allocator), address).value_or(-1);
}

int64_t RecordBlockFree(const Pool& pool, BufferId address) noexcept {
  Profiler& profiler = Profiler::Default();
  const std::optional<DriverMemory> memory = DriverMemoryAt(address);
  if (!memory.has_value()) return profiler.RecordBlockFree(pool, address).value_or(-1);
  // This memory of the driver cannot hold blocks. A part of it was never recorded, so this is not a foreign free.
  if (!memory->can_hold_blocks()) return -1;
  return profiler.RecordBlockFree(memory->PoolNamed(pool.allocator), address).value_or(-1);
}

// Memory that the driver has allocated keeps the driver's size. Blocks in it can be resized.
bool RecordResize(BufferId id, size_t bytes) noexcept {
  Profiler& profiler = Profiler::Default();
  const std::optional<DriverMemory> memory = DriverMemoryAt(id);
  if (!memory.has_value()) return profiler.RecordResize(id, bytes);
  const std::optional<Pool> pool = PoolOfBlock(*memory, id);
  return pool.has_value() && profiler.RecordBlockResize(*pool, id, bytes);
}

bool RecordBlockResize(const Pool& pool, BufferId address, size_t bytes) noexcept {
  const std::optional<DriverMemory> memory = DriverMemoryAt(address);
  const Pool of_block = memory.has_value() ? memory->PoolNamed(pool.allocator) : pool;
  return Profiler::Default().RecordBlockResize(of_block, address, bytes);
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
  const std::optional<Pool> pool = memory.has_value() ? PoolOfBlock(*memory, id) : std::nullopt;
  const std::optional<LiveBuffer> live =
      pool.has_value() ? Impl().FindBlock(*pool, id) : Profiler::Default().FindBuffer(id);
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
  table.RecordAlloc = &RecordAlloc;
  table.RecordSegment = &RecordSegment;
  table.RecordBlock = &RecordBlock;
  table.record_free = &RecordFree;
  table.record_segment_free = &RecordSegmentFree;
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

}  // namespace

DriverBlock RecordKnownDriverBlock(const Caller& caller, const Pool& pool, uint64_t address, uint64_t bytes) {
  if (IsOff()) return DriverBlock::kDropped;
  if (Impl().FindBlock(pool, BufferId(address)).has_value()) return DriverBlock::kLive;
  return Impl().RecordBlockIn(caller, pool, pool, BufferId(address), bytes) ? DriverBlock::kRecorded
                                                                            : DriverBlock::kDropped;
}

DriverBlock RecordDriverBlock(const Caller& caller, uint64_t address, uint64_t bytes, AllocatorId allocator,
                              std::optional<DeviceId>* device) {
  std::optional<Pool> around;
  uint64_t at = address;
  do {
    std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(at));
    if (!memory.has_value() && AdoptCudaMemoryFromBefore(at)) memory = DriverMemoryAt(BufferId(at));
    if (!memory.has_value()) return DriverBlock::kOutside;
    const std::optional<Pool> pool = PoolOf(*memory, allocator);
    if (!pool.has_value() || device->value_or(pool->device) != pool->device) return DriverBlock::kOutside;
    *device = pool->device;
    if (!around.has_value()) around = pool;
    at = memory->found.last + 1;
  } while (at - address < bytes);
  const Pool own = {around->device, allocator};
  if (Impl().FindBlock(own, BufferId(address)).has_value()) return DriverBlock::kLive;
  return Impl().RecordBlockIn(caller, own, *around, BufferId(address), bytes) ? DriverBlock::kRecorded
                                                                              : DriverBlock::kDropped;
}

std::optional<DeviceId> DeviceOfDriverSegment(uint64_t address) {
  const std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(address));
  if (!memory.has_value() || !memory->is_segment()) return std::nullopt;
  return memory->live.attributes.device;
}

int64_t ReservedBytes(const Pool& pool) { return IsOff() ? 0 : Impl().ReservedBytes(pool); }
int64_t AllocatedBytes(const Pool& pool) { return IsOff() ? 0 : Impl().StatsOf(pool).bytes_allocated; }
void EndDriverBlocks(const Pool& pool) {
  if (!IsOff()) Impl().EndBlocks(pool);
}

void CudaMemoryUnmaps(uint64_t address, size_t bytes) {
  const std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(address));
  if (memory.has_value() && memory->is_segment()) Impl().EndBlocksIn(memory->pool(), address, bytes);
}

}  // namespace hbmprof::internal

extern "C" [[gnu::visibility("default")]] const hbmprof::internal::InjectedProfiler* hbmprof_cuda_profiler() {
  // The first use of the profiler can come from the copy in the program.
  hbmprof::internal::PrepareCudaTracking();
  return &hbmprof::internal::kTable;
}
