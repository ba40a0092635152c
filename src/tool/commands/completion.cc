// `hbmprof completion`: prints a shell's completion script. The script is generated from the definition of the command
// line, so it has every option.

#include "src/tool/commands/command.h"

namespace hbmprof::tool {
namespace {

std::vector<const CLI::App*> Subcommands(const CLI::App& tool) {
  return tool.get_subcommands([](const CLI::App*) { return true; });
}

// Returns the options of a command for users. Those that only the command itself uses have no description.
std::vector<const CLI::Option*> DescribedOptions(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return !option->get_description().empty(); });
}

std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : DescribedOptions(command)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string Bash(const CLI::App& tool) {
  std::string commands;
  std::string cases;
  for (const CLI::App* command : Subcommands(tool)) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
    cases += Cat("    ", command->get_name(), ") words=\"", absl::StrJoin(OptionNames(*command), " "), "\" ;;\n");
  }
  return Cat(
      "# bash completion of hbmprof\n_hbmprof() {\n  local word=${COMP_WORDS[COMP_CWORD]} words=\"\"\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n    COMPREPLY=($(compgen -W \"",
      commands, " ", absl::StrJoin(OptionNames(tool), " "),
      "\" -- \"$word\"))\n    return\n  fi\n  case ${COMP_WORDS[1]} in\n", cases,
      "  esac\n  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n  else\n"
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n  fi\n}\ncomplete -o filenames -F _hbmprof hbmprof\n");
}

std::string FishQuoted(const std::string& text) {
  return Cat("'", absl::StrReplaceAll(text, {{"'", "\\'"}, {"\\", "\\\\"}}), "'");
}

std::string Fish(const CLI::App& tool) {
  std::string text = "# fish completion of hbmprof\n";
  for (const CLI::App* command : Subcommands(tool)) {
    text += Cat("complete -c hbmprof -n __fish_use_subcommand -f -a ", command->get_name(), " -d ",
                FishQuoted(command->get_description()), "\n");
    for (const CLI::Option* option : DescribedOptions(*command)) {
      std::string names;
      for (const std::string& name : option->get_lnames()) names += " -l " + name;
      for (const std::string& name : option->get_snames()) names += " -s " + name;
      if (names.empty()) continue;
      text += Cat("complete -c hbmprof -n '__fish_seen_subcommand_from ", command->get_name(), "'", names, " -d ",
                  FishQuoted(option->get_description()), "\n");
    }
  }
  return text;
}

}  // namespace

Command AddCompletionCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("completion", "Print the completion script of a shell");
  auto shell = std::make_shared<std::string>();
  arguments->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  arguments->footer("For this shell alone: source <(hbmprof completion bash)");
  return {arguments, [shell, &tool]() -> absl::StatusOr<int> {
            // zsh runs the script for bash.
            if (*shell == "zsh") Print("#compdef hbmprof\nautoload -U +X bashcompinit && bashcompinit\n");
            Print(*shell == "fish" ? Fish(tool) : Bash(tool));
            return kSuccess;
          }};
}

}  // namespace hbmprof::tool
