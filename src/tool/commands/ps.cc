// `hbmprof ps`: lists the running processes that have a control channel.

#include "src/tool/commands/command.h"
#include "src/tool/profile/info.h"
#include "src/tool/source/control_client.h"

namespace hbmprof::tool {
namespace {

struct PsOptions {
  bool exact = false;
  bool json = false;
};

void PrintPs(const PsOptions& options, const std::vector<LiveProcess>& processes,
             const std::vector<std::string>& silent) {
  Table table("rlllrrr");
  table.Add({"pid", "name", "device", "space", "in use", "peak", "limit"});
  const auto size = [&options](int64_t bytes) { return bytes < 0 ? "-" : Bytes(bytes, options.exact); };
  for (const LiveProcess& process : processes) {
    if (process.memory.empty()) table.Add({process.id, process.name, "-", "-", "-", "-", "-"});
    for (const LiveMemory& memory : process.memory) {
      table.Add({process.id, process.name, memory.device, memory.space, size(memory.in_use), size(memory.peak),
                 size(memory.limit)});
    }
  }
  PrintVisible(table.Text(TerminalColumns()));
  for (const LiveProcess& process : processes) {
    const std::string name = Cat(process.id, " ", process.name);
    const std::string off = OffSince(process.warnings);
    if (!off.empty()) PrintVisible(Cat(Visible(name), ": ", OffText(off), "\n"));
    for (const std::string& warning : process.warnings) {
      if (off.empty() || warning.find(off) == std::string::npos) PrintError("ps", Cat(name, ": ", warning));
    }
  }
  for (const std::string& problem : silent) PrintError("ps", problem);
}

absl::StatusOr<int> RunPs(const PsOptions& options) {
  const std::string directory = ControlDirectory();
  std::vector<std::string> silent;
  absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(directory, &silent);
  // The first process makes the directory.
  if (absl::IsNotFound(processes.status())) processes.emplace();
  if (!processes.ok()) return processes.status();
  if (options.json) {
    Json json = {{"version", kJsonVersion}, {"directory", directory}, {"silent", silent}};
    Json& list = json["processes"] = Json::array();
    for (const LiveProcess& process : *processes) list.push_back(ProcessJson(process));
    Print(ToText(json));
  } else if (processes->empty() && silent.empty()) {
    PrintError("ps", NoProcessText("", directory));
  } else {
    PrintPs(options, *processes, silent);
  }
  const bool is_any_off = absl::c_any_of(*processes, [](const auto& one) { return !OffSince(one.warnings).empty(); });
  return is_any_off ? kFinding : kSuccess;
}

}  // namespace

Command AddPsCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("ps", "List the running processes that have a control channel");
  auto options = std::make_shared<PsOptions>();
  arguments->add_flag("--exact", options->exact, "Print bytes without rounding");
  arguments->add_flag("--json", options->json, kJsonHelp);
  AddProcessOptions(*arguments);
  arguments->footer("Exits with 1 if a process has stopped recording.");
  return {arguments, [options] { return RunPs(*options); }};
}

}  // namespace hbmprof::tool
