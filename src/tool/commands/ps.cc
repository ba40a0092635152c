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

// One memory of a process; null if it has none.
struct PsRow {
  const LiveProcess* process;
  const LiveMemory* memory;
};

RowFields<PsRow> FieldsOf(const PsOptions& options) {
  const auto of_process = [](std::string LiveProcess::*member) {
    return [member](const PsRow& row) { return row.process->*member; };
  };
  const auto of_memory = [](std::string LiveMemory::*member) {
    return [member](const PsRow& row) { return row.memory == nullptr ? "-" : row.memory->*member; };
  };
  const auto bytes = [&options](int64_t LiveMemory::*member) {
    return [&options, member](const PsRow& row) {
      return row.memory == nullptr || row.memory->*member < 0 ? "-" : Bytes(row.memory->*member, options.exact);
    };
  };
  return {{"pid", 'r', of_process(&LiveProcess::id), "", nullptr},
          {"name", 'l', of_process(&LiveProcess::name), "", nullptr},
          {"device", 'l', of_memory(&LiveMemory::device), "", nullptr},
          {"space", 'l', of_memory(&LiveMemory::space), "", nullptr},
          {"in use", 'r', bytes(&LiveMemory::in_use), "", nullptr},
          {"peak", 'r', bytes(&LiveMemory::peak), "", nullptr},
          {"limit", 'r', bytes(&LiveMemory::limit), "", nullptr}};
}

void PrintPs(const PsOptions& options, const std::vector<LiveProcess>& processes,
             const std::vector<std::string>& silent) {
  std::vector<PsRow> rows;
  for (const LiveProcess& process : processes) {
    if (process.memory.empty()) rows.push_back({&process, nullptr});
    for (const LiveMemory& memory : process.memory) rows.push_back({&process, &memory});
  }
  PrintVisible(TableOf(rows, FieldsOf(options), 0));
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
