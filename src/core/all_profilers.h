// All profilers of the process. They share the limit of host memory, and each forked child begins without probes.
#ifndef HBMPROF_SRC_CORE_ALL_PROFILERS_H_
#define HBMPROF_SRC_CORE_ALL_PROFILERS_H_

namespace hbmprof::internal {

class ProfilerImpl;

void AddProfiler(ProfilerImpl* profiler);
void RemoveProfiler(ProfilerImpl* profiler);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_ALL_PROFILERS_H_
