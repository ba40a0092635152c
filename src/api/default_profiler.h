// For what is injected into a program: Profiler::Default() of the injected copy keeps out of the way of the program's
// own. Also its output.
#ifndef HBMPROF_SRC_API_DEFAULT_PROFILER_H_
#define HBMPROF_SRC_API_DEFAULT_PROFILER_H_

#include <sys/types.h>

#include "absl/status/status.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Before the first call of Profiler::Default(): where the profile at exit goes is said by the environment variable
// `name` and not by HBMPROF_OUTPUT.
void SetOutputVariable(const char* name);

// Starts what Options::output_on_signals (exit_writer.h) and Options::socket_dir (control_server.h) of
// Profiler::Default() ask for. For what is injected, once it has something to tell; a linked library does so by itself.
void StartThreads();

// Writes a profile where that variable says; nothing if it is not set or nothing is recorded. Any thread. Errors: those
// of save_device_memory_profile.
absl::Status WriteOutput();

// What the profiles that are written at exit show: what Profiler::Default() tracked when the process first asked for
// it. So those of a program and of the library that was injected into it agree. Throws std::bad_alloc.
const Snapshot& ExitSnapshot();

// Has the profile at exit, if there is to be one, written by an exit handler that is registered now, which runs before
// those that are registered already.
void WriteOutputBeforeOlderExitHandlers();

// The permissions of files that are made for profiles: Options::output_mode of Profiler::Default().
mode_t OutputMode();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_DEFAULT_PROFILER_H_
