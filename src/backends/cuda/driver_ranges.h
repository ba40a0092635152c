// Which memory the driver has given out, by address: so that what the program itself records of it can be told from
// memory of its own (src/inject/injected_profiler.cc).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_RANGES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_RANGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "src/base/mutex.h"
#include "src/base/pages.h"

namespace hbmprof::internal {

// Of the process. Thread-safe, and safe in signal handlers: what interrupts one of these functions finds nothing. It
// may hold memory whose record has ended, as that of a context that was destroyed: whoever finds some must look.
class CudaDriverRanges {
 public:
  struct Range {
    BufferId record;             // that counts it; null: the driver has given out nothing here
    bool is_mapped = false;      // the record is of physical memory, and not of these addresses
    bool has_allocator = false;  // the driver's calls have named one
    bool is_declared = false;    // see Declare
  };

 private:
  struct Entry {
    uint64_t bytes;
    Range range;
  };
  // Memory for the entries of one map, not from malloc: what records the driver's calls may be what a malloc waits for.
  struct Nodes {
    Arena arena;
    void* free = nullptr;  // each leads to the next
  };
  template <typename T>
  struct NodeAllocator {
    using value_type = T;
    explicit NodeAllocator(Nodes* all) : nodes(all) {}
    template <typename U>
    NodeAllocator(const NodeAllocator<U>& other) : nodes(other.nodes) {}  // NOLINT: as containers want it
    T* allocate(size_t count);
    void deallocate(T* node, size_t count);
    bool operator==(const NodeAllocator& other) const { return nodes == other.nodes; }
    bool operator!=(const NodeAllocator& other) const { return nodes != other.nodes; }

    Nodes* nodes;
  };
  // By start; they do not overlap.
  using Entries = std::map<uint64_t, Entry, std::less<uint64_t>, NodeAllocator<std::pair<const uint64_t, Entry>>>;

 public:
  // What was removed, to be put back. bytes 0: nothing was.
  struct Removed {
    uint64_t start = 0;
    Entry entry = {};
  };
  struct Found {
    Range range;
    uint64_t first = 0;  // the same holds from here ...
    uint64_t last = 0;   // ... to here, while changes() is the same
    uint64_t changes = 0;
  };

  // The memory of the record `id` has been given out, or `bytes` bytes of physical memory were mapped. They take the
  // place of what was known at these addresses. Without host memory they stay unknown.
  void Add(BufferId id, size_t bytes, bool has_allocator) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddMapped(uint64_t address, size_t bytes, BufferId physical) ABSL_LOCKS_EXCLUDED(mutex_);
  Removed Remove(uint64_t start) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(const Removed& removed) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is known at `id`. A handle lies in its own range only.
  Found Find(BufferId id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The program has declared the range a segment.
  void Declare(uint64_t start) ABSL_LOCKS_EXCLUDED(mutex_);

  // Never 0, and another number after each call of the above but Find, and of this: what the records of the ranges say
  // has changed, or some have ended. Also in a forked child.
  static void Changed() { changes_.fetch_add(1, std::memory_order_release); }
  static uint64_t changes() { return changes_.load(std::memory_order_acquire); }

  static CudaDriverRanges& Instance();

 private:
  void Insert(uint64_t start, const Entry& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes room for `bytes` bytes. Returns what is behind them.
  Entries::iterator Clear(uint64_t start, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Nodes nodes_ ABSL_GUARDED_BY(mutex_);
  Entries entries_ ABSL_GUARDED_BY(mutex_){Entries::allocator_type(&nodes_)};
  inline static std::atomic<uint64_t> changes_{1};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_RANGES_H_
