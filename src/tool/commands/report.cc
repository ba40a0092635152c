// `hbmprof report`: writes one page that shows everything and needs no other file.
#include "src/tool/report/report.h"

#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct ReportOptions : ViewOptions {
  std::vector<std::string> files;
  std::string output;
  std::string base;
  std::string per;
  bool json = false;
};

absl::StatusOr<int> RunReport(ReportOptions& options) {
  RETURN_IF_ERROR(CheckFileJson(options.output, options.json));
  if (options.output.empty()) options.output = NewFileFor(options.files.back(), ".html");
  std::vector<std::string> paths = options.files;
  const bool has_base = !options.base.empty();
  if (has_base && IsRecordingFile(options.base)) {
    return InvalidArgument("--base ", options.base, ": a recording cannot be the base; give a moment of it, such as ",
                           options.base, "@10s");
  }
  const auto first_recording =
      std::stable_partition(paths.begin(), paths.end(), [](const std::string& path) { return !IsRecordingFile(path); });
  const std::vector<std::string> recordings(first_recording, paths.end());
  paths.erase(first_recording, paths.end());
  if (recordings.size() > 1) {
    return InvalidArgument(recordings[0], " and ", recordings[1], ": a report shows one recording");
  }
  if (has_base && paths.empty()) {
    return InvalidArgument("--base ", options.base, ": a recording is not compared with a base; give also a profile");
  }
  if (has_base) paths.insert(paths.begin(), options.base);
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(paths)));
  RETURN_IF_ERROR(CheckIsNoInput(options.output, recordings));
  std::unique_ptr<RecordedStates> recorded;
  if (!recordings.empty()) {
    ASSIGN_OR_RETURN(recorded, ReadRecorded("report", recordings[0], paths.empty() ? kJudgedStates : 1));
  }
  std::optional<ProfileSet> profiles;
  if (!paths.empty()) {
    ASSIGN_OR_RETURN(profiles, ReadProfiles(paths));
  }
  ASSIGN_OR_RETURN(const std::string page,
                   ReportPage(std::move(profiles), has_base, recorded.get(), options, options.per));
  RETURN_IF_ERROR(WriteOutput(options.output, page));
  PrintFile(options.output, page.size(), options.json, ": open it in a browser");
  return kSuccess;
}

}  // namespace

Command AddReportCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("report", "Write one page with everything, for a browser");
  auto options = std::make_shared<ReportOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "Dumps of one program, a process or a recording; the last dump is compared with the first")
      ->required();
  arguments->add_option("-o,--output", options->output,
                        "The page; - is standard output. Default: a new file in this folder");
  arguments->add_option("--base", options->base, "Compare the last dump with this profile instead of the first dump");
  arguments->add_option("-p,--per", options->per, "Growth per unit of this counter: --per requests");
  arguments->add_flag("--json", options->json, kJsonHelp);
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunReport(*options); }, true};
}

}  // namespace hbmprof::tool
