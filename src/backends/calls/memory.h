// Tables for memory of the driver that is not simply one address range with one owner: physical memory with its handles
// and mappings, memory of graphs, memory of other processes, buffers that end with a context, and pools. All functions
// are thread-safe. Also the ids of memory that has a handle instead of an address.
//
// Not in this file: the calls (adapter.h), sizes of arrays (cuda/driver/driver_structs.h).
#ifndef HBMPROF_SRC_BACKENDS_CALLS_MEMORY_H_
#define HBMPROF_SRC_BACKENDS_CALLS_MEMORY_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// The ids of handles that are not device addresses. The id of a null handle is null.
inline BufferId HandleId(NameSpace name_space, const void* handle) {
  return handle == nullptr ? BufferId() : BufferId::Handle(name_space, reinterpret_cast<uintptr_t>(handle));
}
inline BufferId ArrayId(const void* array) { return HandleId(NameSpace::kCudaArray, array); }
inline BufferId MipmappedArrayId(const void* array) { return HandleId(NameSpace::kCudaMipmappedArray, array); }
inline BufferId ExternalMemoryId(const void* memory) { return HandleId(NameSpace::kCudaExternalMemory, memory); }
// The id of physical memory. `number` is chosen by hbmprof and is not the driver's handle, because the driver can reuse
// the value of a handle while its memory is still live.
inline BufferId PhysicalId(uint64_t number) { return BufferId::Handle(NameSpace::kCudaPhysical, number); }
inline BufferId ModuleId(const void* module) { return HandleId(NameSpace::kCudaModule, module); }
inline BufferId LibraryId(const void* library) { return HandleId(NameSpace::kCudaLibrary, library); }

// Physical memory (cuMemCreate). It counts from its creation until its last handle is released and its last mapping is
// unmapped. The driver can reuse the value of a released handle while its memory is still mapped. HIP keeps the memory
// until the addresses are freed where it was mapped: then its record ends, and begins anew as "released, still held".
class PhysicalMemory {
 public:
  using DriverHandle = uint64_t;

  explicit PhysicalMemory(Profiler& profiler) : profiler_(profiler) {}

  // Call after `handle` was created.
  void Created(const Caller& caller, DriverHandle handle, size_t bytes, const Attributes& attributes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after `handle` was imported from another process. Its size is known when it is mapped.
  void Imported(DriverHandle handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after the driver has returned `handle` for the memory that is mapped at `address`.
  void Retained(DriverHandle handle, uint64_t address) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after [address, address+bytes) was mapped to `handle`'s memory. Returns the id of memory that was imported and
  // is mapped for the first time: the caller makes its record. Otherwise null.
  BufferId Mapped(uint64_t address, size_t bytes, DriverHandle handle) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call before `handle` is released. An unknown handle counts as a foreign free. Returns whether a record ended.
  bool Release(DriverHandle handle, const Caller& caller = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before the range is unmapped. Removes every mapping that lies inside the range, and returns their number. Sets
  // `*has_ended` to whether a record ended. `bytes` 0: of the mapping at `address`. `keeps`: the driver keeps the
  // memory until a later call for addresses that contain the range, then without `keeps`.
  int Unmap(uint64_t address, size_t bytes, bool* has_ended, bool keeps = false, const Caller& caller = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the records of all live physical memory.
  std::vector<BufferId> Live() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets all handles and mappings. Does not change records.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Physical {
    BufferId id;
    int64_t references = 0;  // handles that are not released
    int64_t mappings = 0;
    int64_t kept = 0;  // of the mappings, after their unmap
    bool recorded = false;
    bool held = false;  // only kept mappings are left
  };
  struct Mapping {
    size_t bytes;
    std::shared_ptr<Physical> memory;
    bool kept = false;
  };
  using Held = std::vector<std::pair<BufferId, LiveBuffer>>;
  using Handles = std::map<DriverHandle, std::shared_ptr<Physical>>;
  using Mappings = std::multimap<uint64_t, Mapping>;  // by address

  std::shared_ptr<Physical> NewMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the record ended. If the driver keeps the memory, adds what is to be recorded anew to `held`.
  bool EndIfUnused(Physical& memory, Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Record(const Caller& caller, const Held& held) ABSL_LOCKS_EXCLUDED(mutex_);

  Profiler& profiler_;
  // Not held while a call stack is captured.
  mutable Mutex mutex_;
  inline static std::atomic<uint64_t> last_id_{0};  // of all drivers
  Handles handles_ ABSL_GUARDED_BY(mutex_);
  Mappings mappings_ ABSL_GUARDED_BY(mutex_);
};

// Memory that graphs allocate. The call that creates a node reserves the address. The recorded stack is the stack of
// that call. The memory is in use from a launch until it is freed outside of the graph or by the launch of another
// graph. Destroying a graph does not free it. Memory that a graph frees itself is in use only while the graph runs, and
// is not counted. While no graph allocates memory, each function costs one relaxed load.
class GraphMemory {
  struct Node {
    BufferId id;
    uint32_t site;  // from Profiler::KeepSite, when the node was made
    size_t bytes;
    DeviceId device;
  };
  struct Nodes {
    std::vector<Node> allocated;
    std::vector<BufferId> freed;  // allocated by other graphs
  };

 public:
  using Graph = const void*;  // a graph or an executable graph
  // The changes that a launch made to the records.
  struct Launched {
    bool has_freed = false;  // memory of other graphs
    std::vector<BufferId> allocated;
    std::vector<DeviceId> devices;  // the devices of `allocated`
  };

  explicit GraphMemory(Profiler& profiler) : profiler_(profiler) {}

  // Returns whether any node was recorded so far.
  bool used() const { return used_.load(std::memory_order_relaxed); }

  // Call after a node of `graph` that allocates `id` was created. Records nothing yet.
  void AllocNodeMade(const Caller& caller, Graph graph, BufferId id, size_t bytes, const Attributes& attributes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after a node of `graph` that frees `id` was created.
  void FreeNodeMade(Graph graph, BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after `graph` became a part of `parent`.
  void Moved(Graph graph, Graph parent) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after `executable` was instantiated from `graph`. Later nodes of `graph` do not belong to it.
  void Instantiated(Graph graph, Graph executable) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call before a launch, because another thread can free the memory before the launch call returns, for example if a
  // host function of the graph notifies it. Allocates host memory before it changes a record. Call UndoLaunch if the
  // launch fails: it ends the new records.
  Launched Launch(Graph executable) ABSL_LOCKS_EXCLUDED(mutex_);
  void UndoLaunch(const Launched& launched) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call before `graph` is destroyed.
  void Remove(Graph graph) ABSL_LOCKS_EXCLUDED(mutex_);

  // Forgets all graphs. Does not change records.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the bytes of graphs in use on a device.
  int64_t BytesInUse(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Adds a node that frees `id`. If the same graph allocates `id`, removes that node instead.
  static void AddFree(Nodes& nodes, BufferId id);
  // Returns the live buffer `id` if it is memory of a graph.
  std::optional<LiveBuffer> Find(BufferId id) const;

  Profiler& profiler_;
  std::atomic<bool> used_{false};
  Mutex mutex_;
  std::map<Graph, Nodes> graphs_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> launched_ ABSL_GUARDED_BY(mutex_);  // ids in use, and some that have ended
};

// Memory that can be opened several times. CUDA returns the same address for the same shared handle and unmaps it at
// the last close, so only the first opening is an allocation and only the last close is a free. Openings and closes are
// counted also while recording is off.
class SharedOpenings {
  struct Opening {
    int64_t count = 0;
    DeviceId device = kDefaultDevice;
    const void* context = nullptr;
  };

 public:
  explicit SharedOpenings(Profiler& profiler) : profiler_(profiler) {}

  // After `address` was opened on `device`: calls `record()` if it was not open before. No lock is held during
  // `record()`. The last close cannot come earlier, because the program cannot close the memory before its opening call
  // has returned. `context`: the context that the opening ends with; null if it ends with a reset of the device.
  template <typename Record>
  void Open(const void* address, DeviceId device, const Record& record, const void* context = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    if (IsFirst(address, device, context)) record();
  }

  // Counts an opening while recording is off. Makes no record. The device is not known.
  void OpenUnrecorded(const void* address, const void* context = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call before one opening is closed. The last close removes the record. The close of an unknown address counts as a
  // foreign free. Returns whether a record ended.
  bool Close(const void* address) ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes the openings on a device, except those of contexts. Does not change records.
  void RemoveDevice(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before a context is destroyed: removes its openings and their records.
  void RemoveContext(const void* context) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records of all openings of contexts.
  std::vector<BufferId> OfContexts() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes all openings. Does not change records.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool IsFirst(const void* address, DeviceId device, const void* context) ABSL_LOCKS_EXCLUDED(mutex_);

  Profiler& profiler_;
  // Also held while a record is removed, so that the count of openings does not change meanwhile. Otherwise the record
  // could be that of another thread's opening.
  mutable Mutex mutex_;
  std::map<const void*, Opening> openings_ ABSL_GUARDED_BY(mutex_);
};

// The contexts that the program has created, and the buffers that end with each of them. All other buffers belong to a
// device's primary context or to no context.
class Contexts {
 public:
  struct Context {
    bool is_alive = true;  // guarded by Contexts::mutex_
  };
  using Owner = std::shared_ptr<Context>;
  using Buffers = std::map<uint64_t, Owner>;  // by BufferId

  explicit Contexts(Profiler& profiler) : profiler_(profiler) {}

  // Call after `handle` was created.
  void Created(const void* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the context of this handle; null if its creation was not recorded, or if it has ended.
  Owner Find(const void* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after a record of `id` was made in the context `owner`. Ends the record if the context has ended, or if the
  // host has no memory.
  void Recorded(const Owner& owner, BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before a buffer is freed, and before one is recorded that no created context owns. Changes no record.
  void Forget(BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets all contexts and buffers. Does not change records.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before a context is destroyed. Removes all its buffers and their records. Allocates no host memory. Returns
  // whether the creation of the context was recorded.
  bool End(const void* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the buffers of all contexts.
  std::vector<BufferId> AllBuffers() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Profiler& profiler_;
  mutable Mutex mutex_;
  std::map<const void*, Owner> handles_ ABSL_GUARDED_BY(mutex_);
  Buffers buffers_ ABSL_GUARDED_BY(mutex_);
};

// A pool that the program has created.
struct DriverPool {
  int device;         // on which its memory is; a negative number: on none, or on more than one
  MemorySpace space;  // of its memory
  size_t limit;       // the most bytes that it may have in use; 0: no limit
};

// The pools that the program has created. ForEach and Visit keep a pool from being destroyed while it is queried.
class DriverPools {
  struct Pool {
    explicit Pool(const DriverPool& of) : pool(of) {}
    const DriverPool pool;
    std::atomic<int> readers{0};  // calls of ForEach and Visit that use the pool now
  };
  using Pools = std::map<const void*, Pool>;

  // Counts a reader until its end, also if the thread is cancelled.
  class Reader {
   public:
    explicit Reader(Pool* pool) : pool_(pool) {}
    ~Reader() { pool_->readers.fetch_sub(1, std::memory_order_release); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    Pool* const pool_;
  };

 public:
  // Removes all pools, as Remove does. After Follow(false), Created has no effect until Follow(true).
  void Follow(bool follow) ABSL_LOCKS_EXCLUDED(mutex_);
  void Created(const void* handle, const DriverPool& pool) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before a pool is destroyed. Waits until no ForEach and no Visit uses it. Is no cancellation point.
  void Remove(const void* pool) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for all pools of the device.
  void RemoveDevice(int device) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls visit(pool) for every pool of the device. No lock is held during the call, and the pool is not destroyed.
  template <typename Visit>
  void ForEach(int device, const Visit& visit) ABSL_LOCKS_EXCLUDED(mutex_) {
    const void* last = nullptr;
    while (Pool* pool = Next(device, &last)) {
      const Reader reader(pool);
      visit(last);
    }
  }
  // Calls visit(pool) with the pool of Created if `handle` is that of one of the pools. No lock is held during the
  // call, and the pool is not destroyed.
  template <typename Visitor>
  void Visit(const void* handle, const Visitor& visit) ABSL_LOCKS_EXCLUDED(mutex_) {
    Pool* const found = Find(handle);
    if (found == nullptr) return;
    const Reader reader(found);
    visit(found->pool);
  }

 private:
  // Returns null if `pool` is not known. The caller is counted as a reader of the pool.
  Pool* Find(const void* pool) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first pool of the device after `*last`, and sets `*last` to it; null if there is none. The caller is
  // counted as a reader of the pool.
  Pool* Next(int device, const void** last) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  Pools pools_ ABSL_GUARDED_BY(mutex_);
  bool is_followed_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_MEMORY_H_
