// The table of hooks: for each wrapped slot of a plugin's table, the function that replaces it.
#ifndef HBMPROF_SRC_BACKENDS_PJRT_HOOKS_H_
#define HBMPROF_SRC_BACKENDS_PJRT_HOOKS_H_

#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/pjrt/abi.h"
#include "src/backends/pjrt/adapter.h"
#include "src/backends/pjrt/plugin.h"

namespace hbmprof::internal {

// One wrapped plugin.
struct TrackedPlugin {
  TrackedPlugin(const pjrt::Api* api, Profiler& recorder)
      : profiler(recorder), plugin(api, recorder), records(recorder) {}

  Profiler& profiler;
  PjrtPlugin plugin;
  PjrtRecords records;
  std::atomic<size_t> known_failure{0};  // hash of the message of the last execution that had failed when it returned
};

// The type of a hook. A hook calls the plugin's own function once, with `args` unchanged, and returns its result.
using PjrtHookFunction = pjrt::Error* (*)(TrackedPlugin& tracked, const Caller& caller, void* args);

struct PjrtHook {
  int slot;
  PjrtHookFunction run;
  const char* name;  // of the slot, in the header of PJRT's C API
};

inline constexpr int kPjrtHookCount = 29;
extern const PjrtHook kPjrtHooks[kPjrtHookCount];

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_PJRT_HOOKS_H_
