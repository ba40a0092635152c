// The control channel of this process (protocol/control.h): a socket and the thread that serves it.
#ifndef HBMPROF_SRC_API_CONTROL_CONTROL_SERVER_H_
#define HBMPROF_SRC_API_CONTROL_CONTROL_SERVER_H_

#include <string>

#include "absl/status/status.h"

namespace hbmprof::internal {

// Listens in `directory`, which is made with the permissions 0700 if it does not exist, and starts a thread that
// answers requests about Profiler::Default() until the process exits. The thread has all signals blocked and holds no
// lock while it waits for a client. Only processes of the same user and of root are answered. The socket has the
// permissions 0600 and is removed at exit. A forked child has no control channel.
//
// Call it when the options of Profiler::Default() are known. After a call that succeeded, a further one does nothing.
// Error: kFailedPrecondition, with the reason: the path is too long; the directory belongs to another user, other users
// may write to it and its sticky bit is not set, or it is no directory; no descriptor or thread; an error of the
// system. Throws std::bad_alloc.
absl::Status StartControlServer(const std::string& directory);

// What the requests "attach" and "detach" call, and what "info" adds to its answer. An injected library sets it.
struct AttachRequests {
  int (*attach)(const char* options);
  int (*detach)();
  std::string (*describe)();  // lines "key value"
  bool (*is_detached)();
};
// `requests` must stay valid. Thread-safe.
void SetAttachRequests(const AttachRequests* requests);

// Removes the socket. Call it before the process ends. Does nothing if there is no socket, and in a forked child.
// Async-signal-safe.
void RemoveControlSocket();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_CONTROL_CONTROL_SERVER_H_
