// Profiler::InitDefault. Each test runs a program that calls it, and reads its output and its profiles.

#include <sys/stat.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The default environment sets other options: InitDefault must not read it.
CommandResult RunProgram(std::vector<std::string> arguments, const std::vector<std::string>& environment = {
                                                                 "HBMPROF=0", "HBMPROF_OUTPUT=/nowhere/at/all.pb.gz",
                                                                 "HBMPROF_STACK_DEPTH=7", "HBMPROF_MAX_LIVE=bad"}) {
  arguments.insert(arguments.begin(), HBMPROF_INIT_PROGRAM);
  return RunCommand(arguments, environment);
}

std::string Output(const std::vector<std::string>& arguments) {
  const CommandResult run = RunProgram(arguments);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "");
  return run.out;
}

TEST(InitDefault, UsesTheOptionsAndNotTheEnvironment) {
  EXPECT_THAT(Output({}), StartsWith("init: OK\nlive 3 dropped 0 sites 3 max_host_bytes 2147483648 depth "));
  EXPECT_THAT(Output({}), HasSubstr("unwinder cached_rules oom_output \n"));
}

TEST(InitDefault, EachOptionOfTheProfilerTakesEffect) {
  EXPECT_THAT(Output({"enabled=0"}), HasSubstr("live 0 dropped 0"));
  EXPECT_THAT(Output({"max_live_buffers=2"}), HasSubstr("live 2 dropped 1"));
  EXPECT_THAT(Output({"max_sites=1"}), HasSubstr("live 3 dropped 0 sites 2"));
  EXPECT_THAT(Output({"max_host_bytes=100000000"}), HasSubstr("max_host_bytes 100000000"));
  EXPECT_THAT(Output({"max_stack_depth=2"}), HasSubstr("depth 2"));
  EXPECT_THAT(Output({"unwinder=1"}), HasSubstr("unwinder frame_pointer"));
  EXPECT_THAT(Output({"unwinder=3"}), HasSubstr("depth 0 unwinder none"));
  EXPECT_THAT(Output({"oom_output=/tmp/x.pb.gz"}), HasSubstr("oom_output /tmp/x.pb.gz"));
}

TEST(InitDefault, WritesTheProfileAtExitWithTheMode) {
  const std::string directory = NewDirectory();
  const std::string path = directory + "/a.pb.gz";
  Output({"output=" + path, "output_mode=0640"});
  EXPECT_EQ(ViewProfile(path).Sum("inuse_space"), 6000);
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  EXPECT_THAT(FilesIn(directory), SizeIs(1));
}

TEST(InitDefault, OffWritesNoProfile) {
  const std::string directory = NewDirectory();
  Output({"enabled=0", "output=" + directory + "/a.pb.gz"});
  EXPECT_THAT(FilesIn(directory), IsEmpty());
}

TEST(InitDefault, FailsAfterTheFirstUse) {
  const std::string out = RunProgram({"late"}, {}).out;
  EXPECT_THAT(out, StartsWith("late: FAILED_PRECONDITION: Profiler::InitDefault: "));
  EXPECT_THAT(out, HasSubstr("Call InitDefault before anything else of hbmprof"));
}

TEST(InitDefault, FailsTheSecondTime) {
  EXPECT_THAT(RunProgram({"twice"}, {}).out, StartsWith("first: OK\nsecond: FAILED_PRECONDITION: "));
}

#ifdef HBMPROF_INJECTED_LIBRARY
TEST(InitDefault, BesideTheInjectedLibraryItSetsTheFilesAndTheSwitch) {
  const std::string path = NewDirectory() + "/a.pb.gz";
  const std::vector<std::string> environment = {"LD_PRELOAD=" HBMPROF_INJECTED_LIBRARY, "HBMPROF_MAX_LIVE=2"};
  const CommandResult run = RunProgram({"output=" + path, "output_mode=0640", "max_live_buffers=1"}, environment);
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, StartsWith("init: OK\nlive 2 dropped 1 ")) << "the limits are those of the injected library";
  EXPECT_EQ(ViewProfile(path).Sum("inuse_space"), 3000);
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  EXPECT_THAT(RunProgram({"enabled=0"}, environment).out, HasSubstr("live 0 dropped 0"));
  EXPECT_THAT(RunProgram({"late"}, environment).out, StartsWith("late: FAILED_PRECONDITION: "));
}
#endif

TEST(InitDefault, NamesTheOptionThatIsOutOfRange) {
  EXPECT_THAT(Output({"max_stack_depth=0"}),
              StartsWith("init: INVALID_ARGUMENT: hbmprof: the option max_stack_depth is "
                         "0, not 1 to 512"));
  EXPECT_THAT(Output({"max_stack_depth=513"}), HasSubstr("max_stack_depth is 513"));
  EXPECT_THAT(Output({"max_live_buffers=-1"}), HasSubstr("max_live_buffers is -1, not 1 to 4294967296"));
  EXPECT_THAT(Output({"max_sites=4194305"}), HasSubstr("max_sites is 4194305, not 1 to 4194304"));
  EXPECT_THAT(Output({"max_host_bytes=0"}), HasSubstr("max_host_bytes is 0"));
  EXPECT_THAT(Output({"output_mode=1000"}), HasSubstr("output_mode is 512, not 0 to 511"));
  EXPECT_THAT(Output({"unwinder=9"}), HasSubstr("unwinder is 9, which is not a value of Unwinder"));
}

}  // namespace
