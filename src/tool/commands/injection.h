// Starts programs with the injected library: finds the library and the program of a command name, checks whether the
// program can be injected, and makes the environment. For the subcommands run.cc and doctor.cc.
#ifndef HBMPROF_SRC_TOOL_COMMANDS_INJECTION_H_
#define HBMPROF_SRC_TOOL_COMMANDS_INJECTION_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns the absolute path of libhbmprof_gpu.so: `given` if it is not empty, else the one that was installed or built
// with this command. Errors: kNotFound with the paths that were tried; kInvalidArgument if LD_PRELOAD cannot hold the
// path.
absl::StatusOr<std::string> FindInjectedLibrary(const std::string& given);

// Returns the file of a command name, as execvp finds it. Errors: kNotFound; kPermissionDenied if it is not executable.
absl::StatusOr<std::string> FindProgram(const std::string& command);

// How the system starts a program file, determined from its first bytes.
struct ProgramHead {
  enum class Kind {
    kUnknown,         // unreadable or of unknown format; a shell runs it as a script
    kScript,          // starts with "#!"
    kOtherProcessor,  // not the one that this command is built for
    kStatic,          // no dynamic linker, so nothing is preloaded
    kDynamic,
  };
  Kind kind = Kind::kUnknown;
  // For a script, its interpreter; if that is env, the program that env looks up. For a dynamic program, the path of
  // its dynamic linker.
  std::string interpreter;
};
ProgramHead ReadProgramHead(const std::string& program);

// Environment variables to set in a child, on top of this process's own.
using Environment = std::map<std::string, std::string>;

// Returns the value of LD_PRELOAD, or of another variable that is such a list, with `library` as its first entry and
// without other entries for `library`.
std::string PreloadWith(const std::string& library, const char* variable = "LD_PRELOAD");
inline constexpr char kOpenclLayers[] = "OPENCL_LAYERS";  // the layers that the loader of OpenCL loads

// Returns the reason why `program`, or the interpreter of a script, would fail with `library` preloaded; "" if it would
// not fail. The reason is the end of a sentence that starts with the program's name. Starts the program's dynamic
// linker, but not the program. Leaves out the checks of the library if `library` is empty.
std::string WhyNotInjected(const std::string& program, const std::string& library);

struct ChildSetup {
  Environment environment;
  int output = -1;                // becomes its standard output unless it is -1
  int errors = -1;                // becomes its standard error unless it is -1
  std::function<void()> prepare;  // called in the child before the program starts
};

// Starts a child process that runs `program` and returns its id. The caller must wait for it. As with execvp, a file of
// unknown format is run as a script by /bin/sh. If SIGCHLD is ignored, the child inherits this, but this process stops
// ignoring it. Errors: kNotFound if the program or its interpreter does not exist; kPermissionDenied if it cannot be
// executed; kResourceExhausted if no process can be created. REQUIRES: this process has one thread.
absl::StatusOr<int> StartProcess(const std::string& program, const std::vector<std::string>& command,
                                 const ChildSetup& setup);

// The end of a process: killed by `signal`, or if that is 0, exited with `code`.
struct ProcessEnd {
  int code = 0;
  int signal = 0;
};

ProcessEnd WaitForProcess(int process);

struct Captured {
  ProcessEnd end;
  std::string text;  // standard output, and standard error if it was requested
};
// Runs a program to its end and returns its output. Includes its standard error if `with_errors` is true. Errors: those
// of StartProcess; kResourceExhausted if no pipe can be created.
absl::StatusOr<Captured> RunAndCapture(const std::string& program, const std::vector<std::string>& command,
                                       const Environment& environment, bool with_errors);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_COMMANDS_INJECTION_H_
