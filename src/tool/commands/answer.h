// What `hbmprof explain` and `hbmprof leaks` share: how they read what they judge.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_
#define HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_

#include "src/tool/findings/findings.h"
#include "src/tool/profile/view.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

// Waits until all these processes have run for so long that their profiles have the ages of buffers, if one has not.
// Says so on stderr.
void WaitForAges(const std::string& command, const std::vector<LiveProcess>& processes);

// Applies the view to the profiles of one program, and judges them. `type`: a sample type; "": the bytes in use.
// `counter`: a counter for the growth per unit; "": the only one of the last profile, if its values can be used.
// `subject`: the counter and the contradictions of the profiles are added to it. Errors: those of ApplyView, TypeNamed
// and OrderDumps; kInvalidArgument if the type counts freed buffers too, and so grows in each program.
absl::StatusOr<Findings> JudgeProgram(const std::string& command, const ViewOptions& view, const std::string& type,
                                      const std::string& counter, Subject subject, ProfileSet& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_ANSWER_H_
