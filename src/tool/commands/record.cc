// `hbmprof record`: starts and ends recordings of a running process.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "src/tool/commands/command.h"
#include "src/tool/source/control_client.h"
#include "src/tool/util/status_macros.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

struct RecordOptions {
  std::string directory = ControlDirectory();
  std::string process;
  std::string action;
  std::string output;
  std::string max_bytes;
};

// Returns "hbmprof.NAME.PID.hbmrec". If this file exists, adds a number after the process id.
std::string NewRecordingName(const LiveProcess& process) {
  std::string name;
  for (const char c : process.name) name += c == '/' || c == '.' || c == ' ' ? '_' : c;
  const std::string start = Cat("hbmprof.", name, ".", process.pid);
  std::string file = Cat(start, ".hbmrec");
  for (int i = 1; access(file.c_str(), F_OK) == 0; ++i) file = Cat(start, ".", i, ".hbmrec");
  return file;
}

absl::StatusOr<int> RunRecord(const RecordOptions& options) {
  if (!options.max_bytes.empty() && options.action != "start") {
    return absl::InvalidArgumentError(Cat("--max-bytes is for start, not for ", options.action));
  }
  int64_t max_bytes = 0;
  constexpr int64_t kLeast = int64_t{1} << 20;
  if (!options.max_bytes.empty() &&
      (!ParseBytes(options.max_bytes, &max_bytes) || (max_bytes != 0 && max_bytes < kLeast))) {
    return absl::InvalidArgumentError(
        Cat("--max-bytes ", options.max_bytes, ": write a size of 1MiB or more, such as 4GiB, or 0 for no limit"));
  }
  ASSIGN_OR_RETURN(const LiveProcess process, FindProcess(options.directory, options.process));
  std::string request = Cat("record ", options.action);
  std::string file;
  if (options.action != "stop") {
    // The process writes the file, and its working directory may be another one.
    std::error_code error;
    file = std::filesystem::absolute(options.output.empty() ? NewRecordingName(process) : options.output, error);
    if (file.find('\n') != std::string::npos) return absl::InvalidArgumentError("the file's name has a line feed");
    // The path in the request is a pattern, in which %% stands for %.
    std::string path;
    for (const char c : file) path += c == '%' ? "%%" : std::string(1, c);
    if (!options.max_bytes.empty()) request += Cat(" max_bytes=", max_bytes);
    request += Cat(" ", path);
  }
  ASSIGN_OR_RETURN(const std::string answer, QueryProcess(process.socket, request));
  if (!file.empty()) Print(Cat(Visible(file), "\n"));
  return kSuccess;
}

}  // namespace

Command AddRecordCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("record", "Start or end a recording of a running process");
  auto options = std::make_shared<RecordOptions>();
  arguments->add_option("PROCESS", options->process, "Process id or name, as `hbmprof ps` lists them")->required();
  arguments
      ->add_option("ACTION", options->action,
                   "start; stop; or flight, which writes the last events of the flight recorder (HBMPROF_FLIGHT)")
      ->required()
      ->check(CLI::IsMember({"start", "stop", "flight"}));
  arguments->add_option("-o,--output", options->output,
                        "The file that the process writes; % is not special. Default: a new one in the working folder");
  arguments
      ->add_option("--max-bytes", options->max_bytes,
                   "For start: the largest size of the recording, at least 1MiB; 0: no limit. Default: 1GiB")
      ->type_name("SIZE");
  arguments
      ->add_option("--socket-dir", options->directory, "The directory of the sockets, if it is not $HBMPROF_SOCKET_DIR")
      ->type_name("DIR");
  return {arguments, [options] { return RunRecord(*options); }};
}

}  // namespace hbmprof::tool
