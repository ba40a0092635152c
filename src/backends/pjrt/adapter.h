// The logic of tracking PJRT memory: which handle holds which memory, and until when. Knows no ABI and calls no plugin:
// handles come in as addresses, sizes and attributes as values.
//
// A record of the profiler stands for memory, not for a handle: handles come and go, share, and pass memory on. Each
// record has a number of its own, so a handle that the plugin reuses at once is never mistaken for the old one.
//
// Not here: the plugin's calls (hooks.cc), what is asked of it (queries.h).
#ifndef HBMPROF_SRC_BACKENDS_PJRT_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_PJRT_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

using PjrtHandle = const void*;

// A piece of memory as it is recorded.
struct PjrtMemory {
  size_t bytes = 0;
  Attributes attributes;
  std::string space;  // the plugin's name of the memory space; label `memory`
  std::string shape;  // element type and dimensions; label `shape`
};

// An executable that is loaded on devices.
struct PjrtProgram {
  PjrtHandle client = nullptr;  // null: unknown
  std::string name;
  size_t num_outputs = 0;
  std::vector<DeviceId> devices;  // addressable ones
  int64_t code_bytes = 0;         // on each device; below 0: the plugin does not say
  int64_t temp_bytes = -1;        // what one execution needs beside arguments and outputs; -1: unknown
  int64_t peak_bytes = -1;
  // The outputs as the first execution gave them, [device][output]. Set once; readers take what is there.
  using Outputs = std::vector<std::vector<PjrtMemory>>;
  mutable std::atomic<const Outputs*> outputs{nullptr};

  PjrtProgram() = default;
  ~PjrtProgram() { delete outputs.load(); }
};

// The books of one plugin. Any thread may call anything; a handle is the caller's alone from its creation to the return
// of the call that made it, and from the beginning of the call that destroys it.
//
// A call that the plugin may refuse is entered in two steps: the books forget before the real call, and PutBack() after
// it failed.
//
// What enters something throws std::bad_alloc if the host has no memory for it, and then has recorded nothing.
class PjrtRecords {
  struct Buffer {
    PjrtHandle client = nullptr;
    BufferId memory;  // null: none, or not recorded
    BufferId alias;   // the zero-byte record of a handle that shares or views memory
    int external_references = 0;
    bool deleted = false;
    uintptr_t made_by = 0;  // return address of the call that made it

    bool holds_memory() const { return !memory.is_null() && (!deleted || external_references > 0); }
  };
  struct Executable {
    PjrtHandle client = nullptr;
    std::shared_ptr<const PjrtProgram> program;
    std::vector<BufferId> code;  // empty once deleted
    uintptr_t made_by = 0;
  };
  struct Transfer {
    PjrtHandle client = nullptr;
    std::vector<BufferId> memory;  // by buffer index; null once retrieved
    uintptr_t made_by = 0;
  };

 public:
  // What the books forgot; see PutBack.
  class Removed {
    friend class PjrtRecords;
    // To forget one handle needs no memory of the host's.
    absl::InlinedVector<std::pair<PjrtHandle, Buffer>, 1> buffers_;
    absl::InlinedVector<FreedRecord, 2> records_;
    absl::InlinedVector<std::pair<PjrtHandle, Executable>, 1> executables_;
    absl::InlinedVector<std::pair<PjrtHandle, Transfer>, 1> transfers_;
    absl::InlinedVector<std::pair<PjrtHandle, BufferId>, 1> mapped_;
    // References given up that were not a memory's last.
    absl::InlinedVector<BufferId, 1> references_;
  };
  // What a client left behind: one row for all that is alike.
  struct Leftover {
    int64_t count = 0;
    int64_t bytes = 0;  // of each
    Attributes attributes;
    uintptr_t made_by = 0;
  };

  explicit PjrtRecords(Profiler& profiler) : profiler_(profiler) { spare_.reserve(kMaxSpareNodes); }

  // `buffer` is a new handle with new memory.
  void Created(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` is a new handle without memory of its own: a view of what somebody else owns, or nothing yet.
  void CreatedView(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` is a new handle that shares `source`'s memory, which lives until both have let go of it.
  void CreatedAlias(const Caller& caller, PjrtHandle client, PjrtHandle buffer, PjrtHandle source,
                    const PjrtMemory& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` will share the memory of whatever buffer `callback` is fulfilled with.
  void AwaitsFulfilment(PjrtHandle callback, PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // `source` may be null: it was fulfilled with an error.
  void Fulfilled(PjrtHandle callback, PjrtHandle source) ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` is a new handle that took over `source`'s memory, with its stack and labels. False if `source` is unknown.
  bool Moved(PjrtHandle source, PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Memory of a transfer whose handles are asked for later, by index.
  void TransferCreated(const Caller& caller, PjrtHandle client, PjrtHandle manager,
                       const std::vector<PjrtMemory>& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` is the handle of the transfer's buffer `index`. False if that is unknown.
  bool TransferRetrieved(PjrtHandle manager, int index, PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The memory that nobody asked a handle for goes with the transfer.
  Removed TransferDestroyed(PjrtHandle manager) ABSL_LOCKS_EXCLUDED(mutex_);

  // The handle has let go of its memory: it was deleted, or an execution took it. Again, or for an unknown handle:
  // nothing.
  Removed Deleted(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes out of `buffers` those that are unknown or hold no memory.
  using Handles = absl::InlinedVector<PjrtHandle, 64>;
  void KeepHolders(Handles& buffers) ABSL_LOCKS_EXCLUDED(mutex_);
  // The handle is about to end. An unknown one is counted as a foreign free; `known` says whether it was one. Null is
  // ignored.
  Removed Destroyed(PjrtHandle buffer, bool* known) ABSL_LOCKS_EXCLUDED(mutex_);
  // The client that made a buffer; null if that is unknown.
  PjrtHandle ClientOf(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Somebody outside uses the memory: it outlives Deleted until the last such reference is gone.
  void ReferenceAdded(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReferenceDropped(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Records the code on each device, labelled with the program's name and what an execution needs.
  void Loaded(const Caller& caller, PjrtHandle executable, std::shared_ptr<const PjrtProgram> program)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Null if it is unknown.
  std::shared_ptr<const PjrtProgram> FindProgram(PjrtHandle executable) ABSL_LOCKS_EXCLUDED(mutex_);
  // The code is gone, the handle stays.
  Removed ExecutableDeleted(PjrtHandle executable) ABSL_LOCKS_EXCLUDED(mutex_);
  Removed ExecutableDestroyed(PjrtHandle executable, bool* known) ABSL_LOCKS_EXCLUDED(mutex_);

  // Host memory that a client pinned, and let go.
  void HostMapped(const Caller& caller, PjrtHandle data, const PjrtMemory& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  Removed HostUnmapped(PjrtHandle data) ABSL_LOCKS_EXCLUDED(mutex_);

  // The client is about to end. Forgets its handles; the records of what they hold stay: leaks.
  Removed ClientDestroyed(PjrtHandle client) ABSL_LOCKS_EXCLUDED(mutex_);
  // What a ClientDestroyed forgot and the profiler has recorded, the most bytes first.
  std::vector<Leftover> LeftoversIn(const Removed& removed) const;

  // The real call failed: everything is as before.
  void PutBack(const Removed& removed) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Buffers = std::unordered_map<PjrtHandle, Buffer>;
  static constexpr size_t kMaxSpareNodes = 1024;

  BufferId Record(const Caller& caller, const PjrtMemory& memory);
  // Records each piece; all or nothing.
  std::vector<BufferId> RecordAll(const Caller& caller, absl::Span<const PjrtMemory> pieces);
  // Calls `enter`, which enters a handle of the records in `ids`. If it throws, the records end.
  template <typename Enter>
  void InsertOrEnd(absl::Span<const BufferId> ids, const Enter& enter);
  void Insert(PjrtHandle handle, const Buffer& buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // One handle fewer holds `memory`. Whether it was the last one; if not, noted in `forgotten`.
  bool DropHolder(BufferId memory, Removed* removed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddHolder(BufferId memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++more_holders_[memory.value()]; }
  void Free(absl::Span<const BufferId> ids, Removed* removed);
  void RecordForeignFree(PjrtHandle handle);

  Profiler& profiler_;
  Mutex mutex_;
  // Of the standard library: abseil's hash tables do not survive a failed allocation.
  Buffers buffers_ ABSL_GUARDED_BY(mutex_);
  // Nodes of handles that ended, for those that come: so handles that come and go take no memory. Full at its capacity.
  std::vector<Buffers::node_type> spare_ ABSL_GUARDED_BY(mutex_);
  // Holders of a memory beyond the first.
  std::unordered_map<uint64_t, int> more_holders_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, Executable> executables_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, Transfer> transfers_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, PjrtHandle> awaiting_ ABSL_GUARDED_BY(mutex_);  // callback -> alias buffer
  std::unordered_map<PjrtHandle, BufferId> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_PJRT_ADAPTER_H_
