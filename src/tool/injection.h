// Starting programs with the injected library: where it is, whether a program can take it, what the environment must
// be, which program a command means. Not here: the subcommands (run.cc, doctor.cc).
#ifndef HBMPROF_SRC_TOOL_INJECTION_H_
#define HBMPROF_SRC_TOOL_INJECTION_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hbmprof::tool {

// The absolute path of libhbmprof_cuda.so: `given` if it is not empty, else beside this command as it is installed or
// built. kNotFound names the places that were looked at. kInvalidArgument if LD_PRELOAD cannot hold the path.
absl::StatusOr<std::string> FindInjectedLibrary(const std::string& given);

// The file that a command name means, as execvp finds it. kNotFound; kPermissionDenied if it may not be executed.
absl::StatusOr<std::string> FindProgram(const std::string& command);

// How the file of a program is started, by its first bytes.
struct ProgramHead {
  enum class Kind {
    kUnknown,         // unreadable, or in no format that the system knows; a shell takes it for a script
    kScript,          // starts with "#!"
    kOtherProcessor,  // not 64-bit x86
    kStatic,          // no dynamic linker, so nothing is preloaded
    kDynamic,
  };
  Kind kind = Kind::kUnknown;
  // Of a script, the program that reads it (what env looks up, if that is the one); of a dynamic program, the path of
  // its dynamic linker.
  std::string interpreter;
};
ProgramHead ReadProgramHead(const std::string& program);

// Environment variables to set in a child, on top of this process's own.
using Environment = std::map<std::string, std::string>;

// LD_PRELOAD with `library` before what stands there, once.
std::string PreloadWith(const std::string& library);

// Why `program`, or the interpreter of a script, would fail with `library` preloaded, as the end of a sentence that
// starts with the program's name. Empty if nothing speaks against it. Starts the program's dynamic linker, but not the
// program. What depends on the library is left out if `library` is empty.
std::string WhyNotInjected(const std::string& program, const std::string& library);

struct ChildSetup {
  Environment environment;
  int output = -1;                // becomes its standard output unless it is -1
  int errors = -1;                // becomes its standard error unless it is -1
  std::function<void()> prepare;  // called in the child before the program starts
};

// A child process that runs `program`, started and not yet waited for. As with execvp, a file in no known format is a
// script for /bin/sh. An inherited "ignore SIGCHLD" reaches the child, but this process then no longer ignores it.
// kNotFound if the program or its interpreter is not there, kPermissionDenied if it cannot be executed,
// kResourceExhausted if there is no process for it. Not for a process with several threads.
absl::StatusOr<int> StartProcess(const std::string& program, const std::vector<std::string>& command,
                                 const ChildSetup& setup);

// How a process ended: it was killed by `signal`, or if that is 0 it exited with `code`.
struct ProcessEnd {
  int code = 0;
  int signal = 0;
};

// Waits for it and reaps it.
ProcessEnd WaitForProcess(int process);

// Runs it to its end, its standard output and standard error in `text`.
struct Captured {
  ProcessEnd end;
  std::string text;
};
absl::StatusOr<Captured> RunAndCapture(const std::string& program, const std::vector<std::string>& command,
                                       const Environment& environment, bool with_errors);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_INJECTION_H_
