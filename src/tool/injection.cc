#include "src/tool/injection.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/status/status.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

bool IsFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

absl::StatusOr<std::string> FindInjectedLibrary(const std::string& given) {
  std::error_code error;
  std::vector<std::string> places;
  if (!given.empty()) {
    places.push_back(given);
  } else {
    const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (const char* place : {"../" HBMPROF_LIBDIR "/hbmprof", "../inject", "."}) {
      places.push_back((here / place / "libhbmprof_cuda.so").lexically_normal());
    }
  }
  std::string tried;
  for (const std::string& place : places) {
    if (IsFile(place)) return fs::canonical(place, error).string();
    tried += Cat(tried.empty() ? "" : ", ", place);
  }
  return absl::NotFoundError(Cat("libhbmprof_cuda.so is not there: looked for ", tried,
                                 ". It is built for x86-64 Linux; --library names another place"));
}

absl::StatusOr<std::string> FindProgram(const std::string& command) {
  std::vector<std::string> candidates;
  if (command.find('/') != std::string::npos) {
    candidates.push_back(command);
  } else {
    const char* path = std::getenv("PATH");
    const std::string folders = path == nullptr ? "/usr/bin:/bin" : path;
    for (size_t start = 0; start <= folders.size();) {
      const size_t end = std::min(folders.find(':', start), folders.size());
      const std::string folder = folders.substr(start, end - start);
      candidates.push_back(Cat(folder.empty() ? "." : folder, "/", command));
      start = end + 1;
    }
  }
  bool forbidden = false;
  for (const std::string& candidate : candidates) {
    if (!IsFile(candidate)) continue;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    forbidden = true;
  }
  if (forbidden) return absl::PermissionDeniedError(Cat(command, " is there, but may not be executed"));
  return absl::NotFoundError(Cat(command, " is no program that can be found"));
}

std::string PreloadWith(const std::string& library) {
  const char* before = std::getenv("LD_PRELOAD");
  return before == nullptr || *before == '\0' ? library : Cat(library, ":", before);
}

absl::StatusOr<int> StartProcess(const std::string& program, const std::vector<std::string>& command,
                                 const Environment& environment, int output) {
  // Closed by a successful exec, else it brings the error.
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return absl::InternalError(Cat("no pipe: ", std::strerror(errno)));
  const pid_t process = fork();
  if (process < 0) return absl::ResourceExhaustedError(Cat("no process: ", std::strerror(errno)));
  if (process == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    if (output >= 0) dup2(output, STDOUT_FILENO);
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    execv(program.c_str(), arguments.data());
    const int error = errno;
    static_cast<void>(!write(pipe[1], &error, sizeof(error)));
    _exit(127);
  }
  close(pipe[1]);
  int error = 0;
  const bool failed = read(pipe[0], &error, sizeof(error)) == sizeof(error);
  close(pipe[0]);
  if (!failed) return process;
  WaitForProcess(process);
  return absl::FailedPreconditionError(Cat(program, " cannot be executed: ", std::strerror(error)));
}

int WaitForProcess(int process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace hbmprof::tool
