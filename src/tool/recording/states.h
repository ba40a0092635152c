// The states of a recording at a few instants, as profiles: what the commands judge of it.
#ifndef HBMPROF_SRC_TOOL_RECORDING_STATES_H_
#define HBMPROF_SRC_TOOL_RECORDING_STATES_H_

#include "src/tool/profile/profile.h"
#include "src/tool/recording/cursor.h"

namespace hbmprof::tool {

// The label of a state's samples that holds the number of their row (SiteTotals).
extern const char kRecordedSiteLabel[];

struct RecordedStates {
  std::unique_ptr<RecordingReader> reader;
  ProfileSet states;  // at equal distances; the last is the end of the recording
};

// The number of states that are judged: enough for `hbmprof leaks` to be sure, and one more, because the last one is
// often that of a program that has freed all (OrderDumps).
inline constexpr size_t kJudgedStates = 13;
// Opens a recording and reads all its events, for kJudgedStates states. Prints what it lacks as warnings of the
// subcommand `command`. Its size counts for the memory limit. Errors: those of OpenWholeRecording and
// SerializePprof.
absl::StatusOr<RecordedStates> ReadRecorded(const std::string& command, const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_STATES_H_
