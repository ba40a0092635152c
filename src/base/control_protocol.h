// The protocol of the control channel, which the library and the command `hbmprof` share.
//
// A process listens on a Unix stream socket "hbmprof.PID.sock" in a directory. A client connects, sends one line that
// ends with a line feed, and gets one answer: "ok BYTES\n" or "error BYTES\n", followed by BYTES bytes. Then the
// process closes the connection. Requests and the bytes of their answers:
//   info          lines "key value": pid, name, version, seconds (since the start), and one line for each memory space
//                 of each device in which memory was allocated: "memory SPACE IN_USE PEAK LIMIT DEVICE" (IN_USE, PEAK
//                 and LIMIT are in bytes; LIMIT is -1 if it is unknown; DEVICE is the device's name, up to the end of
//                 the line)
//   profile       the profile as SerializePprof makes it
//   reset-peak    begins a new peak on every device; the answer has 0 bytes
// The bytes of an "error" answer are a message for the user.
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
