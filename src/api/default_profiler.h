// The profile that Profiler::Default() writes at exit, and how an injected library changes where it goes.
#ifndef HBMPROF_SRC_API_DEFAULT_PROFILER_H_
#define HBMPROF_SRC_API_DEFAULT_PROFILER_H_

#include "absl/status/status.h"
#include "hbmprof/options.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Makes Profiler::Default() read its output path from the environment variable `name` instead of HBMPROF_OUTPUT, which
// is for the program's own copy of the library. REQUIRES: Profiler::Default() was not called yet; `name` is never
// freed.
void SetOutputVariable(const char* name);

// Starts what DefaultOptions::output_on_signals (exit_writer.h), DefaultOptions::socket_dir (control_server.h) and the
// triggers (dump_triggers.h) of Profiler::Default() require. An injected library calls it with the first tracked
// allocation; a linked library does so when it makes Profiler::Default(). Keeps errno.
void StartThreads();

// Writes a profile to DefaultOptions::output of Profiler::Default(). Does nothing if that is empty or recording was off
// from the start. Any thread may call it. Errors: those of save_device_memory_profile.
absl::Status WriteOutput();

// Returns the snapshot for the profiles at exit. The first call takes it; later calls in the same process return the
// same. So the profiles of a program and of the library that was injected into it agree. Throws std::bad_alloc.
const Snapshot& ExitSnapshot();

// Registers the exit handler that writes the profile once more, if there is an output. It then runs before the exit
// handlers that are registered already, such as those of the CUDA driver.
void WriteOutputBeforeOlderExitHandlers();

// Returns kInvalidArgument for the first field whose value is outside its range, else OK. The message names the field,
// the value and the range. This is what InitDefault requires of its options.
absl::Status ValidateOptions(const DefaultOptions& options);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_DEFAULT_PROFILER_H_
