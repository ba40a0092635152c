// `hbmprof fit`: how the peak grows with the program's counters, and whether it fits a device.
#include "src/tool/fit/fit.h"

#include <cmath>

#include "src/tool/commands/command.h"
#include "src/tool/profile/view.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kMostCounters = 3;
constexpr size_t kMostMoments = 64;

struct FitOptions : ViewOptions {
  std::vector<std::string> files;
  std::vector<std::string> counters;
  std::vector<std::string> values;  // by file
  std::string at;
  std::string device;
  size_t rows = 10;
  bool json = false;
};

// Reads "8,4096": a value for each counter.
absl::StatusOr<Point> ParsePoint(const std::string& option, const std::string& text, size_t counters) {
  Point point;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    double value = 0;
    if (absl::SimpleAtod(part, &value) && value > 0 && value <= 1e15) point.push_back(value);
  }
  const auto parts = static_cast<size_t>(absl::c_count(text, ',')) + 1;
  if (point.size() == counters && parts == counters) return point;
  return InvalidArgument(option, " ", text, ": write a number above 0",
                         counters == 1 ? "" : " for each counter of --by: 8,4096");
}

// Returns the counters of --by, else the only one of the file.
absl::StatusOr<std::vector<std::string>> CountersOf(const FitOptions& options, const ProfileSet::File& file) {
  if (options.counters.size() > kMostCounters) {
    return InvalidArgument("--by takes at most ", kMostCounters, " counters");
  }
  if (!options.counters.empty()) return options.counters;
  if (!options.values.empty()) return std::vector<std::string>{"value"};
  const std::vector<Comment>& counters = file.info.counters;
  if (counters.size() == 1) return std::vector{counters[0].name};
  if (counters.empty())
    return InvalidArgument(file.path, ": has no counter; give each profile its value: --value 1024");
  return InvalidArgument(file.path, ": has several counters; name those that count: --by ", counters[0].name);
}

// Returns the moments of a recording at which the counters had a value for the last time.
absl::StatusOr<std::vector<std::string>> MomentsOf(const std::string& path) {
  ASSIGN_OR_RETURN(const OpenedRecording recording, OpenRecording(path, {}));
  const std::vector<DriverSample>& samples = recording.reader->samples();
  std::vector<std::string> moments;
  for (size_t s = 0; s < samples.size(); ++s) {
    if (samples[s].counters.empty()) continue;
    if (s + 1 < samples.size() && samples[s + 1].counters == samples[s].counters) continue;
    const auto nanos = static_cast<double>(Minus(samples[s].time, recording.reader->tables().start_time));
    moments.push_back(Cat(path, absl::StrFormat("@%.9fs", nanos / 1e9)));
  }
  if (moments.empty()) return NotFound(path, ": the program has set no counter (hbmprof::SetCounter)");
  if (moments.size() <= kMostMoments) return moments;
  return InvalidArgument(path, ": the counters have ", moments.size(), " values; name at most ", kMostMoments,
                         " moments: ", moments[0]);
}

absl::StatusOr<int> RunFit(const FitOptions& options) {
  FitRequest request;
  std::vector<std::string> sources = options.files;
  if (sources.size() == 1 && IsRecordingFile(sources[0])) {
    ASSIGN_OR_RETURN(sources, MomentsOf(sources[0]));
  }
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(sources));
  RETURN_IF_ERROR(CheckIsComplete(profiles));
  ASSIGN_OR_RETURN(request.counters, CountersOf(options, profiles.files()[0]));
  if (!options.values.empty() && options.values.size() != sources.size()) {
    return InvalidArgument("--value is given ", options.values.size(), " times for ", sources.size(),
                           " profiles; it is once for each, in their order");
  }
  for (const std::string& value : options.values) {
    ASSIGN_OR_RETURN(Point point, ParsePoint("--value", value, request.counters.size()));
    request.values.push_back(std::move(point));
  }
  if (!options.at.empty()) {
    ASSIGN_OR_RETURN(request.at, ParsePoint("--at", options.at, request.counters.size()));
  }
  if (int64_t limit = 0; !options.device.empty()) {
    if (!ParseBytes(options.device, &limit))
      return InvalidArgument("--device ", options.device, ": write a size: 80GiB");
    request.limit = limit;
  }
  RETURN_IF_ERROR(ApplyView("fit", options, profiles));
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  const std::optional<size_t> peak = profiles.FindType("peak_space");
  ASSIGN_OR_RETURN(const size_t type, peak.has_value() ? *peak : profiles.TypeNamed(""));
  if (profiles.types()[type].unit != "bytes") {
    return InvalidArgument(sources[0], ": has no sample type in bytes, but ", profiles.types()[type].type);
  }
  ASSIGN_OR_RETURN(const Fit fit, FitProfiles(profiles, type, request));
  Answer answer(options.json);
  AddFit(fit, options.rows, answer);
  const std::optional<FitVerdict> verdict = fit.verdict();
  answer.exit_code = verdict == FitVerdict::kDoesNotFit                            ? kFinding
                     : verdict == FitVerdict::kUndecided || !fit.undecided.empty() ? kUnusable
                                                                                   : kSuccess;
  return answer.Print();
}

}  // namespace

Command AddFitCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("fit", "Say how the peak grows with the program's counters, and what fits");
  auto options = std::make_shared<FitOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "Three or more profiles of one program at different values, or one recording with several")
      ->required();
  arguments->add_option("-b,--by", options->counters, "The counters that count (default: the only one): batch,tokens")
      ->delimiter(',')
      ->allow_extra_args(false);
  arguments
      ->add_option("--value", options->values,
                   "The value of a profile without counters, once for each profile, in their order: 1024; 8,1024")
      ->allow_extra_args(false);
  arguments->add_option("--at", options->at, "Predict the peak at this value, or at one for each counter: 8,4096");
  arguments
      ->add_option("--device", options->device,
                   "The memory of the device, such as 80GiB (default: that of the profiles)")
      ->type_name("SIZE");
  AddCount(*arguments, "-n,--rows", options->rows, "Functions to show, 0 for all");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->add_flag("--own,!--no-own", options->own, kOwnHelp);
  AddKnownOption(*arguments, options->known)->group("");
  arguments->footer(
      "Exits with 1 if --at does not fit, with 2 if that cannot be decided, else with 0.\n"
      "Also --known [NAME=]REGEX: a further known library");
  return {arguments, [options] { return RunFit(*options); }, true};
}

}  // namespace hbmprof::tool
