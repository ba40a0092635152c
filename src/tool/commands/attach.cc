// `hbmprof attach`: records the allocations of a process that was started without hbmprof, and ends that.
#include "src/tool/attach/attach.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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
#include "src/tool/util/text.h"

extern char** environ;

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

// How long the command waits for the process's answer about its earlier memory.
constexpr int kBeforeMillis = 1'000;

struct AttachOptions : OutputOptions {
  std::string process;
  bool allow_seccomp = false;
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

// What the process says about the attachment (src/protocol/control.h).
struct Attachment {
  std::string state;       // "attached", "detached", "changing"; empty: it was started with the library
  std::string functions;   // "75 of 75"
  int64_t references = 0;  // of PyTorch
  std::string before;      // a line for the user; empty: not known yet
};

absl::StatusOr<Attachment> QueryAttachment(const Target& target) {
  ASSIGN_OR_RETURN(const std::string answer, QueryProcess(SocketOf(target), "info"));
  Attachment attachment;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    std::string value;
    words >> key;
    if (key == "attach") words >> attachment.state;
    int64_t some = 0;
    int64_t all = 0;
    if (key == "functions" && words >> some >> all) attachment.functions = Cat(some, " of ", all);
    if (key == "references") words >> attachment.references;
    if (key == "before" && words >> some >> all && std::getline(words >> std::ws, value)) {
      attachment.before +=
          Cat(attachment.before.empty() ? "before attach: " : "; ", FormatValue(some, "bytes"), " in use on ", value);
      if (all > 0) attachment.before += Cat(", of which ", FormatValue(all, "bytes"), " are segments of PyTorch");
    }
  }
  return attachment;
}

// Returns the version of Python in the name of a file of the process; "" if there is none.
std::string PythonVersion(const Target& target) {
  constexpr std::string_view kStarts[] = {"libpython", "python"};
  for (const MappedFile& file : target.files()) {
    for (const std::string_view start : kStarts) {
      if (file.name.rfind(start, 0) != 0) continue;
      const std::string version =
          file.name.substr(start.size(), file.name.find_first_not_of("0123456789.", start.size()) - start.size());
      if (version.find('.') != std::string::npos) return version.substr(0, version.find(".so"));
    }
  }
  return "";
}

// Reads the version of the PyTorch that the process has loaded from its version.py.
std::string TorchVersion(const Target& target) {
  const MappedFile* const library = target.Find([](std::string_view name) { return name == "libc10_cuda.so"; });
  if (library == nullptr) return "";
  std::ifstream file(target.OutsidePath(Cat(library->path.substr(0, library->path.rfind('/')), "/../version.py")));
  for (std::string line; std::getline(file, line);) {
    const size_t quote = line.find('\'');
    if (line.rfind("__version__", 0) != 0 || quote == std::string::npos) continue;
    return line.substr(quote + 1, line.find_first_of("'+", quote + 1) - quote - 1);
  }
  return "";
}

absl::Status Report(const Target& target) {
  ASSIGN_OR_RETURN(Attachment attachment, QueryAttachment(target));
  // The process asks the driver about earlier memory in a thread of its own.
  for (int waited = 0; attachment.before.empty() && waited < kBeforeMillis; waited += 50) {
    usleep(50'000);
    ASSIGN_OR_RETURN(attachment, QueryAttachment(target));
  }
  const auto with_space = [](const std::string& text) { return text.empty() ? "" : Cat(" ", text); };
  const std::string python = PythonVersion(target);
  Print(Cat("attached to ", target.pid(), " (", target.Name(), "): CUDA driver", with_space(DriverVersion(target)),
            ", ", attachment.functions, " functions",
            attachment.references == 0 ? "" : Cat(", PyTorch", with_space(TorchVersion(target)), " blocks"),
            python.empty() ? "" : Cat(", Python ", python), "\n"));
  if (!attachment.before.empty()) Print(Cat(attachment.before, "\n"));
  const std::string directory = OuterDirectory(target);
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
  RETURN_IF_ERROR(Report(*target));
  return kSuccess;
}

absl::StatusOr<int> RunDetach(const std::string& process) {
  std::string socket;
  std::string name;
  if (const absl::StatusOr<LiveProcess> live = FindProcess(ControlDirectory(), process); live.ok()) {
    socket = live->socket;
    name = Cat(live->id, " (", live->name, ")");
  } else {
    // Its control channel can be in a container.
    ASSIGN_OR_RETURN(const pid_t pid, FindPid(process));
    ASSIGN_OR_RETURN(const std::unique_ptr<Target> target, Target::Open(pid));
    if (!HasInjectedLibrary(*target)) return absl::FailedPreconditionError(Cat("process ", pid, " is not attached"));
    socket = SocketOf(*target);
    name = Cat(pid, " (", target->Name(), ")");
  }
  RETURN_IF_ERROR(QueryProcess(socket, "detach").status());
  Print(Cat("detached from ", name, "\n"));
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
  arguments->footer(
      "The process keeps running. Afterwards it is as if it had been started by hbmprof run, except for the memory\n"
      "that it allocated before: that is one call site, [before attach]. It needs a CUDA driver "
      "from " HBMPROF_KNOWN_DRIVERS
      ".\n"
      "Variables HBMPROF_* of the environment are options of the library, as for hbmprof run.\n"
      "Example: hbmprof attach 4242 && hbmprof leaks 4242 --interval 30s");
  auto detach = std::make_shared<bool>(false);
  arguments->add_flag("--detach", *detach, "End the recording that attach has begun");
  AddProcessOptions(*arguments, true);
  return {arguments, [options, arguments, detach]() -> absl::StatusOr<int> {
            const bool has_output = arguments->count("--output") != 0;
            if (*detach) {
              const bool has_other = has_output || !options->interval.empty() || !options->library.empty() ||
                                     !options->record.empty() || options->allow_seccomp;
              if (has_other) return InvalidArgument("--detach takes no other option");
              return RunDetach(options->process);
            }
            return RunAttach(*options, has_output,
                             has_output || !options->interval.empty() || !options->record.empty());
          }};
}

}  // namespace hbmprof::tool
