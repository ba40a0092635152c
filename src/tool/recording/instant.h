// An instant of a recording, and the state of the memory at it, or at a few instants, as profiles.
#ifndef HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_
#define HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_

#include "src/tool/profile/profile.h"
#include "src/tool/recording/cursor.h"

namespace hbmprof::tool {

// The instant after the first `events` events. Its time is not earlier than theirs.
struct RecordedInstant {
  int64_t events = 0;
  int64_t time = 0;  // in the same clock as the times of the events
};

struct FailedAllocations {
  int64_t count = 0;
  RecordedEvent last;
};
using FailuresByAccount = std::map<uint64_t, FailedAllocations>;

// These functions find instants. They read the events of `recording` from the beginning. The instant that they return
// is never within a change.
//
// The state of a recording without a moment.
struct LastState {
  RecordedInstant instant;
  std::string source;  // the path, with the moment unless it is the end
  FailuresByAccount failed;
};
// Returns the instant at which a program begins to free what it holds: that of the mark of a Python interpreter's end
// if nothing was allocated after it; else that before the frees with which the program ends; else the end. If it is not
// the end, says on stderr, as the subcommand `command`, that this moment of the recording `path` is shown.
LastState LastStateOf(const std::string& command, const std::string& path, RecordingReader& recording);
// Returns the instant that `moment` names:
//   end                 the end of the recording
//   peak[/MEMORY]       when the bytes in use of MEMORY (AccountName) first reached their highest value; without it, of
//                       the device memory with the highest value of all; if none was used, of other memory
//   pool_peak           the highest bytes in use without the idle memory of pools, of the memory that `peak` chooses by
//                       this value
//   peak:TAG=VALUE      the same, of the instants directly after an allocation with this tag
//   oom[/MEMORY]        before the last allocation that failed (in this memory)
//   mark:NAME           the last mark with this name, or with a path that ends with "/" and this name
//   12.5s, 500ms, 2m    this time after the start (a number alone is in seconds)
//   09:50:52            the first such time of day after the start, in UTC; also with its date, 2026-11-30T09:50:52Z
// Errors: kInvalidArgument if `moment` is none of these; kNotFound if there is no such memory, tag, mark or failed
// allocation; kOutOfRange if the time is not between the start and the end of the recording. The message says what
// there is.
absl::StatusOr<RecordedInstant> InstantNamed(RecordingReader& recording, const std::string& moment);

// Returns a time as text: "12.345678 s after the start, 2026-11-22T18:20:04Z".
std::string TimeText(const RecordingTables& tables, int64_t time);

// Returns the state at an instant as a profile (gzip). The driver's values are those of the last sample before the
// instant, if these are still valid at the instant (RecordingState::ToSnapshot). Warnings in the profile say if events
// are missing up to then, and which allocation failed at this instant. Errors: those of SerializePprof.
absl::StatusOr<std::string> ProfileAt(RecordingReader& recording, const RecordedInstant& instant);

// The label of a state's samples that holds the number of their row (SiteTotals).
extern const char kRecordedSiteLabel[];

struct RecordedStates {
  std::unique_ptr<RecordingReader> reader;
  ProfileSet states;  // at equal distances; the last is LastStateOf
  std::string last;   // the last state, as a source
  FailuresByAccount failed;
  // In the last state: by device, the bytes of pools' segments without blocks.
  std::map<std::string, int64_t> free_segments;
};

// The number of states that are judged: enough for `hbmprof leaks` to be sure, and one more, because the last one is
// often that of a program that has freed all (OrderDumps).
inline constexpr size_t kJudgedStates = 13;
// Opens a recording and reads all its events, for kJudgedStates states. Prints what it lacks as warnings of the
// subcommand `command`. Errors: those of OpenRecordingFile and SerializePprof.
absl::StatusOr<RecordedStates> ReadRecorded(const std::string& command, const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_
