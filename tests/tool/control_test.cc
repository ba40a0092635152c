// `hbmprof ps` and `hbmprof dump` with running programs, and clients that do not follow the protocol. Each test runs
// control_program.cc.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_socket.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::Connect;
using ::hbmprof_test::ControlAnswer;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::Metric;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ReadAll;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// The program, started with a control channel, until its standard input is closed.
class RunningProgram : public hbmprof_test::RunningProgram {
 public:
  // A shell executes the commands `before` first. `program`: a path of the program.
  RunningProgram(const std::string& socket_dir, std::vector<std::string> arguments, const std::string& before = "",
                 const std::string& program = HBMPROF_CONTROL_PROGRAM)
      : hbmprof_test::RunningProgram(Command(program, std::move(arguments), before),
                                     {"HBMPROF_SOCKET_DIR=" + socket_dir}) {
    EXPECT_EQ(ReadLine(), "ready");
  }
  ~RunningProgram() {
    if (!ended_) EndWell();
  }

  std::string name() const { return std::to_string(pid()); }

  // Closes its standard input, so that it ends normally.
  void EndWell() {
    ended_ = true;
    CloseInput();
    EXPECT_EQ(ReadLine(), "done");
    EXPECT_EQ(Wait(), 0);
  }
  void Kill() {
    ended_ = true;
    kill(pid(), SIGKILL);
    EXPECT_EQ(Wait(), SIGKILL);
  }

  size_t Descriptors() const { return FilesIn("/proc/" + name() + "/fd").size(); }
  void AwaitDescriptors(size_t count) const {
    for (int i = 0; i < 100 && Descriptors() != count; ++i) usleep(50'000);
    EXPECT_EQ(Descriptors(), count);
  }
  size_t ResidentPages() const {
    std::ifstream file("/proc/" + name() + "/statm");
    size_t all = 0;
    size_t resident = 0;
    file >> all >> resident;
    return resident;
  }

 private:
  static std::vector<std::string> Command(const std::string& program, std::vector<std::string> arguments,
                                          const std::string& before) {
    std::vector<std::string> command = {program};
    if (!before.empty()) command = {"/bin/sh", "-c", before + "exec \"$@\"", "sh", program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  bool ended_ = false;
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
  std::string Body(const RunningProgram& program, const std::string& request) const {
    return ControlAnswer(SocketOf(program), request);
  }
  std::string Error(const RunningProgram& program, const std::string& request) const {
    const std::string answer = ReadAll(Connect(SocketOf(program), request + "\n"));
    EXPECT_THAT(answer, MatchesRegex("error [0-9]+\n.*")) << request;
    return answer.substr(answer.find('\n') + 1);
  }
  hbmprof_test::ProfileView Profile(const RunningProgram& program, const std::string& request = "profile") const {
    const std::string path = directory_ + "/answer.pb.gz";
    std::ofstream(path, std::ios::binary) << Body(program, request);
    return ViewProfile(path);
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

TEST_F(ControlTest, PsSaysThatTheTableOfCallSitesIsFull) {
  RunningProgram program(sockets_, {"samples", "100"}, "export HBMPROF_MAX_SITES=10; ");
  const CommandResult ps = Hbmprof({"ps"});
  EXPECT_EQ(ps.exit_code, 0);
  EXPECT_THAT(ps.err, MatchesRegex("hbmprof ps: " + program.name() +
                                   " control_program: The table of call sites is full: "
                                   "new call sites are shown as .other call stacks.\\. HBMPROF_MAX_SITES .*\n"));
  const CommandResult dump = Hbmprof({"dump", program.name(), "-o", "full.pb.gz"});
  ASSERT_EQ(dump.exit_code, 0) << dump.err;
  const auto view = ViewProfile(directory_ + "/full.pb.gz");
  EXPECT_EQ(std::to_string(view.Sum("inuse_space")), view.Comment("device sim:0", "in_use"));
  EXPECT_GT(view.SumUnder("inuse_space", "[other call stacks]"), 0);
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
    const int64_t of_threads = view.SumUnder("inuse_space", "(anonymous namespace)::AllocateUntil");
    EXPECT_EQ(of_threads + 3'000'000, view.Sum("inuse_space"));
    EXPECT_EQ(of_threads % 4096, 0);
    EXPECT_LE(of_threads, 8 * 4096);
  }
  EXPECT_EQ(FilesIn(directory_).size(), 20u + 2) << "the sockets' directory, the socket, and a file for each dump";
}

TEST_F(ControlTest, DumpFindsAProcessByName) {
  // Other tests, which run at the same time, start processes with the program's own name.
  const std::string name = "named_" + std::to_string(getpid());
  const std::string path = NewDirectory() + "/" + name;  // in the current folder, it would be a file with this name
  std::filesystem::create_symlink(HBMPROF_CONTROL_PROGRAM, path);
  {
    RunningProgram program(sockets_, {"hold"}, "", path);
    const CommandResult dump = Hbmprof({"dump", name, "-o", "x.pb.gz"});
    EXPECT_EQ(dump.exit_code, 0) << dump.err;
    EXPECT_EQ(dump.out, "x.pb.gz\n");
    RunningProgram second(sockets_, {"hold"}, "", path);
    EXPECT_THAT(Hbmprof({"dump", name}).err, HasSubstr("several processes are named " + name));
    EXPECT_THAT(Hbmprof({"dump", "other"}).err, HasSubstr("no process other has a control channel in"));
  }
  EXPECT_TRUE(FilesIn(sockets_).empty()) << "a process removes its socket at exit";
  for (const std::string& directory : {sockets_, sockets_ + "/missing"}) {
    const CommandResult dump =
        RunCommand({HBMPROF_TOOL, "dump", name}, {"HBMPROF_SOCKET_DIR=" + directory}, {directory_, 0});
    EXPECT_EQ(dump.exit_code, 2);
    EXPECT_THAT(dump.err,
                HasSubstr("no process " + name + " has a control channel in " + directory + ". `hbmprof run`"));
  }
}

// Binds a socket to the path. Returns its descriptor.
int BoundSocket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << path;
  return fd;
}

TEST_F(ControlTest, ResetPeakBeginsANewPeak) {
  RunningProgram program(sockets_, {"hold"});
  EXPECT_EQ(ReadAll(Connect(SocketOf(program), "reset-peak\n")), "ok 0\n");
}

// The requests of `hbmprof control`.
TEST_F(ControlTest, CommandSendsEachRequest) {
  RunningProgram program(sockets_, {"hold"});
  const auto control = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"control", program.name()});
    const CommandResult result = Hbmprof(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(control({"tag", "model=two words"}), "");
  const CommandResult top = Hbmprof({"top", program.name(), "--by", "model"});
  EXPECT_THAT(top.out, HasSubstr("two words\n")) << top.err;
  EXPECT_EQ(control({"tracking", "off"}), "");
  EXPECT_THAT(control({"stats"}), HasSubstr("  \"tracking\": false,\n"));
  EXPECT_EQ(control({"tracking", "on"}), "");
  EXPECT_EQ(control({"reset-peak"}), "");
  EXPECT_THAT(control({"record", "start", "-o", "100%.hbmrec"}), testing::EndsWith("/100%.hbmrec\n"));
  EXPECT_EQ(control({"record", "stop"}), "");
  EXPECT_EQ(Hbmprof({"timeline", "100%.hbmrec"}).exit_code, 0);
  const CommandResult wrong = Hbmprof({"control", program.name(), "tracking", "perhaps"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("the argument of tracking is on or off"));
  EXPECT_EQ(Hbmprof({"control", "other", "stats"}).exit_code, 2);
}

TEST_F(ControlTest, EveryCommandReadsAProcess) {
  RunningProgram program(sockets_, {"hold"});
  for (const std::vector<std::string>& command : {std::vector<std::string>{"top", program.name()},
                                                  {"diff", program.name(), "--after", "1ms"},
                                                  {"top", "--callers", ".", program.name()},
                                                  {"convert", "--to", "csv", program.name()},
                                                  {"report", program.name(), "-o", directory_ + "/report.html"},
                                                  {"symbolize", program.name(), "-o", directory_ + "/named"},
                                                  {"control", program.name(), "stats"},
                                                  {"dump", program.name(), "-o", "-"}}) {
    const CommandResult result = Hbmprof(command);
    EXPECT_EQ(result.exit_code, 0) << command[0] << result.err;
  }
}

TEST_F(ControlTest, StatsAreTheTotalsAsJson) {
  RunningProgram program(sockets_, {"hold", "8"});
  const std::string stats = Body(program, "stats");
  EXPECT_THAT(stats, HasSubstr("{\"pid\":" + program.name() + ",\"name\":\"control_program\","));
  EXPECT_THAT(stats, HasSubstr("\"tracking\":true,"));
  EXPECT_THAT(stats,
              HasSubstr("\"devices\":[{\"name\":\"sim:0\",\"spaces\":[{\"space\":\"device\",\"bytes_in_use\":30"));
}

TEST_F(ControlTest, MetricsAddUpUnderLoad) {
  RunningProgram program(sockets_, {"hold", "8"});
  for (int i = 0; i < 100; ++i) {
    const std::string metrics = Body(program, "metrics");
    const int64_t in_use = Metric(metrics, "hbmprof_device_memory_in_use_bytes");
    EXPECT_EQ(Metric(metrics, "hbmprof_device_memory_bytes"), in_use);
    EXPECT_EQ((in_use - 3'000'000) % 4096, 0);
    EXPECT_EQ(Metric(metrics, "hbmprof_device_allocations_total") - Metric(metrics, "hbmprof_device_frees_total"),
              1 + (in_use - 3'000'000) / 4096);
  }
  EXPECT_THAT(Error(program, "metrics phase"), HasSubstr("tags=KEY,KEY"));
}

TEST_F(ControlTest, TagIsALabelOfAllSamples) {
  RunningProgram program(sockets_, {"hold"});
  EXPECT_EQ(Body(program, "tag model=a b=c"), "");
  EXPECT_EQ(Profile(program).SumWhere("inuse_space", "model", "a b=c"), 3'000'000);
  EXPECT_THAT(Body(program, "stats"), HasSubstr("\"tags\":{\"model\":\"a b=c\"}"));
  EXPECT_THAT(Body(program, "metrics tags=model"), HasSubstr(",kind=\"device\",tag_model=\"a b=c\"} 3000000\n"));
  EXPECT_EQ(Body(program, "tag model="), "");
  EXPECT_EQ(Profile(program).SumWhere("inuse_space", "model", "a b=c"), 0);
  EXPECT_THAT(Error(program, "tag model"), HasSubstr("a tag is KEY=VALUE, not 'model'"));
  EXPECT_THAT(Error(program, "tag =x"), HasSubstr("a tag is KEY=VALUE"));
}

TEST_F(ControlTest, TrackingCanBePaused) {
  RunningProgram program(sockets_, {"hold", "1"});
  EXPECT_EQ(Body(program, "tracking on"), "") << "it is on";
  EXPECT_EQ(Profile(program).SumUnder("inuse_space", "(anonymous namespace)::LoadWeights"), 3'000'000)
      << "no record was removed";
  EXPECT_EQ(Body(program, "tracking off"), "");
  EXPECT_THAT(Body(program, "stats"), HasSubstr("\"tracking\":false,"));
  const int64_t allocations = Metric(Body(program, "metrics"), "hbmprof_device_allocations_total");
  usleep(20'000);
  const std::string paused = Body(program, "metrics");
  EXPECT_LE(Metric(paused, "hbmprof_device_allocations_total"), allocations + 1) << "one may have been in progress";
  EXPECT_GE(Metric(paused, "hbmprof_device_memory_in_use_bytes"), 3'000'000) << "what was recorded before";
  EXPECT_EQ(Metric(paused, "hbmprof_tracking"), 0);
  EXPECT_EQ(Body(program, "tracking on"), "");
  const auto view = Profile(program);
  EXPECT_EQ(view.SumUnder("inuse_space", "(anonymous namespace)::LoadWeights"), 0) << "its free may have been missed";
  EXPECT_LE(view.Sum("peak_space"), 2 * 4096);
  for (int i = 0; i < 100; ++i) {
    if (Metric(Body(program, "metrics"), "hbmprof_device_allocations_total") > allocations + 1) break;
    usleep(10'000);
  }
  EXPECT_GT(Metric(Body(program, "metrics"), "hbmprof_device_allocations_total"), allocations + 1);
  EXPECT_THAT(Error(program, "tracking"), HasSubstr("on or off"));
}

TEST_F(ControlTest, ProfileCanHaveLimits) {
  RunningProgram program(sockets_, {"hold", "8"});
  const auto view = Profile(program, "profile max_samples=1 max_bytes=100000");
  EXPECT_EQ(view.samples.size(), 1u);
  EXPECT_EQ(std::to_string(view.Sum("inuse_space")), view.Comment("device sim:0", "in_use"));
  EXPECT_THAT(Error(program, "profile max_bytes=1"),
              HasSubstr("max_bytes is 1, but a profile with the fewest samples has"));
  EXPECT_THAT(Error(program, "profile max_samples=x"), HasSubstr("max_samples='x' is not a number"));
  EXPECT_THAT(Error(program, "profile samples=1"), HasSubstr("not 'samples'"));
}

class ManyRequestsTest : public ControlTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, ManyRequestsTest, ::testing::Values("profile", "stats", "metrics", "tag model=llama"),
                         [](const auto& info) { return std::string(info.param, std::strcspn(info.param, " ")); });

TEST_P(ManyRequestsTest, ThousandRequestsLeakNothing) {
  RunningProgram program(sockets_, {"hold", "1"});
  const size_t descriptors = program.Descriptors();
  for (int i = 0; i < 100; ++i) Body(program, GetParam());
  const size_t pages = program.ResidentPages();
  for (int i = 0; i < 900; ++i) Body(program, GetParam());
  program.AwaitDescriptors(descriptors);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("not compared: the sanitizer keeps freed memory (%zu pages before)\n", pages);
#else
  EXPECT_LE(program.ResidentPages(), pages + 512) << "2 MiB";
#endif
}

TEST_F(ControlTest, HundredClientsAtOnceAreAnswered) {
  RunningProgram program(sockets_, {"hold", "1"});
  const size_t descriptors = program.Descriptors();
  const char* const requests[] = {"info", "stats", "metrics", "profile max_samples=1", "tag model=x"};
  std::vector<std::thread> clients;
  std::vector<std::string> answers(100);
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] {
      answers[i] = ReadAll(Connect(SocketOf(program), std::string(requests[i % std::size(requests)]) + "\n"));
    });
  }
  for (std::thread& client : clients) client.join();
  program.AwaitDescriptors(descriptors);
  for (const std::string& answer : answers) {
    const size_t end = answer.find('\n');
    EXPECT_EQ(answer.substr(0, end), "ok " + std::to_string(answer.size() - end - 1));
  }
}

TEST_F(ControlTest, BadClientsDoNotAffectOthers) {
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
  program.AwaitDescriptors(descriptors);
}

TEST_F(ControlTest, IdleClientsDoNotStopOthers) {
  RunningProgram program(sockets_, {"hold"});
  std::vector<int> idle;
  for (int i = 0; i < 500; ++i) idle.push_back(Connect(SocketOf(program), i % 2 == 0 ? "" : "in"));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Body(program, "info"), HasSubstr("pid " + program.name() + "\n"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "each may take five seconds";
  for (const int fd : idle) close(fd);
}

TEST_F(ControlTest, ClientsThatTakeNoAnswerDoNotStopOthers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "under a sanitizer, the profiles for all clients take too long";
#endif
  RunningProgram program(sockets_, {"samples", "20000"});
  std::vector<int> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(Connect(SocketOf(program), "profile\n"));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Body(program, "info"), HasSubstr("pid " + program.name() + "\n"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << "it waits for no profile";
  for (const int fd : idle) close(fd);
}

TEST_F(ControlTest, AnswerIsSentInParts) {
  RunningProgram program(sockets_, {"samples", "20000"});
  EXPECT_EQ(Profile(program).Sum("inuse_space"), 3'000'000 + 20'000 * 16);
}

TEST_F(ControlTest, FewDescriptorsAreEnough) {
  RunningProgram program(sockets_, {"hold"}, "ulimit -n 24; ");
  EXPECT_THAT(Body(program, "info"), HasSubstr("\nname control_program\n"));
  EXPECT_THAT(Body(program, "stats"), HasSubstr("sim:0")) << "it still answers";
}

// The command waits ten seconds for a sign of the process, which gives one while it makes a profile.
TEST_F(ControlTest, ProfileThatTakesLongIsReceived) {
  RunningProgram program(sockets_, {"steps", "0", "2"});
  const std::string path = directory_ + "/slow.pb.gz";
  std::thread dump([&] { EXPECT_EQ(Hbmprof({"dump", program.name(), "-o", path}).status, 0); });
  EXPECT_EQ(program.ReadLine(), "step 1");
  EXPECT_EQ(program.ReadLine(), "step 2");
  std::this_thread::sleep_for(std::chrono::seconds(11));
  program.WriteLine("");
  dump.join();
  EXPECT_EQ(ViewProfile(path).Sum("inuse_space"), 3'000'000);
}

TEST_F(ControlTest, TellsItsPlaceInTheRun) {
  RunningProgram first(sockets_, {"hold"}, "export RANK=0 WORLD_SIZE=3; ");
  RunningProgram second(sockets_, {"hold"}, "export RANK=1 WORLD_SIZE=3 POD_NAME='a b'; ");
  const std::string info = Body(second, "info");
  EXPECT_THAT(info, HasSubstr("\nenvironment RANK 1\n"));
  EXPECT_THAT(info, HasSubstr("\nenvironment POD_NAME a b\n"));
  const CommandResult ranks = Hbmprof({"diff", "--ranks", second.name(), first.name()});
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  EXPECT_THAT(ranks.out, HasSubstr("2 ranks of 3 (the others have no profile here): inuse_space from "));
  EXPECT_THAT(ranks.out, HasSubstr("(rank 0)"));
}

TEST_F(ControlTest, LineFeedInANameDoesNotSplitTheAnswer) {
  RunningProgram program(sockets_, {"lines"});
  const std::string info = Body(program, "info");
  EXPECT_THAT(info, HasSubstr(" 5 5 -1 x memory device 1 2 3 forged\n"));
  EXPECT_THAT(info, Not(HasSubstr("\nmemory device 1 2 3"))) << info;
}

TEST_F(ControlTest, BadClientsLeaveNoMemoryBehind) {
  RunningProgram program(sockets_, {"hold", "1"});
  const size_t descriptors = program.Descriptors();
  size_t pages = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 60; ++i) {
      close(Connect(SocketOf(program), i % 2 == 0 ? "" : "half of a request"));
      close(Connect(SocketOf(program), std::string(10'000, static_cast<char>(i))));
      close(Connect(SocketOf(program), "profile\n"));
    }
    EXPECT_EQ(Hbmprof({"ps"}).exit_code, 0);
    if (round == 0) pages = program.ResidentPages();
  }
  program.AwaitDescriptors(descriptors);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("not compared: the sanitizer keeps freed memory (%zu pages before)\n", pages);
#else
  EXPECT_LE(program.ResidentPages(), pages + 512) << "2 MiB";
#endif
}

// The program gets this shell's process id.
TEST_F(ControlTest, ForeignFileAtSocketPathIsKept) {
  for (const std::string& make : {std::string("ln -s ../victim"), std::string("echo own >")}) {
    hbmprof_test::RunningProgram program({"/bin/sh", "-c",
                                          "mkdir -pm 700 " + sockets_ + " && " + make + " " + sockets_ +
                                              "/hbmprof.$$.sock && exec " HBMPROF_CONTROL_PROGRAM " hold"},
                                         {"HBMPROF_SOCKET_DIR=" + sockets_});
    EXPECT_EQ(program.ReadLine(), "ready");
    const std::string name = "sockets/hbmprof." + std::to_string(program.pid());
    const auto files = FilesIn(directory_);
    EXPECT_EQ(files.at(name + ".1.sock").substr(0, 6), "140600") << "another name is used";
    EXPECT_EQ(files.count("victim"), 0u);
    EXPECT_NE(files.at(name + ".sock").substr(0, 2), "14") << "it is no socket: it was not replaced";
    EXPECT_THAT(Hbmprof({"ps"}).out, HasSubstr(std::to_string(program.pid()) + ".1  control_program"));
    EXPECT_EQ(FilesIn(directory_).count(name + ".sock"), 1u) << "nor by the command";
    program.CloseInput();
    EXPECT_EQ(program.Wait(), 0);
  }
}

TEST_F(ControlTest, NoRequestMakesAFile) {
  RunningProgram program(sockets_, {"hold"});
  const auto before = FilesIn(directory_);
  const std::string path = directory_ + "/made";
  for (const std::string& request :
       {"profile " + path, "profile output=" + path, "profile max_samples=" + path, "metrics tags=" + path,
        "metrics " + path, "tag a=" + path, "tag " + path + "=b", "info " + path, "stats >" + path, path,
        "profile  " + path, "tracking " + path, "reset-peak " + path}) {
    ReadAll(Connect(SocketOf(program), request + "\n"));
  }
  EXPECT_EQ(FilesIn(directory_), before);
}

TEST_F(ControlTest, SocketOfAKilledProcessIsRemoved) {
  RunningProgram program(sockets_, {"hold"});
  EXPECT_EQ(FilesIn(sockets_).size(), 1u);
  program.Kill();
  const CommandResult ps = Hbmprof({"ps"});
  EXPECT_EQ(ps.exit_code, 0) << ps.err;
  EXPECT_EQ(ps.out, "");
  EXPECT_THAT(ps.err, HasSubstr("no process has a control channel in " + sockets_));
  EXPECT_TRUE(FilesIn(sockets_).empty());
}

TEST_F(ControlTest, ForkedChildHoldsNoSocketOpen) {
  RunningProgram program(sockets_, {"fork"});
  program.Kill();
  EXPECT_THAT(Hbmprof({"ps"}).err, HasSubstr("no process has a control channel"))
      << "the connection is refused at once";
}

TEST_F(ControlTest, ForkedChildHasNoConnectionOfAClient) {
  RunningProgram program(sockets_, {"children"});
  const int client = Connect(SocketOf(program), "in");
  Body(program, "info");  // clients are accepted in order
  program.WriteLine("");
  const std::string child = program.ReadLine();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + child + "/fd")) {
    EXPECT_THAT(std::filesystem::read_symlink(entry.path()).string(), Not(HasSubstr("socket:")));
  }
  send(client, "fo\n", 3, MSG_NOSIGNAL);
  EXPECT_THAT(ReadAll(client), HasSubstr("\npid " + program.name() + "\n"));
}

TEST_F(ControlTest, SocketThatDoesNotListenYetIsNotRemoved) {
  hbmprof_test::RunningProgram program({HBMPROF_CONTROL_PROGRAM, "hold"},
                                       {"HBMPROF_SOCKET_DIR=" + sockets_, "STOPS_BEFORE_LISTEN=1"});
  EXPECT_EQ(program.ReadLine(), "stopped");
  EXPECT_THAT(Hbmprof({"ps"}).err, HasSubstr("no process has a control channel in " + sockets_));
  program.WriteLine("");
  EXPECT_EQ(program.ReadLine(), "ready");
  const std::string name = std::to_string(program.pid());
  EXPECT_THAT(Hbmprof({"ps"}).out, HasSubstr(name));
  const auto files = FilesIn(sockets_);
  EXPECT_EQ(files.size(), 1u);
  EXPECT_EQ(files.count("hbmprof." + name + ".sock"), 1u);
  EXPECT_EQ(program.Wait(), 0);
}

// As a process with the same id in another container does, after somebody has removed the first socket.
TEST_F(ControlTest, SocketOfAnotherProcessIsKeptAtExit) {
  RunningProgram program(sockets_, {"hold"});
  const std::string path = SocketOf(program);
  ASSERT_EQ(unlink(path.c_str()), 0);
  const int other = BoundSocket(path);
  program.EndWell();
  EXPECT_EQ(FilesIn(sockets_).size(), 1u);
  close(other);
}

TEST_F(ControlTest, ClientWithoutDescriptorTakesNoProcessorTime) {
  RunningProgram program(sockets_, {"full"});
  close(Connect(SocketOf(program), "info\n"));
  usleep(400'000);
  program.CloseInput();
  const std::string used = program.ReadLine();
  ASSERT_EQ(used.rfind("used ", 0), 0u) << used;
  EXPECT_LT(std::stol(used.substr(5)), 100);
}

TEST_F(ControlTest, ProgramThatClosesTheSocketKeepsItsDescriptors) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the program closes a descriptor while the library uses it, which the thread sanitizer reports";
#endif
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

TEST_F(ControlTest, UnsafeDirectoryIsRefused) {
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

TEST_F(ControlTest, CommandRefusesADirectoryThatOthersCanWriteTo) {
  RunningProgram program(sockets_, {"hold"});
  ASSERT_EQ(chmod(sockets_.c_str(), 0777), 0);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"ps"}, {"dump", program.name()}, {"dump", "control_program"}}) {
    const CommandResult result = Hbmprof(command);
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_THAT(result.err, HasSubstr(sockets_ + " must be a directory that belongs to you or to root")) << command[0];
  }
  ASSERT_EQ(chmod(sockets_.c_str(), 01777), 0);
  EXPECT_THAT(Hbmprof({"ps"}).out, HasSubstr(program.name())) << "the sticky bit protects the socket";
  ASSERT_EQ(chmod(sockets_.c_str(), 0700), 0);
}

// Runs `function` as another user. Returns the status of waitpid.
template <typename Function>
int RunAs(uid_t user, const Function& function) {
  const pid_t child = fork();
  if (child == 0) _exit(setresuid(user, user, user) == 0 ? function() : 99);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST_F(ControlTest, CommandBelievesNoProcessOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  const auto hbmprof = [&](const char* argument) {
    return RunCommand({"setpriv", "--reuid=65533", "--clear-groups", HBMPROF_TOOL, argument},
                      {"HBMPROF_SOCKET_DIR=" + sockets_}, {"/", 0});
  };
  if (hbmprof("--version").exit_code != 0) GTEST_SKIP() << "another user cannot run the command";
  // The other user has made the directory.
  ASSERT_EQ(RunAs(65534, [&] { return mkdir(sockets_.c_str(), 0755); }), 0);
  EXPECT_THAT(hbmprof("ps").err, HasSubstr(sockets_ + " must be a directory that belongs to you or to root"));
  // The directory is one for all users.
  ASSERT_EQ(chown(sockets_.c_str(), 0, 0), 0);
  ASSERT_EQ(chmod(sockets_.c_str(), 01777), 0);
  int listener = -1;
  const std::string path = sockets_ + "/hbmprof.77.sock";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t forger = fork();
  if (forger == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(99);
    listener = BoundSocket(path);
    if (listen(listener, 5) != 0 || chmod(path.c_str(), 0777) != 0 || write(ready[1], "x", 1) != 1) _exit(98);
    const int client = accept(listener, nullptr, nullptr);
    const std::string answer = "ok 22\npid 77\nname forged_one\n";
    send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    sleep(60);
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const CommandResult result = hbmprof("ps");
  EXPECT_THAT(result.out, Not(HasSubstr("forged_one")));
  EXPECT_THAT(result.err, HasSubstr(path + ": is the socket of a process of another user (65534), who is not asked"));
  kill(forger, SIGKILL);
  waitpid(forger, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ControlTest, RootOfTheHostAsksAProcessInAUserNamespace) {
  const std::vector<std::string> enter = {"setpriv", "--reuid=65533", "--clear-groups", "unshare", "-U", "-r"};
  std::vector<std::string> probe = enter;
  probe.push_back("true");
  if (geteuid() != 0 || RunCommand(probe).exit_code != 0) GTEST_SKIP() << "no user namespace can be made";
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  RunningProgram program(sockets_, {"hold"},
                         "exec setpriv --reuid=65533 --clear-groups unshare -U -r env \"HOME=/\" \"$@\"; ");
  EXPECT_THAT(Hbmprof({"ps", "--exact"}).out, HasSubstr("3000000 B"));
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
