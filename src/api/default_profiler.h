// For what is injected into a program: Profiler::Default() of the injected copy keeps out of the way of the program's
// own.
#ifndef HBMPROF_SRC_API_DEFAULT_PROFILER_H_
#define HBMPROF_SRC_API_DEFAULT_PROFILER_H_

namespace hbmprof::internal {

// Before the first call of Profiler::Default(): where the profile at exit goes is said by the environment variable
// `name` and not by HBMPROF_OUTPUT.
void SetOutputVariable(const char* name);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_DEFAULT_PROFILER_H_
