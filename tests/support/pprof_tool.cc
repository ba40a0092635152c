// See pprof_tool.h.
#include "tests/support/pprof_tool.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

extern char** environ;

namespace hbmprof_test {
namespace {

// Output goes to memory, not through pipes: nothing to pump, and no limit.
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

}  // namespace

CommandResult RunCommand(const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  CommandResult result;
  const int out = memfd_create("stdout", MFD_CLOEXEC);
  const int err = memfd_create("stderr", MFD_CLOEXEC);
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
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, argv[0].c_str(), &actions, nullptr, Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error == 0) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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
