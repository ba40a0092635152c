// `hbmprof attach` and `hbmprof detach` with the injected library, on the fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "tests/support/program_run.h"
#include "tests/support/running_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class AttachCommandTest : public ::testing::Test {
 protected:
  AttachCommandTest()
      : target_({ATTACH_LEAKING}, {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES}),
        ready_(target_.ReadLine()),
        id_(std::to_string(target_.pid())) {}

  CommandResult Run(std::vector<std::string> arguments) const {
    return RunTool(arguments, {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
  CommandResult Attach(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"attach", "--library", HBMPROF_INJECTED, "-o", profiles_, id_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  const std::string sockets_ = NewDirectory();
  const std::string profiles_ = NewDirectory();
  RunningProgram target_;
  const std::string ready_;
  const std::string id_;
};

TEST_F(AttachCommandTest, LeakThatBeganEarlierIsNamed) {
  const CommandResult attach = Attach();
  ASSERT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_THAT(attach.out, MatchesRegex("attached to " + id_ +
                                       " \\(attach_leaking\\): CUDA driver.*, ([0-9]+) of ([0-9]+) functions\n"
                                       "before attach: [0-9.]+ MiB in use on GPU:0\n"));
  const CommandResult leaks = Run({"leaks", id_, "--interval", "0.3s", "--dumps", "6"});
  EXPECT_THAT(leaks.out, ContainsRegex("LEAK.*\n(.*\n)*.*LeakOneStep")) << leaks.err;
  EXPECT_THAT(leaks.out, Not(ContainsRegex("LEAK.*\n.*before attach")));
  const CommandResult ps = Run({"ps"});
  EXPECT_THAT(ps.out, HasSubstr("attach_leaking"));
  EXPECT_EQ(target_.Wait(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(profiles_), {}), 1) << "no profile at the end";
}

TEST_F(AttachCommandTest, MemoryFromBeforeShrinksExactly) {
  ASSERT_EQ(Attach().exit_code, 0);
  const auto before = [&] {
    const CommandResult top = Run({"top", id_, "--exact", "--focus", "before attach"});
    return top.out;
  };
  const std::string first = before();
  EXPECT_THAT(first, HasSubstr("[before attach]"));
  target_.WriteLine("");
  ASSERT_EQ(target_.ReadLine(), "freed");
  EXPECT_NE(before(), first);
}

TEST_F(AttachCommandTest, DetachesAndAttachesAgain) {
  const int cycles = std::getenv("HBMPROF_ATTACH_FULL") != nullptr ? 500 : 10;
  for (int i = 0; i < cycles; ++i) {
    const CommandResult attach = Attach();
    ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
    EXPECT_EQ(attach.err, i == 0 ? "" : "hbmprof attach: it was attached before, so the options of that time stay\n");
    const CommandResult detach = Run({"detach", id_});
    ASSERT_EQ(detach.exit_code, 0) << i << detach.err;
    EXPECT_EQ(detach.out, "detached from " + id_ + " (attach_leaking)\n");
  }
  EXPECT_THAT(Run({"detach", id_}).err, HasSubstr("hbmprof is not attached"));
}

TEST_F(AttachCommandTest, SecondAttachChangesNothing) {
  ASSERT_EQ(Attach().exit_code, 0);
  const CommandResult second = Attach();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("attached to " + id_));
}

TEST_F(AttachCommandTest, FindsAProcessByItsName) {
  EXPECT_THAT(Run({"attach", "--library", HBMPROF_INJECTED, "no_such_name"}).err,
              HasSubstr("there is no process no_such_name"));
}

TEST_F(AttachCommandTest, DetachNeedsAnAttachment) {
  EXPECT_EQ(Run({"detach", id_}).err, "hbmprof detach: process " + id_ + " is not attached\n");
}

// --- Beside threads that hammer, with each allocator. HBMPROF_ATTACH_FULL=1 makes these tests long. ---

int Number(int few, int many) { return std::getenv("HBMPROF_ATTACH_FULL") != nullptr ? many : few; }

class AttachHammerTest : public ::testing::TestWithParam<const char*> {
 protected:
  // tests/inject/attach_program.cc. `threads` hammer.
  class Server {
   public:
    Server(const std::string& threads, const std::string& preload)
        : program_({ATTACH_PROGRAM, "-", "serve", threads},
                   {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "LD_PRELOAD=" + preload}) {
      EXPECT_EQ(program_.ReadLine(), "ready 0");
    }
    // Makes the program allocate in allocate_after ("a") or allocate_before ("b").
    void Allocate(const char* name) {
      program_.WriteLine(name);
      ASSERT_EQ(program_.ReadLine(), "allocated 0");
    }
    RunningProgram* operator->() { return &program_; }

   private:
    RunningProgram program_;
  };

  CommandResult Attach(Server& server) const {
    return RunTool({"attach", "--library", HBMPROF_INJECTED, "-o", profiles_, std::to_string(server->pid())},
                   {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
  CommandResult Detach(Server& server) const {
    return RunTool({"detach", std::to_string(server->pid())}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
  // Checks the only profile, which the program has written at its end, and removes it.
  void ExpectProfile(int64_t allocations) const {
    const std::filesystem::directory_iterator files(profiles_);
    ASSERT_NE(files, std::filesystem::directory_iterator());
    const ProfileView view = ViewProfile(files->path());
    EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_after"), allocations);
    EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_before"), 0);
    std::filesystem::remove(files->path());
  }
  // Each allocation while it is attached counts once, and no other one.
  void RunCycles(int cycles, const std::string& preload) {
    Server server(GetParam(), preload);
    for (int i = 0; i < cycles; ++i) {
      const CommandResult attach = Attach(server);
      ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
      server.Allocate("a");
      const CommandResult detach = Detach(server);
      ASSERT_EQ(detach.exit_code, 0) << i << detach.err;
      server.Allocate("b");
    }
    ASSERT_EQ(Attach(server).exit_code, 0);
    EXPECT_EQ(server->Wait(), 0);
    ExpectProfile(cycles);
  }

  const std::string sockets_ = NewDirectory();
  const std::string profiles_ = NewDirectory();
};

TEST_P(AttachHammerTest, EachMarkedCallCountsOnce) { RunCycles(Number(1, 500), ""); }

TEST_P(AttachHammerTest, OtherAllocators) {
  if (std::string(GetParam()) != "4") GTEST_SKIP() << "few threads are enough here";
  for (const char* const allocator : {HBMPROF_JEMALLOC, HBMPROF_TCMALLOC}) {
    if (*allocator == '\0') continue;
    SCOPED_TRACE(allocator);
    RunCycles(Number(1, 50), allocator);
  }
}

TEST_P(AttachHammerTest, FreshProcesses) {
  const int processes = Number(1, 100);
  for (int i = 0; i < processes; ++i) {
    Server server(GetParam(), "");
    server.Allocate("b");
    const CommandResult attach = Attach(server);
    ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
    server.Allocate("a");
    ASSERT_EQ(server->Wait(), 0) << i;
    ExpectProfile(1);
  }
}

// Each fifth kill meets a fresh process, so that the kills reach the loading.
TEST_P(AttachHammerTest, KilledCommands) {
  const int kills = Number(5, 150);
  std::mt19937 random(1);
  std::unique_ptr<Server> server;
  for (int i = 0; i < kills; ++i) {
    if (i % 5 == 0) server = std::make_unique<Server>(GetParam(), "");
    RunningProgram command(
        {ToolPath(), "attach", "--library", HBMPROF_INJECTED, "-o", profiles_, std::to_string((*server)->pid())},
        {"HBMPROF_SOCKET_DIR=" + sockets_}, "/dev/null");
    usleep(static_cast<useconds_t>(random() % 150'000));
    kill(command.pid(), SIGKILL);
    command.Wait();
    server->Allocate("b");
    if (i % 5 != 4) continue;
    const CommandResult attach = Attach(*server);
    ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
    ASSERT_EQ((*server)->Wait(), 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, AttachHammerTest, ::testing::Values("4", "100"),
                         [](const auto& info) { return std::string(info.param) + "_threads"; });

// NVIDIA's own libraries, if they are there. They have no device.
TEST(AttachRealDriverTest, AllFunctionsOfEachVersion) {
  std::error_code error;
  int versions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ATTACH_DRIVERS, error)) {
    const std::string driver = entry.path() / "libcuda.so.1";
    if (!std::filesystem::exists(driver, error)) continue;
    SCOPED_TRACE(driver);
    const std::string sockets = NewDirectory();
    RunningProgram target({ATTACH_WAITER, driver});
    ASSERT_EQ(target.ReadLine(), "ready");
    const CommandResult attach =
        RunTool({"attach", "--library", HBMPROF_INJECTED, "-o", sockets, std::to_string(target.pid())},
                {"HBMPROF_SOCKET_DIR=" + sockets});
    EXPECT_EQ(attach.exit_code, 0) << attach.err;
    const std::string version = std::filesystem::canonical(driver).filename().string().substr(11);
    EXPECT_THAT(attach.out, HasSubstr("CUDA driver " + version + ", "));
    int some = 0;
    int all = 0;
    const size_t functions = attach.out.find(version + ", ");
    ASSERT_NE(functions, std::string::npos) << attach.out;
    ASSERT_EQ(std::sscanf(attach.out.c_str() + functions + version.size(), ", %d of %d functions", &some, &all), 2);
    EXPECT_EQ(some, all);
    EXPECT_GT(all, 60);
    EXPECT_EQ(RunTool({"detach", std::to_string(target.pid())}, {"HBMPROF_SOCKET_DIR=" + sockets}).exit_code, 0);
    EXPECT_EQ(target.Wait(), 0);
    ++versions;
  }
  if (versions == 0) GTEST_SKIP() << "no driver in " << ATTACH_DRIVERS;
}

TEST(AttachRunTest, ProgramUnderRunIsRefused) {
  const std::string sockets = NewDirectory();
  RunningProgram target({ATTACH_LEAKING}, {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "LD_PRELOAD=" HBMPROF_INJECTED,
                                           "HBMPROF_SOCKET_DIR=" + sockets});
  ASSERT_EQ(target.ReadLine(), "ready");
  const CommandResult attach = RunTool({"attach", "--library", HBMPROF_INJECTED, std::to_string(target.pid())},
                                       {"HBMPROF_SOCKET_DIR=" + sockets});
  EXPECT_EQ(attach.exit_code, 2);
  EXPECT_EQ(attach.err, "hbmprof attach: process " + std::to_string(target.pid()) +
                            ": the program was started with hbmprof: it is recorded from its start\n");
}

}  // namespace
}  // namespace hbmprof_test
