// Where the bytes of a profile come from: a file, a running process or a URL. Commands take each of them where they
// expect a file.
#ifndef HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_
#define HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

// Returns the process in ControlDirectory() that `source` names by its id or name, or nullopt if `source` names
// something else: standard input ("-"), a URL or a file. A file is preferred to a process of the same name, unless the
// file is a program. Errors: kNotFound if there is neither such a file nor such a process; kInvalidArgument if several
// processes have the name.
absl::StatusOr<std::optional<LiveProcess>> ProcessOf(const std::string& source);

// Returns the bytes of the profile that `source` names: standard input ("-"), a file, a URL (http or https), or the id
// or name of a running process. For a file that is a recording, returns the profile of the state at its end. Errors:
// those of ReadFile for a file, of QueryProcess for a process, of HttpGet for a URL, and of RecordingReader::Open for a
// recording; kNotFound if there is neither such a file nor such a process.
absl::StatusOr<std::string> ReadSource(const std::string& source);

// Returns the path of a new file for a profile of `process`: "hbmprof.NAME.PID.pb.gz", in `folder` if that is not "".
// If this file exists, adds a number after the process id.
std::string NewProfilePath(const LiveProcess& process, const std::string& folder = "");

// Returns whether `path` is a regular file that begins as a recording does.
bool IsRecordingFile(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_
