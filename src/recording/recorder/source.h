// RecordingSource: makes the tables of a recording from the state of a profiler, and changes the events of the log so
// that they refer to these tables (src/recording/recording.h). Marks: the names of marks.
#ifndef HBMPROF_SRC_RECORDING_RECORDER_SOURCE_H_
#define HBMPROF_SRC_RECORDING_RECORDER_SOURCE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "src/base/mutex.h"
#include "src/core/ledger/event_log.h"
#include "src/core/ledger/ledger.h"
#include "src/core/profiler_impl.h"
#include "src/recording/recording.h"

namespace hbmprof::internal {

// The ledger at one instant.
struct LedgerState : LedgerTotals {
  int64_t instant = 0;  // nanoseconds of CLOCK_MONOTONIC
  int64_t unix_nanos = 0;
};

// The names of the marks of a process. Each name is stored once. Thread-safe. The methods may throw std::bad_alloc.
class Marks {
 public:
  // Returns the number of a name plus 1, which is that of the id of its kMark events; 0 if there are too many names.
  uint64_t Number(std::string_view name);
  // Returns the name with this number (not plus 1).
  std::string Name(uint64_t number) const;

 private:
  mutable Mutex mutex_;
  std::deque<std::string> names_ ABSL_GUARDED_BY(mutex_);  // whose elements do not move
  std::unordered_map<std::string_view, uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
};

// Thread safety: one thread at a time. All methods may throw std::bad_alloc.
class RecordingSource {
 public:
  // Both must outlive the object.
  RecordingSource(ProfilerImpl& profiler, const Marks& marks) : profiler_(profiler), marks_(marks) {}

  // Reads the ledger; `mode` is for Ledger::Snapshot.
  static LedgerState ReadLedger(ProfilerImpl& profiler, const EventLog::Mode* mode);

  const RecordingTables& tables() const { return tables_; }
  RecordingTables& tables() { return tables_; }

  // Fills the tables with the state at the start. `time` is the time of `state.instant` in nanoseconds.
  void Begin(const LedgerState& state, int64_t time);
  // Adds the sites, stacks, names, allocators and named frames that exist now, and the threads that were numbered. Must
  // be called after the events that refer to them were taken from the log.
  void Update();
  // Changes the id of an account, a device, a set of tags or a mark, from the numbers of the profiler to those of the
  // tables. Adds devices, sets of tags and marks that the tables do not have: of the marks, which can be many, a file
  // has only those of its events. Must be called after Update.
  void Translate(RecordedEvent* event);
  // Returns the index of a device in the tables. Adds the device if the tables do not have it.
  uint32_t IndexOf(DeviceId device);
  // Returns the present values: those of the driver, the host memory of the process, and the counters of the program.
  DriverSample Sample();

  // Lists the records of the live table. The list is not that of one instant. Returns false if there are more than
  // `max` records.
  static bool ListLive(const ProfilerImpl& profiler, size_t max, std::vector<RecordingTables::Live>* live);

 private:
  // Returns the index of the allocator in the tables.
  uint32_t AllocatorIndex(AllocatorId allocator) const;
  void AddSites();
  void AddNames(size_t first_stack);
  void AddThreads();

  ProfilerImpl& profiler_;
  const Marks& marks_;
  RecordingTables tables_;
  std::unordered_map<uint64_t, uint32_t> mark_index_;  // by the number of the process
  std::unordered_map<const StackRecord*, uint32_t> stack_index_;
  std::vector<uint32_t> device_index_ = std::vector<uint32_t>(kMaxDevices, UINT32_MAX);
  std::vector<DeviceId> devices_;  // by index
};

// Finds the buffers that were live at an instant, from the events after it and a list of the live table that was made
// later. A buffer whose first event is a free was live. A buffer without an event was live if it is in the list.
class LiveResolver {
 public:
  // Must be called for all events after the instant, up to a time after the list was made.
  void AddEvent(const RecordedEvent& event);
  // Returns the buffers that were live.
  std::vector<RecordingTables::Live> Resolve(const std::vector<RecordingTables::Live>& listed) const;

 private:
  struct First {
    int64_t time = INT64_MAX;
    bool was_live = false;
    uint32_t site = 0;
    int64_t bytes = 0;
  };
  std::unordered_map<uint64_t, First> first_;
};

// Undoes an event: changes the totals to those before it. Peaks and largest_alloc stay. For the parts of a change, call
// it in reverse order. `next` is the event that followed it in its change; null if it was the last part.
void UndoEvent(const SiteTable& sites, const RecordedEvent& event, const RecordedEvent* next, LedgerState* state);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_RECORDER_SOURCE_H_
