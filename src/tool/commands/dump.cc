// `hbmprof dump`: saves a profile: of a running process, of a moment of a recording, or of any other source.
#include <memory>
#include <optional>
#include <string>

#include "src/tool/commands/command.h"
#include "src/tool/commands/options.h"
#include "src/tool/source/control_client.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/output.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

struct DumpOptions {
  std::string source;
  std::string output;
  bool reset_peak = false;
};

absl::StatusOr<int> RunDump(const DumpOptions& options) {
  const absl::StatusOr<std::optional<LiveProcess>> process = ProcessOf(options.source);
  if (!process.ok()) return process.status();
  const bool is_process = process->has_value();
  if (!is_process && (options.output.empty() || options.reset_peak)) {
    return absl::InvalidArgumentError(Cat(options.source, ": is not a running process: ",
                                          options.reset_peak ? "it has no --reset-peak" : "name a file with -o FILE"));
  }
  if (const absl::Status status = CheckIsNoInput(options.output, FilesOf({options.source})); !status.ok()) {
    return status;
  }
  const absl::StatusOr<std::string> profile =
      is_process ? QueryProcess((*process)->socket, "profile") : ReadSource(options.source);
  if (!profile.ok()) return profile.status();
  const std::string file = options.output.empty() ? NewFileOf(**process, ".pb.gz") : options.output;
  if (const absl::Status status = WriteOutput(file, *profile); !status.ok()) return status;
  if (!IsStandardOutput(file)) Print(Cat(Visible(file), "\n"));
  if (!options.reset_peak) return kSuccess;
  const absl::StatusOr<std::string> reset = QueryProcess((*process)->socket, "reset-peak");
  if (!reset.ok()) return reset.status();
  return kSuccess;
}

}  // namespace

Command AddDumpCommand(CLI::App& tool) {
  CLI::App* arguments =
      tool.add_subcommand("dump", "Save a profile: of a running process, a recording's moment, a URL");
  auto options = std::make_shared<DumpOptions>();
  arguments->add_option("SOURCE", options->source, kSourceHelp)->required();
  arguments->add_option("-o,--output", options->output,
                        "The file to write; - is standard output. Default, of a process: a new file in this folder");
  arguments->add_flag("--reset-peak", options->reset_peak, "Begin a new peak in the process afterwards")
      ->group(kProcessGroup);
  AddProcessOptions(*arguments);
  return {arguments, [options] { return RunDump(*options); }, true};
}

}  // namespace hbmprof::tool
