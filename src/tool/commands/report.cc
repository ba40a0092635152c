// `hbmprof report`: writes one page that shows everything and needs no other file.
#include "src/tool/report/report.h"

#include "src/tool/commands/answer.h"
#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct ReportOptions : ViewOptions {
  std::vector<std::string> files;
  std::string output;
  std::string per;
  bool json = false;
};

absl::StatusOr<int> RunReport(ReportOptions& options) {
  RETURN_IF_ERROR(CheckFileJson(options.output, options.json));
  if (options.output.empty()) options.output = NewFileFor(options.files.back(), ".html");
  const std::vector<std::string>& paths = options.files;
  const auto recording = absl::c_find_if(paths, &IsRecordingFile);
  if (recording != paths.end() && paths.size() > 1) {
    return InvalidArgument(*recording, ": a report shows one recording, or profiles; a moment of a recording, such as ",
                           *recording, "@10s, is a profile");
  }
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(paths)));
  ASSIGN_OR_RETURN(Program program, ReadProgram("report", paths));
  ASSIGN_OR_RETURN(const std::string page, ReportPage(std::move(program.profiles), std::move(program.subject),
                                                      program.recording.get(), options, options.per));
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
                   "Dumps of one program (the last is compared with the first), a process, or a recording")
      ->required();
  arguments->add_option("-o,--output", options->output,
                        "The page; - is standard output. Default: a new file in this folder");
  arguments->add_option("-p,--per", options->per, "Growth per unit of this counter: --per requests");
  arguments->add_flag("--json", options->json, kJsonHelp);
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunReport(*options); }, true};
}

}  // namespace hbmprof::tool
