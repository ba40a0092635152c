#include "src/tool/commands/command.h"

#include <cstdlib>

#include "src/protocol/control.h"
#include "src/tool/util/files.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {

const char kFilterHelp[] =
    "Also --known [NAME=]REGEX: a further known library. Of a running process: --socket-dir DIR\n"
    "Also, as in pprof: --focus, --ignore REGEX";

void PrintFile(const std::string& file, size_t bytes, bool json, const std::string& note) {
  if (IsStandardOutput(file)) return;
  if (json) return Print(ToText({{"version", kJsonVersion}, {"file", file}, {"bytes", bytes}}));
  Print(Cat(Visible(file), note, "\n"));
}

absl::Status CheckFileJson(const std::string& output, bool json) {
  if (!json || output != "-") return absl::OkStatus();
  return InvalidArgument("--json and -o -: both write to standard output; name a file");
}

CLI::Validator WholeNumber(int64_t least, int64_t most) {
  const auto read = [least, most](std::string& text) -> std::string {
    int64_t number = 0;
    if (text.find_first_not_of("0123456789") == std::string::npos && absl::SimpleAtoi(text, &number) &&
        number >= least && number <= most) {
      text = std::to_string(number);
      return "";
    }
    return Cat("'", text, "' is not a whole number from ", least, " to ", most);
  };
  return {read, ""};
}

void AddProcessOptions(CLI::App& arguments, bool is_hidden) {
  // ControlDirectory reads the variable.
  const auto set = [](const std::string& directory) {
    setenv(internal::kControlDirectoryVariable, directory.c_str(), 1);
  };
  arguments
      .add_option_function<std::string>("--socket-dir", set,
                                        "The directory of the sockets, if it is not $HBMPROF_SOCKET_DIR")
      ->type_name("DIR")
      ->group(is_hidden ? "" : kProcessGroup);
}

CLI::Option* AddKnownOption(CLI::App& arguments, std::vector<std::string>& known) {
  return arguments
      .add_option("--known", known,
                  "A further known library, as [NAME=]REGEX: binaries, files, functions; can be repeated")
      ->allow_extra_args(false);
}

void AddViewOptions(CLI::App& arguments, ViewOptions& options) {
  arguments
      .add_option("-w,--where", options.where,
                  "Only samples with this label, KEY=VALUE, or without it, KEY!=VALUE; can be repeated")
      ->allow_extra_args(false);
  arguments.add_flag("--own,!--no-own", options.own,
                     options.own ? kOwnHelp : "Attribute samples to the first frame outside of known libraries");
  // kFilterHelp lists these.
  AddKnownOption(arguments, options.known)->group("");
  AddProcessOptions(arguments, true);
  arguments.add_option("--focus", options.focus, "Only samples with a frame that matches")->group("");
  arguments.add_option("--ignore", options.ignore, "No samples with a frame that matches")->group("");
}

void AddSumsOptions(CLI::App& arguments, SumsOptions& options, bool has_tree) {
  arguments.add_option("-t,--type", options.type,
                       "Sample type, such as peak_space or pool_peak_space (default: the profile's own)");
  arguments
      .add_option("-b,--by", options.by, "Make rows by function, line or file, and by label keys: device,kind,library")
      ->delimiter(',')
      ->allow_extra_args(false);
  arguments.add_option("-n,--rows", options.rows, "Rows to show, 0 for all")
      ->capture_default_str()
      ->transform(WholeNumber(0, kMaxCount))
      ->each([&options](const std::string&) { options.has_rows = true; });
  arguments.add_flag("--cum", options.by_cum,
                     "Sort by cum: the memory of a function and of all functions that it calls");
  arguments.add_flag("--exact", options.exact, "Print bytes without rounding");
  arguments.add_flag("--json", options.json, kJsonHelp);
  AddViewOptions(arguments, options);
  if (has_tree)
    arguments.add_flag("--tree", options.tree,
                       "The call tree, outermost frame first; its 100 largest nodes without -n");
  arguments.footer(kFilterHelp);
}

}  // namespace hbmprof::tool
