// An instant of a recording, and the state of the memory at it as a profile.
#ifndef HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_
#define HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_

#include "src/tool/recording/cursor.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// The instant after the first `events` events. Its time is not earlier than theirs.
struct RecordedInstant {
  int64_t events = 0;
  int64_t time = 0;  // in the same clock as the times of the events
};

// These functions find instants. They read the events of `recording` from the beginning. The instant that they return
// is never within a change.
//
// Returns the instant after all events up to `time`.
RecordedInstant InstantAt(RecordingReader& recording, int64_t time);
// Returns the instant that `moment` names:
//   end                 the end of the recording
//   peak[/MEMORY]       when the bytes in use of MEMORY (AccountName) first reached their highest value; without it, of
//                       the memory with the highest value of all
//   oom[/MEMORY]        before the last allocation that failed (in this memory)
//   mark:NAME           the last mark with this name, or with a path that ends with "/" and this name
//   12.5s, 500ms, 2m    this time after the start (a number alone is in seconds)
//   2026-11-22T18:20:04Z  this time of day, also with a fraction of a second or another offset than Z
// Errors: kInvalidArgument if `moment` is none of these; kNotFound if there is no such memory, mark or failed
// allocation; kOutOfRange if the time is not between the start and the end of the recording. The message says what
// there is.
absl::StatusOr<RecordedInstant> InstantNamed(RecordingReader& recording, const std::string& moment);

// Returns a time as text: "12.345678 s after the start, 2026-11-22T18:20:04Z".
std::string TimeText(const RecordingTables& tables, int64_t time);

// Returns the state at an instant. `tables` are those of `recording`.
RecordingState StateAt(RecordingReader& recording, const RecordedInstant& instant);
// Returns the state at an instant as a profile (gzip). The driver's values are those of the last sample before the
// instant, if these are still valid at the instant (RecordingState::ToSnapshot). A warning in the profile says if
// events are missing up to then. Errors: those of SerializePprof.
absl::StatusOr<std::string> ProfileAt(RecordingReader& recording, const RecordedInstant& instant);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_
