// The profile that Profiler::Default() writes at exit, and how an injected library changes its path.
#ifndef HBMPROF_SRC_API_PUBLIC_DEFAULT_PROFILER_H_
#define HBMPROF_SRC_API_PUBLIC_DEFAULT_PROFILER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/options.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Makes Profiler::Default() read its output path and interval from these environment variables instead of
// HBMPROF_OUTPUT and HBMPROF_OUTPUT_INTERVAL, which are for the program's own copy of the library. If
// HBMPROF_CAPTURE_RANGE selects ranges (capture_range.h), the path is that of their files, and there is no profile at
// exit, no recording of the whole run, and no profile of a failed allocation unless HBMPROF_OOM_OUTPUT is set. The
// first call must come before the first call of Profiler::Default(). Later calls with the same names have no effect,
// and any thread may make them. The names are never freed.
void SetOutputVariables(const char* path, const char* interval);

// Prints the lines of OptionsFromEnvironment about bad variables. Only the first call with such lines prints them.
// Prints nothing in a program that has joined the injected library, which has printed them.
void PrintOptionProblems(const std::vector<std::string>& problems);

// Starts what the options of Profiler::Default() require: the threads for output_on_signals (exit_writer.h), for the
// triggers (dump_triggers.h) and for socket_dir (control_server.h), the recording and the flight recorder
// (recording.h). An injected library calls it with the first tracked allocation, and when a linked library joins it; a
// linked library that joins none calls it when it makes Profiler::Default(). Only the first call has an effect. Does
// not change errno.
void StartThreads();

// Called when a recording starts, and when a file takes long to write. Both are then completed when the process exits.
// If DefaultOptions::output_on_signals is set, also when a signal or quick_exit ends the process. Throws
// std::bad_alloc.
void EndFilesWithProcess();

// The error of all functions in a process that is off (fork.h).
absl::Status OffStatus();

// Writes a profile to DefaultOptions::output of Profiler::Default(). Does nothing if that is empty or recording was off
// from the start. Any thread may call it. Errors: those of save_device_memory_profile.
absl::Status WriteOutput();

// Returns the pattern for the files of capture ranges (capture_range.h); "" if no ranges are captured. Throws
// std::bad_alloc.
std::string CaptureOutput();

// Returns the snapshot for the profile at exit. The first call takes it; later calls in the same process return the
// same snapshot. Throws std::bad_alloc.
const Snapshot& ExitSnapshot();

// The first call in a process takes a snapshot, which is that of ExitSnapshot if nothing is allocated until then.
// Called when the program has ended, and the objects that hold its memory are about to be destroyed. Does not change
// errno. Does not throw.
void KeepStateForExit();

// Sets `*seconds` to DefaultOptions::output_interval of the environment variable `name`. If its value is bad, adds a
// line to `problems` instead. Does nothing if it is not set. Throws std::bad_alloc.
void ReadOutputInterval(const char* name, std::vector<std::string>* problems, double* seconds);

// Returns kInvalidArgument for the first field whose value is outside its range, else OK. The message names the field,
// the value and the range. This is what InitDefault requires of its options.
absl::Status ValidateOptions(const DefaultOptions& options);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PUBLIC_DEFAULT_PROFILER_H_
