// What `hbmprof explain` and `hbmprof leaks` share: how they read what they judge.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_
#define HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_

#include "src/tool/findings/findings.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

// Waits until all these processes have run for so long that their profiles have the ages of buffers, if one has not.
// Says so on stderr.
void WaitForAges(const std::string& command, const std::vector<LiveProcess>& processes);

// Profiles of one program, ready to be judged.
struct JudgedProfiles {
  DumpSeries series;
  size_t type = 0;
  std::string counter;  // of the growth per unit; ""
};
// `type`: a sample type; "": the bytes in use. `counter`: a counter; "": the only one of the last profile, if its
// values can be used. Errors: those of TypeNamed and OrderDumps; kInvalidArgument if the type counts freed buffers too,
// and so grows in each program.
absl::StatusOr<JudgedProfiles> PrepareToJudge(const ProfileSet& profiles, const std::string& type,
                                              const std::string& counter);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_
