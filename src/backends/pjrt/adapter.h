// The records of PJRT memory: which handle holds which memory, and until when. This code does not use the ABI and calls
// no plugin: handles are passed as addresses, sizes and attributes as values.
//
// A record of the profiler represents memory, not a handle: several handles can share memory, and one handle can pass
// its memory to another. Each record has its own number as its BufferId, so a new handle with the value of an old one
// is never confused with the old one.
//
// Not in this file: the plugin's calls (hooks.cc), queries to the plugin (plugin.h).
#ifndef HBMPROF_SRC_BACKENDS_PJRT_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_PJRT_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

// The attributes, labels and size with which memory is recorded.
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
  std::vector<DeviceId> devices;  // the addressable ones
  // nullopt: the plugin does not report it.
  std::optional<int64_t> code_bytes;  // on each device
  std::optional<int64_t> temp_bytes;  // needed by one execution besides arguments and outputs
  std::optional<int64_t> peak_bytes;
  // The outputs of the first execution, [device][output]. Set once; null before that.
  using Outputs = std::vector<std::vector<PjrtMemory>>;
  mutable std::atomic<const Outputs*> outputs{nullptr};

  PjrtProgram() = default;
  ~PjrtProgram() { delete outputs.load(); }
};

// The handles of one plugin and the memory that they hold.
//
// Thread-safe. A handle must not be used in two threads between its creation and the return of the call that made it,
// nor after the call that destroys it has begun.
//
// A function that removes memory or a handle is called before the real call. It returns the number of records that have
// ended. They do not come back if the plugin refuses the call.
//
// Each function that adds something throws std::bad_alloc if the host has no memory for it; then nothing is recorded.
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
    std::vector<BufferId> code;  // empty after the deletion
    uintptr_t made_by = 0;
  };
  struct Transfer {
    PjrtHandle client = nullptr;
    std::vector<BufferId> memory;  // by buffer index; null after the buffer was retrieved
    uintptr_t made_by = 0;
  };
  // An alias buffer whose callback is not fulfilled. Another buffer can have the same handle later, but not the same
  // record `alias`.
  struct Awaiting {
    PjrtHandle buffer = nullptr;
    BufferId alias;
  };

 public:
  // Buffers and executables that a client did not destroy: one row for each group of equal ones.
  struct Leak {
    int64_t count = 0;
    int64_t bytes = 0;  // of each
    Attributes attributes;
    uintptr_t made_by = 0;
  };

  explicit PjrtRecords(Profiler& profiler) : profiler_(profiler) { spare_.reserve(kMaxSpareNodes); }

  // Call after `buffer` was created with new memory.
  void Created(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after `buffer` was created without memory of its own: as a view of memory with another owner, as an alias that
  // is not fulfilled yet, or as a handle that shares the memory of the buffer `source`. Shared memory is live until
  // neither of them holds it.
  void CreatedAlias(const Caller& caller, PjrtHandle client, PjrtHandle buffer, const PjrtMemory& memory,
                    PjrtHandle source = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` will share the memory of the buffer that `callback` is fulfilled with.
  void AwaitsFulfilment(PjrtHandle callback, PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // `callback` was fulfilled with `source`. A null `source` means: it was fulfilled with an error.
  void Fulfilled(PjrtHandle callback, PjrtHandle source) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after `buffer` was created as a handle that took over `source`'s memory, with its stack and labels. Returns
  // false if `source` is unknown.
  bool Moved(PjrtHandle source, PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call after a transfer was created. Records its memory. The handles of its buffers are retrieved later, by index.
  void TransferCreated(const Caller& caller, PjrtHandle client, PjrtHandle manager,
                       const std::vector<PjrtMemory>& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // `buffer` is the handle of the transfer's buffer `index`. Returns false if that is unknown.
  bool TransferRetrieved(PjrtHandle manager, int index, PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the transfer and the memory whose handle was not retrieved.
  int TransferDestroyed(PjrtHandle manager) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call when the handle no longer holds its memory: it was deleted, or donated to an execution. Has no effect
  // if the handle holds no memory or is unknown.
  int Deleted(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether `buffer` is the output of a failed execution: it was deleted, and has never had memory.
  bool IsFailed(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the handle is known and holds memory.
  bool Holds(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the handles from `buffers` that are unknown or hold no memory.
  using Handles = absl::InlinedVector<PjrtHandle, 64>;
  void KeepHolders(Handles& buffers) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before the handle is destroyed. Sets `*known` to whether it is known; an unknown handle is counted as a
  // foreign free. A null handle is ignored, and counts as known.
  int Destroyed(PjrtHandle buffer, bool* known) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the client that made a buffer, null if that is unknown.
  PjrtHandle ClientOf(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // External references: the memory of a deleted buffer stays live until the last one is dropped.
  void ReferenceAdded(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReferenceDropped(PjrtHandle buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Records the code on each device, with labels for the program's name and for the memory that an execution needs.
  void Loaded(const Caller& caller, PjrtHandle executable, std::shared_ptr<const PjrtProgram> program)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns null if the executable is unknown.
  std::shared_ptr<const PjrtProgram> FindProgram(PjrtHandle executable) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before the executable is deleted: its code is freed, but the handle stays valid.
  int ExecutableDeleted(PjrtHandle executable) ABSL_LOCKS_EXCLUDED(mutex_);
  int ExecutableDestroyed(PjrtHandle executable, bool* known) ABSL_LOCKS_EXCLUDED(mutex_);

  // Host memory that a client pins and unpins.
  void HostMapped(const Caller& caller, PjrtHandle data, const PjrtMemory& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  int HostUnmapped(PjrtHandle data) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call before the client is destroyed. Removes its handles, and returns the recorded memory that they hold, the
  // largest rows first. Its records stay, because it is a leak.
  std::vector<Leak> ClientDestroyed(PjrtHandle client) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Buffers = std::unordered_map<PjrtHandle, Buffer>;
  static constexpr size_t kMaxSpareNodes = 1024;

  bool IsHolder(PjrtHandle buffer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  BufferId Record(const Caller& caller, const PjrtMemory& memory);
  // Records each piece. If one fails, none is recorded.
  std::vector<BufferId> RecordAll(const Caller& caller, absl::Span<const PjrtMemory> pieces);
  // Calls `enter`, which adds a handle of the records `ids`. If that throws, ends the records and throws.
  template <typename Enter>
  void InsertOrEnd(absl::Span<const BufferId> ids, const Enter& enter);
  void Insert(PjrtHandle handle, const Buffer& buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes one holder of `memory`. Returns true if it was the last one.
  bool DropHolder(BufferId memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddHolder(BufferId memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++more_holders_[memory.value()]; }
  // Returns the number of records that have ended.
  int Free(absl::Span<const BufferId> ids);
  void RecordForeignFree(PjrtHandle handle);

  Profiler& profiler_;
  Mutex mutex_;
  // Standard containers: abseil's hash tables end the process if an allocation fails.
  Buffers buffers_ ABSL_GUARDED_BY(mutex_);
  // Map nodes of destroyed handles, reused for new ones, so that the steady state takes no memory. At most
  // kMaxSpareNodes.
  std::vector<Buffers::node_type> spare_ ABSL_GUARDED_BY(mutex_);
  // By record number: the number of holders beyond the first.
  std::unordered_map<uint64_t, int> more_holders_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, Executable> executables_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, Transfer> transfers_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, Awaiting> awaiting_ ABSL_GUARDED_BY(mutex_);  // by callback
  std::unordered_map<PjrtHandle, BufferId> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_PJRT_ADAPTER_H_
