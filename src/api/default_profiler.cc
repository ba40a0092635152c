// Profiler::Default(): the process's own profiler, set up from the environment; and the profile it writes at exit.
#include "src/api/default_profiler.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/options.h"
#include "hbmprof/profiler.h"
#include "src/base/fork.h"
#include "src/base/thread_state.h"
#include "src/capture/libunwind_backend.h"

namespace hbmprof {
namespace {

std::atomic<Profiler*> default_profiler{nullptr};
std::string* exit_output = nullptr;     // never destroyed, so that a dump from a late exit handler finds it
const char* output_variable = nullptr;  // null: HBMPROF_OUTPUT

void WriteAtExit() {
  const absl::Status status = save_device_memory_profile(*exit_output);
  if (!status.ok()) {
    std::fprintf(stderr, "hbmprof: no profile at exit: %s\n", std::string(status.message()).c_str());
  }
}

// Without a lock, which another thread could hold when the process forks: of threads that make one at once, the first
// to be done has made it.
Profiler& MakeDefault(Profiler& off) {
  // An operator new that records comes back here from everything below. So does a signal handler.
  const internal::ForkPause pause;
  const internal::ReentryGuard guard;
  if (!guard.entered()) return off;
  std::vector<std::string> problems;
  Options options = OptionsFromEnvironment(&problems);
  if (output_variable != nullptr) {
    const char* output = std::getenv(output_variable);
    options.output = output == nullptr ? "" : output;
  }
  auto made = std::make_unique<Profiler>(options);
  if (options.unwinder == Unwinder::kLibunwind && !internal::LoadLibunwind()) {
    problems.push_back(std::string("hbmprof: HBMPROF_UNWINDER=libunwind: ") + internal::LibunwindProblem() +
                       "; using auto");
  }
  Profiler* other = nullptr;
  if (!default_profiler.compare_exchange_strong(other, made.get(), std::memory_order_acq_rel)) return *other;
  for (const std::string& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (!options.output.empty() && options.enabled) {
    exit_output = new std::string(options.output);
    std::atexit(&WriteAtExit);
  }
  return *made.release();
}

// Before main, so that no thread can wait for the dynamic linker's lock in the middle of an event.
[[gnu::constructor]] void LoadLibunwindEarly() {
  std::vector<std::string> problems;
  if (OptionsFromEnvironment(&problems).unwinder == Unwinder::kLibunwind) internal::LoadLibunwind();
}

}  // namespace

void internal::SetOutputVariable(const char* name) { output_variable = name; }

Profiler& Profiler::Default() {
  Profiler* profiler = default_profiler.load(std::memory_order_acquire);
  return profiler != nullptr ? *profiler : MakeDefault(Off());
}

}  // namespace hbmprof
