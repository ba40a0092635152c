// Running other programs, and the pprof viewers among them.
#ifndef HBMPROF_TESTS_SUPPORT_PPROF_TOOL_H_
#define HBMPROF_TESTS_SUPPORT_PPROF_TOOL_H_

#include <string>
#include <vector>

namespace hbmprof_test {

struct CommandResult {
  int exit_code = -1;  // 128 + signal if it was killed, -1 if it did not start
  std::string out;
  std::string err;
};

// Runs argv[0], found on PATH, with standard input empty, and waits for it. `environment` is added ("NAME=value").
CommandResult RunCommand(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {});

// A pprof viewer.
struct PprofTool {
  std::string name;                  // "go_tool_pprof" or "google_pprof"
  std::vector<std::string> command;  // what stands before the arguments

  CommandResult Run(const std::vector<std::string>& arguments) const;
};

// The viewers of this machine. `go tool pprof`, where Go is installed; google/pprof: what HBMPROF_PPROF names, else the
// one this build made, else `pprof` on PATH.
std::vector<PprofTool> PprofTools();

// The one this project recommends; its command is empty where there is none.
PprofTool GooglePprof();

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_PPROF_TOOL_H_
