// Parses the command line of `hbmprof` and runs one subcommand.
#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "hbmprof/version.h"
#include "src/base/edit_distance.h"
#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

// Opens /dev/null on each standard descriptor that is closed. Otherwise the next file that is opened would get that
// number, and output would be written into that file. /dev/null is opened with the wrong access mode, so that reading
// and writing fail as they do on a closed descriptor. Programs that this process starts do not inherit the descriptor.
void OccupyClosedDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // open returns the lowest free descriptor, which is `fd`, because all lower descriptors are in use.
    open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  }
}

// Prints what is wrong with the arguments of `command`, or of hbmprof itself if it is "". `problem` can contain the
// user's arguments.
void PrintWrongUsage(const std::string& command, const std::string& problem) {
  PrintError(command, problem);
  PrintErrorText(Cat("Run hbmprof ", command, command.empty() ? "" : " ", "--help for more information.\n"));
}

// Returns "; did you mean 'X'?" with the candidate that is most similar to `name`, after `prefix`; "" if none is
// similar.
std::string DidYouMean(const std::string& name, const std::vector<std::string>& candidates,
                       const std::string& prefix = "") {
  constexpr size_t kMaxLength = 64;
  const std::string* similar = nullptr;
  size_t least = name.size() / 3 + 2;
  for (const std::string& candidate : candidates) {
    const size_t distance = name.size() > kMaxLength ? least : internal::EditDistance(name, candidate);
    const bool abbreviated = !name.empty() && candidate.compare(0, name.size(), name) == 0;
    if (distance >= least && !abbreviated) continue;
    least = abbreviated ? 0 : distance;
    similar = &candidate;
  }
  return similar == nullptr ? "" : Cat("; did you mean '", prefix, *similar, "'?");
}

// Explains that there is no subcommand `name`, and names the most similar one. An empty name: none was given.
void PrintUnknownCommand(const std::vector<Command>& commands, const std::string& name) {
  std::vector<std::string> candidates;
  for (const Command& command : commands) candidates.push_back(command.arguments->get_name());
  PrintError("", name.empty() ? "a command is missing"
                              : Cat("there is no command '", name, "'", DidYouMean(name, candidates)));
  PrintErrorText(
      Cat("The commands are: ", absl::StrJoin(candidates, ", "), ". Run hbmprof --help for more information.\n"));
}

// Each of the functions ...Problem returns what is wrong with the arguments of a subcommand; "" if nothing is.

// One dash before a long name counts as two.
std::string UnknownOptionProblem(const CLI::App& command, const std::vector<std::string>& words) {
  for (auto word = words.begin(); word != words.end() && *word != "--"; ++word) {
    const std::string name = word->substr(0, word->find('='));
    if (name.size() < 2 || name[0] != '-' || command.get_option_no_throw(name) != nullptr) continue;
    const bool is_long = name[1] == '-';
    // The rest of a short option can be its value: -n5.
    if (!is_long && (name.size() == 2 || command.get_option_no_throw(name.substr(0, 2)) != nullptr)) continue;
    std::vector<std::string> candidates;
    for (const CLI::Option* option : command.get_options()) {
      candidates.insert(candidates.end(), option->get_lnames().begin(), option->get_lnames().end());
    }
    return Cat("there is no option '", name, "'", DidYouMean(name.substr(is_long ? 2 : 1), candidates, "--"));
  }
  return "";
}

// Returns whether the word after the flag `words[i]` is its value, and not the program.
bool IsValueOf(const std::vector<std::string>& words, size_t i) {
  if (i + 1 >= words.size()) return false;
  const std::string& word = words[i + 1];
  if (words[i] == "--record") {
    const bool is_before_program = i + 2 < words.size() && words[i + 2] == "--" && word[0] != '-';
    return absl::EndsWith(word, ".hbmrec") || is_before_program;
  }
  return words[i] == "--nvtx" && (word == "innermost" || word == "outermost" || word == "path");
}

// Inserts "--" before the program that a subcommand takes (run, doctor), unless it is there. So the options after the
// program are passed to the program. Joins a flag and its value to "FLAG=VALUE", from which CLI11 reads it, and makes
// two words of "--OPTION=", after which it would read the next word. `arguments` are the arguments of the subcommand.
void SeparateWords(const CLI::App& command, std::vector<std::string>& arguments) {
  const bool has_program = command.get_option_no_throw("PROGRAM") != nullptr;
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i].empty() || arguments[i][0] != '-') {
      if (!has_program) continue;
      arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i), "--");
      return;
    }
    if (arguments[i].rfind("--", 0) == 0 && arguments[i].find('=') + 1 == arguments[i].size()) {
      arguments[i].pop_back();
      arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, "");
    }
    const CLI::Option* const option = command.get_option_no_throw(arguments[i]);
    if (option == nullptr) continue;
    if (IsValueOf(arguments, i)) {
      arguments[i] += "=" + arguments[i + 1];
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    } else if (option->get_items_expected_min() > 0) {
      ++i;  // the next argument is its value
    }
  }
}

// An option or argument with an empty value, as `--fail-over "$LIMIT"` has if the variable is not set. Without this,
// the option would have no effect, and nothing would say so.
std::string EmptyValueProblem(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_name() == "PROGRAM") continue;  // the program's own arguments may be empty
    if (absl::c_linear_search(option->results(), "")) return Cat(option->get_name(), ": the value is empty");
  }
  return "";
}

// Replaces folders among the sources by the profiles in them.
absl::Status ReadFolders(CLI::App& command) {
  CLI::Option* const sources = command.get_option_no_throw("SOURCE");
  if (sources == nullptr || sources->get_items_expected_max() <= 1) return absl::OkStatus();
  std::vector<std::string> files;
  for (const std::string& source : sources->results()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> some, ProfilesIn(source));
    files.insert(files.end(), some.begin(), some.end());
  }
  if (files == sources->results()) return absl::OkStatus();
  sources->clear();
  for (std::string& file : files) sources->add_result(std::move(file));
  sources->run_callback();
  return absl::OkStatus();
}

absl::StatusOr<int> RunCommand(const Command& command) {
  RETURN_IF_ERROR(ReadFolders(*command.arguments));
  if (command.only_reads_profiles) {
    RETURN_IF_ERROR(CheckMemoryVariable());
    EnforceMemoryLimit(command.arguments->get_name());
  }
  return command.run();
}

// Parses the command line, the subcommand `first` and the words after it. Returns the subcommand; null if there is
// nothing to run: then prints the help, the version or what is wrong, and sets `*code` to the exit code.
const Command* Parse(CLI::App& tool, const std::vector<Command>& commands, const std::string& first,
                     std::vector<std::string> words, int* code) {
  *code = kUnusable;
  const auto named =
      absl::c_find_if(commands, [&first](const Command& command) { return command.arguments->get_name() == first; });
  if (named == commands.end() && (first.empty() || first[0] != '-')) {
    PrintUnknownCommand(commands, first);
    return nullptr;
  }
  if (named != commands.end()) SeparateWords(*named->arguments, words);
  try {
    // CLI11 leaves the name of a hidden option out of its error messages. So these are shown during the parsing.
    std::vector<CLI::Option*> hidden;
    for (const Command& command : commands) {
      for (CLI::Option* const option : command.arguments->get_options()) {
        if (option->get_group().empty()) hidden.push_back(option->group("Options"));
      }
    }
    const absl::Cleanup hide = [&hidden] {
      for (CLI::Option* const option : hidden) option->group("");
    };
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    reversed.push_back(first);
    tool.parse(reversed);
    for (const Command& command : commands) {
      if (!command.arguments->parsed()) continue;
      const std::string problem = EmptyValueProblem(*command.arguments);
      if (problem.empty()) return &command;
      PrintWrongUsage(command.arguments->get_name(), problem);
    }
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // the help or the version
      std::ostringstream out;
      *code = tool.exit(error, out, out);
      // CLI11 writes an empty line for a group of hidden options.
      Print(absl::StrReplaceAll(out.str(), {{"\n\n\n", "\n\n"}}));
      return nullptr;
    }
    const CLI::App& command = named == commands.end() ? tool : *named->arguments;
    if (named == commands.end()) words.insert(words.begin(), first);
    const std::string problem = UnknownOptionProblem(command, words);
    PrintWrongUsage(named == commands.end() ? "" : first, problem.empty() ? error.what() : problem);
  }
  return nullptr;
}

// The help says of options what the reference says.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    // The value of a flag that is given without one.
    for (size_t brace = 0; (brace = name.find('{')) != std::string::npos;) {
      name.erase(brace, name.find('}', brace) - brace + 1);
    }
    return name;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional()) return option->get_expected_max() > 1 ? " ..." : "";
    const std::string value = ValueOf(*option);
    return value.empty() ? "" : " " + value;
  }
  std::string make_option_desc(const CLI::Option* option) const override { return DescriptionOf(*option); }
};

struct Group {
  const char* name;
  std::vector<AddCommand*> commands;
};
const Group kGroups[] = {{"Record", {AddRunCommand, AddAttachCommand, AddDoctorCommand}},
                         {"Answer",
                          {AddExplainCommand, AddTopCommand, AddDiffCommand, AddLeaksCommand, AddReportCommand,
                           AddTimelineCommand, AddWhoCommand, AddFitCommand, AddSimulateCommand}},
                         {"Watch", {AddPsCommand, AddServeCommand, AddControlCommand}},
                         {"Files", {AddDumpCommand, AddBudgetCommand, AddConvertCommand, AddSymbolizeCommand}}};

// Parses the command line and runs the subcommand. Sets `command_name` to its name. Returns the exit code.
int Run(int argc, char** argv, std::string* command_name) {
  CLI::App tool(
      "Records device memory of programs, and reads the profiles: hbmprof's and any other pprof heap profile.",
      "hbmprof");
  tool.set_version_flag("--version", "hbmprof " HBMPROF_VERSION_STRING);
  tool.require_subcommand(1);
  tool.formatter(std::make_shared<HelpFormatter>());
  tool.get_formatter()->column_width(28);
  tool.footer(
      "A SOURCE is a file, - (standard input), a running process, or a moment of a recording: run.hbmrec@peak,\n"
      "@peak/GPU:0, @peak:phase=load, @12.5s, @end, @oom, @mark:NAME.\n"
      "hbmprof help COMMAND explains a command. Exit codes: 0 fine, 1 a finding, 2 no result.");
  std::vector<Command> commands;
  // In the order of the help page.
  for (const Group& group : kGroups) {
    for (AddCommand* const add : group.commands) {
      commands.push_back(add(tool));
      commands.back().arguments->group(group.name);
    }
  }
  std::string first = argc > 1 ? argv[1] : "";
  std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);  // after the subcommand
  if (first == kReferenceOption) {
    const absl::StatusOr<int> printed = PrintReference(tool, words);
    if (!printed.ok()) PrintError("", MessageOf(printed.status()));
    return printed.value_or(kUnusable);
  }
  if (first == "help") {
    const bool has_command = !words.empty();
    first = has_command ? words[0] : "--help";
    words.assign(has_command ? 1 : 0, "--help");
  }
  int code = kUnusable;
  const Command* const command = Parse(tool, commands, first, words, &code);
  if (command == nullptr) return code;
  *command_name = command->arguments->get_name();
  const absl::StatusOr<int> result = RunCommand(*command);
  if (result.ok()) return *result;
  PrintError(*command_name, MessageOf(result.status()));
  return kUnusable;
}

}  // namespace

// Parses the arguments of the process, runs the subcommand that they name, and returns the exit status. main() is
// in a file of its own, so that this function is compiled together with the subcommands.
int RunCommandLine(int argc, char** argv) {
  OccupyClosedDescriptors();
  std::string command;
  int code = kUnusable;
  try {
    code = Run(argc, argv, &command);
  } catch (const std::bad_alloc&) {
    // Some libraries allocate without operator new, which would have called it: it names the limit.
    if (std::get_new_handler() != nullptr) std::get_new_handler()();
    PrintError(command, "out of memory");
  } catch (const std::exception& error) {
    PrintError(command, error.what());
  }
  if (const absl::Status status = CloseOutput(); !status.ok()) {
    PrintError(command, MessageOf(status));
    return kUnusable;
  }
  return code;
}

}  // namespace hbmprof::tool
