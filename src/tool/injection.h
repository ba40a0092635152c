// Starting programs with the injected library: where it is, what the environment must be, which program a command
// means. Not here: the subcommands (run.cc, doctor.cc).
#ifndef HBMPROF_SRC_TOOL_INJECTION_H_
#define HBMPROF_SRC_TOOL_INJECTION_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hbmprof::tool {

// The absolute path of libhbmprof_cuda.so: `given` if it is not empty, else beside this command as it is installed or
// built. kNotFound names the places that were looked at.
absl::StatusOr<std::string> FindInjectedLibrary(const std::string& given);

// The file that a command name means, as a shell finds it. kNotFound; kPermissionDenied if it may not be executed.
absl::StatusOr<std::string> FindProgram(const std::string& command);

// Environment variables to set in a child, on top of this process's own.
using Environment = std::map<std::string, std::string>;

// LD_PRELOAD with `library` before what stands there.
std::string PreloadWith(const std::string& library);

// A child process, started and not yet waited for. Its standard output is `output` unless that is -1.
absl::StatusOr<int> StartProcess(const std::string& program, const std::vector<std::string>& command,
                                 const Environment& environment, int output = -1);

// Waits for it. Its exit code, or 128 + the signal that ended it.
int WaitForProcess(int process);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_INJECTION_H_
