// `hbmprof dump`: saves a profile: of a running process, of a moment of a recording, or of any other source.
#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"
#include "src/tool/util/memory_limit.h"

namespace hbmprof::tool {
namespace {

struct DumpOptions {
  std::string source;
  std::string output;
  bool json = false;
};

absl::StatusOr<int> RunDump(const DumpOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(options.source));
  const bool is_process = process.has_value();
  RETURN_IF_ERROR(CheckFileJson(options.output, options.json));
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf({options.source})));
  ASSIGN_OR_RETURN(const std::string profile,
                   is_process ? QueryProcess(process->socket, "profile") : ReadSource(options.source));
  // Before the file is replaced. What a process answers is a profile.
  if (!is_process) {
    CountInput(profile.size());
    RETURN_IF_ERROR(ParseProfile(profile, options.source).status());
  }
  const std::string file = !options.output.empty() ? options.output
                           : is_process            ? NewFileOf(*process, ".pb.gz")
                                                   : NewFileFor(options.source, ".pb.gz");
  RETURN_IF_ERROR(WriteOutput(file, profile));
  PrintFile(file, profile.size(), options.json);
  return kSuccess;
}

}  // namespace

Command AddDumpCommand(CLI::App& tool) {
  CLI::App* arguments =
      tool.add_subcommand("dump", "Save a profile: of a running process, a recording's moment, a URL");
  auto options = std::make_shared<DumpOptions>();
  arguments
      ->add_option("SOURCE", options->source,
                   "A file, -, a process, a URL, or a moment of a recording: run.hbmrec@peak")
      ->required();
  arguments->add_option("-o,--output", options->output,
                        "The file to write; - is standard output. Default: a new file in this folder");
  arguments->add_flag("--json", options->json, kJsonHelp);
  AddProcessOptions(*arguments);
  return {arguments, [options] { return RunDump(*options); }, true};
}

}  // namespace hbmprof::tool
