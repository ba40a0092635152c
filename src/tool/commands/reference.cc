// What is generated from the definition of the command line: the completion scripts, the sections of the manual page
// and those of docs/command.md.
#include "src/tool/commands/command.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

using App = CLI::App;

std::vector<const App*> Subcommands(const App& tool) {
  return tool.get_subcommands([](const App*) { return true; });
}

// Returns the options of a command for users. Those that only the command itself uses have no description.
std::vector<const CLI::Option*> DescribedOptions(const App& command) {
  return command.get_options([](const CLI::Option* option) { return !option->get_description().empty(); });
}

std::vector<std::string> OptionNames(const App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : DescribedOptions(command)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string Bash(const App& tool) {
  std::string commands;
  std::string cases;
  for (const App* command : Subcommands(tool)) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
    cases += Cat("    ", command->get_name(), ") words=\"", absl::StrJoin(OptionNames(*command), " "), "\" ;;\n");
  }
  return Cat(
      "# bash completion of hbmprof\n_hbmprof() {\n  local word=${COMP_WORDS[COMP_CWORD]} words=\"\"\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n    COMPREPLY=($(compgen -W \"",
      commands, " help ", absl::StrJoin(OptionNames(tool), " "),
      "\" -- \"$word\"))\n    return\n  fi\n  case ${COMP_WORDS[1]} in\n", cases,
      "  esac\n  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n  else\n"
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n  fi\n}\ncomplete -o filenames -F _hbmprof hbmprof\n");
}

// zsh runs the script for bash.
std::string Zsh(const App& tool) {
  return "#compdef hbmprof\nautoload -U +X bashcompinit && bashcompinit\n" + Bash(tool);
}

// Returns "PROCESS REQUEST [ARGUMENT]": the arguments of a command.
std::string ArgumentsOf(const App& command) {
  std::string text;
  for (const CLI::Option* option : DescribedOptions(command)) {
    if (!option->get_positional()) continue;
    const std::string name = Cat(option->get_name(true), option->get_items_expected_max() > 1 ? "..." : "");
    const bool is_program = name.rfind("PROGRAM", 0) == 0;
    text += Cat(" ", is_program ? "-- " : "", option->get_required() ? name : Cat("[", name, "]"));
  }
  return text;
}

// Returns "-o, --output DIR"; for an argument, its name.
std::string NamesOf(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const std::string value = ValueOf(option);
  return Cat(absl::StrJoin(names, ", "), value.empty() ? "" : " ", value);
}

std::string Roff(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  return !escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'') ? "\\&" + escaped : escaped;
}

std::string Man(const App& tool) {
  std::string text;
  std::string group;
  for (const App* command : Subcommands(tool)) {
    if (group != command->get_group()) {
      group = command->get_group();
      text += Cat(".SH COMMANDS: ", absl::AsciiStrToUpper(group), "\n");
    }
    text += Cat(".SS ", Roff(Cat("hbmprof ", command->get_name(), ArgumentsOf(*command))), "\n",
                Roff(command->get_description()), ".\n");
    for (const CLI::Option* option : DescribedOptions(*command)) {
      if (option->get_name() == "--help") continue;
      text += Cat(".TP\n.B ", Roff(NamesOf(*option)), "\n", Roff(DescriptionOf(*option)), "\n");
    }
    if (!command->get_footer().empty()) text += ".PP\n";
    for (const absl::string_view line : absl::StrSplit(command->get_footer(), '\n', absl::SkipEmpty())) {
      text += Roff(std::string(line)) + "\n";
    }
  }
  return text;
}

// One table for each command, and one for the options that at least three commands have.
std::string Markdown(const App& tool) {
  constexpr size_t kMany = 3;
  const auto cell = [](const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); };
  const auto row_of = [cell](const CLI::Option& option) {
    return Cat("| `", cell(NamesOf(option)), "` | ", cell(DescriptionOf(option)), " |");
  };
  std::map<std::string, std::vector<std::string>> commands_of;  // by row
  std::vector<std::string> shared;                              // rows, in the order of their first command
  for (const App* command : Subcommands(tool)) {
    for (const CLI::Option* option : DescribedOptions(*command)) {
      if (option->get_positional() || option->get_name() == "--help") continue;
      std::vector<std::string>& commands = commands_of[row_of(*option)];
      commands.push_back(command->get_name());
      if (commands.size() == kMany) shared.push_back(row_of(*option));
    }
  }
  std::string text;
  for (const App* command : Subcommands(tool)) {
    text += Cat("### hbmprof ", command->get_name(), "\n\n`hbmprof ", command->get_name(), ArgumentsOf(*command),
                "`: ", command->get_description(), ".\n\n| | |\n|---|---|\n");
    for (const CLI::Option* option : DescribedOptions(*command)) {
      if (option->get_name() == "--help" || absl::c_linear_search(shared, row_of(*option))) continue;
      text += row_of(*option) + "\n";
    }
    text += "\n";
  }
  text += "### Options of several commands\n\n| | | commands |\n|---|---|---|\n";
  for (const std::string& row : shared) text += Cat(row, " ", absl::StrJoin(commands_of[row], ", "), " |\n");
  return text;
}

}  // namespace

std::string ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0 || option.get_expected_min() == 0) return option.get_option_text();
  const std::string type = option.get_type_name().substr(0, option.get_type_name().find(':'));
  const bool is_number = type == "UINT" || type == "INT" || type == "FLOAT";
  return is_number ? "NUMBER" : type == "TEXT" || type.empty() ? "VALUE" : type;
}

std::string DescriptionOf(const CLI::Option& option) {
  const std::string fallback = option.get_default_str();
  return Cat(option.get_description(), option.get_required() && !option.get_positional() ? " (required)" : "",
             fallback.empty() || !option.get_items_expected_max() ? "" : Cat(" (default: ", fallback, ")"));
}

absl::StatusOr<int> PrintReference(const App& tool, const std::vector<std::string>& words) {
  const std::map<std::string, std::string (*)(const App&)> kinds = {
      {"bash", &Bash}, {"zsh", &Zsh}, {"man", &Man}, {"markdown", &Markdown}};
  const auto kind = kinds.find(words.empty() ? "" : words[0]);
  if (kind == kinds.end()) return InvalidArgument(kReferenceOption, " takes one of bash, zsh, man, markdown");
  const std::string text = kind->second(tool);
  if (words.size() == 1) {
    Print(text);
    return kSuccess;
  }
  ASSIGN_OR_RETURN(const std::string frame, ReadFile(words[1]));
  constexpr char kPlace[] = "\n@COMMANDS@\n";
  if (frame.find(kPlace) == std::string::npos) {
    return InvalidArgument(words[1], ": has no line @COMMANDS@, which the text replaces");
  }
  Print(absl::StrReplaceAll(frame, {{kPlace, "\n" + text}}));
  return kSuccess;
}

}  // namespace hbmprof::tool
