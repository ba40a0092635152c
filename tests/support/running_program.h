// A program that a test starts, controls by its standard input and output, and ends. Not in this file: programs that
// run to their end (pprof_tool.h).
#ifndef HBMPROF_TESTS_SUPPORT_RUNNING_PROGRAM_H_
#define HBMPROF_TESTS_SUPPORT_RUNNING_PROGRAM_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace hbmprof_test {

class RunningProgram {
 public:
  // Starts argv[0], a path. `environment` is added ("NAME=value"). Standard error goes to the file `error_file`, if it
  // is not empty.
  explicit RunningProgram(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {},
                          const std::string& error_file = {}) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      if (!error_file.empty()) dup2(open(error_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
      std::vector<char*> arguments;
      for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  // Waits for the program, if Wait was not called.
  ~RunningProgram() {
    if (pid_ > 0) Wait();
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  // 0 after Wait.
  pid_t pid() const { return pid_; }

  void WriteLine(const std::string& line) const {
    const std::string text = line + "\n";
    if (write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }
  // Returns the next line of its standard output, without the line feed; "" at the end.
  std::string ReadLine() const {
    std::string line;
    char byte;
    while (read(out_, &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  void CloseInput() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }
  // Closes its standard input and returns the status of waitpid.
  int Wait() {
    CloseInput();
    int status = -1;
    waitpid(pid_, &status, 0);
    close(out_);
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_RUNNING_PROGRAM_H_
