// `hbmprof ps` and `hbmprof dump` with running programs, and clients that do not keep to the protocol. Each program is
// control_program.cc's.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/tool/running_program.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// The program, started with a control channel, until its standard input is closed.
class RunningProgram : public hbmprof_test::RunningProgram {
 public:
  RunningProgram(const std::string& socket_dir, std::vector<std::string> arguments)
      : hbmprof_test::RunningProgram(WithProgram(std::move(arguments)), {"HBMPROF_SOCKET_DIR=" + socket_dir}) {
    EXPECT_EQ(ReadLine(), "ready");
  }
  ~RunningProgram() {
    if (pid() > 0) EndWell();
  }

  // Ends it as it ends by itself.
  void EndWell() {
    CloseInput();
    EXPECT_EQ(ReadLine(), "done");
    EXPECT_EQ(End(0), 0);
  }
  void Kill() { EXPECT_EQ(End(SIGKILL), SIGKILL); }

  size_t Descriptors() const { return FilesIn("/proc/" + name() + "/fd").size(); }
  size_t ResidentPages() const {
    std::ifstream file("/proc/" + name() + "/statm");
    size_t all = 0;
    size_t resident = 0;
    file >> all >> resident;
    return resident;
  }

 private:
  static std::vector<std::string> WithProgram(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), HBMPROF_CONTROL_PROGRAM);
    return arguments;
  }
};

class ControlTest : public ::testing::Test {
 protected:
  CommandResult Hbmprof(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), HBMPROF_TOOL);
    return RunCommand(arguments, {"HBMPROF_SOCKET_DIR=" + sockets_}, {directory_, 0});
  }
  std::string SocketOf(const RunningProgram& program) const {
    return sockets_ + "/hbmprof." + program.name() + ".sock";
  }
  // A connection that has sent `text`; the caller closes it.
  static int Connect(const std::string& path, const std::string& text) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
    send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    return fd;
  }
  static std::string ReadAll(int fd) {
    std::string text;
    char bytes[4096];
    for (ssize_t count; (count = recv(fd, bytes, sizeof(bytes), 0)) > 0;)
      text.append(bytes, static_cast<size_t>(count));
    close(fd);
    return text;
  }

  const std::string directory_ = NewDirectory();
  const std::string sockets_ = directory_ + "/sockets";
};

TEST_F(ControlTest, PsListsProcessesWithTheirMemory) {
  RunningProgram one(sockets_, {"hold"});
  RunningProgram other(sockets_, {"hold"});
  const CommandResult ps = Hbmprof({"ps", "--exact"});
  EXPECT_EQ(ps.exit_code, 0) << ps.err;
  EXPECT_EQ(ps.err, "");
  for (const RunningProgram* program : {&one, &other}) {
    EXPECT_THAT(ps.out, HasSubstr(program->name() + "  control_program  sim:0   device  3000000 B  3000000 B      -\n"))
        << ps.out;
  }
}

TEST_F(ControlTest, DumpWritesACompleteProfileUnderLoad) {
  RunningProgram program(sockets_, {"hold", "8"});
  for (int i = 0; i < 20; ++i) {
    const CommandResult dump = Hbmprof({"dump", program.name()});
    ASSERT_EQ(dump.exit_code, 0) << dump.err;
    const std::string file = dump.out.substr(0, dump.out.size() - 1);
    EXPECT_THAT(file, MatchesRegex("hbmprof\\.control_program\\.[0-9]+(\\.[0-9]+)?\\.pb\\.gz"));
    const auto view = ViewProfile(directory_ + "/" + file);
    EXPECT_EQ(view.SumUnder("inuse_space", "(anonymous namespace)::LoadWeights"), 3'000'000);
    EXPECT_EQ(std::to_string(view.Sum("inuse_space")), view.Comment("device sim:0", "in_use"));
  }
  EXPECT_EQ(FilesIn(directory_).size(), 20u + 2) << "the sockets' directory, the socket, and a file for each dump";
}

TEST_F(ControlTest, DumpFindsAProcessByName) {
  {
    RunningProgram program(sockets_, {"hold"});
    const CommandResult dump = Hbmprof({"dump", "control_program", "-o", "x.pb.gz"});
    EXPECT_EQ(dump.exit_code, 0) << dump.err;
    EXPECT_EQ(dump.out, "x.pb.gz\n");
    RunningProgram second(sockets_, {"hold"});
    EXPECT_THAT(Hbmprof({"dump", "control_program"}).err, HasSubstr("several processes are named control_program"));
    EXPECT_THAT(Hbmprof({"dump", "other"}).err, HasSubstr("no process other has a control channel in"));
  }
  const CommandResult dump = Hbmprof({"dump", "control_program"});
  EXPECT_EQ(dump.exit_code, 2);
  EXPECT_TRUE(FilesIn(sockets_).empty()) << "a process removes its socket at exit";
}

TEST_F(ControlTest, ResetPeakBeginsANewPeak) {
  RunningProgram program(sockets_, {"hold"});
  EXPECT_EQ(Hbmprof({"dump", program.name(), "-o", "x.pb.gz", "--reset-peak"}).exit_code, 0);
  EXPECT_EQ(ReadAll(Connect(SocketOf(program), "reset-peak\n")), "ok 0\n");
}

TEST_F(ControlTest, AThousandRequestsLeaveNothingBehind) {
  RunningProgram program(sockets_, {"hold", "1"});
  const auto ask = [&] {
    EXPECT_THAT(ReadAll(Connect(SocketOf(program), "profile\n")), MatchesRegex("ok [0-9]+\n(.|\n)*"));
  };
  for (int i = 0; i < 100; ++i) ask();
  const size_t descriptors = program.Descriptors();
  const size_t pages = program.ResidentPages();
  for (int i = 0; i < 900; ++i) ask();
  EXPECT_EQ(program.Descriptors(), descriptors);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("not compared: the sanitizer keeps freed memory (%zu pages before)\n", pages);
#else
  EXPECT_LE(program.ResidentPages(), pages + 512) << "2 MiB";
#endif
}

TEST_F(ControlTest, AHundredClientsAtOnceAreAnswered) {
  RunningProgram program(sockets_, {"hold", "1"});
  std::vector<std::thread> clients;
  std::vector<std::string> answers(100);
  for (std::string& answer : answers) {
    clients.emplace_back([&] { answer = ReadAll(Connect(SocketOf(program), "info\n")); });
  }
  for (std::thread& client : clients) client.join();
  for (const std::string& answer : answers) EXPECT_THAT(answer, HasSubstr("name control_program\n"));
}

TEST_F(ControlTest, BadClientsDisturbNobody) {
  RunningProgram program(sockets_, {"hold", "1"});
  const size_t descriptors = program.Descriptors();
  std::vector<int> half_open;
  for (int i = 0; i < 20; ++i) half_open.push_back(Connect(SocketOf(program), i % 2 == 0 ? "" : "pro"));
  EXPECT_THAT(ReadAll(Connect(SocketOf(program), "no such request\n")), MatchesRegex("error [0-9]+\nhbmprof .*"));
  EXPECT_THAT(ReadAll(Connect(SocketOf(program), std::string("\0\xff\n", 3))),
              MatchesRegex("error [0-9]+\nhbmprof .*"));
  EXPECT_EQ(ReadAll(Connect(SocketOf(program), std::string(10'000, 'x'))), "");
  close(Connect(SocketOf(program), "profile\n"));  // does not read the answer
  EXPECT_EQ(Hbmprof({"dump", program.name()}).exit_code, 0);
  for (const int fd : half_open) close(fd);
  for (int i = 0; i < 100 && program.Descriptors() != descriptors; ++i) usleep(50'000);
  EXPECT_EQ(program.Descriptors(), descriptors);
}

TEST_F(ControlTest, ASocketOfAKilledProcessIsRemoved) {
  RunningProgram program(sockets_, {"hold"});
  EXPECT_EQ(FilesIn(sockets_).size(), 1u);
  program.Kill();
  const CommandResult ps = Hbmprof({"ps"});
  EXPECT_EQ(ps.exit_code, 0) << ps.err;
  EXPECT_EQ(ps.err, "");
  EXPECT_TRUE(FilesIn(sockets_).empty());
}

TEST_F(ControlTest, AForkedChildHoldsNoSocketOpen) {
  RunningProgram program(sockets_, {"fork"});
  program.Kill();
  EXPECT_EQ(Hbmprof({"ps"}).err, "") << "the connection is refused at once";
}

TEST_F(ControlTest, AProgramThatClosesTheSocketKeepsItsDescriptors) {
  RunningProgram program(sockets_, {"close"});
  const size_t descriptors = program.Descriptors();
  EXPECT_NE(Hbmprof({"dump", program.name()}).exit_code, 0);
  EXPECT_EQ(program.Descriptors(), descriptors);
}

TEST_F(ControlTest, SocketAndDirectoryArePrivate) {
  RunningProgram program(sockets_, {"hold"});
  const auto files = FilesIn(directory_);
  EXPECT_EQ(files.at("sockets").substr(0, 6), "040700");
  EXPECT_EQ(files.at("sockets/hbmprof." + program.name() + ".sock").substr(0, 6), "140600");
}

TEST_F(ControlTest, AnUnsafeDirectoryIsRefused) {
  const std::string open = directory_ + "/open";
  ASSERT_EQ(mkdir(open.c_str(), 0700), 0);
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  const std::string link = directory_ + "/link";
  ASSERT_EQ(mkdir((directory_ + "/target").c_str(), 0700), 0);
  ASSERT_EQ(symlink("target", link.c_str()), 0);
  for (const std::string& unsafe : {open, link}) {
    const CommandResult run =
        RunCommand({HBMPROF_CONTROL_PROGRAM, "hold"}, {"HBMPROF_SOCKET_DIR=" + unsafe}, {directory_, 0});
    EXPECT_EQ(run.out, "ready\ndone\n");
    EXPECT_EQ(run.err, "hbmprof: no control channel: " + unsafe +
                           " must be a directory that belongs to the process's user or to root and that no other user "
                           "may write to\n");
  }
}

TEST_F(ControlTest, AnotherUserIsNotAnswered) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  RunningProgram program(sockets_, {"hold"});
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(sockets_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(SocketOf(program).c_str(), 0666), 0) << "the permissions alone would let it in";
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(2);
    _exit(ReadAll(Connect(SocketOf(program), "info\n")).empty() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
