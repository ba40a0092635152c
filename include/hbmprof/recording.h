// Recordings: files with every event of Profiler::Default() and its time (docs/recording.md).
//
//   absl::Status started = hbmprof::StartRecording("server.hbmrec");
//   Serve(100);
//   absl::Status stopped = hbmprof::StopRecording();
//
//   $ hbmprof report server.hbmrec
//
// Contents: RecordingOptions, StartRecording, StopRecording; SaveFlightRecording; LogMemory.
//
// A recording contains each allocation, free and resize with its time, thread, call stack and tags, failed allocations,
// changes of tags, and at an interval the driver's numbers, the host memory and the program's counters. One thread of
// the library writes it, so the program's threads do not wait for the disk.
#ifndef HBMPROF_RECORDING_H_
#define HBMPROF_RECORDING_H_

#include <chrono>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace hbmprof {

struct RecordingOptions {
  // The largest size of the recording, in bytes, at least 1 MiB; 0: no limit. When the file has half of this size, it
  // is renamed to "PATH.old", replacing an older one, and a new file begins with the state of that instant. So the
  // newest events are kept.
  int64_t max_bytes = int64_t{1} << 30;
  // The host memory for events that are not written yet, in bytes, 2 MiB to 16 GiB. It counts towards
  // Options::max_host_bytes. If it is full, events are lost: the recording says how many and when. After that, a new
  // file begins as for max_bytes.
  int64_t buffer_bytes = int64_t{16} << 20;
  // The interval of the driver's numbers, the host memory and the counters, 10 ms to 1 hour.
  std::chrono::milliseconds sample_interval{1000};
};

// Starts a recording of Profiler::Default() to the file `path`, with the permissions 0600. In `path`, "%p" is replaced
// by the process id, "%n" by a number for which no file exists, "%%" by a percent sign. Without "%n" an existing file
// is replaced. The recording ends at StopRecording, when the process exits, and, if DefaultOptions::output_on_signals
// is set, when a signal ends it or exec replaces its program (also if exec then fails). A process that is killed leaves
// a file with all events up to about 0.1 seconds before. A forked child is not recorded; it may start a recording of
// its own.
//
// If the file cannot be written later, a message on standard error says so, and the recording ends. Any thread may call
// it. Errors: kFailedPrecondition if there is a recording already, or if the profiler is off; kInvalidArgument if an
// option is outside its range; kResourceExhausted if the host has no memory or no thread can be started; those of
// WritePprof (pprof.h) for the file.
//
// In a program that was started with the injected library (`hbmprof run`), the recording is that of this library: it
// also has the driver's allocations, and `hbmprof record PROCESS stop` ends it, too.
absl::Status StartRecording(std::string_view path, const RecordingOptions& options = {});

// Ends the recording and waits until its file is complete, for ten seconds at most. Any thread may call it. Errors:
// kFailedPrecondition if there is no recording of this process; kDeadlineExceeded if it took longer; the error with
// which the recording ended before.
absl::Status StopRecording();

// Writes the events of the flight recorder (DefaultOptions::flight_events, flight_seconds) as a recording to `path`,
// with patterns as for StartRecording. It ends now and begins with the oldest event that the flight recorder has. The
// flight recorder continues. Any thread may call it. Errors: kFailedPrecondition if the flight recorder is off, or if a
// recording is in progress, which has the events; otherwise those of StartRecording for the file.
absl::Status SaveFlightRecording(std::string_view path);

// Writes one line for each device on which memory was recorded to the log that DefaultOptions::log names: `label`, the
// bytes in use with their change since the last line of the device, the peak, and the limit and the largest free block
// if the device's probe tells them. Costs one atomic load if there is no log. Any thread may call it.
//
//   hbmprof: after decode: sim:0 in use 11.26 MiB (+4.88 MiB), peak 16.41 MiB, limit 1.00 GiB, largest free 1007.59 MiB
void LogMemory(std::string_view label);

}  // namespace hbmprof

#endif  // HBMPROF_RECORDING_H_
