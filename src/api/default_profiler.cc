// Profiler::Default(): the process's own profiler, set up from the environment; and the profile it writes at exit.
#include "src/api/default_profiler.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/options.h"
#include "hbmprof/profiler.h"

namespace hbmprof {
namespace {

// Never destroyed, so that a dump from a late exit handler finds it.
std::string& ExitOutput() {
  static auto* output = new std::string;
  return *output;
}

const char* output_variable = nullptr;  // null: HBMPROF_OUTPUT

void WriteAtExit() {
  const absl::Status status = save_device_memory_profile(ExitOutput());
  if (!status.ok()) {
    std::fprintf(stderr, "hbmprof: no profile at exit: %s\n", std::string(status.message()).c_str());
  }
}

Profiler* MakeDefault() {
  std::vector<std::string> problems;
  Options options = OptionsFromEnvironment(&problems);
  if (output_variable != nullptr) {
    const char* output = std::getenv(output_variable);
    options.output = output == nullptr ? "" : output;
  }
  for (const std::string& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (!options.output.empty() && options.enabled) {
    ExitOutput() = options.output;
    std::atexit(&WriteAtExit);
  }
  return new Profiler(options);
}

}  // namespace

void internal::SetOutputVariable(const char* name) { output_variable = name; }

Profiler& Profiler::Default() {
  static Profiler* const profiler = MakeDefault();
  return *profiler;
}

}  // namespace hbmprof
