// The `hbmprof` command: parses the command line and runs one subcommand. What each does is in the file of its name.
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "src/tool/command.h"

namespace hbmprof::tool {
namespace {

// In the order of the help page.
constexpr Command (*kCommands[])(CLI::App&) = {
    AddRunCommand,       AddDoctorCommand, AddTopCommand,     AddDiffCommand,  AddPeekCommand,      AddLeaksCommand,
    AddSymbolizeCommand, AddReportCommand, AddConvertCommand, AddCheckCommand, AddCompletionCommand};

int Run(int argc, char** argv) {
  CLI::App tool(
      "Records device memory of programs, and reads the profiles: hbmprof's and any other pprof heap profile.",
      "hbmprof");
  tool.set_version_flag("--version", "hbmprof " HBMPROF_VERSION);
  tool.require_subcommand(1);
  tool.get_formatter()->column_width(28);
  tool.footer("hbmprof COMMAND --help explains a command. Exit codes: 0 fine, 1 a finding, 2 no answer.");
  std::vector<Command> commands;
  for (const auto add : kCommands) commands.push_back(add(tool));

  try {
    tool.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tool.exit(error) == 0 ? kSuccess : kUnusable;
  }
  for (const Command& command : commands) {
    if (!command.arguments->parsed()) continue;
    const absl::StatusOr<int> code = command.run();
    if (code.ok()) return *code;
    std::fprintf(stderr, "hbmprof %s: %s\n", command.arguments->get_name().c_str(),
                 std::string(code.status().message()).c_str());
    return kUnusable;
  }
  return kUnusable;
}

}  // namespace
}  // namespace hbmprof::tool

int main(int argc, char** argv) {
  try {
    return hbmprof::tool::Run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("hbmprof: out of memory\n", stderr);
    return hbmprof::tool::kUnusable;
  }
}
