// For what is injected into a program: Profiler::Default() of the injected copy keeps out of the way of the program's
// own. Also its output.
#ifndef HBMPROF_SRC_API_DEFAULT_PROFILER_H_
#define HBMPROF_SRC_API_DEFAULT_PROFILER_H_

#include <sys/types.h>

#include "absl/status/status.h"

namespace hbmprof::internal {

// Before the first call of Profiler::Default(): where the profile at exit goes is said by the environment variable
// `name` and not by HBMPROF_OUTPUT.
void SetOutputVariable(const char* name);

// Writes a profile where that variable says; nothing if it is not set or nothing is recorded. Any thread. Errors: those
// of save_device_memory_profile.
absl::Status WriteOutput();

// The permissions of files that are made for profiles: Options::output_mode of Profiler::Default().
mode_t OutputMode();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_DEFAULT_PROFILER_H_
