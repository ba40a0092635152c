#include "src/tool/commands/output_options.h"

#include <charconv>
#include <filesystem>
#include <random>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

// Escapes a folder for a variable whose value is a pattern: in a pattern, % begins a placeholder.
std::string Literal(const std::string& folder) { return absl::StrReplaceAll(folder, {{"%", "%%"}}); }

// Returns the value of HBMPROF_CUDA_OUTPUT.
std::string OutputPattern(const std::string& folder, const std::string& run) {
  return Cat(Literal(folder), "/", run, ".%p.%n", kProfileSuffix);
}

// Returns the value of HBMPROF_RECORD. Each process has its own file.
std::string RecordPattern(const OutputOptions& options, const std::string& folder, const std::string& run) {
  if (options.record == "true") {
    const std::string profiles = OutputPattern(folder, run);
    return Cat(profiles.substr(0, profiles.size() - sizeof(kProfileSuffix) + 1), ".hbmrec");
  }
  if (fs::path(options.record).is_absolute()) return options.record;
  std::error_code error;
  return Cat(Literal(fs::current_path(error)), "/", options.record);
}

// Returns the value of HBMPROF_OUTPUT_INTERVAL: the seconds as a decimal number.
absl::StatusOr<std::string> IntervalSeconds(const std::string& interval) {
  ASSIGN_OR_RETURN(const double seconds,
                   SecondsOf("--interval", interval, 0.001, 1e8, "a time such as 60s or 5m, from 1ms to 1e8 seconds"));
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), seconds, std::chars_format::fixed);
  return std::string(text, end.ptr);
}

}  // namespace

std::string NewRunName() {
  std::random_device random;
  return Cat(absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()),
             absl::StrFormat("-%08x", static_cast<unsigned>(random())));
}

absl::Status CheckOutputOptions(const OutputOptions& options) {
  return options.interval.empty() ? absl::OkStatus() : IntervalSeconds(options.interval).status();
}

void SetOutputVariables(const OutputOptions& options, const std::string& folder, const std::string& run,
                        Environment& environment) {
  environment[kOutputVariable] = OutputPattern(folder, run);
  if (!options.interval.empty()) environment["HBMPROF_OUTPUT_INTERVAL"] = *IntervalSeconds(options.interval);
  if (!options.record.empty()) environment["HBMPROF_RECORD"] = RecordPattern(options, folder, run);
}

void AddOutputOptions(CLI::App& arguments, OutputOptions& options) {
  arguments.add_option("-o,--output", options.output, "Folder for the profiles, RUN.PROCESS.NUMBER.pb.gz")
      ->type_name("DIR")
      ->capture_default_str();
  arguments.add_option("--interval", options.interval, "Also write profiles at this interval, such as 60s");
  arguments.add_option("--library", options.library, "Another libhbmprof_cuda.so")->type_name("FILE");
  arguments.add_flag("--record{true}", options.record,
                     "Record every event to FILE (%p: process id), or to RUN.PROCESS.NUMBER.hbmrec");
}

}  // namespace hbmprof::tool
