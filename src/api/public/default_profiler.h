// The profiler of the process with all that its options require, and the end of the process.
#ifndef HBMPROF_SRC_API_PUBLIC_DEFAULT_PROFILER_H_
#define HBMPROF_SRC_API_PUBLIC_DEFAULT_PROFILER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/options.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Makes Profiler::Default() read its output path from this environment variable instead of HBMPROF_OUTPUT, which is for
// the program's own copy of the library. If HBMPROF_CAPTURE_RANGE selects ranges (capture_range.h), the path is that of
// their files, and there is no profile at exit, no recording of the whole run, and no profile of a failed allocation
// unless HBMPROF_OOM_OUTPUT is set. The first call must come before the first call of Profiler::Default(). Later calls
// with the same name have no effect, and any thread may make them. The name is never freed.
void SetOutputVariable(const char* name);

// Returns kInvalidArgument for the first field whose value is outside its range, else OK. The message names the field,
// the value and the range. This is what InitDefault requires of its options.
absl::Status ValidateOptions(const DefaultOptions& options);

// Prints the lines of OptionsFromEnvironment about bad variables. Only the first call with such lines prints them.
// Prints nothing in a program that uses the injected library, which has printed them.
void PrintOptionProblems(const std::vector<std::string>& problems);

// Starts what the options of Profiler::Default() require: the threads for output_on_signals (exit_writer.h), for the
// triggers (dump_triggers.h) and for socket_dir (control_server.h), the recording and the flight recorder
// (recording.h). An injected library calls it with the first tracked allocation, and when a linked library uses it; a
// linked library that uses none calls it when it makes Profiler::Default(). Only the first call has an effect. Does
// not change errno.
void StartThreads();

// Returns the snapshot for the profile at exit. The first call takes it; later calls in the same process return the
// same snapshot. Throws std::bad_alloc.
const Snapshot& ExitSnapshot();

// Takes a snapshot, which is that of ExitSnapshot if nothing is allocated until then. If nothing was allocated since
// the last call, that call's snapshot stays. Called before memory ends that the program holds and does not free itself.
// `python_ends`: the mark in a recording is kPythonEndMark. Thread-safe: a call during another one has no effect. Does
// not change errno. Does not throw.
void KeepStateForExit(bool python_ends);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PUBLIC_DEFAULT_PROFILER_H_
