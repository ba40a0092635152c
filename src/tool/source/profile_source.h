// Where the bytes of a profile come from. A source on a command line is a file, standard input ("-"), a URL (http or
// https), the id or name of a running process, or a moment of a recording: "run.hbmrec@peak" (InstantNamed). A snapshot
// of PyTorch is read as a recording.
#ifndef HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_
#define HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_

#include "src/tool/source/control_client.h"

namespace hbmprof::tool {

struct SourceParts {
  std::string file;                   // the recording, or the whole source
  std::optional<std::string> moment;  // of the recording
};
// Returns the parts of `source`. It names a moment if there is no such file, but one whose name ends before an "@",
// the last such "@".
SourceParts PartsOf(const std::string& source);
// Returns the files that the sources name, for CheckIsNoInput.
std::vector<std::string> FilesOf(const std::vector<std::string>& sources);

// Returns the process in ControlDirectory() that `source` names by its id or name, or nullopt if `source` names
// something else. A file is preferred to a process of the same name, unless the file is a program. Errors: kNotFound if
// there is neither such a file nor such a process; kInvalidArgument if several processes have the name.
absl::StatusOr<std::optional<LiveProcess>> ProcessOf(const std::string& source);

// Returns the bytes of the profile that `source` names. A recording without a moment is that of its end. If `gaps` is
// not null, it is set to what the recording lacks (GapsOf); otherwise this is printed as warnings. Errors: those of
// ReadFile for a file, of QueryProcess for a process, of HttpGet for a URL, and of OpenRecordingFile and InstantNamed
// for a recording; kNotFound if there is neither such a file nor such a process.
absl::StatusOr<std::string> ReadSource(const std::string& source, std::vector<std::string>* gaps = nullptr);

// Returns the path of a new file of `process`: "hbmprof.NAME.PID" and `suffix`, in `folder` if that is not "". If this
// file exists, adds a number after the process id.
std::string NewFileOf(const LiveProcess& process, const std::string& suffix, const std::string& folder = "");

// Returns whether `path` is a regular file that begins as a recording does, or as a snapshot of PyTorch.
bool IsRecordingFile(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_
