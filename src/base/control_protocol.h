// The protocol of the control channel, which the library and the command `hbmprof` share.
//
// A process listens on a Unix stream socket "hbmprof.PID.sock" in a directory. A client connects, sends one line that
// ends with a line feed, and gets one answer: "ok BYTES\n" or "error BYTES\n", followed by so many bytes. Then the
// process closes the connection. Requests:
//   info          lines "key value": pid, name, version, seconds (since the start), and for each device and memory
//   space
//                 "memory SPACE IN_USE PEAK LIMIT DEVICE" (bytes; -1: the limit is unknown; the name is the line's
//                 rest)
//   profile       the profile as SerializePprof makes it
//   reset-peak    begins a new peak on every device; an empty answer
// An error's bytes are a message for the user.
#ifndef HBMPROF_SRC_BASE_CONTROL_PROTOCOL_H_
#define HBMPROF_SRC_BASE_CONTROL_PROTOCOL_H_

#include <cstddef>

namespace hbmprof::internal {

inline constexpr char kControlDirectoryVariable[] = "HBMPROF_SOCKET_DIR";
inline constexpr char kControlSocketPrefix[] = "hbmprof.";
inline constexpr char kControlSocketSuffix[] = ".sock";
inline constexpr size_t kMaxControlRequestBytes = 4096;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_CONTROL_PROTOCOL_H_
