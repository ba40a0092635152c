// `hbmprof attach`: records the allocations of a process that was started without hbmprof, and ends that.
#include "src/tool/attach/attach.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "src/protocol/attach.h"
#include "src/protocol/control.h"
#include "src/tool/commands/command.h"
#include "src/tool/commands/injection.h"
#include "src/tool/commands/output_options.h"
#include "src/tool/source/control_client.h"
#include "src/tool/util/json.h"

extern char** environ;

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

// How long the command waits for the process's answer about its earlier memory.
constexpr int kBeforeMillis = 1'000;

struct AttachOptions : OutputOptions {
  std::string process;
  bool allow_seccomp = false;
  bool json = false;
};

// The variables that are not the library's: it gets them from the options, or they are for the command.
bool IsForLibrary(std::string_view name) {
  return name.rfind("HBMPROF_", 0) == 0 && name != kOutputVariable && name != "HBMPROF_RECORD" &&
         name != "HBMPROF_OUTPUT_INTERVAL" && name != internal::kControlDirectoryVariable;
}

// Returns the process with this id or name.
absl::StatusOr<pid_t> FindPid(const std::string& pid_or_name) {
  pid_t pid = 0;
  if (absl::SimpleAtoi(pid_or_name, &pid) && pid > 0) return pid;
  const std::vector<int64_t> found = RunningProcesses(pid_or_name);
  if (found.empty()) return absl::NotFoundError(Cat("there is no process ", pid_or_name));
  if (found.size() == 1) return static_cast<pid_t>(found.front());
  return absl::InvalidArgumentError(
      Cat("several processes are named ", pid_or_name, "; give one of these ids: ", absl::StrJoin(found, ", ")));
}

uid_t OwnerOf(const Target& target) {
  struct stat info = {};
  stat(target.ProcPath("").c_str(), &info);
  return info.st_uid;
}

// Returns whether files that this command makes are where the process sees them, and belong to its user.
bool SharesFilesAndUser(const Target& target) { return target.SharesFiles() && OwnerOf(target) == geteuid(); }

// The directory of the control socket, as the process sees it.
std::string InnerDirectory(const Target& target) {
  const char* const named = std::getenv(internal::kControlDirectoryVariable);
  if (SharesFilesAndUser(target) || (named != nullptr && *named != '\0')) return ControlDirectory();
  return Cat("/tmp/hbmprof-", static_cast<int64_t>(OwnerOf(target)));
}

// The same directory, as this command sees it.
std::string OuterDirectory(const Target& target) { return target.OutsidePath(InnerDirectory(target)); }

std::string SocketOf(const Target& target) {
  return Cat(OuterDirectory(target), "/", internal::kControlSocketPrefix, target.inner_pid(),
             internal::kControlSocketSuffix);
}

// Makes the folder of the profiles and returns it, as the process sees it.
absl::StatusOr<std::string> ProfileFolder(const Target& target, const std::string& output, bool is_given) {
  std::error_code error;
  if (!target.SharesFiles()) {
    // This command makes nothing there: a link of the process's could lead it elsewhere.
    if (!is_given) return "/tmp";
    if (fs::path(output).is_absolute()) return output;
    return absl::InvalidArgumentError(
        Cat("--output ", output, ": write the absolute path of a folder that process ", target.pid(), " sees"));
  }
  const std::string folder = fs::absolute(output, error).lexically_normal();
  if (fs::create_directories(folder, error) && OwnerOf(target) != geteuid()) {
    if (lchown(folder.c_str(), OwnerOf(target), static_cast<gid_t>(-1)) != 0)
      error = std::error_code(errno, std::generic_category());
  }
  if (error || !fs::is_directory(folder, error)) {
    return absl::PermissionDeniedError(Cat("--output '", output, "': not a writable folder"));
  }
  return folder;
}

// Returns the variables of the library as lines NAME=VALUE.
absl::StatusOr<std::string> LibraryOptions(const Target& target, const AttachOptions& options, bool has_output) {
  ASSIGN_OR_RETURN(const std::string folder, ProfileFolder(target, options.output, has_output));
  Environment environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string::npos && IsForLibrary(text.substr(0, equals))) {
      environment[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  environment[internal::kControlDirectoryVariable] = InnerDirectory(target);
  environment[internal::kAttachThread] = internal::kAttachBorrowed;
  SetOutputVariables(options, folder, NewRunName(), environment);
  std::string lines;
  for (const auto& [name, value] : environment) {
    if (value.find('\n') != std::string::npos) {
      return absl::InvalidArgumentError(Cat(name, ": the value has a line feed"));
    }
    lines += Cat(name, "=", value, "\n");
  }
  return lines;
}

// Memory of a device that the process had allocated before.
struct EarlierMemory {
  std::string name;
  int64_t bytes = 0;
  int64_t segment_bytes = 0;  // of `bytes`: segments of PyTorch
};

// What the process says about the attachment (src/protocol/control.h).
struct Attachment {
  std::string state;      // "attached", "detached", "changing"; empty: it was started with the library
  int64_t functions = 0;  // that are replaced
  int64_t all_functions = 0;
  int64_t references = 0;             // of PyTorch
  std::vector<EarlierMemory> before;  // empty: not known yet
};

absl::StatusOr<Attachment> QueryAttachment(const Target& target) {
  ASSIGN_OR_RETURN(const std::string answer, QueryProcess(SocketOf(target), "info"));
  Attachment attachment;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "attach") words >> attachment.state;
    if (key == "functions") words >> attachment.functions >> attachment.all_functions;
    if (key == "references") words >> attachment.references;
    EarlierMemory memory;
    if (key == "before" && words >> memory.bytes >> memory.segment_bytes &&
        std::getline(words >> std::ws, memory.name)) {
      attachment.before.push_back(memory);
    }
  }
  return attachment;
}

absl::Status Report(const Target& target, bool json) {
  ASSIGN_OR_RETURN(Attachment attachment, QueryAttachment(target));
  // The process asks the driver about earlier memory in a thread of its own.
  for (int waited = 0; attachment.before.empty() && waited < kBeforeMillis; waited += 50) {
    usleep(50'000);
    ASSIGN_OR_RETURN(attachment, QueryAttachment(target));
  }
  const std::string driver = DriverVersion(target);
  const std::string directory = OuterDirectory(target);
  if (json) {
    Json before = Json::array();
    for (const EarlierMemory& memory : attachment.before) {
      before.push_back({{"name", memory.name}, {"bytes", memory.bytes}, {"segment_bytes", memory.segment_bytes}});
    }
    Print(ToText({{"version", kJsonVersion},
                  {"state", "attached"},
                  {"pid", target.pid()},
                  {"name", target.Name()},
                  {"driver", driver},
                  {"function_count", attachment.functions},
                  {"all_function_count", attachment.all_functions},
                  {"has_torch_blocks", attachment.references != 0},
                  {"before", before},
                  {"id", Cat(target.inner_pid())},
                  {"directory", directory}}));
    return absl::OkStatus();
  }
  Print(Cat("attached to ", target.pid(), " (", target.Name(), "): CUDA driver", driver.empty() ? "" : " ", driver,
            ", ", attachment.functions, " of ", attachment.all_functions, " functions",
            attachment.references == 0 ? "" : ", PyTorch blocks", "\n"));
  std::string before;
  for (const EarlierMemory& memory : attachment.before) {
    before += Cat(before.empty() ? "before attach: " : "; ", Bytes(memory.bytes), " in use on ", memory.name);
    if (memory.segment_bytes > 0) before += Cat(", of which ", Bytes(memory.segment_bytes), " are segments of PyTorch");
  }
  if (!before.empty()) Print(Cat(before, "\n"));
  if (directory != ControlDirectory()) {
    Print(Cat("the other commands find it with HBMPROF_SOCKET_DIR=", directory, " hbmprof leaks ", target.inner_pid(),
              "\n"));
  }
  return absl::OkStatus();
}

// Attaches through the control channel if the process has the library, else by loading it. Returns a code of
// hbmprof_attach.
absl::StatusOr<int> AttachTo(const Target& target, const AttachOptions& options, const std::string& library,
                             bool has_output) {
  if (HasInjectedLibrary(target)) {
    // It does not answer if an earlier attempt has failed, or if another command has just loaded it.
    absl::StatusOr<Attachment> known = QueryAttachment(target);
    if (known.ok() && known->state == "detached") {
      const absl::Status status = QueryProcess(SocketOf(target), "attach").status();
      known = QueryAttachment(target);
      if (!status.ok() && known.ok() && known->state == "detached") return status;
    }
    if (known.ok() && known->state.empty()) return internal::kAttachPreloaded;
    if (known.ok()) return known->state == "attached" ? internal::kAttachedAlready : internal::kAttachBusy;
  }
  RETURN_IF_ERROR(CheckCanAttach(target));
  if (!options.allow_seccomp) RETURN_IF_ERROR(CheckSystemCalls(target));
  ASSIGN_OR_RETURN(const std::string lines, LibraryOptions(target, options, has_output));
  ASSIGN_OR_RETURN(const Attached attached, LoadLibrary(target, library, lines));
  return attached.code;
}

absl::StatusOr<int> RunAttach(const AttachOptions& options, bool has_output, bool is_any_output_given) {
  RETURN_IF_ERROR(CheckOutputOptions(options));
  ASSIGN_OR_RETURN(const std::string library, FindInjectedLibrary(options.library));
  ASSIGN_OR_RETURN(const pid_t pid, FindPid(options.process));
  int code = internal::kAttachBusy;
  std::unique_ptr<Target> target;
  constexpr int kAttempts = 50;
  for (int i = 0; i < kAttempts && code == internal::kAttachBusy; ++i) {
    if (i != 0) usleep(100'000);
    ASSIGN_OR_RETURN(target, Target::Open(pid));  // its files can be others now
    if (const std::string reason = WhyNotInjected(target->ProcPath("exe"), ""); !reason.empty()) {
      return absl::FailedPreconditionError(Cat("process ", pid, ": its program ", reason));
    }
    ASSIGN_OR_RETURN(code, AttachTo(*target, options, library, has_output));
  }
  if (code != internal::kAttached && code != internal::kAttachedAlready) {
    const std::string folder = code == internal::kAttachNoControl ? Cat("; it is now ", InnerDirectory(*target)) : "";
    return absl::FailedPreconditionError(Cat("process ", pid, ": ", internal::AttachText(code), folder));
  }
  if (code == internal::kAttachedAlready && is_any_output_given) {
    PrintError("attach", "it was attached before, so the options of that time stay");
  }
  RETURN_IF_ERROR(Report(*target, options.json));
  return kSuccess;
}

absl::StatusOr<int> RunDetach(const std::string& process, bool json) {
  std::string socket;
  std::string id;
  std::string name;
  if (const absl::StatusOr<LiveProcess> live = FindProcess(ControlDirectory(), process); live.ok()) {
    socket = live->socket;
    id = live->id;
    name = live->name;
  } else {
    // Its control channel can be in a container.
    ASSIGN_OR_RETURN(const pid_t pid, FindPid(process));
    ASSIGN_OR_RETURN(const std::unique_ptr<Target> target, Target::Open(pid));
    if (!HasInjectedLibrary(*target)) return absl::FailedPreconditionError(Cat("process ", pid, " is not attached"));
    socket = SocketOf(*target);
    id = Cat(pid);
    name = target->Name();
  }
  RETURN_IF_ERROR(QueryProcess(socket, "detach").status());
  if (json) {
    Print(ToText({{"version", kJsonVersion}, {"state", "detached"}, {"id", id}, {"name", name}}));
  } else {
    Print(Cat("detached from ", id, " (", name, ")\n"));
  }
  return kSuccess;
}

}  // namespace

Command AddAttachCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("attach", "Record the allocations of a process that runs already");
  auto options = std::make_shared<AttachOptions>();
  arguments->add_option("PROCESS", options->process, "Process id or name")->required();
  AddOutputOptions(*arguments, *options);
  arguments->add_flag("--allow-seccomp", options->allow_seccomp,
                      "Also if the process has a seccomp filter of its own, which can end it");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->footer(
      "The process keeps running. Afterwards it is as if it had been started by hbmprof run, except for the memory\n"
      "that it allocated before: that is one call site, [before attach]. It needs a CUDA driver "
      "from " HBMPROF_KNOWN_DRIVERS
      ".\n"
      "Variables HBMPROF_* of the environment are options of the library, as for hbmprof run.\n"
      "Example: hbmprof attach 4242 && hbmprof leaks 4242");
  auto detach = std::make_shared<bool>(false);
  arguments->add_flag("--detach", *detach, "End the recording that attach has begun");
  AddProcessOptions(*arguments, true);
  return {arguments, [options, arguments, detach]() -> absl::StatusOr<int> {
            const bool has_output = arguments->count("--output") != 0;
            if (*detach) {
              const bool has_other = has_output || !options->interval.empty() || !options->library.empty() ||
                                     !options->record.empty() || options->allow_seccomp;
              if (has_other) return InvalidArgument("--detach takes no other option");
              return RunDetach(options->process, options->json);
            }
            return RunAttach(*options, has_output,
                             has_output || !options->interval.empty() || !options->record.empty());
          }};
}

}  // namespace hbmprof::tool
