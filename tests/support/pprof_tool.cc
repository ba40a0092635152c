// See pprof_tool.h.
#include "tests/support/pprof_tool.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

extern char** environ;

namespace hbmprof_test {
namespace {

// Output goes to files in memory, not to pipes: these need no reader and have no limit.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[1 << 16];
  lseek(fd, 0, SEEK_SET);
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  return text;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool IsExecutable(const std::string& path) { return !path.empty() && access(path.c_str(), X_OK) == 0; }

bool IsOnPath(const std::string& program) {
  const char* path = getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    if (IsExecutable(rest.substr(0, colon) + "/" + program)) return true;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return false;
}

// Processes whose parent has ended become children of the subreaper, so repeated calls find all of them.
void KillChildren() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process <= 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string stat((std::istreambuf_iterator<char>(file)), {});
    // pid (name) state parent; the name may hold anything.
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || name_end + 4 > stat.size()) continue;
    if (std::atoi(stat.c_str() + name_end + 4) == getpid()) kill(process, SIGKILL);
  }
}

// Waits for `child` and for all processes that it leaves running. Returns the status of `child`.
int WaitForAll(pid_t child, int time_limit_s, bool* timed_out) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(time_limit_s);
  int child_status = -1;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended < 0 && errno != EINTR) return child_status;
    if (ended == child) child_status = status;
    if (ended > 0) continue;
    if (std::chrono::steady_clock::now() > limit) {
      *timed_out = true;
      KillChildren();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

CommandResult RunCommand(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                         const CommandPlace& place) {
  CommandResult result;
  // Appended, because the kernel lets two processes that write to a memfd at the same time use the same position.
  const int out = memfd_create("stdout", MFD_CLOEXEC);
  const int err = memfd_create("stderr", MFD_CLOEXEC);
  fcntl(out, F_SETFL, O_APPEND);
  fcntl(err, F_SETFL, O_APPEND);
  std::vector<std::string> arguments = argv;
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    bool replaced = false;
    for (const std::string& added : environment) {
      const size_t name = added.find('=') + 1;
      replaced = replaced || variable.compare(0, name, added, 0, name) == 0;
    }
    if (!replaced) variables.push_back(variable);
  }
  variables.insert(variables.end(), environment.begin(), environment.end());

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  if (!place.directory.empty()) posix_spawn_file_actions_addchdir_np(&actions, place.directory.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (place.time_limit_s > 0) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  }
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0].c_str(), &actions, &attributes, Pointers(arguments).data(),
                                 Pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) {
    if (place.time_limit_s > 0) {
      result.status = WaitForAll(child, place.time_limit_s, &result.timed_out);
    } else {
      while (waitpid(child, &result.status, 0) < 0 && errno == EINTR) {
      }
    }
    result.exit_code = WIFEXITED(result.status) ? WEXITSTATUS(result.status) : 128 + WTERMSIG(result.status);
    result.out = ReadAll(out);
    result.err = ReadAll(err);
  }
  close(out);
  close(err);
  return result;
}

CommandResult PprofTool::Run(const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = command;
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunCommand(argv);
}

PprofTool GooglePprof() {
  PprofTool tool;
  tool.name = "google_pprof";
  const char* named = getenv("HBMPROF_PPROF");
  if (named != nullptr && *named != '\0') {
    tool.command = {named};
  } else if (IsExecutable(HBMPROF_BUILT_PPROF)) {
    tool.command = {HBMPROF_BUILT_PPROF};
  } else if (IsOnPath("pprof")) {
    tool.command = {"pprof"};
  }
  return tool;
}

std::vector<PprofTool> PprofTools() {
  std::vector<PprofTool> tools;
  if (IsOnPath("go")) tools.push_back({"go_tool_pprof", {"go", "tool", "pprof"}});
  if (PprofTool google = GooglePprof(); !google.command.empty()) tools.push_back(google);
  return tools;
}

}  // namespace hbmprof_test
