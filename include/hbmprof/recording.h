// Recordings. A recording is a file that contains every event of Profiler::Default() and the time of each event
// (docs/spec/recording.md).
//
//   absl::Status started = hbmprof::StartRecording("server.hbmrec");
//   Serve(100);
//   absl::Status stopped = hbmprof::StopRecording();
//
//   $ hbmprof report -o server.html server.hbmrec
//
// Contents: RecordingOptions, StartRecording, StopRecording; SaveFlightRecording; LogMemory.
//
// A recording contains each allocation, free and resize with its time, thread, call stack and tags, and also failed
// allocations and changes of tags. Every RecordingOptions::sample_interval it also gets the numbers of the driver, the
// host memory and the counters of the program. One thread of the library writes the file, so the program's threads do
// not wait for the disk.
#ifndef HBMPROF_RECORDING_H_
#define HBMPROF_RECORDING_H_

#include <chrono>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace hbmprof {

struct RecordingOptions {
  // The maximum size of the recording, in bytes, at least 1 MiB; 0: no limit. When the file has half of this size, it
  // is renamed to "PATH.old", replacing an older one, and a new file begins with the state of that instant. So the
  // newest events are always in PATH or in "PATH.old". The size is checked after each write, so both files together can
  // exceed the limit by the events of one write, which are at most those of buffer_bytes. If the tables at the start of
  // a file take more than a quarter of max_bytes, the file becomes larger: it also gets events of at least a quarter of
  // max_bytes.
  int64_t max_bytes = int64_t{1} << 30;
  // The host memory for events that are not written yet, in bytes, 2 MiB to 512 MiB. On a machine with many processors
  // a small value is increased, to at most 8 MiB. This memory counts towards Options::max_host_bytes. If it is full,
  // further events are lost. The recording contains their number and their times. When no event was lost for one
  // second, a new file begins, as for max_bytes.
  int64_t buffer_bytes = int64_t{16} << 20;
  // The interval of the driver's numbers, the host memory and the counters, 10 ms to 1 hour.
  std::chrono::milliseconds sample_interval{1000};
};

// Starts a recording of Profiler::Default() to the file `path`. A new file has the permissions 0600. In `path`, "%p" is
// replaced by the process id, "%n" by a number for which no file exists, "%%" by a percent sign. Without "%n" an
// existing file is replaced and keeps its permissions. The recording ends when StopRecording is called or when the
// process exits. If DefaultOptions::output_on_signals is set, it also ends properly when a signal ends the process, and
// when exec replaces its program (also if exec then fails). A process that is killed leaves a file with all events up
// to about 0.1 seconds before. If the file is removed during the recording, the recording is lost, and StopRecording
// succeeds. A "PATH.old" of an earlier recording stays until this recording makes its own. A forked child is not
// recorded. Since a recording counts as recorded memory, the child is off (profiler.h).
//
// In a program that was started with the injected library (`hbmprof run`), the injected library makes the recording: it
// also contains the driver's allocations, and `hbmprof control PROCESS record stop` ends it, too. It has the default
// options: kFailedPrecondition if `options` are others.
//
// If a later write to the file fails, the library prints a message on standard error and ends the recording. Any thread
// may call StartRecording. Errors: kFailedPrecondition if there is a recording already, if the profiler is off, or if
// the process is a forked child of one that had recorded; kInvalidArgument if an option is outside its range;
// kResourceExhausted if the host has no memory or no thread can be started; kAlreadyExists if 100,000 names for "%n"
// exist; for the file, the errors of WritePprof (pprof.h).
absl::Status StartRecording(std::string_view path, const RecordingOptions& options = {});

// Ends the recording and waits until its file is complete, for at most ten seconds. Any thread may call it. If several
// do so at once, one ends the recording, and the others get kFailedPrecondition after its end.
// Errors: kFailedPrecondition if there is no recording, or in a forked child of a process that had recorded;
// kDeadlineExceeded if it took longer; if the recording has ended because of an error: that error.
absl::Status StopRecording();

// Writes the events of the flight recorder (DefaultOptions::flight_events and flight_seconds) as a recording to `path`,
// with patterns as for StartRecording. The recording begins with the oldest event that the flight recorder keeps, and
// ends at the time of the call. If the file can be made, the flight recorder then begins again without events. (It also
// loses its events when StartRecording begins a recording, and begins again when that ends.) The call takes about 150
// bytes of host memory for each event, until it returns. Any thread may call it. Errors: kFailedPrecondition if the
// flight recorder is off, if a recording is in progress, or if the profiler is off; kAlreadyExists if `path` is the
// file of a recording of this process, which is not replaced; otherwise those of StartRecording for the file and for
// host memory.
absl::Status SaveFlightRecording(std::string_view path);

// Writes one line for each device on which device memory was recorded to the log that DefaultOptions::log names. The
// line contains `label`, the bytes of device memory in use, their change since the last line for this device (if there
// was one), and the peak. It contains the limit and the largest free block only if the probe of the device reports
// them. If the log cannot be written, prints one message on standard error. Waits for the disk for a quarter of a
// second at most. Costs one atomic load if there is no log. Any thread may call it.
//
//   hbmprof: after decode: sim:0 in use 11.26 MiB (+4.88 MiB), peak 16.41 MiB, limit 1.00 GiB, largest free 1007.59 MiB
void LogMemory(std::string_view label);

}  // namespace hbmprof

#endif  // HBMPROF_RECORDING_H_
