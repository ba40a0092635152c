// Sends requests to running processes through their control channels (src/base/control_protocol.h).
#ifndef HBMPROF_SRC_TOOL_CONTROL_CLIENT_H_
#define HBMPROF_SRC_TOOL_CONTROL_CLIENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hbmprof::tool {

// One memory space of one device of a process. Sizes are in bytes. A `limit` of -1 means that the limit is unknown.
struct LiveMemory {
  std::string device;
  std::string space;  // "device", "managed", "pinned_host"
  int64_t in_use = 0;
  int64_t peak = 0;
  int64_t limit = -1;
};

// A running process that has answered the request "info".
struct LiveProcess {
  std::string socket;  // path
  int64_t pid = 0;     // in the process's own pid namespace
  std::string name;
  std::string version;
  int64_t seconds = 0;  // since its control channel was started
  std::vector<LiveMemory> memory;
};

// Returns the directory of the sockets, if the user does not name another one: $HBMPROF_SOCKET_DIR, else
// $XDG_RUNTIME_DIR/hbmprof, else /tmp/hbmprof-UID.
std::string ControlDirectory();

// Sends `request` to the socket at `path` and returns the body of the answer. Waits at most ten seconds for each of
// these: that the process accepts the request, that it answers, and that it sends the next part of the answer. Errors:
// kUnavailable (no process listens, no answer in time, the connection ended), kPermissionDenied, or the process's own
// error as kInternal; the message names the socket.
absl::StatusOr<std::string> QueryProcess(const std::string& path, std::string_view request);

// Returns the processes that have a socket in `directory` and answer, sorted by process id. If `silent` is not null,
// adds a line to it for each process that does not answer. Removes the sockets that ended processes have left. Errors:
// kNotFound if there is no such directory.
absl::StatusOr<std::vector<LiveProcess>> ListProcesses(const std::string& directory, std::vector<std::string>* silent);

// Returns the process in `directory` with this process id or name. Errors: kNotFound if there is none; kInvalidArgument
// if several processes have the name or id. The message lists the processes.
absl::StatusOr<LiveProcess> FindProcess(const std::string& directory, const std::string& pid_or_name);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_CONTROL_CLIENT_H_
