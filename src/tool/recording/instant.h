// An instant of a recording, and the state of the memory at it as a profile.
#ifndef HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_
#define HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/export/recording.h"

namespace hbmprof::tool {

// The instant after the first `events` events. Its time is not earlier than theirs.
struct RecordedInstant {
  int64_t events = 0;
  int64_t time = 0;  // in the same clock as the times of the events
};

// These functions find instants. They read the events of `recording` from the beginning. The instant that they return
// is never within a change.
//
// Returns the end of the recording.
RecordedInstant EndOf(internal::RecordingReader& recording);
// Returns the instant after all events up to `time`.
RecordedInstant InstantAt(internal::RecordingReader& recording, int64_t time);
// Returns the instant at which the bytes in use of an account (device * kMemorySpaceCount + space) first reached their
// highest value.
RecordedInstant PeakOf(internal::RecordingReader& recording, size_t account);
// Returns the instant before the last failed allocation. Error: kNotFound if none failed.
absl::StatusOr<RecordedInstant> BeforeOutOfMemory(internal::RecordingReader& recording);
// Returns the instant of the last mark with this name, or with a path that ends with "/" and this name. Error:
// kNotFound if there is none; the message contains names of marks.
absl::StatusOr<RecordedInstant> AtMark(internal::RecordingReader& recording, const std::string& name);

// Returns the account whose bytes in use reach the highest value of all accounts.
size_t HighestAccount(internal::RecordingReader& recording);

// Reads a time of the recording: seconds since the start ("12.5", "500ms", "2m"), or the time of day in UTC
// ("2026-11-22T18:20:04Z", also with a fraction of a second or another offset than Z). Errors: kInvalidArgument if the
// text is no time; kOutOfRange if the time is not between the start and the end of the recording; the message contains
// both.
absl::StatusOr<int64_t> ParseRecordedTime(const internal::RecordingReader& recording, const std::string& text);

// Returns a time as text: "12.345678 s after the start, 2026-11-22T18:20:04Z".
std::string TimeText(const internal::RecordingTables& tables, int64_t time);

// Returns the state at an instant. `tables` are those of `recording`.
internal::RecordingState StateAt(internal::RecordingReader& recording, const RecordedInstant& instant);
// Returns the state at an instant as a profile (gzip). The driver's values are those of the last sample before the
// instant, if these are still valid at the instant (RecordingState::ToSnapshot). A warning in the profile says if
// events are missing up to then. Errors: those of SerializePprof.
absl::StatusOr<std::string> ProfileAt(internal::RecordingReader& recording, const RecordedInstant& instant);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_INSTANT_H_
