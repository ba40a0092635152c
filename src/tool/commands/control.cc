// `hbmprof control`: sends one request to a running process: a recording, a tag, tracking, statistics, a new peak.
#include <filesystem>
#include <iterator>

#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {
namespace {

struct ControlOptions {
  std::string process;
  std::string request;
  std::string argument;
  std::string output;
  std::string max_bytes;
};

// The requests, as src/protocol/control.h describes them, and their arguments; "": none.
constexpr std::pair<const char*, const char*> kRequests[] = {{"record", "start, stop or flight"},
                                                             {"tag", "KEY=VALUE"},
                                                             {"tracking", "on or off"},
                                                             {"stats", ""},
                                                             {"reset-peak", ""}};

// Checks the options, and sets `*max_bytes` to the size that --max-bytes names.
absl::Status CheckOptions(const ControlOptions& options, int64_t* max_bytes) {
  const std::string expected =
      absl::c_find_if(kRequests, [&](const auto& request) { return options.request == request.first; })->second;
  if (options.argument.empty() != expected.empty()) {
    return InvalidArgument(options.request, expected.empty() ? " takes no argument" : " needs an argument: ", expected);
  }
  const std::string all = Cat(options.request, " ", options.argument);
  if (all.find('\n') != std::string::npos) return InvalidArgument("the argument has a line feed");
  if (!options.max_bytes.empty() && all != "record start") {
    return InvalidArgument("--max-bytes is for record start, not for ", all);
  }
  if (!options.output.empty() && all != "record start" && all != "record flight") {
    return InvalidArgument("--output is for record start and record flight, not for ", all);
  }
  if (!options.max_bytes.empty() &&
      (!ParseBytes(options.max_bytes, max_bytes) || (*max_bytes != 0 && *max_bytes < 1 << 20))) {
    return InvalidArgument("--max-bytes ", options.max_bytes,
                           ": write a size of 1MiB or more, such as 4GiB, or 0 for no limit");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunControl(const ControlOptions& options) {
  int64_t max_bytes = 0;
  RETURN_IF_ERROR(CheckOptions(options, &max_bytes));
  ASSIGN_OR_RETURN(const LiveProcess process, FindProcess(ControlDirectory(), options.process));
  std::string request = Cat(options.request, options.argument.empty() ? "" : " ", options.argument);
  std::string file;
  if (request == "record start" || request == "record flight") {
    // The process writes the file, and its working directory may be another one.
    std::error_code error;
    file = std::filesystem::absolute(options.output.empty() ? NewFileOf(process, ".hbmrec") : options.output, error);
    if (file.find('\n') != std::string::npos) return InvalidArgument("the file's name has a line feed");
    if (!options.max_bytes.empty()) request += Cat(" max_bytes=", max_bytes);
    // The path in the request is a pattern, in which %% stands for %.
    request += Cat(" ", absl::StrReplaceAll(file, {{"%", "%%"}}));
  }
  ASSIGN_OR_RETURN(const std::string answer, QueryProcess(process.socket, request));
  if (!file.empty()) Print(Cat(Visible(file), "\n"));
  if (!answer.empty()) Print(ToText(Json::parse(answer, nullptr, false)));
  return kSuccess;
}

}  // namespace

Command AddControlCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("control", "Record, tag or switch off tracking in a running process");
  auto options = std::make_shared<ControlOptions>();
  std::vector<std::string> names;
  std::string help;
  for (const auto& [name, argument] : kRequests) {
    names.emplace_back(name);
    help += Cat(help.empty() ? "" : "; ", name, *argument == '\0' ? "" : " ", argument);
  }
  arguments->add_option("PROCESS", options->process, "Process id or name, as `hbmprof ps` lists them")->required();
  arguments->add_option("REQUEST", options->request, help)->required()->check(CLI::IsMember(names))->type_name("");
  arguments->add_option("ARGUMENT", options->argument, "Of the request");
  arguments->add_option("-o,--output", options->output,
                        "For record: the file that the process writes; % is not special. Default: a new one here");
  arguments
      ->add_option("--max-bytes", options->max_bytes,
                   "For record start: the largest size of the recording; 0: no limit. Default: 1GiB")
      ->type_name("SIZE");
  AddProcessOptions(*arguments);
  arguments->footer(
      "record flight writes the last events of the flight recorder (HBMPROF_FLIGHT). tag KEY= removes a tag of the\n"
      "process. While tracking is off, allocations are not recorded. stats prints totals by device and kind as JSON.");
  return {arguments, [options] { return RunControl(*options); }};
}

}  // namespace hbmprof::tool
