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
Profiler& MakeDefault() {
  std::vector<std::string> problems;
  Options options = OptionsFromEnvironment(&problems);
  if (output_variable != nullptr) {
    const char* output = std::getenv(output_variable);
    options.output = output == nullptr ? "" : output;
  }
  const bool writes = !options.output.empty() && options.enabled;
  auto output = writes ? std::make_unique<std::string>(options.output) : nullptr;
  auto made = std::make_unique<Profiler>(options);
  Profiler* other = nullptr;
  if (!default_profiler.compare_exchange_strong(other, made.get(), std::memory_order_acq_rel)) return *other;
  Profiler& profiler = *made.release();
  for (const std::string& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (writes) {
    exit_output = output.release();
    std::atexit(&WriteAtExit);
  }
  return profiler;
}

}  // namespace

void internal::SetOutputVariable(const char* name) { output_variable = name; }

Profiler& Profiler::Default() {
  Profiler* profiler = default_profiler.load(std::memory_order_acquire);
  return profiler != nullptr ? *profiler : MakeDefault();
}

}  // namespace hbmprof
