#include "src/tool/commands/command.h"

#include <filesystem>
#include <random>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

// Escapes a folder for a variable whose value is a pattern: in a pattern, % begins a placeholder.
std::string Literal(const std::string& folder) { return absl::StrReplaceAll(folder, {{"%", "%%"}}); }

std::string OutputPattern(const std::string& folder, const std::string& run, const char* suffix) {
  return Cat(Literal(folder), "/", run, ".%p.%n", suffix);
}

// Returns the value of HBMPROF_RECORD. Each process has its own file.
std::string RecordPattern(const OutputOptions& options, const std::string& folder, const std::string& run) {
  if (options.record == "true") return OutputPattern(folder, run, ".hbmrec");
  if (std::filesystem::path(options.record).is_absolute()) return options.record;
  std::error_code error;
  return Cat(Literal(std::filesystem::current_path(error)), "/", options.record);
}

}  // namespace

const char kFilterHelp[] = "Also --known [NAME=]REGEX: a further known library; as in pprof, --focus, --ignore REGEX";

void PrintFile(const std::string& file, size_t bytes, bool json, const std::string& note) {
  if (IsStandardOutput(file)) return;
  if (json) return Print(ToText({{"version", kJsonVersion}, {"file", file}, {"bytes", bytes}}));
  Print(Cat(Visible(file), note, "\n"));
}

absl::Status CheckFileJson(const std::string& output, bool json) {
  if (!json || output != "-") return absl::OkStatus();
  return InvalidArgument("--json and -o -: both write to standard output; name a file");
}

CLI::Validator WholeNumber(int64_t least, int64_t most) {
  const auto read = [least, most](std::string& text) -> std::string {
    int64_t number = 0;
    if (text.find_first_not_of("0123456789") == std::string::npos && absl::SimpleAtoi(text, &number) &&
        number >= least && number <= most) {
      text = std::to_string(number);
      return "";
    }
    return Cat("'", text, "' is not a whole number from ", least, " to ", most);
  };
  return {read, ""};
}

CLI::Option* AddKnownOption(CLI::App& arguments, std::vector<std::string>& known) {
  return arguments
      .add_option("--known", known,
                  "A further known library, as [NAME=]REGEX: binaries, files, functions; can be repeated")
      ->allow_extra_args(false);
}

void AddViewOptions(CLI::App& arguments, ViewOptions& options) {
  arguments
      .add_option("-w,--where", options.where,
                  "Only samples with this label, KEY=VALUE, or without it, KEY!=VALUE; can be repeated")
      ->allow_extra_args(false);
  arguments.add_flag("--own,!--no-own", options.own,
                     options.own ? kOwnHelp : "Attribute samples to the first frame outside of known libraries");
  // kFilterHelp lists these.
  AddKnownOption(arguments, options.known)->group("");
  arguments.add_option("--focus", options.focus, "Only samples with a frame that matches")->group("");
  arguments.add_option("--ignore", options.ignore, "No samples with a frame that matches")->group("");
}

void AddSumsOptions(CLI::App& arguments, SumsOptions& options) {
  arguments.add_option("-t,--type", options.type,
                       "Sample type, such as peak_space or pool_peak_space (default: the profile's own)");
  arguments
      .add_option("-b,--by", options.by, "Make rows by function, line or file, and by label keys: device,kind,library")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddCount(arguments, "-n,--rows", options.rows, "Rows to show, 0 for all")->each([&options](const std::string&) {
    options.has_rows = true;
  });
  CLI::Option* const cum = arguments.add_flag(
      "--cum", options.by_cum, "Sort by cum: the memory of a function and of all functions that it calls");
  arguments.add_flag("--exact", options.exact, "Print bytes without rounding")->group("");
  arguments.add_flag("--json", options.json, kJsonHelp);
  AddViewOptions(arguments, options);
  arguments.add_flag("--tree", options.tree, "The call tree, outermost frame first; its 100 largest nodes without -n")
      ->excludes(cum);
  arguments.footer(Cat(kFilterHelp, "; exact bytes: --exact"));
}

void AddOutputOptions(CLI::App& arguments, OutputOptions& options) {
  arguments.add_option("-o,--output", options.output, "Folder for the profiles, RUN.PROCESS.NUMBER.pb.gz")
      ->type_name("DIR")
      ->capture_default_str();
  arguments.add_option("--interval", options.interval, "Also write profiles at this interval, such as 60s");
  arguments.add_option("--library", options.library, "Another libhbmprof_gpu.so")->type_name("FILE");
  arguments
      .add_flag("--record{true}", options.record,
                "Record every event to FILE (%p: process id), or to RUN.PROCESS.NUMBER.hbmrec")
      ->option_text("[FILE]");
}

std::string NewRunName() {
  std::random_device random;
  return Cat(absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()),
             absl::StrFormat("-%08x", static_cast<unsigned>(random())));
}

absl::Status CheckIsUndamaged(const ProfileSet& profiles) {
  for (const ProfileSet::File& file : profiles.files()) {
    const auto damage = absl::c_find_if(file.info.warnings, IsDamage);
    if (damage != file.info.warnings.end()) return InvalidArgument(file.path, ": ", *damage);
  }
  return absl::OkStatus();
}

absl::Status CheckIsComplete(const ProfileSet& profiles) {
  for (const ProfileSet::File& file : profiles.files()) {
    const auto pause = absl::c_find_if(file.info.warnings, IsPause);
    if (pause != file.info.warnings.end()) return InvalidArgument(file.path, ": ", *pause);
    if (file.info.Dropped() > 0) return InvalidArgument(file.path, ": some allocations were not recorded");
  }
  return CheckIsUndamaged(profiles);
}

absl::Status SetOutputVariables(const OutputOptions& options, const std::string& folder, const std::string& run,
                                Environment& environment) {
  environment[kOutputVariable] = OutputPattern(folder, run, kProfileSuffix);
  if (!options.record.empty()) environment["HBMPROF_RECORD"] = RecordPattern(options, folder, run);
  if (options.interval.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const double seconds, SecondsOf("--interval", options.interval, 0.001, 1e8,
                                                   "a time such as 60s or 5m, from 1ms to 1e8 seconds"));
  environment["HBMPROF_OUTPUT_INTERVAL"] = absl::StrFormat("%.9f", seconds);
  return absl::OkStatus();
}

}  // namespace hbmprof::tool
