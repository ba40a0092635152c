// Asks running processes by their control channel (src/base/control_protocol.h).
#ifndef HBMPROF_SRC_TOOL_CONTROL_CLIENT_H_
#define HBMPROF_SRC_TOOL_CONTROL_CLIENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hbmprof::tool {

// One memory space of one device of a process. Bytes; limit -1: unknown.
struct LiveMemory {
  std::string device;
  std::string space;  // "device", "managed", "pinned_host"
  int64_t in_use = 0;
  int64_t peak = 0;
  int64_t limit = -1;
};

// A process that answers.
struct LiveProcess {
  std::string socket;  // path
  int64_t pid = 0;     // as the process sees itself
  std::string name;
  std::string version;
  int64_t seconds = 0;  // since its control channel was started
  std::vector<LiveMemory> memory;
};

// Where the sockets are unless the user names a directory: $HBMPROF_SOCKET_DIR, else hbmprof in $XDG_RUNTIME_DIR, else
// /tmp/hbmprof-UID.
std::string ControlDirectory();

// Sends `request` to the socket at `path` and returns the body of the answer. Waits at most ten seconds for the process
// to accept, to answer and to go on sending. Errors: kUnavailable (nobody listens, no answer in time, the connection
// ended), kPermissionDenied, or the process's own error as kInternal; the message names the socket.
absl::StatusOr<std::string> AskProcess(const std::string& path, std::string_view request);

// The processes with a socket in `directory` that answer, by process id. `silent`, if not null, gets a line for each
// that does not answer. Removes the sockets of processes that have ended without doing so. Errors: kNotFound if there
// is no such directory.
absl::StatusOr<std::vector<LiveProcess>> ListProcesses(const std::string& directory, std::vector<std::string>* silent);

// The one process in `directory` with this process id or name. Errors: kNotFound, kInvalidArgument if several have the
// name; the message lists the processes.
absl::StatusOr<LiveProcess> FindProcess(const std::string& directory, const std::string& pid_or_name);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_CONTROL_CLIENT_H_
