// The interface between command_line.cc and the subcommands. Each subcommand is one file with one function
// Add...Command. Also the options that several subcommands have.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_
#define HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_

#include <CLI/CLI.hpp>

#include "src/tool/profile/view.h"
#include "src/tool/sums/sums_view.h"

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

// Each of these functions adds its subcommand to the command line.
using AddCommand = Command(CLI::App& tool);
AddCommand AddRunCommand, AddAttachCommand, AddDoctorCommand, AddExplainCommand, AddTopCommand, AddDiffCommand,
    AddLeaksCommand, AddReportCommand, AddTimelineCommand, AddWhoCommand, AddPsCommand, AddServeCommand,
    AddControlCommand, AddDumpCommand, AddConvertCommand, AddSymbolizeCommand;

// `hbmprof --reference KIND [FILE]`, for builds: prints a text that is made of the definitions of all subcommands. KIND
// is "bash" or "zsh" (the completion script), "man" or "markdown" (the sections of the commands). With FILE,
// prints the file with this text in place of its line "@COMMANDS@". `words`: KIND and FILE.
inline constexpr char kReferenceOption[] = "--reference";
absl::StatusOr<int> PrintReference(const CLI::App& tool, const std::vector<std::string>& words);

// Shows the callers and callees of the functions whose name matches `expression`. `options`: those of `hbmprof top`.
absl::StatusOr<int> RunCallers(const SumsOptions& options, const std::string& expression);

// Prints that a command has written `bytes` bytes to `file`: as JSON, or as a line that ends with `note`. Prints
// nothing if the file is standard output. CheckFileJson returns kInvalidArgument if both would go there.
void PrintFile(const std::string& file, size_t bytes, bool json, const std::string& note = "");
absl::Status CheckFileJson(const std::string& output, bool json);

// The most that options such as --rows accept.
constexpr int64_t kMaxCount = 1'000'000'000;

// For CLI::Option::transform: accepts decimal whole numbers from `least` to `most`. CLI11 alone also accepts 0x10,
// reads 010 as 8, and reads -1 as the greatest number of an unsigned type.
CLI::Validator WholeNumber(int64_t least, int64_t most);

// The last lines of the help of a command that has ViewOptions.
extern const char kFilterHelp[];
// The help of --own where it is the default.
inline constexpr char kOwnHelp[] = "Attribute samples to the first frame outside of known libraries (default)";
// The help of --json.
inline constexpr char kJsonHelp[] = "Print JSON, with exact values";

// The heading of the options of running processes.
inline constexpr char kProcessGroup[] = "Running processes";
// Adds the options of a subcommand that takes running processes. If they are hidden, kFilterHelp lists them.
void AddProcessOptions(CLI::App& arguments, bool is_hidden = false);

// These functions add the options to the command line of a subcommand. `options` must exist until it has run. They
// include those of AddProcessOptions.
CLI::Option* AddKnownOption(CLI::App& arguments, std::vector<std::string>& known);
void AddViewOptions(CLI::App& arguments, ViewOptions& options);
// All options except the files. `has_tree`: with --tree.
void AddSumsOptions(CLI::App& arguments, SumsOptions& options, bool has_tree = false);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_
