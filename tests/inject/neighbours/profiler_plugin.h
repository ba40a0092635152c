// The functions of a profiler plugin, as profiler_plugin.cc has them and plugin_program.cc calls them.
#ifndef HBMPROF_TESTS_INJECT_NEIGHBOURS_PROFILER_PLUGIN_H_
#define HBMPROF_TESTS_INJECT_NEIGHBOURS_PROFILER_PLUGIN_H_

struct ProfilerPlugin {
  int (*init)(void** context);
  int (*start_event)(void* context);
  int (*stop_event)(void* context);
  int (*finalize)(void* context);
};

#endif  // HBMPROF_TESTS_INJECT_NEIGHBOURS_PROFILER_PLUGIN_H_
