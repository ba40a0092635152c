// `hbmprof attach` and `hbmprof detach` with the injected library, on the fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
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
