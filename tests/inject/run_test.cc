// `hbmprof run` and `hbmprof doctor` as a user calls them, on the double of the driver.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/profile_checker.h"
#include "tests/tool/tool.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ReadProfile;
using ::hbmprof_test::RunTool;
using ::hbmprof_test::ScratchDir;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Program(const std::string& name) { return HBMPROF_INJECT_PROGRAMS "/" + name; }

CommandResult Tool(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
  environment.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE);
  return RunTool(arguments, environment);
}

std::vector<std::string> Profiles(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  return paths;
}

TEST(RunTest, SaysPerDevicePeakInUseUnaccountedAndWhereTheProfileIs) {
  const std::string folder = ScratchDir() + "/made/on/the/way";
  const CommandResult run = Tool({"run", "--output", folder, "--", Program("inject_cases"), "behind_our_back"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "done\n") << "the program's output is its own";
  const std::vector<std::string> profiles = Profiles(folder);
  ASSERT_EQ(profiles.size(), 1u);
  EXPECT_THAT(run.err, HasSubstr(profiles[0]));
  EXPECT_THAT(run.err, ContainsRegex("GPU:0 +peak 1.00 MiB +in use 1.00 MiB +unaccounted 67.00 MiB of this process, "
                                     "3.00 MiB of it from the start; .64.00 MiB since then, outside tracked"));
  EXPECT_TRUE(ReadProfile(profiles[0]).ok());
}

TEST(RunTest, SaysWhenTheDriversFigureIsOfAllProcessesOrUnknown) {
  const std::string folder = ScratchDir();
  CommandResult run =
      Tool({"run", "--output", folder, "--", Program("inject_cases"), "plain"}, {"FAKE_NVML_PROCESS=0"});
  EXPECT_THAT(run.err, HasSubstr("unaccounted 3.00 MiB of all processes on the device"));
  const std::vector<std::string> reset = {"run",      "--output", folder, "--", Program("inject_cases"),
                                          "contexts", "reset"};
  run = Tool(reset, {"FAKE_NVML_PROCESS=0"});
  EXPECT_THAT(run.err, HasSubstr("unaccounted 0 B of all processes on the device")) << "NVML needs no context";
  run = Tool(reset, {"FAKE_NVML_PROCESS=0", "FAKE_NVML_MEMORY=0"});
  EXPECT_THAT(run.err, HasSubstr("unaccounted n/a"));
}

TEST(RunTest, EndsAsTheProgramEnds) {
  const std::string folder = ScratchDir();
  EXPECT_EQ(Tool({"run", "--output", folder, "--", "sh", "-c", "exit 7"}).exit_code, 7);
  const CommandResult crash = Tool({"run", "--output", folder, "--", Program("inject_cases"), "crash"});
  EXPECT_EQ(crash.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(crash.err, HasSubstr("signal 11 ended the program"));
  EXPECT_THAT(crash.err, HasSubstr("hbmprof doctor -- "));
  const CommandResult terminated = Tool({"run", "--output", folder, "--", "sh", "-c", "kill -TERM $PPID; sleep 5"});
  EXPECT_EQ(terminated.exit_code, 128 + SIGTERM) << "what asks this command to end reaches the program";
  EXPECT_EQ(Tool({"run", "--output", folder, "--", "sh", "-c", "kill -INT $$; exit 3"}).exit_code, 128 + SIGINT);
}

TEST(RunTest, EveryProcessThatTheProgramStartsHasAProfileOfItsOwn) {
  const std::string folder = ScratchDir();
  const std::string program = Program("inject_cases");
  const CommandResult run =
      Tool({"run", "--output", folder, "--", "sh", "-c", program + " plain; " + program + " module"});
  EXPECT_EQ(Profiles(folder).size(), 2u);
  for (const std::string& path : Profiles(folder)) EXPECT_THAT(run.err, HasSubstr(path));
}

TEST(RunTest, WritesProfilesInBetweenAndSumsUpTheLast) {
  const std::string folder = ScratchDir();
  const CommandResult run =
      Tool({"run", "--output", folder, "--interval", "0.1", "--", Program("inject_cases"), "interval"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GE(Profiles(folder).size(), 2u);
  EXPECT_THAT(run.err, Not(HasSubstr(".0.pb.gz")));
}

TEST(RunTest, SaysWhatIsWrongBeforeItStartsAnything) {
  const CommandResult nothing = Tool({"run", "--", "no-such-program"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("no-such-program is no program"));
  const CommandResult library = Tool({"run", "--library", "/nonexistent.so", "--", "true"});
  EXPECT_EQ(library.exit_code, 2);
  EXPECT_THAT(library.err, HasSubstr("/nonexistent.so"));
  const CommandResult folder = Tool({"run", "--output", "/proc/nothing", "--", "true"});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_THAT(folder.err, HasSubstr("/proc/nothing"));
  EXPECT_EQ(Tool({"run", "--interval", "never", "--", "true"}).exit_code, 2);
}

TEST(DoctorTest, NamesTheDriverAndEachOfItsCalls) {
  const CommandResult run = Tool({"doctor", "--entry-points", "--", Program("inject_matrix_static")});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr(HBMPROF_DOUBLES "/libcuda.so.1, CUDA 13.0, 2 devices"));
  EXPECT_THAT(run.out, ContainsRegex("library +/.*libhbmprof_cuda.so can be preloaded"));
  EXPECT_THAT(run.out, HasSubstr("cuMemAlloc_v2: tracked"));
  EXPECT_THAT(run.out, HasSubstr("cuMemPoolTrimTo: passed through: "));
  EXPECT_THAT(run.out, HasSubstr("cuCtxCreate_v3: absent"));
  EXPECT_THAT(run.out, HasSubstr("the static runtime is in the program"));
}

TEST(DoctorTest, NamesWhatWillNotBeSeen) {
  const CommandResult run = RunTool({"doctor", "--", HBMPROF_STATIC_PROGRAM}, {"LD_LIBRARY_PATH="});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("statically linked: nothing can be preloaded into it"));
  EXPECT_THAT(Tool({"doctor", "--", "no-such-program"}).out, HasSubstr("! program"));
  EXPECT_THAT(Tool({"doctor", "--library", "/nonexistent.so"}).out, HasSubstr("! library"));
}

TEST(DoctorTest, FollowsAScriptToItsInterpreter) {
  const CommandResult run = Tool({"doctor", "--", HBMPROF_SCRIPT});
  EXPECT_THAT(run.out, HasSubstr("is a script for bash"));
  EXPECT_THAT(run.out, ContainsRegex("program +/.*/bash\n"));
}

}  // namespace
