// No command crashes, hangs or takes unlimited memory, whatever the profile contains.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/tool/commands/command.h"

namespace {

// A file in memory with a path by which commands open it.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("profile", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    // The output of commands is not checked.
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
  }
  void Write(const uint8_t* data, size_t size) {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  const int fd_;
  const std::string path_;
};

void Run(hbmprof::tool::Command (*add)(CLI::App&), std::vector<std::string> arguments) {
  CLI::App tool;
  const hbmprof::tool::Command command = add(tool);
  arguments.insert(arguments.begin(), command.arguments->get_name());
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  tool.parse(reversed);
  const absl::StatusOr<int> code = command.run();
  // An error has a message.
  if (!code.ok() && code.status().message().empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file;
  file.Write(data, size);
  const std::string& path = file.path();
  using namespace hbmprof::tool;
  Run(AddExplainCommand, {path});
  Run(AddTopCommand, {path, "--by", "line,device"});
  Run(AddDiffCommand, {path, path});
  Run(AddTopCommand, {"--callers", "a", path, "--json"});
  Run(AddLeaksCommand, {path, path, path});
  Run(AddConvertCommand, {path, "--to", "csv"});
  static const std::string output = std::string(std::getenv("TMPDIR") == nullptr ? "/tmp" : std::getenv("TMPDIR")) +
                                    "/hbmprof_fuzz_" + std::to_string(getpid());
  Run(AddReportCommand, {path, path, path, "-o", output});
  unlink(output.c_str());
  Run(AddBudgetCommand, {path, "-o", output});
  Run(AddDiffCommand, {"--budget", output, path});
  Run(AddDiffCommand, {"--budget", path, path});
  unlink(output.c_str());
  return 0;
}
