// Commands with a running process instead of a file: a single result, and a repeated one on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

#include "tests/support/running_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// `hbmprof top` on a terminal of 24 rows and 100 columns.
class TopOnTerminal {
 public:
  TopOnTerminal(const std::vector<std::string>& arguments, const std::string& sockets) {
    winsize size = {24, 100, 0, 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    setenv("TERM", "xterm", 1);
    setenv("PAGER", "cat", 1);
    setenv("NO_COLOR", "1", 1);
    setenv("HBMPROF_SOCKET_DIR", sockets.c_str(), 1);
    std::vector<std::string> argv = {ToolPath(), "top"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  ~TopOnTerminal() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    close(terminal_);
  }
  TopOnTerminal(const TopOnTerminal&) = delete;
  TopOnTerminal& operator=(const TopOnTerminal&) = delete;

  void Press(char key) const { EXPECT_EQ(write(terminal_, &key, 1), 1); }
  void Resize(unsigned short rows) const {
    const winsize size = {rows, 100, 0, 0};
    EXPECT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);
  }
  void Signal(int signal) const { kill(pid_, signal); }

  // Reads the output until it contains `text` `count` times, or for 30 seconds. Returns everything since the start.
  const std::string& ReadUntil(const std::string& text, int count = 1) {
    for (int waited = 0; Count(text) < count && waited < 300; ++waited) {
      pollfd polled = {terminal_, POLLIN, 0};
      if (poll(&polled, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t size = read(terminal_, bytes, sizeof(bytes));
      if (size <= 0) break;
      output_.append(bytes, static_cast<size_t>(size));
    }
    EXPECT_GE(Count(text), count) << text << "\nin\n" << output_;
    return output_;
  }
  // Reads the rest of the output and returns the exit code.
  int End() {
    char bytes[4096];
    for (ssize_t size; (size = read(terminal_, bytes, sizeof(bytes))) > 0;) {
      output_.append(bytes, static_cast<size_t>(size));
    }
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& output() const { return output_; }

 private:
  int Count(const std::string& text) const {
    int count = 0;
    for (size_t at = output_.find(text); at != std::string::npos; at = output_.find(text, at + 1)) ++count;
    return count;
  }

  pid_t pid_ = 0;
  int terminal_ = -1;
  std::string output_;
};

class LiveTest : public testing::Test {
 protected:
  void SetUp() override { EXPECT_EQ(program_.ReadLine(), "ready"); }
  CommandResult Hbmprof(const std::vector<std::string>& arguments) const {
    return RunTool(arguments, {"HBMPROF_SOCKET_DIR=" + sockets_});
  }

  const std::string directory_ = NewDirectory();
  const std::string sockets_ = directory_ + "/sockets";
  RunningProgram program_{{HBMPROF_CONTROL_PROGRAM, "hold", "1"}, {"HBMPROF_SOCKET_DIR=" + sockets_}};
};

constexpr char kEnterScreen[] = "\033[?1049h";
constexpr char kLeaveScreen[] = "\033[?1049l";

TEST_F(LiveTest, TopTakesIdOrName) {
  for (const std::string& process : {std::to_string(program_.pid()), std::string("control_program")}) {
    const CommandResult top = Hbmprof({"top", "--exact", "--focus", "LoadWeights", process});
    EXPECT_EQ(top.exit_code, 0) << top.err;
    EXPECT_THAT(top.out, HasSubstr("3000000 B")) << "one shot, because the output is not a terminal";
    EXPECT_THAT(top.out, HasSubstr("sim:0: in use 300"));
  }
}

TEST_F(LiveTest, FileIsPreferredToAProcess) {
  ProfileMaker maker;
  maker.Sample({maker.Frame("from_file")}, {1, 5});
  const std::string file = directory_ + "/" + std::to_string(program_.pid());
  maker.Write(file);
  const CommandResult top = RunCommand({ToolPath(), "top", std::to_string(program_.pid())},
                                       {"HBMPROF_SOCKET_DIR=" + sockets_}, {directory_, 0});
  EXPECT_THAT(top.out, HasSubstr("from_file")) << top.err;
}

TEST_F(LiveTest, MissingProcessIsNamedInTheError) {
  const CommandResult top = Hbmprof({"top", "no_such_process"});
  EXPECT_EQ(top.exit_code, 2);
  EXPECT_THAT(top.err, AllOf(HasSubstr("no_such_process: cannot be opened: No such file or directory"),
                             HasSubstr("no process of this id or name has a control channel in " + sockets_)));
}

TEST_F(LiveTest, DiffAfterComparesTheProcessWithItself) {
  const CommandResult diff =
      Hbmprof({"diff", std::to_string(program_.pid()), "--after", "300ms", "--type", "alloc_objects"});
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out, ContainsRegex("alloc_objects: \\+[0-9]+, from [0-9]+ to [0-9]+"));
  EXPECT_THAT(diff.out, Not(HasSubstr("LoadWeights"))) << "it does not allocate any more";
}

TEST_F(LiveTest, DiffNeedsATimeOrAFile) {
  EXPECT_THAT(Hbmprof({"diff", std::to_string(program_.pid())}).err, HasSubstr("FILE or --after is required"));
  EXPECT_THAT(Hbmprof({"diff", std::to_string(program_.pid()), "--after", "soon"}).err,
              HasSubstr("write a time such as 60s or 5m"));
  EXPECT_THAT(Hbmprof({"diff", std::to_string(program_.pid()), "--after", "99999999999999999999s"}).err,
              HasSubstr("write a time such as 60s or 5m, up to 24h"));
}

TEST_F(LiveTest, ReportWritesAPageOfTheProcess) {
  const std::string page = directory_ + "/page.html";
  const CommandResult report = Hbmprof({"report", "control_program", "-o", page});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  std::ifstream file(page);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(file), {}), HasSubstr("LoadWeights"));
}

TEST_F(LiveTest, TopRefreshesOnATerminalUntilQ) {
  TopOnTerminal top({std::to_string(program_.pid()), "--interval", "100ms", "--exact"}, sockets_);
  const std::string output = top.ReadUntil("LoadWeights", 4);
  EXPECT_THAT(output, HasSubstr(kEnterScreen));
  EXPECT_THAT(output, HasSubstr("control_program (" + std::to_string(program_.pid()) + ")"));
  EXPECT_THAT(output, HasSubstr("since start"));
  top.Press('q');
  EXPECT_EQ(top.End(), 0);
  const size_t leave = top.output().find(kLeaveScreen);
  ASSERT_NE(leave, std::string::npos);
  EXPECT_THAT(top.output().substr(leave), HasSubstr("LoadWeights")) << "the last table stays";
}

TEST_F(LiveTest, AnyOtherKeyRefreshesTop) {
  TopOnTerminal top({std::to_string(program_.pid()), "--interval", "1h"}, sockets_);
  top.ReadUntil("LoadWeights");
  top.Press(' ');
  top.ReadUntil("LoadWeights", 2);
  top.Press('q');
  EXPECT_EQ(top.End(), 0);
}

TEST_F(LiveTest, TopFollowsTheSizeOfTheWindow) {
  TopOnTerminal top({std::to_string(program_.pid()), "--interval", "1h"}, sockets_);
  top.ReadUntil("LoadWeights");
  const std::string title = "control_program (" + std::to_string(program_.pid()) + ")";
  const std::string end = "\033[J";
  top.Resize(3);
  top.ReadUntil(end, 2);
  const std::string screen = top.output().substr(top.output().rfind("\033[H"));
  EXPECT_THAT(screen, AllOf(HasSubstr(title), Not(HasSubstr("LoadWeights"))));
  EXPECT_EQ(std::count(screen.begin(), screen.end(), '\n'), 2) << screen;
  top.Resize(24);
  EXPECT_THAT(top.ReadUntil("LoadWeights", 2), HasSubstr(title));
  top.Press('q');
  EXPECT_EQ(top.End(), 0);
}

TEST_F(LiveTest, SignalRestoresTheTerminal) {
  TopOnTerminal top({std::to_string(program_.pid()), "--interval", "1h"}, sockets_);
  top.ReadUntil("LoadWeights");
  top.Signal(SIGTERM);
  EXPECT_EQ(top.End(), 0);
  EXPECT_THAT(top.output(), HasSubstr(kLeaveScreen));
}

TEST_F(LiveTest, QuitKeyRestoresTheTerminal) {
  TopOnTerminal top({std::to_string(program_.pid()), "--interval", "1h"}, sockets_);
  top.ReadUntil("LoadWeights");
  top.Press('\x1c');
  EXPECT_EQ(top.End(), 0);
  EXPECT_THAT(top.output(), HasSubstr(kLeaveScreen));
}

TEST_F(LiveTest, TopEndsWithTheProcess) {
  TopOnTerminal top({std::to_string(program_.pid()), "--interval", "100ms"}, sockets_);
  top.ReadUntil("LoadWeights");
  kill(program_.pid(), SIGKILL);
  EXPECT_EQ(top.End(), 0);
  EXPECT_THAT(top.output(), HasSubstr("has ended, or does not answer"));
}

}  // namespace
}  // namespace hbmprof_test
