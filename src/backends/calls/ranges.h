// DriverRanges: the address ranges that the driver has allocated. With it the injected library finds out which
// records of the program are for memory of the driver (src/inject/injected_profiler.cc).
#ifndef HBMPROF_SRC_BACKENDS_CALLS_RANGES_H_
#define HBMPROF_SRC_BACKENDS_CALLS_RANGES_H_

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

// One instance for the process. Thread-safe, and safe in signal handlers: if a handler has interrupted one of these
// functions, Find in that handler returns no range. A range can have a record that has ended, for example because its
// context was destroyed: after Find, check that the record is live.
class DriverRanges {
 public:
  struct Range {
    BufferId record;             // the record that counts the range; null: the driver has no memory here
    bool has_allocator = false;  // the record has an allocator
  };

 private:
  struct Entry {
    uint64_t bytes;
    Range range;
  };
  // Holds the memory of the map's nodes. The memory does not come from malloc, because malloc can wait for a thread
  // that records.
  struct Nodes {
    Arena arena;
    void* free = nullptr;  // list of free nodes
  };
  template <typename T>
  struct NodeAllocator {
    using value_type = T;
    explicit NodeAllocator(Nodes* all) : nodes(all) {}
    template <typename U>
    NodeAllocator(const NodeAllocator<U>& other)
        : nodes(other.nodes) {}  // NOLINT: containers convert allocators implicitly
    T* allocate(size_t count);
    void deallocate(T* node, size_t count);
    bool operator==(const NodeAllocator& other) const { return nodes == other.nodes; }
    bool operator!=(const NodeAllocator& other) const { return nodes != other.nodes; }

    Nodes* nodes;
  };
  // By start address. Ranges do not overlap.
  using Entries = std::map<uint64_t, Entry, std::less<uint64_t>, NodeAllocator<std::pair<const uint64_t, Entry>>>;

 public:
  struct Found {
    Range range;
    uint64_t first = 0;  // `range` is valid for all ids from `first` to `last`, while changes() is `changes`
    uint64_t last = 0;
    uint64_t changes = 0;
  };

  // Adds the memory of the record `id`, or a mapping of `bytes` bytes of physical memory. Older ranges at these
  // addresses are removed. If the host has no memory, nothing is added.
  void Add(BufferId id, size_t bytes, bool has_allocator) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddMapped(uint64_t address, size_t bytes, BufferId physical) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t start) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the range that contains `id`; a handle has a range of its own.
  Found Find(BufferId id) const ABSL_LOCKS_EXCLUDED(mutex_);

  // changes() returns the version of all ranges and their records, which is never 0. The version changes with each
  // function above except Find, and with each call of Changed(). Call Changed() after records of ranges have changed or
  // ended.
  static void Changed() { changes_.fetch_add(1, std::memory_order_release); }
  static uint64_t changes() { return changes_.load(std::memory_order_acquire); }

  static DriverRanges& Instance();

 private:
  void Insert(uint64_t start, const Entry& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the ranges that overlap [start, start + bytes). Returns the next range after them.
  Entries::iterator Clear(uint64_t start, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Nodes nodes_ ABSL_GUARDED_BY(mutex_);
  Entries entries_ ABSL_GUARDED_BY(mutex_){Entries::allocator_type(&nodes_)};
  inline static std::atomic<uint64_t> changes_{1};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_RANGES_H_
