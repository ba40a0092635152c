// The logic of tracking the driver's calls: for each type of call, a function that changes the records before or after
// the real call and returns the real call's result unchanged. It includes no CUDA header: real calls are passed as
// callables, and the driver is queried through CudaDriverQueries. Everything here is thread-safe.
//
// Not in this file: which function of the driver has which type (driver_calls.inc), tables (driver_memory.h), sizes
// (driver_sizes.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/driver/driver_memory.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/backends/cuda/driver/driver_ranges.h"
#include "src/backends/cuda/driver/memory_from_before.h"
#include "src/backends/cuda/driver/tracked_call.h"
#include "src/backends/cuda/shared/adapter.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {

class CudaDriverAdapter {
 public:
  // How often a tracked call looks for an instant without other calls: see CudaMemoryFromBefore::Measure.
  static constexpr int kMeasureAttempts = 3;

  CudaDriverAdapter(Profiler& profiler, CudaDriverQueries& queries)
      : profiler_(profiler),
        queries_(queries),
        physical_(profiler),
        graphs_(profiler),
        shared_(profiler),
        contexts_(profiler),
        from_before_(profiler, has_from_before_) {}

  // Records the CudaBuffer that `describe` returns, on the current device. `describe` is called only after a success.
  template <typename Call, typename Describe>
  int Allocate(const Caller& caller, const Call& call, const Describe& describe) {
    const CudaContexts::Owner owner = CurrentOwner();
    const int result = call();
    if (!Succeeded(result)) return result;
    const CudaBuffer buffer = describe();
    RecordOrDrop(buffer.bytes, [&] { Record(caller, buffer, owner); });
    return result;
  }

  template <typename Call>
  int AllocateAsync(const Caller& caller, const Call& call, const cuda_driver::CUdeviceptr* address, size_t bytes,
                    const CudaDriverStream& stream) {
    return ThenRecord(call, bytes, [&] { RecordAsync(caller, *address, bytes, stream); });
  }
  // Tracks an import of another process's memory, which is freed like stream-ordered memory.
  template <typename Call>
  int Import(const Caller& caller, const Call& call, const cuda_driver::CUdeviceptr* address) {
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
  int FreeAsync(const Call& call, cuda_driver::CUdeviceptr address, const CudaDriverStream& stream) {
    const CudaDriverQueries::Capture capture =
        graphs_.used() ? queries_.CaptureOf(stream) : CudaDriverQueries::Capture();
    return capture.graph == nullptr ? Free(BufferId(address), call) : AddFreeNode(call, capture.graph, address);
  }

  // Makes all tables empty. Call it when hbmprof is attached (`follow` is true) or detached (false): the calls between
  // these two are not seen, so the tables are wrong afterwards. After Follow(false) no pool is entered until
  // Follow(true), because a pool must not be queried after its end. Changes no records.
  void Follow(bool follow);

  // Returns the id of a device that is in use. The first call for a device sets its probe.
  DeviceId Device(int ordinal) { return queries_.Device(ordinal); }

  // The memory that was allocated before hbmprof was attached to the process.
  CudaMemoryFromBefore& from_before() { return from_before_; }
  // Makes a record of its own for the memory at `address`, of `bytes` bytes, which is a part of from_before(). Returns
  // whether it did.
  bool AdoptFromBefore(uint64_t address, size_t bytes);

  // --- Pools. They have no records; their idle bytes are part of the device's numbers. The table is kept up to date
  // also while recording is off. ---

  template <typename Call>
  int CreatePool(const Call& call, void* const* pool, const cuda_driver::MemPoolProps* properties) {
    return ThenChange(call, [&] {
      CudaPool made = {cuda_driver::DeviceOfLocation(properties->location), MemorySpace::kDevice, properties->max_size};
      // The location of managed memory is only where it is preferred.
      if (properties->type == cuda_driver::kAllocationManaged) {
        made.device = -1;
        made.space = MemorySpace::kManaged;
      } else if (cuda_driver::IsOnHost(properties->location)) {
        made.space = MemorySpace::kPinnedHost;
      }
      pools_.Created(*pool, made);
    });
  }
  template <typename Call>
  int DestroyPool(const Call& call, void* pool) {
    // A destroyed pool must not be queried.
    pools_.Remove(pool);
    return call();
  }
  // Calls `visit` for every pool that was created on this device and not destroyed. The pool is not destroyed during
  // the call.
  template <typename Visit>
  void ForEachPool(int device, const Visit& visit) {
    pools_.ForEach(device, visit);
  }
  // Calls `visit` with the CudaPool if the program has created `pool` and has not destroyed it. The pool is not
  // destroyed during the call.
  template <typename Visitor>
  void VisitPool(const void* pool, const Visitor& visit) {
    pools_.Visit(pool, visit);
  }

  // --- Physical memory and mappings. ---

  template <typename Call>
  int CreatePhysical(const Caller& caller, const Call& call, const cuda_driver::CUmemGenericAllocationHandle* handle,
                     size_t bytes, const cuda_driver::MemAllocationProp* properties) {
    return ThenRecord(call, bytes, [&] {
      const Attributes attributes = At(properties->location);
      physical_.Created(caller, *handle, bytes, attributes);
      HasRecorded(attributes.device);
    });
  }
  // A multicast object owns no memory; the memory that is bound to it has its own record.
  template <typename Call>
  int CreateMulticast(const Caller& caller, const Call& call, const cuda_driver::CUmemGenericAllocationHandle* handle) {
    return ThenRecord(call, 0, [&] { physical_.Created(caller, *handle, 0, OnCurrentDevice(MemoryKind::kAlias)); });
  }
  template <typename Call>
  int ImportPhysical(const Call& call, const cuda_driver::CUmemGenericAllocationHandle* handle) {
    return ThenRecord(call, 0, [&] { physical_.Imported(*handle); });
  }
  template <typename Call>
  int RetainPhysical(const Call& call, const cuda_driver::CUmemGenericAllocationHandle* handle, const void* address) {
    return ThenRecord(call, 0, [&] { physical_.Retained(*handle, reinterpret_cast<uintptr_t>(address)); });
  }
  template <typename Call>
  int ReleasePhysical(const Call& call, cuda_driver::CUmemGenericAllocationHandle handle) {
    return ThenCall(call, [&] { return physical_.Release(handle); });
  }
  template <typename Call>
  int Map(const Caller& caller, const Call& call, cuda_driver::CUdeviceptr address, size_t bytes,
          cuda_driver::CUmemGenericAllocationHandle handle) {
    return ThenRecord(
        call, bytes, [&] { physical_.Mapped(caller, address, bytes, handle, OnCurrentDevice(MemoryKind::kExternal)); });
  }
  // Calls `before(address, bytes)` before the records change.
  template <typename Call, typename Before>
  int Unmap(const Call& call, cuda_driver::CUdeviceptr address, size_t bytes, const Before& before) {
    return ThenCall(call, [&] {
      before(address, bytes);
      bool has_ended = false;
      if (physical_.Unmap(address, bytes, &has_ended) == 0) RemoveFromBefore(address, bytes);
      return has_ended;
    });
  }

  // --- Memory of other processes. Opening it again gives the same memory. Openings are counted also while recording is
  // off. ---

  template <typename Call>
  int OpenShared(const Caller& caller, const Call& call, const cuda_driver::CUdeviceptr* address) {
    return ThenChange(call, [&] {
      const void* const context = CreatedContext();
      if (profiler_.enabled()) return RecordShared(caller, *address, context);
      shared_.OpenUnrecorded(reinterpret_cast<const void*>(*address), context);
    });
  }
  template <typename Call>
  int CloseShared(const Call& call, cuda_driver::CUdeviceptr address) {
    const int result = TakeThenCall(profiler_, int{cuda_driver::kSuccess}, call,
                                    [&] { return shared_.Close(reinterpret_cast<const void*>(address)); });
    CudaDriverRanges::Changed();
    return result;
  }

  // --- Graphs. Memory of their nodes counts from a launch on: see CudaGraphMemory. ---

  // A new graph can have the handle of an earlier one whose end was not seen, for example after a failed capture. The
  // nodes of the earlier graph are removed.
  template <typename Call>
  int CreateGraph(const Call& call, void* const* graph) {
    const int result = call();
    if (result == cuda_driver::kSuccess) graphs_.Remove(*graph);
    return result;
  }
  template <typename Call>
  int BeginCapture(const Call& call, const CudaDriverStream& stream) {
    const int result = call();
    if (result == cuda_driver::kSuccess && graphs_.used()) graphs_.Remove(queries_.CaptureOf(stream).graph);
    return result;
  }
  template <typename Call>
  int AddAllocNode(const Caller& caller, const Call& call, const void* graph,
                   const cuda_driver::MemAllocNodeParams* params) {
    const int result = call();
    if (Succeeded(result)) RecordOrDrop(params->bytes, [&] { RecordAllocNode(caller, graph, *params); });
    return result;
  }
  template <typename Call>
  int AddNode(const Caller& caller, const Call& call, const void* graph, const cuda_driver::GraphNodeParams* params) {
    if (params != nullptr && params->type == cuda_driver::kGraphNodeMemAlloc) {
      return AddAllocNode(caller, call, graph, &params->alloc);
    }
    if (params != nullptr && params->type == cuda_driver::kGraphNodeMemFree) {
      return AddFreeNode(call, graph, params->freed);
    }
    return ThenRecord(call, 0, [&] {
      if (params->type == cuda_driver::kGraphNodeGraph && params->child.ownership == cuda_driver::kOwnershipMove) {
        graphs_.Moved(params->child.graph, graph);
      }
    });
  }
  template <typename Call>
  int AddFreeNode(const Call& call, const void* graph, cuda_driver::CUdeviceptr address) {
    return ThenRecord(call, 0, [&] { graphs_.FreeNodeMade(graph, BufferId(uint64_t{address})); });
  }
  template <typename Call>
  int Instantiate(const Call& call, const void* graph, void* const* executable) {
    return ThenRecord(call, 0, [&] { graphs_.Instantiated(graph, *executable); });
  }
  template <typename Call>
  int Launch(const Call& call, const void* executable) {
    if (!graphs_.used()) return call();
    CudaGraphMemory::Launched launched;
    const int result = ThenCall(call, [&] {
      launched = graphs_.Launch(executable);
      CudaDriverRanges::Changed();
      return launched.has_freed;
    });
    RecordOrDrop(0, [&] {
      if (result == cuda_driver::kSuccess) {
        for (const DeviceId device : launched.devices) HasRecorded(device);
      } else if (!launched.allocated.empty()) {
        graphs_.UndoLaunch(launched);
        CudaDriverRanges::Changed();
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
  // Returns the bytes of graphs in use on a device. Makes no query, because it is called in the device's probe.
  int64_t GraphBytes(DeviceId device) { return graphs_.BytesInUse(device); }

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
    return TakeThenCall(profiler_, int{cuda_driver::kSuccess}, call, [&] { return EndContext(context); });
  }
  // Ends the records of all memory of the context, also if the context is still retained, and while recording is off.
  template <typename Call>
  int ResetPrimaryContext(const Call& call, int device) {
    return ThenChange(call, [&] { EndPrimaryContext(device); });
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
    const CudaContexts::Owner owner = CurrentOwner();
    const Measurement before = Measure();
    const int result = call();
    if (!Succeeded(result)) return result;
    const size_t bytes = BytesSince(before);
    if (bytes == 0) return result;
    const CudaBuffer loaded = {name(), bytes, MemoryKind::kExecutable};
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

  bool Succeeded(int result) const { return result == cuda_driver::kSuccess && profiler_.enabled(); }
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
    if (result == cuda_driver::kSuccess) RecordOrDrop(0, change);
    return result;
  }
  template <typename Call, typename Take>
  int ThenCall(const Call& call, const Take& take) {
    return RemoveThenCall(profiler_, int{cuda_driver::kSuccess}, call, take);
  }
  bool has_contexts() const { return has_contexts_.load(std::memory_order_relaxed); }
  void Forget(BufferId id) {
    if (has_contexts()) contexts_.Forget(id);
  }
  Attributes OnCurrentDevice(MemoryKind kind) { return {queries_.Device(queries_.CurrentDevice()), kind, {}}; }
  Attributes At(const cuda_driver::MemLocation& location);

  // Returns the created context that an allocation of this thread belongs to. Called before the real call, because the
  // context can end right after it.
  CudaContexts::Owner CurrentOwner() {
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
    CudaDriverRanges::Instance().Add(id, is_view ? 0 : bytes, attributes.allocator != AllocatorId{});
    return true;
  }
  void Record(const Caller& caller, const CudaBuffer& buffer, const CudaContexts::Owner& owner) {
    const Attributes attributes = OnCurrentDevice(buffer.kind);
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
  void RecordAsync(const Caller& caller, uint64_t address, size_t bytes, const CudaDriverStream& stream);
  void RecordImported(const Caller& caller, uint64_t address);
  void RecordShared(const Caller& caller, uint64_t address, const void* context);
  void RecordAllocNode(const Caller& caller, const void* graph, const cuda_driver::MemAllocNodeParams& params);
  // Returns whether a record ended.
  bool Remove(BufferId id);
  // The memory at `address` has no record and is to be freed. `bytes`: its size; 0: the driver is asked for it.
  void RemoveFromBefore(uint64_t address, size_t bytes);
  // Returns whether the creation of the context was recorded.
  bool EndContext(const void* context);
  void EndPrimaryContext(int device);
  Measurement Measure();
  // Returns by how many bytes the device's free memory has decreased; 0 if that cannot be determined.
  size_t BytesSince(const Measurement& before);

  Profiler& profiler_;
  CudaDriverQueries& queries_;
  CudaPhysicalMemory physical_;
  CudaGraphMemory graphs_;
  SharedOpenings shared_;
  CudaContexts contexts_;
  CudaPools pools_;
  CudaMemoryFromBefore from_before_;
  // Whether any context was created, and whether there is memory from before: common calls look at nothing else.
  std::atomic<bool> has_contexts_{false};
  std::atomic<bool> has_from_before_{false};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_ADAPTER_H_
