// `hbmprof ps`, `hbmprof dump` and `hbmprof control`: what they ask running processes through their control channels.
#include <filesystem>

#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct PsOptions {
  bool exact = false;
  bool json = false;
};

// Asks the processes for the devices that have a UUID and whose free memory is known. Returns them by UUID, as the
// JSON of ps has them. Leaves out processes that do not answer; returns none if the form of an answer is another one.
std::map<std::string, Json> DevicesOf(const std::vector<LiveProcess>& processes) try {
  constexpr int kMillis = 2'000;
  std::vector<std::string> sockets;
  for (const LiveProcess& process : processes) sockets.push_back(process.socket);
  std::map<std::string, Json> devices;
  for (const absl::StatusOr<std::string>& answer : QueryProcesses(sockets, "stats", {kMillis, kMillis})) {
    const Json stats = Json::parse(answer.value_or(R"({"devices": []})"));
    for (const Json& device : stats.at("devices")) {
      const std::string uuid = device.value("uuid", "");
      for (const Json& space : device.at("spaces")) {
        if (uuid.empty() || space.at("space") != "device" || !space.contains("bytes_free")) continue;
        Json& entry = devices.try_emplace(uuid, Json{{"recorded", 0}}).first->second;
        const int64_t recorded = Plus(entry["recorded"].get<int64_t>(), space.at("bytes_in_use").get<int64_t>());
        const int64_t used = Minus(space.at("bytes_limit").get<int64_t>(), space["bytes_free"].get<int64_t>());
        entry = {{"name", Cat(device.value("name", ""), " (", uuid, ")")}, {"used", used}, {"recorded", recorded}};
      }
    }
  }
  return devices;
} catch (const Json::exception&) {
  return {};
}

absl::StatusOr<int> RunPs(const PsOptions& options) {
  const std::string directory = ControlDirectory();
  std::vector<std::string> problems;
  absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(directory, &problems);
  // The first process makes the directory.
  if (absl::IsNotFound(processes.status())) processes.emplace();
  if (!processes.ok()) return processes.status();
  Answer answer(options.json);
  answer.json.update(
      {{"directory", directory}, {"silent", problems}, {"processes", Json::array()}, {"devices", Json::array()}});
  if (processes->empty() && problems.empty()) problems = {NoProcessText("", directory)};
  Table table("rlllrrr");
  table.Add({"pid", "name", "device", "space", "in use", "peak", "limit"});
  const auto size = [&options](int64_t bytes) { return bytes < 0 ? "-" : Bytes(bytes, options.exact); };
  std::string lines;
  for (const LiveProcess& process : *processes) {
    answer.json["processes"].push_back(ProcessJson(process));
    if (process.memory.empty()) table.Add({process.id, process.name, "-", "-", "-", "-", "-"});
    for (const LiveMemory& memory : process.memory) {
      table.Add({process.id, process.name, memory.device, memory.space, size(memory.in_use), size(memory.peak),
                 size(memory.limit)});
    }
    const std::string name = Cat(process.id, " ", process.name);
    const std::string off = OffSince(process.warnings);
    if (!off.empty()) {
      answer.exit_code = kFinding;
      lines += Cat(Visible(name), ": ", OffText(off), "\n");
    }
    for (const std::string& warning : process.warnings) {
      if (off.empty() || warning.find(off) == std::string::npos) problems.push_back(Cat(name, ": ", warning));
    }
  }
  if (!options.json) {
    for (const std::string& problem : problems) PrintError("ps", problem);
  }
  for (const auto& [uuid, device] : DevicesOf(*processes)) {
    answer.json["devices"].push_back(device);
    const auto used = device["used"].get<int64_t>();
    const auto recorded = device["recorded"].get<int64_t>();
    lines += Cat(Visible(device["name"].get<std::string>()), ": ", size(used), " used: ", size(recorded),
                 " recorded above, ", size(std::max<int64_t>(0, Minus(used, recorded))),
                 " not (other processes, contexts)\n");
  }
  if (!processes->empty()) answer.text = table.Text(TerminalColumns()) + lines;
  return answer.Print();
}

struct DumpOptions {
  std::string source;
  std::string output;
  bool json = false;
};

absl::StatusOr<int> RunDump(const DumpOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(options.source));
  const bool is_process = process.has_value();
  RETURN_IF_ERROR(CheckFileJson(options.output, options.json));
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf({options.source})));
  ASSIGN_OR_RETURN(const std::string profile,
                   is_process ? QueryProcess(process->socket, "profile") : ReadSource(options.source));
  // Before the file is replaced. What a process answers is a profile.
  if (!is_process) {
    CountInput(profile.size());
    RETURN_IF_ERROR(ParseProfile(profile, options.source).status());
  }
  const std::string file = !options.output.empty() ? options.output
                           : is_process            ? NewFileOf(*process, ".pb.gz")
                                                   : NewFileFor(options.source, ".pb.gz");
  RETURN_IF_ERROR(WriteOutput(file, profile));
  PrintFile(file, profile.size(), options.json);
  return kSuccess;
}

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

Command AddPsCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("ps", "List the running processes that have a control channel");
  auto options = std::make_shared<PsOptions>();
  arguments->add_flag("--exact", options->exact, "Print bytes without rounding");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->footer("Exits with 1 if a process has stopped recording.");
  return {arguments, [options] { return RunPs(*options); }};
}

Command AddDumpCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("dump", "Save a profile: of a running process, a recording's moment");
  auto options = std::make_shared<DumpOptions>();
  arguments->add_option("SOURCE", options->source, "A file, -, a process, or a moment of a recording: run.hbmrec@peak")
      ->required();
  arguments->add_option("-o,--output", options->output,
                        "The file to write; - is standard output. Default: a new file in this folder");
  arguments->add_flag("--json", options->json, kJsonHelp);
  return {arguments, [options] { return RunDump(*options); }, true};
}

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
  arguments->footer(
      "record flight writes the last events of the flight recorder (HBMPROF_FLIGHT). tag KEY= removes a tag of the\n"
      "process. While tracking is off, allocations are not recorded. stats prints totals by device and kind as JSON.");
  return {arguments, [options] { return RunControl(*options); }};
}

}  // namespace hbmprof::tool
