// StartRecorder and the functions after it: write the event log of a profiler to a recording. StartFlightRecorder and
// the functions after it: keep the last events in memory.
#ifndef HBMPROF_SRC_RECORDING_RECORDER_RECORDER_H_
#define HBMPROF_SRC_RECORDING_RECORDER_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "hbmprof/recording.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {

// The functions below act on one profiler at a time: at any time, a process has at most one recording or one flight
// recorder that is on. Any thread may call them, except where stated otherwise. StartRecorder and StopRecorder have the
// effects and errors of StartRecording and StopRecording (hbmprof/recording.h). `path` is the name of the file; it has
// no patterns. Neither throws. `must_be_new`: kAlreadyExists if the file exists.
absl::Status StartRecorder(ProfilerImpl& profiler, const std::string& path, const RecordingOptions& options,
                           bool must_be_new = false);
absl::Status StopRecorder();
// Returns whether a recording of this process is in progress.
bool IsRecorderRunning();

// Switches the flight recorder on, with space for `events` events. Events that are older than `nanos` nanoseconds are
// not kept; 0: no limit. It pauses during a recording: if one is in progress, it starts when that ends. Returns false
// if the host has no memory. REQUIRES: the flight recorder is off.
bool StartFlightRecorder(ProfilerImpl& profiler, size_t events, int64_t nanos);
// Switches it off. Does nothing if it is off. For tests. REQUIRES: no recording is in progress.
void StopFlightRecorder();
bool IsFlightRecorderOn();
// As SaveFlightRecording. `must_be_new`: kAlreadyExists if the file exists.
absl::Status WriteFlight(const std::string& path, bool must_be_new = false);

// While an object exists, its thread's snapshots of Profiler::Default() are marks with the name `name`, such as the
// path of the profile, in the recording or the flight recorder. The constructor may throw std::bad_alloc.
class ScopedMark {
 public:
  explicit ScopedMark(std::string_view name);
  ~ScopedMark() { EventLog::MarkOfThread() = 0; }
  ScopedMark(const ScopedMark&) = delete;
  ScopedMark& operator=(const ScopedMark&) = delete;
};

// Writes a mark with the name `name` at this instant. Does nothing if neither a recording nor the flight recorder is
// on. May throw std::bad_alloc.
void RecordMark(std::string_view name);

// Records that an allocation of `bytes` bytes failed, with the stack that begins at `caller` and the thread's tags.
// Does nothing if neither a recording nor the flight recorder of `profiler` is on.
void RecordFailure(ProfilerImpl& profiler, const Caller& caller, DeviceId device, MemorySpace space, int64_t bytes);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_RECORDER_RECORDER_H_
