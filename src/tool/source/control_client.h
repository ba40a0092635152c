// Sends requests to running processes through their control channels (src/protocol/control.h).
#ifndef HBMPROF_SRC_TOOL_SOURCE_CONTROL_CLIENT_H_
#define HBMPROF_SRC_TOOL_SOURCE_CONTROL_CLIENT_H_

#include "src/tool/util/json.h"

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
  // The process id, with a number after it ("1.2") if processes of several containers have the same one. Unique in the
  // directory.
  std::string id;
  int64_t pid = 0;  // in the process's own pid namespace
  std::string name;
  std::string version;
  int64_t seconds = 0;                             // since its control channel was started
  std::string host;                                // the name of its host or container
  std::map<std::string, std::string> environment;  // Snapshot::environment of the process
  std::string control_group;                       // what it reads in /proc/self/cgroup
  std::vector<LiveMemory> memory;
  std::vector<std::string> warnings;  // Snapshot::warnings
  bool is_detached = false;           // `hbmprof attach` records it again
};

// Returns their ids and names: "4242 llm_server, 4243 train".
std::string ListOf(const std::vector<LiveProcess>& processes);

// Returns the process for the JSON of `hbmprof ps` and of the page of `hbmprof serve`.
Json ProcessJson(const LiveProcess& process);

// Returns the directory of the sockets, if the user does not name another one: $HBMPROF_SOCKET_DIR, else
// $XDG_RUNTIME_DIR/hbmprof, else /tmp/hbmprof-UID.
std::string ControlDirectory();

// Returns the ids of the running processes with this process id or name (as the kernel has it: 15 characters).
std::vector<int64_t> RunningProcesses(const std::string& pid_or_name);

// Returns a message: `directory` has no control channel of `pid_or_name`, or of any process if this is empty. It says
// where the channel is, why there is none, or what the user can do: attach, if a process with this id or name runs.
std::string NoProcessText(const std::string& pid_or_name, const std::string& directory);

// How long a process may take for each of these: to accept a request, to answer it, and to send the next part of the
// answer.
inline constexpr int kQueryMillis = 10'000;

struct QueryLimits {
  int millis = kQueryMillis;                // for each step
  int total_millis = 60'000;                // for all steps together, and for all processes
  int64_t answer_bytes = int64_t{1} << 32;  // of one process
};

// Sends `request` to the socket at `path` and returns the body of the answer. Errors: kNotFound (no process listens),
// kUnavailable (no answer or only a part of it in time, the connection ended), kPermissionDenied (also: it is the
// socket of another user), kOutOfRange (the answer is larger than `limits.answer_bytes`; it is not read), or the
// process's own error as kInternal; the message names the socket. Thread-safe.
absl::StatusOr<std::string> QueryProcess(const std::string& path, std::string_view request,
                                         const QueryLimits& limits = {});

// Returns the id of the process that listens at the socket `path`, in the pid namespace of this command; 0 if no
// process listens, if it is not visible in this namespace, or if the connection takes longer than `millis`.
int64_t PidOf(const std::string& path, int millis);

// Returns whether the process of the socket file `path` has ended: a connection is refused. Thread-safe.
bool IsDead(const std::string& path);

// Sends `request` to the sockets at `paths`, at the same time to several of them. Returns the result of QueryProcess
// for each, in the same order. Takes `limits.total_millis` at most for all together: each may take its part of the time
// that is left, so that those that do not answer leave some for the others. Thread-safe.
std::vector<absl::StatusOr<std::string>> QueryProcesses(const std::vector<std::string>& paths, std::string_view request,
                                                        const QueryLimits& limits = {});

// Returns the processes that have a socket in `directory` and answer, sorted by process id. Waits `millis` for all
// together. If `silent` is not null, adds a line to it for each running process that does not answer. Removes the
// sockets of processes that have ended, if this user may. Errors: kNotFound if there is no such directory, kUnavailable
// if it cannot be read, kPermissionDenied if another user could have put the sockets there. Thread-safe.
absl::StatusOr<std::vector<LiveProcess>> ListProcesses(const std::string& directory, std::vector<std::string>* silent,
                                                       int millis = kQueryMillis);

// Returns the process in `directory` with this id, process id or name. Waits kQueryMillis for a process with this id,
// and less than two seconds for all others that do not answer. Errors: kNotFound if there is none that answers;
// kInvalidArgument if several processes have the name or process id, and then the message lists them; for an id, those
// of QueryProcess; those of ListProcesses.
absl::StatusOr<LiveProcess> FindProcess(const std::string& directory, const std::string& pid_or_name);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_CONTROL_CLIENT_H_
