// The calls that are wrapped, as a table: what is done around each slot of a plugin's table.
#ifndef HBMPROF_SRC_BACKENDS_PJRT_HOOKS_H_
#define HBMPROF_SRC_BACKENDS_PJRT_HOOKS_H_

#include <string>
#include <utility>

#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/pjrt/abi.h"
#include "src/backends/pjrt/adapter.h"
#include "src/backends/pjrt/plugin.h"

namespace hbmprof::internal {

// One wrapped plugin.
struct TrackedPlugin {
  TrackedPlugin(const pjrt::Api* api, Profiler& recorder, std::string oom_path)
      : profiler(recorder), plugin(api, recorder), records(recorder), oom_output(std::move(oom_path)) {}

  Profiler& profiler;
  PjrtPlugin plugin;
  PjrtRecords records;
  const std::string oom_output;  // where a profile goes when a call says that memory is exhausted; empty: nowhere
};

// Makes the call in the plugin's own table, once, with `args` as they are; returns what it returned.
using PjrtHookFunction = pjrt::Error* (*)(TrackedPlugin& tracked, const Caller& caller, void* args);

struct PjrtHook {
  int slot;
  PjrtHookFunction run;
};

inline constexpr int kPjrtHookCount = 29;
extern const PjrtHook kPjrtHooks[kPjrtHookCount];

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_PJRT_HOOKS_H_
