// Starts and ends the recordings of Profiler::Default() that the options require (hbmprof/recording.h).
#ifndef HBMPROF_SRC_API_RECORDING_RECORDING_H_
#define HBMPROF_SRC_API_RECORDING_RECORDING_H_

#include <string_view>

#include "hbmprof/options.h"

namespace hbmprof::internal {

// Starts the recording and the flight recorder that `options` require, and prints what fails. Called once, when
// Profiler::Default() was made. Throws std::bad_alloc.
void StartRecordingOfOptions(const DefaultOptions& options);

// Ends the recording, if there is one, and prints what fails. Called when the process ends, and before exec.
void StopRecordingAtExit();

// If the flight recorder is on, writes its events beside a profile: to `profile` with the ending ".hbmrec" instead of
// ".pb.gz". Returns the path; "" if nothing was written. Prints what fails. Throws std::bad_alloc.
std::string SaveFlightBeside(std::string_view profile);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_RECORDING_RECORDING_H_
