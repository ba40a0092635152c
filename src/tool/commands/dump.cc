// `hbmprof dump`: writes a profile of a running process.
#include <memory>
#include <string>

#include "src/tool/commands/command.h"
#include "src/tool/source/control_client.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/output.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

struct DumpOptions {
  std::string directory = ControlDirectory();
  std::string process;
  std::string output;
  bool reset_peak = false;
};

absl::StatusOr<int> RunDump(const DumpOptions& options) {
  const absl::StatusOr<LiveProcess> process = FindProcess(options.directory, options.process);
  if (!process.ok()) return process.status();
  const absl::StatusOr<std::string> profile = QueryProcess(process->socket, "profile");
  if (!profile.ok()) return profile.status();
  const std::string file = options.output.empty() ? NewProfilePath(*process) : options.output;
  if (const absl::Status status = WriteOutput(file, *profile); !status.ok()) return status;
  if (!IsStandardOutput(file)) Print(Cat(Visible(file), "\n"));
  if (!options.reset_peak) return kSuccess;
  const absl::StatusOr<std::string> reset = QueryProcess(process->socket, "reset-peak");
  if (!reset.ok()) return reset.status();
  return kSuccess;
}

}  // namespace

Command AddDumpCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("dump", "Write a profile of a running process");
  auto options = std::make_shared<DumpOptions>();
  arguments->add_option("PROCESS", options->process, "Process id or name, as `hbmprof ps` lists them")->required();
  arguments->add_option("-o,--output", options->output,
                        "The file to write; - is standard output. Default: a new file in the working directory");
  arguments->add_flag("--reset-peak", options->reset_peak, "Begin a new peak in the process afterwards");
  arguments
      ->add_option("--socket-dir", options->directory, "The directory of the sockets, if it is not $HBMPROF_SOCKET_DIR")
      ->type_name("DIR");
  return {arguments, [options] { return RunDump(*options); }};
}

}  // namespace hbmprof::tool
