// Loads the injected library into a running process.
#ifndef HBMPROF_SRC_TOOL_ATTACH_ATTACH_H_
#define HBMPROF_SRC_TOOL_ATTACH_ATTACH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/tool/attach/borrowed_thread.h"
#include "src/tool/attach/target.h"

namespace hbmprof::tool {

// Returns kFailedPrecondition with a message for the user if the process cannot be attached to. Stops nothing.
absl::Status CheckCanAttach(const Target& target);

// Returns kFailedPrecondition with a message for the user if system calls that the process does not make itself can end
// it: if it, or its service, has set up filters of system calls (seccomp). The filter of a container's runtime does not
// count, because it gives errors. Stops nothing.
absl::Status CheckSystemCalls(const Target& target);

// Whether the process has loaded the injected library.
bool HasInjectedLibrary(const Target& target);

// The version in the name of the driver's file, as in libcuda.so.550.163.01; "" if it has none.
std::string DriverVersion(const Target& target);

// Makes the process load the file `library`, unless it has loaded the injected library, and call
// hbmprof_attach(options) of that. REQUIRES: CheckCanAttach(target). Errors: those of StopSafeThread and LoadInThread;
// kUnimplemented on processors other than x86-64.
absl::StatusOr<Attached> LoadLibrary(const Target& target, const std::string& library, const std::string& options);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_ATTACH_H_
