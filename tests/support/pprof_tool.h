// Running other programs, including the pprof viewers.
#ifndef HBMPROF_TESTS_SUPPORT_PPROF_TOOL_H_
#define HBMPROF_TESTS_SUPPORT_PPROF_TOOL_H_

#include <string>
#include <vector>

namespace hbmprof_test {

struct CommandResult {
  int exit_code = -1;  // 128 + signal if it was killed, -1 if it did not start
  int status = -1;     // what waitpid reports, -1 if it did not start
  bool timed_out = false;
  std::string out;
  std::string err;
};

struct CommandPlace {
  std::string directory;  // the working directory; empty: that of this process
  // If not 0: the command is the leader of a new process group. RunCommand also waits for all processes that it leaves
  // running, and kills them after this number of seconds. This process becomes a child subreaper permanently, and must
  // have no other children.
  int time_limit_s = 0;
};

// Runs argv[0], found on PATH, with standard input empty, and waits for it. `environment` is added ("NAME=value").
CommandResult RunCommand(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {},
                         const CommandPlace& place = {});

// A pprof viewer.
struct PprofTool {
  std::string name;                  // "go_tool_pprof" or "google_pprof"
  std::vector<std::string> command;  // the command line before the arguments

  CommandResult Run(const std::vector<std::string>& arguments) const;
};

// Returns the viewers of this machine: `go tool pprof`, if Go is installed, and google/pprof. The latter is the program
// that HBMPROF_PPROF names, else the one that this build made, else `pprof` on PATH.
std::vector<PprofTool> PprofTools();

// Returns the viewer that this project recommends. Its command is empty if the machine does not have it.
PprofTool GooglePprof();

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_PPROF_TOOL_H_
