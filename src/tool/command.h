// What main.cc and the subcommands agree on: how a subcommand is added, and what it returns. A subcommand is a file of
// its own with one function Add...Command, declared at the end of this page and listed in main.cc.
#ifndef HBMPROF_SRC_TOOL_COMMAND_H_
#define HBMPROF_SRC_TOOL_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/status/statusor.h"

namespace hbmprof::tool {

// What the process exits with.
enum ExitCode : int {
  kSuccess = 0,
  kFinding = 1,   // the answer is bad news: a profile is damaged, something grew beyond --fail-over
  kUnusable = 2,  // no answer: wrong usage, unreadable input, output that cannot be written
};

struct Command {
  // Its part of the command line. Options are bound to what `run` holds.
  CLI::App* arguments;
  // Called if the user chose it. The exit code, or an error: then its message goes to stderr and the code is kUnusable.
  std::function<absl::StatusOr<int>()> run;
  // Whether it does nothing but read profiles, so that their size bounds the memory it may take (memory_limit.h).
  bool only_reads_profiles = false;
};

// Each adds its subcommand to the command line `tool`.
Command AddRunCommand(CLI::App& tool);
Command AddPsCommand(CLI::App& tool);
Command AddDumpCommand(CLI::App& tool);
Command AddDoctorCommand(CLI::App& tool);
Command AddTopCommand(CLI::App& tool);
Command AddDiffCommand(CLI::App& tool);
Command AddPeekCommand(CLI::App& tool);
Command AddLeaksCommand(CLI::App& tool);
Command AddSymbolizeCommand(CLI::App& tool);
Command AddReportCommand(CLI::App& tool);
Command AddConvertCommand(CLI::App& tool);
Command AddCheckCommand(CLI::App& tool);
Command AddCompletionCommand(CLI::App& tool);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMAND_H_
