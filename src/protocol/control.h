// The protocol of the control channel, which the library and the command `hbmprof` share.
//
// A process listens on a Unix stream socket "hbmprof.PID.sock" in a directory. A client connects, sends one line that
// ends with a line feed, and gets one answer: "ok BYTES\n" or "error BYTES\n", followed by BYTES bytes. Then the
// process closes the connection. While it makes the answer to a profile or record request, it sends a line feed every
// two seconds, so that the client knows that it is alive. The bytes of an "error" answer are a message for the user. A
// request is a word, with arguments that are separated by one space. Requests and the bytes of their answers:
//   info          lines "key value": pid, name, version, seconds (since the start), host (its name), "environment NAME
//                 VALUE" for each entry of Snapshot::environment, "cgroup LINE" for each line of /proc/self/cgroup, and
//                 one line for each memory space of each device in which memory was allocated: "memory SPACE IN_USE
//                 PEAK LIMIT DEVICE" (IN_USE, PEAK and LIMIT are in bytes; LIMIT is -1 if it is unknown; DEVICE is the
//                 device's name, up to the end of the line; a line feed in a name or value is sent as a space), and
//                 "warning TEXT" for each of Snapshot::warnings
//                 In a process that hbmprof was attached to (attach.h), these lines follow:
//                   attach STATE                   attached, detached, or changing from one to the other
//                   functions N M                  N of the M wrapped functions that this driver has are recorded
//                   references N                   references to the report functions of PyTorch and TensorFlow that
//                                                  were set
//                   calls N                        calls of these functions since it was attached
//                   before BYTES SEGMENTS DEVICE   memory from before on this device: BYTES that are left, and SEGMENTS
//                                                  bytes of it that are segments now. No such line: not known yet
//   attach, detach
//                 attaches again, with the options of the first time, or detaches. The answer has 0 bytes
//   stats         one JSON object (src/export/stats_json.h): the process, its devices with their totals by memory
//                 space, the tags of the process, and the counters of the tracker
//   metrics [tags=KEY,KEY...]
//                 metrics in the text format 0.0.4 of Prometheus (src/export/metrics.h). The bytes in use are also
//                 split by the tags KEY
//   profile [max_samples=N] [max_bytes=N]
//                 the profile as SerializePprof makes it, with PprofOptions::max_samples and max_bytes
//   record start [max_bytes=N] PATH, record stop, record flight PATH
//                 starts a recording, as StartRecording (hbmprof/recording.h) does, ends it, or writes the events of
//                 the flight recorder. PATH is the rest of the line. The answer has 0 bytes
//   reset-peak    begins a new peak on every device; the answer has 0 bytes
//   tag KEY=VALUE sets a tag of the process, as in HBMPROF_TAGS: a label of all samples. KEY ends at the first "=";
//                 VALUE is the rest of the line. An empty VALUE removes the tag. The answer has 0 bytes
//   tracking on, tracking off
//                 turns tracking on or off. While it is off, an event of the program costs one atomic load, and the
//                 process still answers all requests with what was recorded before. "on" removes the records of all
//                 buffers that are live at that time, because their frees may have been missed; then it begins a new
//                 peak. It does nothing if tracking is on already. The answer has 0 bytes
#ifndef HBMPROF_SRC_PROTOCOL_CONTROL_H_
#define HBMPROF_SRC_PROTOCOL_CONTROL_H_

#include <sys/stat.h>

#include <cstddef>

namespace hbmprof::internal {

inline constexpr char kControlDirectoryVariable[] = "HBMPROF_SOCKET_DIR";
inline constexpr char kControlSocketPrefix[] = "hbmprof.";
inline constexpr char kControlSocketSuffix[] = ".sock";
// The process binds the socket to DIRECTORY/.hb.PID.NUMBER before it gets its name. /proc/net/unix shows that for ever.
inline constexpr char kControlBoundPrefix[] = ".hb.";
inline constexpr size_t kMaxControlRequestBytes = 4096;

// Returns whether only `owner` and root can replace a socket in the directory that lstat describes as `info`: it
// belongs to one of them, and others may not write to it. If its sticky bit is set, others can only add sockets of
// their own.
inline bool IsSafeControlDirectory(const struct stat& info, uid_t owner) {
  return S_ISDIR(info.st_mode) && (info.st_uid == owner || info.st_uid == 0) &&
         ((info.st_mode & 022) == 0 || (info.st_mode & S_ISVTX) != 0);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_PROTOCOL_CONTROL_H_
