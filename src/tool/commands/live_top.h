// `hbmprof top` of a running process on a terminal: the table is refreshed at an interval and shows the growth.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_LIVE_TOP_H_
#define HBMPROF_SRC_TOOL_COMMANDS_LIVE_TOP_H_

#include "src/tool/source/control_client.h"
#include "src/tool/sums/sums_view.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Shows the rows that hold the memory of `process`, largest first, with the change since the previous refresh and since
// the first one, and the bytes in use at the last refreshes as a curve. Keys select the column by which the rows are
// sorted. Asks the process for a profile every `seconds` and at every key. Ends at the key q, at SIGINT,
// SIGQUIT, SIGTERM or SIGHUP, or when the process ends. The last table stays on the terminal. REQUIRES: standard output
// is a terminal, and 0.1 <= seconds <= 86400. Errors: those of the first profile and of `options`.
absl::StatusOr<int> RunLiveTop(const LiveProcess& process, const SumsOptions& options, double seconds);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_LIVE_TOP_H_
