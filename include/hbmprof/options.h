// The options of a Profiler, and the environment variables that set them.
//
// Options are for any Profiler, DefaultOptions for Profiler::Default().
#ifndef HBMPROF_OPTIONS_H_
#define HBMPROF_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hbmprof {

// How call stacks are captured.
enum class Unwinder : uint8_t {
  kAuto,          // exact with and without frame pointers; the default
  kFramePointer,  // follows frame pointers: the cheapest; stops at code that was built without them
  kNone = 3,      // no stacks: only totals, labels and peaks
};

// The options of a Profiler. For a number outside its range, the constructor of Profiler takes the nearest number in
// the range; Profiler::InitDefault and hbmprof_init return an error.
struct Options {
  // False: nothing is recorded. An event then costs one relaxed atomic load. Profiler::SetEnabled changes it later.
  bool enabled = true;
  // The number of innermost frames that are kept of each stack, 1 to 512. A deeper stack loses its outermost frames and
  // is counted in TrackerStats::truncated_stacks.
  int max_stack_depth = 128;
  Unwinder unwinder = Unwinder::kAuto;
  // Whether stacks contain the running Python functions in place of the frames of the CPython interpreter that evaluate
  // them (docs/python.md). With kFramePointer, only as far as the chain of frame pointers leads.
  bool python = true;
  // The number of buffers that can be live at once, 1 to 2^32. Allocations beyond it are dropped: not recorded, but
  // counted in TrackerStats::dropped_records and dropped_bytes.
  int64_t max_live_buffers = int64_t{1} << 24;
  // The number of different call sites, 1 to 2^22. A call site is a combination of stack, attributes and tags. An
  // allocation that would add one more is recorded with the stack "[other call stacks]" and without tags.
  int64_t max_sites = int64_t{1} << 18;
  // The host memory that the tables may take, in bytes, 1 to 2^50. It counts mapped pages, touched or not. An empty
  // profiler takes about 4 MiB. An allocation that would need more is dropped, and a new tag has no effect. The
  // profilers of one process share tables: the smallest max_host_bytes of the existing profilers is the limit for the
  // sum of their tables. Snapshots, profiles and the data of the backends are not counted.
  int64_t max_host_bytes = int64_t{1} << 31;
  // Labels of all samples: keys and values, such as {"model", "llama"}. If a thread sets a tag with the same key
  // (tag.h), its samples have the value of the thread instead. The limits are those of tag.h; if a key occurs twice,
  // the last one counts.
  std::vector<std::pair<std::string, std::string>> tags;
};

// The options of Profiler::Default(): those of the profiler itself, of the files that it writes, and of the control
// channel.
struct DefaultOptions : Options {
  // The file to which a profile is written when the process exits. Empty: no profile is written.
  // "%p" is replaced by the process id, "%n" by the next number for which no file exists, "%%" by a percent sign. All
  // profiles of a process share these numbers, which begin at 0. A file of another process is never replaced, with one
  // exception: a name with neither "%p" nor "%n" replaces the file that existed when the process started. If the file
  // exists and must not be replaced, a number is put before ".pb.gz", and a line on stderr says so.
  std::string output;
  // Whether the profile of `output` is also written when the process ends by a signal that the program does not handle,
  // by quick_exit or _exit, or when exec replaces its program. For this, the library starts a thread that writes the
  // profile, also in forked children that record, sets the actions of these signals, and makes the libraries that are
  // loaded when the profiler is made call it before _exit and exec (docs/live.md).
  bool output_on_signals = false;
  // The time between two profiles that are written to `output` while the process runs, in seconds, 0.001 to 1e8. So
  // there is one if the process ends by SIGKILL. 0: profiles are written at the end only. If `output` has "%n", each is
  // a new file, and none is written if less than 64 MiB of the file system would remain free.
  double output_interval = 0;
  // The permission bits of new profiles, 0 to 0777. The umask is not applied. A file that is replaced keeps its
  // permissions.
  unsigned output_mode = 0600;
  // The file to which the process is recorded from its first allocation on (recording.h); patterns as for `output`.
  // Without "%n": if the file exists, a number is added to the name. Empty: no recording.
  std::string record;
  // RecordingOptions::max_bytes of that recording.
  int64_t record_max_bytes = int64_t{1} << 30;
  // The flight recorder keeps the last events in memory. It is on if flight_events or flight_seconds is not 0. Whenever
  // the library then writes a profile to a file, also for a failed allocation, it writes a recording of these events
  // beside it: "a.hbmrec" beside "a.pb.gz". A file of that name is replaced, unless it is a recording of this process.
  // The profiles of output_interval, WritePprof and `hbmprof dump`, and those that are written during a recording, have
  // no such recording.
  //
  // flight_events is the number of events, 0 to 16,777,216. Each takes 32 bytes of host memory; all of them together
  // take up to 5 MiB more. This memory counts towards max_host_bytes. If flight_events is 0 and flight_seconds is not,
  // there is memory for 4,194,304 events (128 MiB), but only the part that the events of that time need is touched.
  int64_t flight_events = 0;
  // The greatest age of the events that are kept, in seconds, 0.001 to 1e8. If there are more events in this time than
  // flight_events allows, the oldest are removed earlier, and a warning in the recording says so. 0: no limit.
  double flight_seconds = 0;
  // Where LogMemory (recording.h) writes its lines: "stderr", or the path of a file to which they are appended, without
  // patterns. A new file has the permissions 0600. A symbolic link is not followed. Empty: nowhere.
  std::string log;
  // Whether a failed allocation is reported on standard error (out_of_memory.h).
  bool oom_report = true;
  // The file to which such a report also writes a profile; patterns as in save_device_memory_profile (hbmprof.h).
  // Empty: no profile is written. dump_keep limits these profiles, too.
  std::string oom_output;
  // The directory of the control channel: a Unix socket by which the command `hbmprof` (ps, dump) requests profiles and
  // metrics from this process while it runs, and a thread that serves it. Only processes of the same user and of root
  // are answered. The directory is made if it does not exist. It must belong to the process's user or to root. Other
  // users must not be able to write to it, except if its sticky bit is set, as for /tmp. Empty: no channel.
  std::string socket_dir;
  // The triggers below write profiles to this path; patterns as in save_device_memory_profile (hbmprof.h). Empty:
  // "hbmprof.dump.%p.%n.pb.gz" in the directory of `output`. One thread serves all triggers: it looks at the devices
  // each second, and after a profile ten seconds later. Recording costs the same with and without it.
  std::string dump_output;
  // Writes a profile when a check finds more than this share of the limit of a device in use, in percent, 1 to 100. The
  // next profile is written only after a check has found that the share in use is not above it. 0: off.
  int dump_in_use_percent = 0;
  // Writes a profile when the peak of a device has grown by this number of bytes since the last profile that this
  // trigger has written, or since the start. 0: off.
  int64_t dump_peak_growth = 0;
  // The number of profiles that are kept, 1 to 100,000, if the path has "%n". Beyond it, the oldest profiles of this
  // process are removed with the recordings beside them, unless their files were replaced. It holds for the profiles of
  // `oom_output` and for those of `dump_output`, each by itself. No profile is written if less than 64 MiB of the file
  // system would remain free.
  int dump_keep = 10;
};

// Reads the environment variables below. Returns DefaultOptions with the fields that they set. For each variable with a
// bad value it appends one line to `problems` (the variable, its value, the allowed values, the value used instead);
// the field keeps its default. It also appends a line for each variable that hbmprof does not have and whose name
// differs from that of one of its variables in at most two letters. In a program that got privileges when it was
// started, such as a set-user-id program (AT_SECURE), no variable is read, because the environment belongs to another
// user. Do not call it while another thread changes the environment. `problems` must not be null. Throws
// std::bad_alloc.
//
//   HBMPROF_OUTPUT=PATH                output
//   HBMPROF_SOCKET_DIR=DIR             socket_dir
//   HBMPROF_OUTPUT_INTERVAL=SECONDS    output_interval
//   HBMPROF_OOM_OUTPUT=PATH|silent     oom_output; "silent": oom_report is false
//   HBMPROF_RECORD=PATH                record
//   HBMPROF_RECORD_MAX_BYTES=N         record_max_bytes; N is at least 1,048,576, or 0
//   HBMPROF_FLIGHT=N|SECONDSs|N,SECONDSs   flight_events, flight_seconds, or both
//   HBMPROF_DUMP=BYTES|PERCENT%|BYTES,PERCENT%   dump_peak_growth, dump_in_use_percent, or both
//   HBMPROF_OUTPUT_ON_SIGNALS=0|1      output_on_signals
//   HBMPROF_LOG=stderr|PATH            log
//   HBMPROF=0|1                        enabled
//   HBMPROF_STACK_DEPTH=N              max_stack_depth
//   HBMPROF_MAX_LIVE=N                 max_live_buffers
//   HBMPROF_MAX_SITES=N                max_sites
//   HBMPROF_MAX_HOST_BYTES=N           max_host_bytes
//   HBMPROF_UNWINDER=auto|native|fp|none   unwinder; "native": python is false
//   HBMPROF_TAGS=KEY=VALUE,...         tags; values without a comma
//
// "off" is the same as the empty text for each path. For 0 and 1, "off", "false", "no" and "on", "true", "yes" are the
// same.
DefaultOptions OptionsFromEnvironment(std::vector<std::string>* problems);

}  // namespace hbmprof

#endif  // HBMPROF_OPTIONS_H_
