// The logic of tracking the driver's calls: for each type of call, a function that changes the records before or after
// the real call and returns the real call's result unchanged. It knows no type of a vendor: real calls and what only a
// vendor's type says are passed as callables, and the driver is queried through DriverQueries. A call that returns
// kCallSucceeded has succeeded, for every vendor. Everything here is thread-safe.
//
// Not in this file: which function of a driver is tracked by which function here (roles.inc), tables (memory.h).
#ifndef HBMPROF_SRC_BACKENDS_CALLS_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_CALLS_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/calls/driver.h"
#include "src/backends/calls/events.h"
#include "src/backends/calls/memory.h"
#include "src/backends/calls/memory_from_before.h"
#include "src/backends/calls/ranges.h"

namespace hbmprof::internal {

// What every wrapped call returns after a success.
inline constexpr int kCallSucceeded = 0;

// A node of a graph: one of `allocated`, `freed` and `moved` is not null, or the node is not tracked.
struct GraphNode {
  BufferId allocated;
  size_t bytes = 0;  // of it
  Place place;       // of it
  BufferId freed;
  const void* moved = nullptr;  // the graph that becomes a part of the node's graph
};
inline GraphNode FreeNode(uint64_t address) { return {{}, 0, {}, BufferId(address)}; }

class DriverAdapter : public AdapterMemory {
 public:
  using Address = unsigned long long;
  using Handle = unsigned long long;  // of physical memory

  // How often a tracked call looks for an instant without other calls: see MemoryFromBefore::Measure.
  static constexpr int kMeasureAttempts = 3;

  DriverAdapter(Profiler& profiler, DriverQueries& queries)
      : profiler_(profiler),
        queries_(queries),
        physical_(profiler),
        graphs_(profiler),
        shared_(profiler),
        contexts_(profiler),
        from_before_(profiler, has_from_before_) {}

  // Records the DriverBuffer that `describe` returns. It is called only after a success.
  template <typename Call, typename Describe>
  int Allocate(const Caller& caller, const Call& call, const Describe& describe) {
    const Contexts::Owner owner = CurrentOwner();
    const int result = call();
    if (!Succeeded(result)) return result;
    const DriverBuffer buffer = describe();
    RecordOrDrop(buffer.bytes, [&] { Record(caller, buffer, owner); });
    return result;
  }

  template <typename Call>
  int AllocateAsync(const Caller& caller, const Call& call, const Address* address, size_t bytes,
                    const DriverStream& stream) {
    return ThenRecord(call, bytes, [&] { RecordAsync(caller, *address, bytes, stream); });
  }
  // Tracks an import of another process's memory, which is freed like stream-ordered memory.
  template <typename Call>
  int Import(const Caller& caller, const Call& call, const Address* address) {
    return ThenRecord(call, 0, [&] { RecordImported(caller, *address); });
  }

  template <typename Call>
  int Free(BufferId id, const Call& call) {
    // The address can be used again after recording was turned on.
    if (!profiler_.enabled()) Forget(id);
    return ThenCall(call, [&] { return Remove(id); });
  }
  // On a stream that is being captured, this adds a node to the graph that frees the memory.
  template <typename Call>
  int FreeAsync(const Call& call, Address address, const DriverStream& stream) {
    const DriverQueries::Capture capture = graphs_.used() ? queries_.CaptureOf(stream) : DriverQueries::Capture();
    if (capture.graph == nullptr) return Free(BufferId(address), call);
    return AddNode({}, call, capture.graph, [&] { return FreeNode(address); });
  }

  // Makes all tables empty. Call it when hbmprof is attached (`follow` is true) or detached (false): the calls between
  // these two are not seen, so the tables are wrong afterwards. After Follow(false) no pool is entered until
  // Follow(true), because a pool must not be queried after its end. Changes no records.
  void Follow(bool follow);

  // Returns the id of a device that is in use. The first call for a device sets its probe.
  DeviceId Device(int ordinal) { return queries_.Device(ordinal); }

  // The memory that was allocated before hbmprof was attached to the process.
  MemoryFromBefore& from_before() { return from_before_; }
  // Makes a record of its own for the memory at `address`, of `bytes` bytes, which is a part of from_before(). Returns
  // whether it did.
  bool AdoptFromBefore(uint64_t address, size_t bytes);

  // --- Pools. They have no records; their idle bytes are part of the device's numbers. The table is kept up to date
  // also while recording is off. ---

  // `describe` returns the DriverPool; it is called only after a success.
  template <typename Call, typename Describe>
  int CreatePool(const Call& call, void* const* pool, const Describe& describe) {
    return ThenChange(call, [&] { pools_.Created(*pool, describe()); });
  }
  template <typename Call>
  int DestroyPool(const Call& call, void* pool) {
    // A destroyed pool must not be queried.
    pools_.Remove(pool);
    return call();
  }
  void ForEachPool(int device, const std::function<void(void*)>& visit) override {
    pools_.ForEach(device, [&](const void* pool) { visit(const_cast<void*>(pool)); });
  }
  // Calls `visit` with the DriverPool if the program has created `pool` and has not destroyed it. The pool is not
  // destroyed during the call.
  template <typename Visitor>
  void VisitPool(const void* pool, const Visitor& visit) {
    pools_.Visit(pool, visit);
  }

  // --- Physical memory and mappings. ---

  // `place` returns the Place; it is called only after a success.
  template <typename Call, typename PlaceOf>
  int CreatePhysical(const Caller& caller, const Call& call, const Handle* handle, size_t bytes, const PlaceOf& place) {
    return ThenRecord(call, bytes, [&] {
      const Attributes attributes = At(place());
      physical_.Created(caller, *handle, bytes, attributes);
      HasRecorded(attributes.device);
    });
  }
  // A multicast object owns no memory; the memory that is bound to it has its own record.
  template <typename Call>
  int CreateMulticast(const Caller& caller, const Call& call, const Handle* handle) {
    return ThenRecord(call, 0, [&] { physical_.Created(caller, *handle, 0, OnCurrentDevice(MemoryKind::kAlias)); });
  }
  template <typename Call>
  int ImportPhysical(const Call& call, const Handle* handle) {
    return ThenRecord(call, 0, [&] { physical_.Imported(*handle); });
  }
  template <typename Call>
  int RetainPhysical(const Call& call, const Handle* handle, const void* address) {
    return ThenRecord(call, 0, [&] { physical_.Retained(*handle, reinterpret_cast<uintptr_t>(address)); });
  }
  template <typename Call>
  int ReleasePhysical(const Call& call, Handle handle, const Caller& caller = {}) {
    return ThenCall(call, [&] { return physical_.Release(handle, caller); });
  }
  template <typename Call>
  int Map(const Caller& caller, const Call& call, Address address, size_t bytes, Handle handle) {
    return ThenRecord(call, bytes, [&] {
      const BufferId imported = physical_.Mapped(address, bytes, handle);
      if (!imported.is_null())
        profiler_.RecordAllocFrom(caller, imported, bytes, OnCurrentDevice(MemoryKind::kExternal));
    });
  }
  // Calls `before(address, bytes)` before the records change. See PhysicalMemory::Unmap.
  template <typename Call, typename Before>
  int Unmap(const Call& call, Address address, size_t bytes, const Before& before, bool keeps = false,
            const Caller& caller = {}) {
    return ThenCall(call, [&] {
      before(address, bytes);
      bool has_ended = false;
      if (physical_.Unmap(address, bytes, &has_ended, keeps, caller) == 0) RemoveFromBefore(address, bytes);
      return has_ended;
    });
  }

  // --- Memory of other processes. Opening it again gives the same memory. Openings are counted also while recording is
  // off. ---

  template <typename Call>
  int OpenShared(const Caller& caller, const Call& call, const Address* address) {
    return ThenChange(call, [&] {
      const void* const context = CreatedContext();
      if (profiler_.enabled()) return RecordShared(caller, *address, context);
      shared_.OpenUnrecorded(reinterpret_cast<const void*>(*address), context);
    });
  }
  template <typename Call>
  int CloseShared(const Call& call, Address address) {
    const int result = TakeThenCall(profiler_, kCallSucceeded, call,
                                    [&] { return shared_.Close(reinterpret_cast<const void*>(address)); });
    DriverRanges::Changed();
    return result;
  }

  // --- Graphs. Memory of their nodes counts from a launch on: see GraphMemory. ---

  // A new graph can have the handle of an earlier one whose end was not seen, for example after a failed capture. The
  // nodes of the earlier graph are removed.
  template <typename Call>
  int CreateGraph(const Call& call, void* const* graph) {
    const int result = call();
    if (result == kCallSucceeded) graphs_.Remove(*graph);
    return result;
  }
  template <typename Call>
  int BeginCapture(const Call& call, const DriverStream& stream) {
    const int result = call();
    if (result == kCallSucceeded && graphs_.used()) graphs_.Remove(queries_.CaptureOf(stream).graph);
    return result;
  }
  // `describe` returns the GraphNode; it is called only after a success.
  template <typename Call, typename Describe>
  int AddNode(const Caller& caller, const Call& call, const void* graph, const Describe& describe) {
    const int result = call();
    if (!Succeeded(result)) return result;
    const GraphNode node = describe();
    RecordOrDrop(node.bytes, [&] { RecordNode(caller, graph, node); });
    return result;
  }
  template <typename Call>
  int Instantiate(const Call& call, const void* graph, void* const* executable) {
    return ThenRecord(call, 0, [&] { graphs_.Instantiated(graph, *executable); });
  }
  template <typename Call>
  int Launch(const Call& call, const void* executable) {
    if (!graphs_.used()) return call();
    GraphMemory::Launched launched;
    const int result = ThenCall(call, [&] {
      launched = graphs_.Launch(executable);
      DriverRanges::Changed();
      return launched.has_freed;
    });
    RecordOrDrop(0, [&] {
      if (result == kCallSucceeded) {
        for (const DeviceId device : launched.devices) HasRecorded(device);
      } else if (!launched.allocated.empty()) {
        graphs_.UndoLaunch(launched);
        DriverRanges::Changed();
      }
    });
    return result;
  }
  // `graph` is a graph or an executable graph.
  template <typename Call>
  int DestroyGraph(const Call& call, const void* graph) {
    graphs_.Remove(graph);
    return call();
  }
  int64_t GraphBytes(DeviceId device) override { return graphs_.BytesInUse(device); }

  // --- Contexts. The table of created contexts is kept up to date also while recording is off. ---

  template <typename Call>
  int CreateContext(const Call& call, void* const* context) {
    return ThenChange(call, [&] {
      has_contexts_.store(true, std::memory_order_relaxed);
      contexts_.Created(*context);
    });
  }
  // Ends the records of all memory of the context, except stream-ordered and physical memory. Memory of other processes
  // that was opened in it is closed.
  template <typename Call>
  int DestroyContext(const Call& call, const void* context) {
    return TakeThenCall(profiler_, kCallSucceeded, call, [&] { return EndContext(context); });
  }
  // Ends the records of all memory of the context, also if the context is still retained, and while recording is off.
  template <typename Call>
  int ResetPrimaryContext(const Call& call, int device) {
    return ThenChange(call, [&] { EndPrimaryContext(device); });
  }
  // The device frees all its memory, except that of the kinds for which `stays` returns true. Its pools end.
  template <typename Call>
  int EndDevice(const Call& call, int device, bool (*stays)(MemoryKind kind)) {
    pools_.RemoveDevice(device);
    return ThenChange(call, [&] { EndMemory(device, stays); });
  }
  // The last release resets the context.
  template <typename Call>
  int ReleasePrimaryContext(const Call& call, int device) {
    return ThenChange(call, [&] {
      if (!queries_.PrimaryContextActive(device)) EndPrimaryContext(device);
    });
  }

  // --- Program code. ---
  // Its size is measured as the decrease of the device's free memory. It is unknown if another call ran meanwhile.

  template <typename Call, typename Name>
  int Load(const Caller& caller, const Call& call, const Name& name) {
    const Contexts::Owner owner = CurrentOwner();
    const Measurement before = Measure();
    const int result = call();
    if (!Succeeded(result)) return result;
    const size_t bytes = BytesSince(before);
    if (bytes == 0) return result;
    const DriverBuffer loaded = {name(), bytes, MemoryKind::kExecutable};
    RecordOrDrop(bytes, [&] { Record(caller, loaded, owner); });
    return result;
  }
  template <typename Call>
  int Unload(BufferId id, const Call& call) {
    // Code whose size could not be measured has no record.
    return profiler_.FindBuffer(id).has_value() ? Free(id, call) : call();
  }

 private:
  struct Measurement {
    std::optional<int64_t> free_bytes;  // nullopt: not known
    uint64_t calls = 0;
  };

  bool Succeeded(int result) const { return result == kCallSucceeded && profiler_.enabled(); }
  // See internal::RecordOrDrop.
  template <typename Record>
  void RecordOrDrop(size_t bytes, const Record& record) {
    if (!TryRun(record)) profiler_.RecordDropped(bytes);
  }
  template <typename Call, typename Record>
  int ThenRecord(const Call& call, size_t bytes, const Record& record) {
    const int result = call();
    if (Succeeded(result)) RecordOrDrop(bytes, record);
    return result;
  }
  // Changes a table after a success, also while recording is off.
  template <typename Call, typename Change>
  int ThenChange(const Call& call, const Change& change) {
    const int result = call();
    if (result == kCallSucceeded) RecordOrDrop(0, change);
    return result;
  }
  template <typename Call, typename Take>
  int ThenCall(const Call& call, const Take& take) {
    return RemoveThenCall(profiler_, kCallSucceeded, call, take);
  }
  bool has_contexts() const { return has_contexts_.load(std::memory_order_relaxed); }
  void Forget(BufferId id) {
    if (has_contexts()) contexts_.Forget(id);
  }
  Attributes OnCurrentDevice(MemoryKind kind) { return {queries_.Device(queries_.CurrentDevice()), kind, {}}; }
  Attributes At(const Place& place) {
    return place.device < 0 ? OnCurrentDevice(place.kind) : Attributes{queries_.Device(place.device), place.kind, {}};
  }

  // Returns the created context that an allocation of this thread belongs to. Called before the real call, because the
  // context can end right after it.
  Contexts::Owner CurrentOwner() {
    return has_contexts() && profiler_.enabled() ? contexts_.Find(queries_.CurrentContext()) : nullptr;
  }
  // Returns the thread's current context if the program has created it; otherwise null.
  const void* CreatedContext() {
    const void* const context = has_contexts() ? queries_.CurrentContext() : nullptr;
    return contexts_.Find(context) == nullptr ? nullptr : context;
  }
  // Records memory that the driver has allocated at `id`.
  bool RecordRange(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
    if (!profiler_.RecordAllocFrom(caller, id, bytes, attributes)) return false;
    const bool is_view = attributes.kind == MemoryKind::kAlias;
    DriverRanges::Instance().Add(id, is_view ? 0 : bytes, attributes.allocator != AllocatorId{});
    return true;
  }
  void Record(const Caller& caller, const DriverBuffer& buffer, const Contexts::Owner& owner) {
    const Attributes attributes = At({buffer.device, buffer.kind});
    // The end of an earlier buffer with this handle was perhaps not seen, because recording was off.
    if (owner == nullptr) Forget(buffer.id);
    if (RecordRange(caller, buffer.id, buffer.bytes, attributes) && owner != nullptr) {
      contexts_.Recorded(owner, buffer.id);
    }
    HasRecorded(attributes.device);
  }
  // To be called after an allocation on the device was recorded. Memory from before is measured by the first such call
  // that can do so.
  void HasRecorded(DeviceId device) {
    if (has_from_before_.load(std::memory_order_acquire)) from_before_.Measure(device, kMeasureAttempts);
    queries_.KeepBaseline(device);
  }
  void RecordAsync(const Caller& caller, uint64_t address, size_t bytes, const DriverStream& stream);
  void RecordImported(const Caller& caller, uint64_t address);
  void RecordShared(const Caller& caller, uint64_t address, const void* context);
  void RecordNode(const Caller& caller, const void* graph, const GraphNode& node);
  // Returns whether a record ended.
  bool Remove(BufferId id);
  // The memory at `address` has no record and is to be freed. `bytes`: its size; 0: the driver is asked for it.
  void RemoveFromBefore(uint64_t address, size_t bytes);
  // Returns whether the creation of the context was recorded.
  bool EndContext(const void* context);
  void EndPrimaryContext(int device);
  void EndMemory(int device, bool (*stays)(MemoryKind kind));
  // Calls visit(range) for each range of memory of all drivers.
  template <typename Visit>
  static void ForEachRange(const Visit& visit) {
    for (DriverRanges::Found found; found.last != UINT64_MAX;) {
      found = DriverRanges::Instance().Find(BufferId(found.last + 1));
      if (found.changes == 0) break;  // inside the profiler
      if (!found.range.record.is_null()) visit(found.range);
    }
  }
  Measurement Measure();
  // Returns by how many bytes the device's free memory has decreased; 0 if that cannot be determined.
  size_t BytesSince(const Measurement& before);

  Profiler& profiler_;
  DriverQueries& queries_;
  PhysicalMemory physical_;
  GraphMemory graphs_;
  SharedOpenings shared_;
  Contexts contexts_;
  DriverPools pools_;
  MemoryFromBefore from_before_;
  // Whether any context was created, and whether there is memory from before: common calls look at nothing else.
  std::atomic<bool> has_contexts_{false};
  std::atomic<bool> has_from_before_{false};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_ADAPTER_H_
