// Programs that run while a test talks to them.
#ifndef HBMPROF_TESTS_TOOL_RUNNING_PROGRAM_H_
#define HBMPROF_TESTS_TOOL_RUNNING_PROGRAM_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof_test {

// A program with pipes as standard input and output. The destructor kills it if it still runs.
class RunningProgram {
 public:
  // `environment` is added ("NAME=value").
  RunningProgram(const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
      std::vector<char*> pointers;
      for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
      pointers.push_back(nullptr);
      execvp(pointers[0], pointers.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~RunningProgram() {
    if (pid_ > 0) End(SIGKILL);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  std::string name() const { return std::to_string(pid_); }

  // Returns the next line of its output, without the line feed.
  std::string ReadLine() const {
    std::string line;
    char byte;
    while (read(out_, &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  // Reads lines until one has `text`. Returns it, or "" at the end of the output.
  std::string ReadLineWith(const std::string& text) const {
    std::string line;
    do {
      line = ReadLine();
    } while (!line.empty() && line.find(text) == std::string::npos);
    return line;
  }
  void CloseInput() {
    close(in_);
    in_ = -1;
  }
  // Sends a signal if it is not 0, and waits for the end. Returns the status of waitpid.
  int End(int signal) {
    if (signal != 0) kill(pid_, signal);
    if (in_ >= 0) close(in_);
    in_ = -1;
    int status = -1;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
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

#endif  // HBMPROF_TESTS_TOOL_RUNNING_PROGRAM_H_
