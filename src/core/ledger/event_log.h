// EventLog: the buffers into which the ledger's shards write their events while a recording is on (recorded_event.h).
//
// Each shard that is in use has one buffer and writes to it under the shard's lock. A full buffer goes to the list of
// full buffers, and the shard gets an empty one. The recorder takes the full buffers, writes them to a file and returns
// them. If there is no empty buffer, the log does one of two things:
// - kStream: the shard's events are lost, and counted, until a buffer is returned.
// - kRing: the oldest full buffer is emptied and used again; if there is none, the shard's events are lost. This is the
//   flight recorder. If the ring has a time limit, a full buffer that is older than this is used again even before an
//   empty one, so that less memory is touched.
//
// Nothing here allocates memory while events are written. A thread makes a system call at its first event (gettid). If
// the kernel does not let programs read the clock directly, each reading of the clock is a system call, too. A thread
// that writes events holds `lock_` for about ten instructions and, if the ring has a time limit, for one reading of the
// clock.
//
// The times of the events of one shard never decrease. If a thread enters an event under the locks of several shards,
// the time of this event is later than the times of all earlier events of these shards, and earlier than the times of
// all later ones (Ledger::TimeOfInstant). So the events can be entered again, one by one, in the order of their times.
#ifndef HBMPROF_SRC_CORE_LEDGER_EVENT_LOG_H_
#define HBMPROF_SRC_CORE_LEDGER_EVENT_LOG_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "src/base/monotonic_clock.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/ledger/recorded_event.h"

namespace hbmprof::internal {

// A buffer with events of one shard.
struct alignas(64) EventBuffer {
  static constexpr uint32_t kEvents = 2046;

  EventBuffer* next;  // in a list
  uint32_t shard;
  uint32_t count;                     // the number of events; set when Close takes the buffer from the shard
  RecordedEvent events[kEvents + 1];  // the last one: for the second event of a change
};
static_assert(sizeof(EventBuffer) == 64 << 10);

// Events that were lost.
struct LostTimes {
  int64_t from = INT64_MAX;  // the times of the first and of the last lost event
  int64_t to = 0;
  int64_t count = 0;
};

// The part of the log that belongs to one shard. Guarded by the shard's lock. If all its bytes are 0, the log is off
// for this shard.
struct ShardLog {
  RecordedEvent* end;     // of the space for events
  int64_t last_time;      // the time of a later event is not smaller
  EventBuffer* buffer;    // null while events are lost
  RecordedEvent lost[2];  // the space for a change while events are lost
};

class EventLog {
 public:
  enum class Mode : uint8_t { kOff, kStream, kRing };

  ~EventLog();

  // Allocates `count` buffers. `ring_nanos`: the time limit of kRing in nanoseconds; 0: none. Returns false if the host
  // has no memory. REQUIRES: the log is off, and has no buffers.
  bool Allocate(size_t count, int64_t ring_nanos = 0);
  // Frees all buffers. REQUIRES: the log is off, and all buffers of TakeFull have been returned.
  void Free();

  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  // Sets the mode. All shards' locks are held.
  void SetMode(Mode mode) { mode_.store(mode, std::memory_order_relaxed); }

  // Writes an event to `*next`, and sets `*next` to the space for the event after it. The caller holds the shard's
  // lock. A change has at most two events, which are in one buffer.
  void Write(const RecordedEvent& event, uint32_t shard, ShardLog* log, RecordedEvent** next) {
    RecordedEvent* const space = *next;
    *space = event;
    space->thread = thread_state.recorded != 0 ? thread_state.recorded : NumberThread();
    *next = space + 1;
    if (space + 1 >= log->end && !event.is_continued) Exchange(shard, log, next);
  }
  // Returns the time of an event of a shard whose lock is held.
  static int64_t TimeInShard(ShardLog* log) { return log->last_time = std::max(MonotonicNanos(), log->last_time); }

  // Gives the shard an empty buffer; if there is none, gives it the space for one lost change. REQUIRES: the caller
  // holds the shard's lock; the shard has no buffer.
  void Open(uint32_t shard, ShardLog* log, RecordedEvent** next);
  // Moves the shard's buffer to the list of full buffers, even if the buffer is not full. A buffer without events
  // becomes an empty one. REQUIRES: the caller holds the shard's lock. Afterwards the caller must call Open or set
  // `*next` to null.
  void Close(ShardLog* log, const RecordedEvent* next);

  // Removes the full buffers and returns them as a list, oldest first. The `next` of the last one is null. The caller
  // must give them back with Return.
  EventBuffer* TakeFull();
  // Takes the buffers of a list back. They become empty buffers.
  void Return(EventBuffer* list);
  // Returns the times and the number of the events that were lost since the last call.
  LostTimes TakeLost();
  // In kRing: the time of the last event that was removed or lost. All events after it are in the log.
  int64_t removed_until() const;

  // Returns the id, as gettid(2) returns it, of the thread with this number (RecordedEvent::thread). Returns 0 if no
  // thread has the number.
  static int32_t ThreadOf(uint16_t number);
  // Returns the number of thread numbers in use, including 0, which stands for no thread.
  static uint32_t ThreadCount();
  // The number, plus 1, of the mark that the next snapshots of the calling thread write. 0: they write no mark.
  static uint64_t& MarkOfThread();

 private:
  struct List {
    void Append(EventBuffer* buffer) {
      buffer->next = nullptr;
      (last == nullptr ? first : last->next) = buffer;
      last = buffer;
    }
    EventBuffer* TakeFirst() {
      EventBuffer* const taken = first;
      if (taken == nullptr) return nullptr;
      first = taken->next;
      if (first == nullptr) last = nullptr;
      return taken;
    }
    EventBuffer* first = nullptr;
    EventBuffer* last = nullptr;
  };

  // Called when the shard has no space for an event: closes its buffer and opens another one.
  [[gnu::noinline]] void Exchange(uint32_t shard, ShardLog* log, RecordedEvent** next);
  [[gnu::noinline]] static uint16_t NumberThread();
  // Returns whether all events of the oldest full buffer are older than the time limit of the ring.
  bool HasOldBuffer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);

  std::atomic<Mode> mode_{Mode::kOff};
  int64_t ring_nanos_ = 0;
  std::atomic<EventBuffer*> memory_{nullptr};
  size_t count_ = 0;  // while `memory_` is not null
  mutable SpinLock lock_;
  List empty_ ABSL_GUARDED_BY(lock_);
  List full_ ABSL_GUARDED_BY(lock_);
  LostTimes lost_ ABSL_GUARDED_BY(lock_);
  int64_t removed_until_ ABSL_GUARDED_BY(lock_) = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_EVENT_LOG_H_
