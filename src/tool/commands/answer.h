// What `hbmprof explain`, `leaks`, `report` and `serve` share: how they read what they judge.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_
#define HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_

#include "src/tool/findings/findings.h"
#include "src/tool/profile/view.h"
#include "src/tool/recording/cursor.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

// Waits until all these processes have run for so long that their profiles have the ages of buffers, if one has not.
// Says so on stderr.
void WaitForAges(const std::string& command, const std::vector<LiveProcess>& processes);

// What is judged as one program.
struct Program {
  ProfileSet profiles;
  Subject subject;
  std::unique_ptr<RecordingReader> recording;  // null if it is none
};
// Reads one process (after WaitForAges), one recording, or profiles. Prints messages of the subcommand `command`.
// Errors: those of QueryProcess, ReadRecorded and ReadProfiles.
absl::StatusOr<Program> ReadProgram(const std::string& command, const std::vector<std::string>& sources);

// Returns the program of a running process. `profile`, `stats`: its answers to these requests; `stats` may be "".
// Errors: those of ParseWithLines.
absl::StatusOr<Program> ProgramOf(const LiveProcess& process, std::string profile, const std::string& stats);

// Applies the view to the profiles, and judges them. `type`: a sample type; "": the bytes in use. `counter`: a counter
// for the growth per unit; "": the only one of the last profile, if its values can be used. The counter is
// added to the subject. Errors: those of ApplyView, TypeNamed and OrderDumps; kInvalidArgument if the type counts freed
// buffers too, and so grows in each program.
absl::StatusOr<Findings> JudgeProgram(const std::string& command, const ViewOptions& view, const std::string& type,
                                      const std::string& counter, Program& program);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_
