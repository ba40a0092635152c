// `hbmprof attach`: records the allocations of a process that was started without hbmprof, and ends that.
#include "src/tool/attach/attach.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "src/protocol/attach.h"
#include "src/protocol/control.h"
#include "src/tool/commands/command.h"
#include "src/tool/source/control_client.h"

extern char** environ;

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

struct AttachOptions : OutputOptions {
  std::string process;
  bool has_output = false;  // `output` was given
  bool allow_seccomp = false;
  bool detach = false;
  bool json = false;
};

// The variables that are not the library's: it gets them from the options, or they are for the command.
bool IsForLibrary(const std::string& name) {
  return absl::StartsWith(name, "HBMPROF_") && name != kOutputVariable && name != "HBMPROF_RECORD" &&
         name != "HBMPROF_OUTPUT_INTERVAL" && name != internal::kControlDirectoryVariable;
}

absl::StatusOr<pid_t> FindPid(const std::string& pid_or_name) {
  const std::vector<int64_t> found = RunningProcesses(pid_or_name);
  if (found.empty()) return NotFound("there is no process ", pid_or_name);
  if (found.size() == 1) return static_cast<pid_t>(found.front());
  return InvalidArgument("several processes are named ", pid_or_name,
                         "; give one of these ids: ", absl::StrJoin(found, ", "));
}

uid_t OwnerOf(const Target& target) {
  struct stat info = {};
  stat(target.ProcPath("").c_str(), &info);
  return info.st_uid;
}

// The directory of the control socket, as the process sees it.
std::string InnerDirectory(const Target& target) {
  const char* const named = std::getenv(internal::kControlDirectoryVariable);
  const bool is_ours = target.SharesFiles() && OwnerOf(target) == geteuid();
  if (is_ours || (named != nullptr && *named != '\0')) return ControlDirectory();
  return Cat("/tmp/hbmprof-", static_cast<int64_t>(OwnerOf(target)));
}

// The same directory, as this command sees it.
std::string OuterDirectory(const Target& target) { return target.OutsidePath(InnerDirectory(target)); }

std::string SocketOf(const Target& target) {
  return Cat(OuterDirectory(target), "/", internal::kControlSocketPrefix, target.inner_pid(),
             internal::kControlSocketSuffix);
}

// Makes the folder of the profiles and returns it, as the process sees it.
absl::StatusOr<std::string> ProfileFolder(const Target& target, const AttachOptions& options) {
  const std::string& output = options.output;
  std::error_code error;
  if (!target.SharesFiles()) {
    // This command makes nothing there: a link of the process's could lead it elsewhere.
    if (!options.has_output) return "/tmp";
    if (fs::path(output).is_absolute()) return output;
    return InvalidArgument("--output ", output, ": write the absolute path of a folder that process ", target.pid(),
                           " sees");
  }
  const std::string folder = fs::absolute(output, error).lexically_normal();
  if (fs::create_directories(folder, error) && OwnerOf(target) != geteuid()) {
    if (lchown(folder.c_str(), OwnerOf(target), static_cast<gid_t>(-1)) != 0)
      error = std::error_code(errno, std::generic_category());
  }
  if (!error && fs::is_directory(folder, error)) return folder;
  return PermissionDenied("--output '", output, "': not a writable folder");
}

// Returns the variables of the library as lines NAME=VALUE.
absl::StatusOr<std::string> LibraryOptions(const Target& target, const AttachOptions& options) {
  ASSIGN_OR_RETURN(const std::string folder, ProfileFolder(target, options));
  Environment environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(*variable, absl::MaxSplits('=', 1));
    if (IsForLibrary(entry.first)) environment.insert(entry);
  }
  environment[internal::kControlDirectoryVariable] = InnerDirectory(target);
  environment[internal::kAttachThread] = internal::kAttachBorrowed;
  RETURN_IF_ERROR(SetOutputVariables(options, folder, NewRunName(), environment));
  std::string lines;
  for (const auto& [name, value] : environment) {
    if (value.find('\n') != std::string::npos) return InvalidArgument(name, ": the value has a line feed");
    lines += Cat(name, "=", value, "\n");
  }
  return lines;
}

// What the process says about the attachment (src/protocol/control.h).
struct Attachment {
  std::string state;      // "attached", "detached", "changing"; empty: it was started with the library
  int64_t functions = 0;  // that are replaced
  int64_t all_functions = 0;
  int64_t references = 0;       // of PyTorch
  Json before = Json::array();  // by device, what it had allocated before; empty: not known yet
};

// Returns the process's answer. kNotFound says where its control channel is.
absl::StatusOr<std::string> Ask(const Target& target, std::string_view request) {
  absl::StatusOr<std::string> answer = QueryProcess(SocketOf(target), request);
  return absl::IsNotFound(answer.status()) ? NotFound(NoProcessText(Cat(target.pid()), OuterDirectory(target)))
                                           : answer;
}

absl::StatusOr<Attachment> QueryAttachment(const Target& target) {
  ASSIGN_OR_RETURN(const std::string answer, Ask(target, "info"));
  Attachment attachment;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "attach") words >> attachment.state;
    if (key == "functions") words >> attachment.functions >> attachment.all_functions;
    if (key == "references") words >> attachment.references;
    int64_t bytes = 0;
    int64_t segments = 0;  // of `bytes`: segments of PyTorch
    std::string name;
    if (key == "before" && words >> bytes >> segments && std::getline(words >> std::ws, name)) {
      attachment.before.push_back({{"name", name}, {"bytes", bytes}, {"segment_bytes", segments}});
    }
  }
  return attachment;
}

absl::Status Report(const Target& target, bool json) {
  ASSIGN_OR_RETURN(Attachment attachment, QueryAttachment(target));
  // The process asks the driver about earlier memory in a thread of its own.
  for (int waited = 0; attachment.before.empty() && waited < 1'000; waited += 50) {
    usleep(50'000);
    ASSIGN_OR_RETURN(attachment, QueryAttachment(target));
  }
  const std::string driver = DriverVersion(target);
  const std::string directory = OuterDirectory(target);
  if (json) {
    Print(ToText({{"version", kJsonVersion},
                  {"state", "attached"},
                  {"pid", target.pid()},
                  {"name", target.Name()},
                  {"driver", driver},
                  {"function_count", attachment.functions},
                  {"all_function_count", attachment.all_functions},
                  {"has_torch_blocks", attachment.references != 0},
                  {"before", attachment.before},
                  {"id", Cat(target.inner_pid())},
                  {"directory", directory}}));
    return absl::OkStatus();
  }
  Print(Cat("attached to ", target.pid(), " (", target.Name(), "): CUDA driver", driver.empty() ? "" : " ", driver,
            ", ", attachment.functions, " of ", attachment.all_functions, " functions",
            attachment.references == 0 ? "" : ", PyTorch blocks", "\n"));
  std::string before;
  for (const Json& memory : attachment.before) {
    before += Cat(before.empty() ? "before attach: " : "; ", Bytes(memory["bytes"]), " in use on ",
                  memory["name"].get<std::string>());
    if (memory["segment_bytes"] > 0) {
      before += Cat(", of which ", Bytes(memory["segment_bytes"]), " are segments of PyTorch");
    }
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
absl::StatusOr<int> AttachTo(const Target& target, const AttachOptions& options, const std::string& library) {
  if (HasInjectedLibrary(target)) {
    // It does not answer if an earlier attempt has failed, or if another command has just loaded it.
    absl::StatusOr<Attachment> known = QueryAttachment(target);
    if (known.ok() && known->state == "detached") {
      const absl::Status status = Ask(target, "attach").status();
      known = QueryAttachment(target);
      if (!status.ok() && known.ok() && known->state == "detached") return status;
    }
    if (known.ok() && known->state.empty()) return internal::kAttachPreloaded;
    if (known.ok()) return known->state == "attached" ? internal::kAttachedAlready : internal::kAttachBusy;
  }
  RETURN_IF_ERROR(CheckCanAttach(target));
  if (!options.allow_seccomp) RETURN_IF_ERROR(CheckSystemCalls(target));
  ASSIGN_OR_RETURN(const std::string lines, LibraryOptions(target, options));
  return LoadLibrary(target, library, lines);
}

absl::StatusOr<int> RunAttach(const AttachOptions& options) {
  ASSIGN_OR_RETURN(const std::string library, FindInjectedLibrary(options.library));
  ASSIGN_OR_RETURN(const pid_t pid, FindPid(options.process));
  int code = internal::kAttachBusy;
  std::unique_ptr<Target> target;
  constexpr int kAttempts = 50;
  for (int i = 0; i < kAttempts && code == internal::kAttachBusy; ++i) {
    if (i != 0) usleep(100'000);
    ASSIGN_OR_RETURN(target, Target::Open(pid));  // its files can be others now
    if (const std::string reason = WhyNotInjected(target->ProcPath("exe"), ""); !reason.empty()) {
      return FailedPrecondition("process ", pid, ": its program ", reason);
    }
    ASSIGN_OR_RETURN(code, AttachTo(*target, options, library));
  }
  if (code != internal::kAttached && code != internal::kAttachedAlready) {
    const std::string folder = code == internal::kAttachNoControl ? Cat("; it is now ", InnerDirectory(*target)) : "";
    return FailedPrecondition("process ", pid, ": ", internal::AttachText(code), folder);
  }
  if (code == internal::kAttachedAlready &&
      (options.has_output || !options.interval.empty() || !options.record.empty())) {
    PrintError("attach", "it was attached before, so the options of that time stay");
  }
  RETURN_IF_ERROR(Report(*target, options.json));
  return kSuccess;
}

absl::StatusOr<int> RunDetach(const AttachOptions& options) {
  if (options.has_output || !options.interval.empty() || !options.library.empty() || !options.record.empty() ||
      options.allow_seccomp) {
    return InvalidArgument("--detach takes no other option");
  }
  std::string id;
  std::string name;
  if (const absl::StatusOr<LiveProcess> live = FindProcess(ControlDirectory(), options.process); live.ok()) {
    id = live->id;
    name = live->name;
    RETURN_IF_ERROR(QueryProcess(live->socket, "detach").status());
  } else {
    // Its control channel can be in a container.
    ASSIGN_OR_RETURN(const pid_t pid, FindPid(options.process));
    ASSIGN_OR_RETURN(const std::unique_ptr<Target> target, Target::Open(pid));
    if (!HasInjectedLibrary(*target)) return FailedPrecondition("process ", pid, " is not attached");
    id = Cat(pid);
    name = target->Name();
    RETURN_IF_ERROR(Ask(*target, "detach").status());
  }
  const Json json = {{"version", kJsonVersion}, {"state", "detached"}, {"id", id}, {"name", name}};
  Print(options.json ? ToText(json) : Cat("detached from ", id, " (", name, ")\n"));
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
  arguments->add_flag("--detach", options->detach, "End the recording that attach has begun");
  return {arguments, [options, arguments] {
            options->has_output = arguments->count("--output") != 0;
            return options->detach ? RunDetach(*options) : RunAttach(*options);
          }};
}

}  // namespace hbmprof::tool
