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
#include <unordered_map>
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
  struct Physical;
  struct TileMapping;

 public:
  using DriverHandle = uint64_t;

  // A box in one level and layer of a sparse array, or a range of its mip tail.
  struct Tiles {
    uint64_t subresource = 0;
    uint64_t begin[3] = {};
    uint64_t end[3] = {};
  };

  // What a release or an unmapping took away, so that it can be put back if the real call fails.
  class Taken {
   private:
    friend class CudaPhysicalMemory;
    struct Mapping {
      uint64_t address = 0;
      size_t bytes = 0;
      std::shared_ptr<Physical> memory;
    };
    struct Ended {
      std::shared_ptr<Physical> memory;
      FreedRecord record;
    };
    std::shared_ptr<Physical> released;
    DriverHandle handle = 0;
    std::vector<Mapping> unmapped;
    BufferId array;
    std::vector<TileMapping> tiles;
    std::vector<Ended> ended;
  };

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
  bool HasTiles(BufferId array) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<BufferId> ArraysWithTiles() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Before an array is destroyed: all its mappings go.
  Taken UnmapArray(BufferId array) ABSL_LOCKS_EXCLUDED(mutex_);

  // The records of all physical memory that is alive.
  std::vector<BufferId> Live() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Physical {
    BufferId id;
    int64_t references = 0;  // handles given out and not released
    int64_t mappings = 0;
    bool recorded = false;
  };

  struct TileMapping {
    Tiles tiles;
    std::shared_ptr<Physical> memory;
  };

  // Takes the tiles out of the array's mappings; what is left of a box is up to six boxes.
  void Cut(BufferId array, const Tiles& tiles) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  BufferId NewId() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfUnused(const std::shared_ptr<Physical>& memory, Taken& taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Profiler& profiler_;
  mutable Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<DriverHandle, std::shared_ptr<Physical>> handles_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::pair<size_t, std::shared_ptr<Physical>>> mappings_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_tiles_{false};
  std::unordered_map<uint64_t, std::vector<TileMapping>> tiles_ ABSL_GUARDED_BY(mutex_);  // by array
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
  using Graphs = std::unordered_map<Graph, Nodes>;
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

// Which buffers end with which context, of those that were created. Costs one relaxed load per event while nothing owns
// anything.
class CudaOwners {
 public:
  using Owner = const void*;

  void Add(Owner owner, BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets the buffer; returns its owner, or null.
  Owner Remove(BufferId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets and returns the owner's buffers.
  std::vector<BufferId> TakeAll(Owner owner) ABSL_LOCKS_EXCLUDED(mutex_);
  // All buffers that belong to anything.
  std::vector<BufferId> All() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::atomic<bool> used_{false};
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Owner> owners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MEMORY_H_
