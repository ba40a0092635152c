// The `hbmprof` command: parses the command line and runs one subcommand. What each does is in the file of its name.
#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "hbmprof/version.h"
#include "src/tool/command.h"
#include "src/tool/memory_limit.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

// In the order of the help page.
constexpr Command (*kCommands[])(CLI::App&) = {
    AddRunCommand,     AddPsCommand,    AddDumpCommand,      AddDoctorCommand,    AddTopCommand,
    AddDiffCommand,    AddPeekCommand,  AddLeaksCommand,     AddSymbolizeCommand, AddReportCommand,
    AddConvertCommand, AddCheckCommand, AddCompletionCommand};

// A standard descriptor that is closed would become the next file that is opened, and what is printed would go into it.
// Opens something in its place that cannot be used, so that reading and writing fail as before. Programs that are
// started do not inherit it.
void OccupyClosedDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free descriptor is taken, and those below this one are in use.
    open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  }
}

// Prints what CLI11 has to say: help, the version, or an error with the user's own words in it.
int PrintUsage(const CLI::App& tool, const CLI::ParseError& error) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = tool.exit(error, out, err) == 0 ? kSuccess : kUnusable;
  Print(out.str());
  PrintErrorText(err.str());
  return code;
}

// `command` is set to the name of the subcommand.
int Run(int argc, char** argv, std::string* command_name) {
  CLI::App tool(
      "Records device memory of programs, and reads the profiles: hbmprof's and any other pprof heap profile.",
      "hbmprof");
  tool.set_version_flag("--version", "hbmprof " HBMPROF_VERSION_STRING);
  tool.require_subcommand(1);
  tool.get_formatter()->column_width(28);
  tool.footer("hbmprof COMMAND --help explains a command. Exit codes: 0 fine, 1 a finding, 2 no answer.");
  std::vector<Command> commands;
  for (const auto add : kCommands) commands.push_back(add(tool));

  try {
    tool.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return PrintUsage(tool, error);
  }
  for (const Command& command : commands) {
    if (!command.arguments->parsed()) continue;
    *command_name = command.arguments->get_name();
    if (command.only_reads_profiles) EnforceMemoryLimit(*command_name);
    const absl::StatusOr<int> code = command.run();
    if (code.ok()) return *code;
    PrintError(*command_name, std::string(code.status().message()));
    return kUnusable;
  }
  return kUnusable;
}

}  // namespace
}  // namespace hbmprof::tool

int main(int argc, char** argv) {
  using namespace hbmprof::tool;
  OccupyClosedDescriptors();
  std::string command;
  int code = kUnusable;
  try {
    code = Run(argc, argv, &command);
  } catch (const std::bad_alloc&) {
    PrintError(command, "out of memory");
  } catch (const std::exception& error) {
    PrintError(command, error.what());
  }
  if (const absl::Status status = CloseOutput(); !status.ok()) {
    PrintError(command, std::string(status.message()));
    return kUnusable;
  }
  return code;
}
