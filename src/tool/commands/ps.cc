// `hbmprof ps`: lists the running processes that have a control channel.

#include "src/tool/commands/command.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {
namespace {

absl::StatusOr<int> RunPs(bool exact) {
  const std::string directory = ControlDirectory();
  std::vector<std::string> silent;
  absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(directory, &silent);
  // The first process makes the directory.
  if (absl::IsNotFound(processes.status())) processes.emplace();
  if (!processes.ok()) return processes.status();
  if (processes->empty() && silent.empty()) {
    PrintError("ps", NoProcessText("", directory));
    return kSuccess;
  }
  Table table("rlllrrr");
  table.Add({"pid", "name", "device", "space", "in use", "peak", "limit"});
  for (const LiveProcess& process : *processes) {
    if (process.memory.empty()) table.Add({process.id, process.name, "-", "-", "-", "-", "-"});
    for (const LiveMemory& memory : process.memory) {
      table.Add({process.id, process.name, memory.device, memory.space, Bytes(memory.in_use, exact),
                 Bytes(memory.peak, exact), memory.limit < 0 ? "-" : Bytes(memory.limit, exact)});
    }
  }
  Print(table.Text());
  for (const LiveProcess& process : *processes) {
    for (const std::string& warning : process.warnings)
      PrintError("ps", Cat(process.id, " ", process.name, ": ", warning));
  }
  for (const std::string& problem : silent) PrintError("ps", problem);
  return kSuccess;
}

}  // namespace

Command AddPsCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("ps", "List the running processes that have a control channel");
  auto exact = std::make_shared<bool>(false);
  arguments->add_flag("--exact", *exact, "Print bytes without rounding");
  AddProcessOptions(*arguments);
  return {arguments, [exact] { return RunPs(*exact); }};
}

}  // namespace hbmprof::tool
