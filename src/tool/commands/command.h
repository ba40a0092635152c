// The interface between command_line.cc and the subcommands. Each subcommand has one function Add...Command. Also the
// options that several subcommands have.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_
#define HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_

#include <CLI/CLI.hpp>

#include "src/tool/commands/injection.h"
#include "src/tool/profile/view.h"
#include "src/tool/sums/sums_view.h"

namespace hbmprof::tool {

struct Command {
  // The options of the subcommand. They are bound to variables that `run` owns.
  CLI::App* arguments;
  // Runs the subcommand and returns the exit code. After an error, RunCommandLine prints the error's message to stderr
  // and returns kUnusable.
  std::function<absl::StatusOr<int>()> run;
  // True if the subcommand only reads profiles. Then the size of the files limits its memory (files.h).
  bool only_reads_profiles = false;
};

using AddCommand = Command(CLI::App& tool);
AddCommand AddRunCommand, AddAttachCommand, AddDoctorCommand, AddExplainCommand, AddTopCommand, AddDiffCommand,
    AddLeaksCommand, AddReportCommand, AddTimelineCommand, AddWhoCommand, AddFitCommand, AddSimulateCommand,
    AddPsCommand, AddServeCommand, AddControlCommand, AddDumpCommand, AddBudgetCommand, AddConvertCommand,
    AddSymbolizeCommand;

// `hbmprof --reference KIND [FILE]`, for builds: prints a text that is made of the definitions of all subcommands. KIND
// is "bash" or "zsh" (the completion script), "man" or "markdown" (the sections of the commands). With FILE,
// prints the file with this text in place of its line "@COMMANDS@". `words`: KIND and FILE.
inline constexpr char kReferenceOption[] = "--reference";
absl::StatusOr<int> PrintReference(const CLI::App& tool, const std::vector<std::string>& words);

// What the help and these texts say of an option: the name of its value, "" for a flag; what it does, with its default.
std::string ValueOf(const CLI::Option& option);
std::string DescriptionOf(const CLI::Option& option);

// Returns kInvalidArgument if a profile is of a recording that lacks events: it is damaged, or recording was turned
// off.
absl::Status CheckIsUndamaged(const ProfileSet& profiles);
// The same, and if allocations are missing because recording is or was off, or because a limit was reached.
absl::Status CheckIsComplete(const ProfileSet& profiles);

// Compares the peak of `options.files` with the budget in the file `path`. `format`: text, json, junit or markdown.
absl::StatusOr<int> RunBudgetDiff(const SumsOptions& options, const std::string& path, const std::string& format);

// Prints that a command has written `bytes` bytes to `file`: as JSON, or as a line that ends with `note`. Prints
// nothing if the file is standard output. CheckFileJson returns kInvalidArgument if both would go there; `output` is ""
// if the command chooses a file by itself.
void PrintFile(const std::string& file, size_t bytes, bool json, const std::string& note = "");
absl::Status CheckFileJson(const std::string& output, bool json);

// The most that options such as --rows accept.
constexpr int64_t kMaxCount = 1'000'000'000;

// For CLI::Option::transform: accepts decimal whole numbers from `least` to `most`. CLI11 alone also accepts 0x10,
// reads 010 as 8, and reads -1 as the greatest number of an unsigned type.
CLI::Validator WholeNumber(int64_t least, int64_t most);

// Adds an option whose value is such a number from 0 on. The help has its default.
template <typename Number>
CLI::Option* AddCount(CLI::App& arguments, const std::string& name, Number& value, const std::string& help) {
  return arguments.add_option(name, value, help)->capture_default_str()->transform(WholeNumber(0, kMaxCount));
}

// The last line of the help of a command that has ViewOptions.
extern const char kFilterHelp[];
// The help of --own where it is the default.
inline constexpr char kOwnHelp[] = "Attribute samples to the first frame outside of known libraries (default)";
inline constexpr char kJsonHelp[] = "Print JSON, with exact values";

// These functions add the options to the command line of a subcommand. `options` must exist until it has run.
CLI::Option* AddKnownOption(CLI::App& arguments, std::vector<std::string>& known);
void AddViewOptions(CLI::App& arguments, ViewOptions& options);
// All options except the files.
void AddSumsOptions(CLI::App& arguments, SumsOptions& options);

// What the injected library writes: the options that `run` and `attach` have in common, and the variables for them.
inline constexpr char kProfileSuffix[] = ".pb.gz";
inline constexpr char kOutputVariable[] = "HBMPROF_GPU_OUTPUT";
struct OutputOptions {
  std::string output = "hbmprof-profiles";
  std::string interval;  // "60s"; empty: no profiles at intervals
  std::string library;
  std::string record;  // the file of the recordings; "true": in the folder; empty: none
};
void AddOutputOptions(CLI::App& arguments, OutputOptions& options);
// Returns the common start of the names of this run's profiles. It is unique even if runs in several containers, which
// can have the same process ids, share a folder.
std::string NewRunName();
// Sets the variables for profiles and recordings in `folder`. Error: kInvalidArgument if a value is wrong.
absl::Status SetOutputVariables(const OutputOptions& options, const std::string& folder, const std::string& run,
                                Environment& environment);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_COMMAND_H_
