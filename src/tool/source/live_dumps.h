// A series of profiles of a running process, for `hbmprof leaks`.
#ifndef HBMPROF_SRC_TOOL_SOURCE_LIVE_DUMPS_H_
#define HBMPROF_SRC_TOOL_SOURCE_LIVE_DUMPS_H_

#include "src/tool/profile/profile.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

struct LiveDumps {
  double seconds = 0;  // between the starts of two dumps, up to 86400
  size_t count = 0;
  std::string folder;  // where the dumps are written; "": they are not written
};

// Asks `process` for `dumps.count` profiles. Stops earlier at SIGINT or SIGTERM, or when the process ends. Keeps of
// each profile only what ProfileSet has. Calls `is_enough` with the first one; true or an error ends the series. Prints
// an error of the subcommand `command` for each dump that fails after the first one, for each file that cannot be
// written, and if the process ends. Shows progress on stderr if that is a terminal. Errors: those of the first dump, of
// `is_enough` and of ProfileSet::ReadEach; kPermissionDenied if the folder cannot be created.
absl::StatusOr<ProfileSet> TakeDumps(const std::string& command, const LiveProcess& process, const LiveDumps& dumps,
                                     const std::function<absl::StatusOr<bool>(const ProfileSet&)>& is_enough);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_LIVE_DUMPS_H_
