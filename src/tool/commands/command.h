// The interface between command_line.cc and the subcommands. Each subcommand is one file with one function
// Add...Command, and a line of commands.inc.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_
#define HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_

#include <CLI/CLI.hpp>
#include <charconv>
#include <system_error>

#include "src/tool/util/exit_code.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {

struct Command {
  // The options of the subcommand. They are bound to variables that `run` owns.
  CLI::App* arguments;
  // Runs the subcommand and returns the exit code. After an error, RunCommandLine prints the error's message to stderr
  // and returns kUnusable.
  std::function<absl::StatusOr<int>()> run;
  // True if the subcommand only reads profiles. Then the size of the files limits its memory (memory_limit.h).
  bool only_reads_profiles = false;
};

// The most that options such as --rows accept.
constexpr int64_t kMaxCount = 1'000'000'000;

// For CLI::Option::transform: accepts decimal whole numbers from `least` to `most`. CLI11 alone also accepts 0x10,
// reads 010 as 8, and reads -1 as the greatest number of an unsigned type.
inline CLI::Validator WholeNumber(int64_t least, int64_t most) {
  const auto read = [least, most](std::string& text) -> std::string {
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || text[0] == '-' || number < least || number > most) {
      return Cat("'", text, "' is not a whole number from ", least, " to ", most);
    }
    text = std::to_string(number);
    return "";
  };
  return {read, ""};
}

// Each of these functions adds its subcommand to the command line `tool`.
#define HBMPROF_COMMAND(name) Command Add##name##Command(CLI::App& tool);
#include "src/tool/commands/commands.inc"
#include "src/tool/util/common.h"
#undef HBMPROF_COMMAND

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_
