// What the driver's calls leave behind that is not one address with one owner: physical memory with its handles and
// mappings, memory of graphs, and buffers that go away with a context. Pure tables; all functions are thread-safe.
// Not here: the calls (driver_adapter.h), sizes and shared openings (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MEMORY_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MEMORY_H_

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

// Physical memory (cuMemCreate): counted from its creation until its last handle is released and its last mapping is
// gone. A handle's value may be given out again while the memory it once named lives on in mappings.
class CudaPhysicalMemory {
 public:
  using DriverHandle = uint64_t;

  // A box in one level and layer of a sparse array, or a range of its mip tail.
  struct Tiles {
    uint64_t subresource = 0;
    uint64_t begin[3] = {};
    uint64_t end[3] = {};
  };

  // What calls took out, so that it can be put back if the real call fails. It keeps the tables' own nodes, so that to
  // take something out or to put it back needs no memory.
  class Taken;

  explicit CudaPhysicalMemory(Profiler& profiler) : profiler_(profiler) {}

  // After the call succeeded: `handle` names new memory.
  void Created(const Caller& caller, DriverHandle handle, size_t bytes, const Attributes& attributes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After `handle` was imported from another process. Its size shows when it is mapped.
  void Imported(DriverHandle handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // After `handle` was given out once more for the memory mapped at `address`.
  void Retained(DriverHandle handle, uint64_t address) ABSL_LOCKS_EXCLUDED(mutex_);
  // After [address, address+bytes) was mapped to `handle`'s memory. `attributes` is for memory that was imported.
  void Mapped(const Caller& caller, uint64_t address, size_t bytes, DriverHandle handle, const Attributes& attributes)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Before the call. An unknown handle is a foreign free.
  Taken Release(DriverHandle handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before the call: every mapping inside of the range goes.
  Taken Unmap(uint64_t address, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(Taken taken) ABSL_LOCKS_EXCLUDED(mutex_);

  // After tiles of the sparse array `array` were mapped to `handle`'s memory, instead of what they were mapped to.
  void MappedTiles(BufferId array, const Tiles& tiles, DriverHandle handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // After they were unmapped.
  void UnmappedTiles(BufferId array, const Tiles& tiles) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<BufferId> ArraysWithTiles() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Before an array is destroyed: all its mappings go, to `taken`.
  void UnmapArray(BufferId array, Taken& taken) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives the record of the physical memory that is mapped at exactly `address` that address for its id, until the
  // record ends, so that it can become a segment. `rename` changes the id of a live record, and returns whether it did.
  // Returns false, and changes nothing, if the memory has no record of just the mapped bytes, is mapped more than once,
  // or `rename` fails.
  bool NameByAddress(uint64_t address, bool (*rename)(BufferId from, BufferId to)) ABSL_LOCKS_EXCLUDED(mutex_);

  // The records of all physical memory that is alive.
  std::vector<BufferId> Live() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Physical {
    BufferId id;
    int64_t references = 0;  // handles given out and not released
    int64_t mappings = 0;
    bool recorded = false;
    FreedRecord ended;  // of its record, once nothing refers to it
  };
  struct TileMapping {
    Tiles tiles;
    std::shared_ptr<Physical> memory;
  };
  using Handles = std::map<DriverHandle, std::shared_ptr<Physical>>;
  using Mappings = std::map<uint64_t, std::pair<size_t, std::shared_ptr<Physical>>>;  // by address
  using TilesOfArrays = std::map<uint64_t, std::vector<TileMapping>>;

 public:
  class Taken {
    friend class CudaPhysicalMemory;
    std::shared_ptr<Physical> released;
    Handles::node_type handle;  // if that was its last reference
    Mappings unmapped;
    TilesOfArrays tiles;
  };

 private:
  // The array's tiles in `tiles` are now `memory`'s, or nobody's. What is left of a box is up to six boxes.
  void SetTiles(BufferId array, const Tiles& tiles, const std::shared_ptr<Physical>& memory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Physical> NewMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfUnused(Physical& memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unend(Physical& memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Profiler& profiler_;
  // Not held while something is recorded that takes a call stack.
  mutable Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  Handles handles_ ABSL_GUARDED_BY(mutex_);
  Mappings mappings_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_tiles_{false};
  TilesOfArrays tiles_ ABSL_GUARDED_BY(mutex_);
};

// Memory that graphs allocate. The making of a node reserves its address, and the stack is taken then; memory is there
// from a launch on, until it is freed outside of the graph or by another graph's launch. Destroying a graph frees
// nothing of that. What a graph frees itself is there only while it runs, and is not counted. Costs one relaxed load
// per event while there is none.
class CudaGraphMemory {
  struct Node {
    BufferId id;
    FreedRecord record;  // of its making, to be put back at each launch
  };
  struct Nodes {
    std::vector<Node> allocated;
    std::vector<BufferId> freed;  // that other graphs allocated
  };

 public:
  using Graph = const void*;  // or what was instantiated from one
  using Graphs = std::map<Graph, Nodes>;
  using Removed = Graphs::node_type;
  // What a launch did to the records.
  struct Launched {
    std::vector<FreedRecord> freed;  // of other graphs
    std::vector<BufferId> allocated;
    std::vector<DeviceId> devices;  // on which memory is in use now that was not before
  };

  explicit CudaGraphMemory(Profiler& profiler) : profiler_(profiler) {}

  // Whether there has been any.
  bool used() const { return used_.load(std::memory_order_relaxed); }

  // After a node of `graph` was given `id`. It counts as an allocation, of which nothing is in use.
  void Made(const Caller& caller, Graph graph, BufferId id, size_t bytes, const Attributes& attributes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After a node of `graph` was made that frees `id`.
  void MadeFree(Graph graph, BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // After `graph` became a part of `parent`.
  void Moved(Graph graph, Graph parent) ABSL_LOCKS_EXCLUDED(mutex_);
  // After `executable` was made from `graph` as it is then.
  void Instantiated(Graph graph, Graph executable) ABSL_LOCKS_EXCLUDED(mutex_);

  // Before a launch, since another thread may free what it allocates before the call returns: a node's host function
  // may have told it to. To be undone if the launch fails.
  Launched Launch(Graph executable) ABSL_LOCKS_EXCLUDED(mutex_);
  void UndoLaunch(const Launched& launched) ABSL_LOCKS_EXCLUDED(mutex_);

  // Before a destruction: forgets it. To be put back if that fails.
  Removed Remove(Graph graph) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(Removed removed) ABSL_LOCKS_EXCLUDED(mutex_);

  // Bytes in use on a device.
  int64_t BytesInUse(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A node that frees `id`: what the graph frees itself is not counted.
  static void AddFree(Nodes& nodes, BufferId id);
  // Of a live record, if it is a graph's.
  std::optional<LiveBuffer> Find(BufferId id) const;

  Profiler& profiler_;
  std::atomic<bool> used_{false};
  Mutex mutex_;
  Graphs graphs_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> launched_ ABSL_GUARDED_BY(mutex_);  // what is in use, and more that was
};

// The contexts that were created, and which buffers end with which of them. A buffer of no created context is the
// device's primary context's, or nobody's. Costs one relaxed load per event while no context was created. Whatever is
// taken out keeps its node of the tables, so that to take it out or to put it back needs no memory.
class CudaContexts {
 public:
  struct Context;
  using Owner = std::shared_ptr<Context>;

 private:
  struct Owned {
    Owner owner;
    FreedRecord record;  // while it is taken out
  };
  using Buffers = std::map<uint64_t, Owned>;  // by BufferId
  using Handles = std::map<const void*, Owner>;

 public:
  // A buffer that was taken out; false if no created context owned it.
  class Removed {
   public:
    explicit operator bool() const { return !node_.empty(); }

   private:
    friend class CudaContexts;
    Buffers::node_type node_;
  };
  // A context that is about to end, with all its buffers; false if it was not seen created.
  class Ended {
   public:
    explicit operator bool() const { return !handle_.empty(); }
    template <typename Visit>
    void ForEachBuffer(const Visit& visit) const {
      for (const auto& [id, owned] : buffers_) visit(BufferId(id));
    }

   private:
    friend class CudaContexts;
    Handles::node_type handle_;
    Buffers buffers_;
  };

  explicit CudaContexts(Profiler& profiler) : profiler_(profiler) {}

  // Whether any was created.
  bool used() const { return used_.load(std::memory_order_relaxed); }
  // After `handle` was created.
  void Created(const void* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // The context of this handle; null if it was not seen created, or is ending.
  Owner Find(const void* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a record of `id` was made in `owner`'s context. If that ends or has ended meanwhile, the record does so too.
  // Returns whether it is there.
  bool Recorded(const Owner& owner, BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Before the buffer's free: removes its record, if a context owns it.
  Removed Remove(BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // After that failed. What belongs to a context that has ended meanwhile stays gone.
  void PutBack(Removed removed) ABSL_LOCKS_EXCLUDED(mutex_);

  // Before the context's end: removes all its records.
  Ended End(const void* handle) ABSL_LOCKS_EXCLUDED(mutex_);
  // After that succeeded, or failed.
  void HasEnded(Ended ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(Ended ended) ABSL_LOCKS_EXCLUDED(mutex_);

  // All buffers that any owns.
  std::vector<BufferId> AllBuffers() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void PutBackNode(Buffers::node_type node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Profiler& profiler_;
  std::atomic<bool> used_{false};
  mutable Mutex mutex_;
  Handles handles_ ABSL_GUARDED_BY(mutex_);
  Buffers buffers_ ABSL_GUARDED_BY(mutex_);
};

struct CudaContexts::Context {
  enum class State { kAlive, kEnding, kEnded };
  // Guarded by CudaContexts::mutex_.
  State state = State::kAlive;
  Buffers late;  // put back while it was ending
};

// The pools that were created on a device. To ask a pool something, ForEach keeps it from being destroyed.
class CudaPools {
  struct Pool {
    explicit Pool(int on) : device(on) {}
    const int device;
    std::atomic<int> asked{0};  // by so many
  };
  using Pools = std::map<const void*, Pool>;

 public:
  using Removed = Pools::node_type;

  void Created(const void* pool, int device) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before a pool is destroyed. Waits for whoever asks it something.
  Removed Remove(const void* pool) ABSL_LOCKS_EXCLUDED(mutex_);
  // After that failed.
  void PutBack(Removed removed) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `visit(pool)` for every pool of the device; no lock is held meanwhile, and the pool is not destroyed.
  template <typename Visit>
  void ForEach(int device, const Visit& visit) ABSL_LOCKS_EXCLUDED(mutex_) {
    const void* last = nullptr;
    while (Pool* pool = Next(device, &last)) {
      visit(last);
      pool->asked.fetch_sub(1, std::memory_order_release);
    }
  }

 private:
  // The first one of the device after `*last`, which is set to it; counted as asked.
  Pool* Next(int device, const void** last) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  Pools pools_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MEMORY_H_
