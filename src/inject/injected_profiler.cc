// The program can link a copy of hbmprof. That copy records into the injected library's profiler, which also records
// the driver's calls (core/injected/injected.h).
//
// Memory that the driver has allocated has one record, made by the wrapped calls, because these see its exact begin and
// end. If the program records the whole of such memory, the driver's record gets the stack, the tags and the allocator
// name of that call. If it records a part, the part becomes a block of that memory.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <string>

#include "hbmprof/c_api.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "src/api/output/exit_writer.h"
#include "src/api/public/c_calls.h"
#include "src/api/public/default_profiler.h"
#include "src/backends/calls/memory_from_before.h"
#include "src/backends/calls/ranges.h"
#include "src/base/fork.h"
#include "src/base/thread_state.h"
#include "src/capture/given_stack.h"
#include "src/capture/python/named_frames.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/tables/site_table.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/inject/frameworks/frameworks.h"

namespace hbmprof::internal {
namespace {

// Memory that the driver has allocated, and its live record.
struct DriverMemory {
  DriverRanges::Found found;  // the range is null if its record has ended
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
    const DriverRanges::Found& found = last_found.found;
    const bool is_near = id.value() >= found.first && id.value() <= found.last;
    if (is_near && found.changes == DriverRanges::changes()) return memory(last_found);
  }
  DriverRanges& ranges = DriverRanges::Instance();
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
  DriverRanges::Changed();
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
  return Impl().RecordBlock(caller, memory.PoolNamed(allocator), address, bytes, &*around);
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
  return Impl().Reattribute(caller, memory.record(), allocator);
}

// Whether the memory is a part of memory that the driver's calls count, at an unknown address: it has a handle, as
// PJRT's buffers do, and lies on a device whose allocations the driver's calls record.
bool IsCountedByDriver(BufferId id, const Attributes& attributes) {
  return id.is_handle() && SpaceOf(attributes.kind) == MemorySpace::kDevice && Impl().probes.Has(attributes.device);
}

// REQUIRES: !IsOff().
DriverBlock RecordNewBlock(const Caller& caller, const Pool& pool, uint64_t address, uint64_t bytes,
                           const Pool& around) {
  bool is_live = false;
  if (Impl().RecordBlock(caller, pool, BufferId(address), bytes, &around, &is_live)) return DriverBlock::kRecorded;
  return is_live ? DriverBlock::kLive : DriverBlock::kDropped;
}

}  // namespace

DriverBlock RecordKnownDriverBlock(const Caller& caller, const Pool& pool, uint64_t address, uint64_t bytes) {
  return IsOff() ? DriverBlock::kDropped : RecordNewBlock(caller, pool, address, bytes, pool);
}

DriverBlock RecordDriverBlock(const Caller& caller, uint64_t address, uint64_t bytes, AllocatorId allocator,
                              std::optional<DeviceId>* device) {
  std::optional<Pool> around;
  uint64_t at = address;
  do {
    std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(at));
    if (!memory.has_value() && AdoptMemoryFromBefore(at)) memory = DriverMemoryAt(BufferId(at));
    if (!memory.has_value()) return DriverBlock::kOutside;
    const std::optional<Pool> pool = PoolOf(*memory, allocator);
    if (!pool.has_value() || device->value_or(pool->device) != pool->device) return DriverBlock::kOutside;
    *device = pool->device;
    if (!around.has_value()) around = pool;
    at = memory->found.last + 1;
  } while (at - address < bytes);
  return RecordNewBlock(caller, {around->device, allocator}, address, bytes, *around);
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

void TrackingResumes() {
  DriverRanges::Changed();
  TorchMayHaveBlocks();
  TensorflowMayHaveBlocks();
  MstxMayHaveBlocks();
  static uintptr_t stack[1] = {};  // set once, because the memory's records can be made at any time
  if (stack[0] == 0) stack[0] = InternNamedFrame("[before tracking on]", "", 0, 0);
  if (stack[0] != 0) ExpectMemoryFromBefore(CallerOfStack(stack, 1));
}

void MemoryUnmaps(uint64_t address, size_t bytes) {
  const std::optional<DriverMemory> memory = DriverMemoryAt(BufferId(address));
  if (!memory.has_value() || !memory->is_segment()) return;
  Impl().EndBlocks(memory->pool(), address, bytes != 0 ? bytes : memory->found.last - address + 1);
}

}  // namespace hbmprof::internal

// --- The functions of the C interface that differ here, for copies of this library in the program (injected.h). ---

using namespace hbmprof::internal;  // NOLINT
using hbmprof::Attributes;
using hbmprof::BufferId;
using hbmprof::Caller;
using hbmprof::Pool;
using hbmprof::Profiler;

#pragma GCC visibility push(default)
extern "C" {

// It can be the first use of the profiler.
int hbmprof_injected_join() {
  PrepareTracking();
  return WithDefault([](Profiler& profiler) {
    StartThreads();
    WriteBeforeOlderExitHandlers();
    return profiler.enabled();
  });
}

int hbmprof_injected_exit_profile(uint8_t** bytes, size_t* size) try {
  const absl::StatusOr<std::string> profile = hbmprof::SerializePprof(ExitSnapshot(), &hbmprof::ElfSymbolizer());
  *bytes = profile.ok() ? static_cast<uint8_t*>(std::malloc(profile->size())) : nullptr;
  if (*bytes == nullptr) return HBMPROF_RESOURCE_EXHAUSTED;
  std::memcpy(*bytes, profile->data(), profile->size());
  *size = profile->size();
  return HBMPROF_OK;
} catch (const std::bad_alloc&) {
  return HBMPROF_RESOURCE_EXHAUSTED;
}

void hbmprof_injected_record_dropped(size_t bytes) {
  WithDefault([&](Profiler& profiler) { profiler.RecordDropped(bytes); });
}

int hbmprof_injected_record_alloc_with(const void* ptr, size_t bytes, const hbmprof_attributes* attributes) {
  const Caller caller = Caller::OfThisFunction();
  return WithAttributes(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Attributes& with) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(ptr);
    if (memory.has_value()) return RecordInside(*memory, caller, ptr, bytes, with);
    return !IsCountedByDriver(ptr, with) && profiler.RecordAllocFrom(caller, ptr, bytes, with);
  });
}

int hbmprof_injected_record_block(const void* address, size_t bytes, const hbmprof_attributes* attributes) {
  const Caller caller = Caller::OfThisFunction();
  return WithPool(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Pool& pool) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(address);
    if (memory.has_value()) return RecordBlockOf(*memory, caller, address, bytes, pool.allocator);
    return profiler.RecordBlockFrom(caller, pool, address, bytes);
  });
}

int hbmprof_injected_record_segment(const void* address, size_t bytes, const hbmprof_attributes* attributes) {
  const Caller caller = Caller::OfThisFunction();
  return WithPool(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Pool& pool) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(address);
    if (!memory.has_value()) return profiler.RecordSegmentFrom(caller, pool, address, bytes);
    if (!memory->is_segment()) return PoolOf(*memory, pool.allocator).has_value();
    // A block becomes a segment of an inner pool. Without a block, a new segment would count the memory twice.
    const bool is_block =
        Impl().FindBlock(memory->pool(), address).has_value() || PoolOfBlock(*memory, address).has_value();
    return is_block && profiler.RecordSegmentFrom(caller, memory->PoolNamed(pool.allocator), address, bytes);
  });
}

int hbmprof_injected_record_free(const void* ptr) {
  return WithDefault([&](Profiler& profiler) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(ptr);
    if (!memory.has_value()) return profiler.RecordFree(ptr).has_value();
    const std::optional<Pool> pool = PoolOfBlock(*memory, ptr);
    if (pool.has_value()) return profiler.RecordBlockFree(*pool, ptr).has_value();
    if (BufferId(ptr).value() == memory->start()) return true;
    return profiler.FindBuffer(ptr).has_value() && profiler.RecordFree(ptr).has_value();
  });
}

// The driver's memory stays a segment until the driver frees it.
int hbmprof_injected_record_segment_free(const void* address, const hbmprof_attributes* attributes) {
  return WithPool(attributes, /*is_allocation=*/false, [&](Profiler& profiler, const Pool& pool) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(address);
    if (!memory.has_value()) return profiler.RecordSegmentFree(pool, address).has_value();
    if (!memory->is_segment()) return false;
    return memory->pool().allocator == pool.allocator ||
           profiler.RecordSegmentFree(memory->PoolNamed(pool.allocator), address).has_value();
  });
}

int hbmprof_injected_record_block_free(const void* address, const hbmprof_attributes* attributes) {
  return WithPool(attributes, /*is_allocation=*/false, [&](Profiler& profiler, const Pool& pool) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(address);
    if (!memory.has_value()) return profiler.RecordBlockFree(pool, address).has_value();
    // This memory of the driver cannot hold blocks. A part of it was never recorded, so this is not a foreign free.
    return memory->can_hold_blocks() &&
           profiler.RecordBlockFree(memory->PoolNamed(pool.allocator), address).has_value();
  });
}

// Memory that the driver has allocated keeps the driver's size. Blocks in it can be resized.
int hbmprof_injected_record_resize(const void* ptr, size_t bytes) {
  return WithDefault([&](Profiler& profiler) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(ptr);
    if (!memory.has_value()) return profiler.RecordResize(ptr, bytes);
    const std::optional<Pool> pool = PoolOfBlock(*memory, ptr);
    return pool.has_value() && profiler.RecordBlockResize(*pool, ptr, bytes);
  });
}

int hbmprof_injected_record_block_resize(const void* address, size_t bytes, const hbmprof_attributes* attributes) {
  return WithPool(attributes, /*is_allocation=*/false, [&](Profiler& profiler, const Pool& pool) {
    const std::optional<DriverMemory> memory = DriverMemoryAt(address);
    return profiler.RecordBlockResize(memory.has_value() ? memory->PoolNamed(pool.allocator) : pool, address, bytes);
  });
}

// The driver's wrapped calls end the records of its devices.
void hbmprof_injected_drop_device(int device) {
  if (IsOff() || !IsDevice(device) || Impl().probes.Has(DeviceNumber(device))) return;
  hbmprof_drop_device(device);
}

// Each has the type of its function of the C interface.
#define HBMPROF_CHECK(name) \
  [[maybe_unused]] constexpr decltype(&hbmprof_##name) check_##name = &hbmprof_injected_##name;
HBMPROF_INJECTED_EVENTS(HBMPROF_CHECK)

}  // extern "C"
#pragma GCC visibility pop
