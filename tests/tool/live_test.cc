// Commands with a running process instead of a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/program_run.h"
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

TEST_F(LiveTest, TopTakesIdOrName) {
  for (const std::string& process : {std::to_string(program_.pid()), std::string("control_program")}) {
    const CommandResult top = Hbmprof({"top", "--exact", "--focus", "LoadWeights", process});
    EXPECT_EQ(top.exit_code, 0) << top.err;
    EXPECT_THAT(top.out, HasSubstr("3000000 B"));
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
                             HasSubstr("no process no_such_process has a control channel in " + sockets_)));
}

TEST_F(LiveTest, StoppedProcessDelaysOthersByTwoSeconds) {
  kill(program_.pid(), SIGSTOP);
  waitpid(program_.pid(), nullptr, WUNTRACED);  // all of its threads have stopped
  for (const char* command : {"top", "leaks", "report"}) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::string> arguments = {command, "typo.pb.gz"};
    if (arguments[0] == "report") arguments.insert(arguments.end(), {"-o", directory_ + "/page.html"});
    EXPECT_THAT(Hbmprof(arguments).err, HasSubstr("typo.pb.gz: cannot be opened: No such file or directory"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4)) << command << ": 1.5 s without load";
  }
  kill(program_.pid(), SIGCONT);
}

TEST_F(LiveTest, DiffAfterComparesTheProcessWithItself) {
  const CommandResult diff =
      Hbmprof({"diff", std::to_string(program_.pid()), "--after", "300ms", "--type", "alloc_objects"});
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out, ContainsRegex("alloc_objects: \\+[0-9]+, from [0-9]+ to [0-9]+"));
  EXPECT_THAT(diff.out, Not(HasSubstr("LoadWeights"))) << "it does not allocate any more";
}

TEST_F(LiveTest, DiffNeedsATimeOrAFile) {
  EXPECT_THAT(Hbmprof({"diff", std::to_string(program_.pid())}).err, HasSubstr("SOURCE or --after is required"));
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

class LiveLeaksTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {HBMPROF_CONTROL_PROGRAM, "steps"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    program_.emplace(command, std::vector<std::string>{"HBMPROF_SOCKET_DIR=" + sockets_});
    EXPECT_EQ(program_->ReadLine(), "ready");
  }
  // The command with standard output and standard error in files, while it runs.
  class Running {
   public:
    Running(const LiveLeaksTest& test, const std::vector<std::string>& arguments) : directory_(test.directory_) {
      std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$@\" > \"$0/out\" 2> \"$0/err\"", directory_,
                                       ToolPath()};
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      program_.emplace(argv, std::vector<std::string>{"HBMPROF_SOCKET_DIR=" + test.sockets_});
    }
    pid_t pid() const { return program_->pid(); }
    CommandResult Wait() {
      CommandResult result;
      result.status = program_->Wait();
      result.exit_code = WIFEXITED(result.status) ? WEXITSTATUS(result.status) : 128 + WTERMSIG(result.status);
      result.out = ContentsOf(directory_ + "/out");
      result.err = ContentsOf(directory_ + "/err");
      return result;
    }

   private:
    const std::string directory_;
    std::optional<RunningProgram> program_;
  };
  static std::string ContentsOf(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const std::string directory_ = NewDirectory();
  const std::string sockets_ = directory_ + "/sockets";
  std::optional<RunningProgram> program_;
};

TEST_F(LiveLeaksTest, WaitsForTheAgesOfAYoungProcess) {
  Start({"1000000"});
  Running leaks(*this, {"leaks", "control_program"});
  while (ContentsOf(directory_ + "/err").empty()) usleep(10'000);
  kill(leaks.pid(), SIGINT);
  program_->WriteLine("");
  EXPECT_THAT(leaks.Wait().err, HasSubstr(" s, until the ages of its buffers are known\n"));
}

TEST_F(LiveLeaksTest, ProcessIsSelectedAsByTheOtherCommands) {
  const CommandResult missing = RunTool({"leaks", "no_program"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("no_program: cannot be opened: No such file or directory"),
                                 HasSubstr("no process no_program has a control channel in " + sockets_)));
  Start({"0"});
  RunningProgram second({HBMPROF_CONTROL_PROGRAM, "steps", "0"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  EXPECT_EQ(second.ReadLine(), "ready");
  const CommandResult several = RunTool({"leaks", "control_program"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  EXPECT_EQ(several.exit_code, 2);
  EXPECT_THAT(several.err, HasSubstr("several processes are named control_program; give one of these ids: "));
}

// Answers the requests of one command as a process with a control channel does.
class Channel {
 public:
  // The profiles in the order of the requests. An empty one is answered with an error. `stats`: the answer to that.
  Channel(const std::string& sockets, std::vector<std::string> profiles, std::string stats = "")
      : profiles_(std::move(profiles)), stats_(std::move(stats)) {
    EXPECT_EQ(mkdir(sockets.c_str(), 0700), 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    (sockets + "/hbmprof.4242.sock").copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 10), 0);
    thread_ = std::thread([this] {
      for (int fd; (fd = accept(fd_, nullptr, nullptr)) >= 0; close(fd)) Answer(fd);
    });
  }
  ~Channel() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

 private:
  void Answer(int fd) {
    char bytes[100];
    const ssize_t size = read(fd, bytes, sizeof(bytes));
    if (size <= 0) return;
    const std::string request(bytes, static_cast<size_t>(size));
    std::string body = "pid 4242\nname broken\nseconds 63\n";
    if (request == "profile\n") body = profiles_.at(next_++);
    if (request == "stats\n") body = stats_;
    const std::string kind = body.empty() ? "error " : "ok ";
    if (body.empty()) body = "no memory";
    const std::string answer = kind + std::to_string(body.size()) + "\n" + body;
    EXPECT_EQ(send(fd, answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
  }

  const std::vector<std::string> profiles_;
  const std::string stats_;
  size_t next_ = 0;
  const int fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::thread thread_;
};

// A process that another program made says anything.
TEST_F(LiveLeaksTest, ExplainNeedsNoStatsOfAProcess) {
  ProfileMaker maker;
  maker.Comment("hbmprof version=1 pid=4242 uptime=63");
  maker.Comment(
      "device GPU:0 space=device in_use=1000 peak=1000 limit=100000 driver_in_use=61000 unaccounted=60000 "
      "driver_scope=process");
  hbmprof::pprof::Ages& ages = *maker.Sample({maker.Frame("f")}, {1, 1000}, {{"device", "GPU:0"}}).mutable_ages();
  ages.add_born_bytes(1000);
  ages.add_born_counts(1);
  const std::string device = R"({"devices":[{"name":"GPU:0","processes":[{"is_this":)";
  // Without this process in the list, it can be the other one: the driver may know it by another id.
  const std::string other = R"(false,"bytes":20000})";
  for (const std::string& stats :
       {std::string(), std::string("[]"), std::string("{"), std::string(R"({"devices":1})"), device + "1}]}]}",
        device + other + "]}]}", device + R"(true,"bytes":61000},{"is_this":)" + other + "]}]}"}) {
    const std::string sockets = ScratchDir() + "/sockets";
    const Channel channel(sockets, {maker.Bytes()}, stats);
    const CommandResult explain = RunTool({"explain", "broken", "--json"}, {"HBMPROF_SOCKET_DIR=" + sockets});
    const nlohmann::json json = nlohmann::json::parse(explain.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << stats << explain.err;
    const bool has_others = stats.find("true") != std::string::npos;
    ASSERT_EQ(json["findings"].size(), has_others ? 2u : 1u) << explain.out;
    EXPECT_EQ(json["findings"][0]["code"], "NOT_RECORDED");
    EXPECT_EQ(json["findings"][0]["bytes"], 60000) << "the driver's number is that of this process";
    EXPECT_EQ(json["findings"][0]["evidence"], "the driver's number minus what is recorded");
    EXPECT_EQ(json["sources"][0]["memories"][0]["in_use"], has_others ? 81000 : 61000);
    if (!has_others) continue;
    EXPECT_EQ(json["findings"][1]["code"], "OTHER_PROCESS");
    EXPECT_EQ(json["findings"][1]["bytes"], 20000);
  }
  const std::string sockets = ScratchDir() + "/sockets";
  const Channel channel(sockets, {});
  const nlohmann::json ps =
      nlohmann::json::parse(RunTool({"ps", "--json"}, {"HBMPROF_SOCKET_DIR=" + sockets}).out, nullptr, false);
  ASSERT_EQ(ps["processes"].size(), 1u) << ps;
  EXPECT_EQ(SchemaProblem(nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS "/ps.json")), ps), "");
}

// Only of a process that runs is it said that the device is full soon, and that it can record again.
TEST_F(LiveLeaksTest, RunningProcessCanBeHelped) {
  ProfileMaker maker;
  maker.Comment("hbmprof version=1 pid=4242 uptime=63");
  maker.Comment("device GPU:0 space=device in_use=64000 peak=64000 limit=164000");
  maker.Comment("warning text=Recording%20has%20been%20off%20since%202026-11-22T18:20:04Z:%20missing");
  hbmprof::pprof::Ages& ages = *maker.Sample({maker.Frame("f")}, {64, 64000}, {{"device", "GPU:0"}}).mutable_ages();
  ages.mutable_born_bytes()->Resize(64, 1000);
  ages.mutable_born_counts()->Resize(64, 1);
  const Channel channel(sockets_, {maker.Bytes()});
  const CommandResult explain = RunTool({"explain", "broken"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  EXPECT_EQ(explain.exit_code, 1);
  EXPECT_THAT(explain.out, AllOf(HasSubstr("next: hbmprof control 4242 tracking on\n"), HasSubstr("GPU:0 is full in 1"),
                                 HasSubstr("3. FULL_SOON  GPU:0 is full in 1")));
}

// The growth of the present load, such as a cache that fills more and more slowly, is not that of leaks.
TEST_F(LiveLeaksTest, TimeUntilFullIsThatOfLeaksAndThatOfAllGrowth) {
  ProfileMaker maker;
  maker.Comment("hbmprof version=1 pid=4242 uptime=63");
  maker.Comment("device GPU:0 space=device in_use=508000 peak=508000 limit=1508000");
  hbmprof::pprof::Ages& leak = *maker.Sample({maker.Frame("f")}, {64, 64000}, {{"device", "GPU:0"}}).mutable_ages();
  leak.mutable_born_bytes()->Resize(64, 1000);
  leak.mutable_born_counts()->Resize(64, 1);
  hbmprof::pprof::Ages& cache = *maker.Sample({maker.Frame("g")}, {148, 444000}, {{"device", "GPU:0"}}).mutable_ages();
  for (int i = 0; i < 64; ++i) {
    const int count = i < 21 ? 4 : i < 42 ? 2 : 1;
    cache.add_born_counts(count);
    cache.add_born_bytes(3000 * count);
  }
  const Channel channel(sockets_, {maker.Bytes()});
  const CommandResult explain = RunTool({"explain", "broken", "--json"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  const nlohmann::json json = nlohmann::json::parse(explain.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << explain.err;
  ASSERT_EQ(json["findings"].size(), 3u) << explain.out;
  const nlohmann::json full = json["findings"][1];
  EXPECT_EQ(full["code"], "FULL_SOON");
  EXPECT_EQ(json["findings"][2]["code"], "GROWS");
  EXPECT_NEAR(full["seconds_to_limit"].get<double>(), 1000, 30);
  EXPECT_NEAR(full["seconds_at_load"].get<double>(), 250, 15);
  EXPECT_THAT(full["sentence"].get<std::string>(), HasSubstr("; at the present load in 4."));
  EXPECT_EQ(SchemaProblem(nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS "/explain.json")), json), "");
}

// A server that has nothing in use between two requests keeps nothing.
TEST_F(LiveLeaksTest, RunningProcessThatHoldsNothingIsHealthy) {
  ProfileMaker maker({{"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  maker.Comment("hbmprof version=1 pid=4242 uptime=63");
  maker.Sample({maker.Frame("f")}, {1000, 0, 0});
  const Channel channel(sockets_, {maker.Bytes()});
  const CommandResult explain = RunTool({"explain", "broken"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  EXPECT_EQ(explain.exit_code, 0) << explain.out;
}

TEST_F(LiveLeaksTest, ProcessThatDoesNotAnswerIsNamed) {
  ASSERT_EQ(mkdir(sockets_.c_str(), 0700), 0);
  const std::string path = sockets_ + "/hbmprof.9999999.sock";
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 10), 0);
  for (const std::string& name : {std::string("no_such_process"), std::to_string(getpid())}) {
    const CommandResult top = RunTool({"top", name}, {"HBMPROF_SOCKET_DIR=" + sockets_});
    EXPECT_EQ(top.exit_code, 2);
    EXPECT_THAT(top.err, HasSubstr("it may be one that does not answer: " + path));
  }
  close(fd);
}

TEST_F(LiveLeaksTest, FailureOfTheFirstDumpIsAnError) {
  const Channel channel(sockets_, {""});
  const CommandResult leaks = RunTool({"leaks", "4242"}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  EXPECT_EQ(leaks.exit_code, 2);
  EXPECT_THAT(leaks.err, HasSubstr("/hbmprof.4242.sock: no memory"));
}

}  // namespace
}  // namespace hbmprof_test
