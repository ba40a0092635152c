// Profiler::Default() with the options of the environment. Each test runs a program and reads its exit code, its output
// and its profiles.

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CheckProfile;
using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::ReadProfile;
using ::hbmprof_test::RunCommand;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> names;
  DIR* open = opendir(directory.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(open);
  return names;
}

// Records three buffers of 1,000 bytes on GPU:3 and exits with 7.
CommandResult RunLeak(const std::vector<std::string>& environment) {
  return RunCommand({HBMPROF_C_API_PROGRAM, "leak", "3", "7"}, environment);
}

TEST(ProfileAtExit, IsWrittenToHbmprofOutput) {
  const std::string directory = NewDirectory();
  const CommandResult run = RunLeak({"HBMPROF_OUTPUT=" + directory + "/a.%p.%n.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, "");
  const std::vector<std::string> files = FilesIn(directory);
  ASSERT_THAT(files, SizeIs(1));
  EXPECT_THAT(files[0], MatchesRegex("a\\.[0-9]+\\.0\\.pb\\.gz"));
  const auto profile = ReadProfile(directory + "/" + files[0]);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(CheckProfile(*profile), "");
  const ProfileView view(*profile);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:3"), 3000);
  EXPECT_EQ(view.SumUnder("inuse_space", "main"), 3000);
}

TEST(ProfileAtExit, PrintsOneLineIfItCannotBeWritten) {
  const CommandResult run = RunLeak({"HBMPROF_OUTPUT=/nowhere/at/all/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_THAT(run.err, AllOf(HasSubstr("hbmprof: "), HasSubstr("/nowhere/at/all/a.pb.gz")));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST(ProfileAtExit, IsNotWrittenWithoutAnOutput) {
  const CommandResult run = RunLeak({"HBMPROF_OUTPUT="});
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_EQ(run.err, "");
}

TEST(RecordingOff, WritesNoProfile) {
  const std::string directory = NewDirectory();
  const CommandResult run = RunLeak({"HBMPROF=0", "HBMPROF_OUTPUT=" + directory + "/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(FilesIn(directory), IsEmpty());
}

TEST(RecordingOff, IsWhatAnUnknownValueMeans) {
  const std::string directory = NewDirectory();
  const CommandResult run = RunLeak({"HBMPROF=perhaps", "HBMPROF_OUTPUT=" + directory + "/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_THAT(run.err, HasSubstr("HBMPROF='perhaps'"));
  EXPECT_THAT(FilesIn(directory), IsEmpty());
}

TEST(BadEnvironment, PrintsOneLineForEachVariable) {
  const std::string directory = NewDirectory();
  const CommandResult run =
      RunLeak({"HBMPROF_OUTPUT_ON_SIGNALS=perhaps", "HBMPROF_STACK_DEPTH=-3", "HBMPROF_UNWINDER=best",
               "HBMPROF_MAX_LIVE=all", "HBMPROF_OUTPUT=" + directory + "/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 4) << run.err;
  EXPECT_THAT(run.err, HasSubstr("HBMPROF_STACK_DEPTH='-3'"));
  const auto profile = ReadProfile(directory + "/a.pb.gz");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(ProfileView(*profile).Sum("inuse_space"), 3000);
}

TEST(Limits, MaxLiveDropsFurtherAllocations) {
  const std::string directory = NewDirectory();
  const CommandResult run = RunLeak({"HBMPROF_MAX_LIVE=2", "HBMPROF_OUTPUT=" + directory + "/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  const auto profile = ReadProfile(directory + "/a.pb.gz");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(CheckProfile(*profile), "");
  const ProfileView view(*profile);
  EXPECT_EQ(view.Sum("inuse_space"), 2000);
  EXPECT_EQ(view.Comment("tracker", "dropped_records"), "1");
  EXPECT_EQ(view.Comment("tracker", "dropped_bytes"), "1000");
}

TEST(Limits, StackDepthOfOneKeepsTheInnermostFrame) {
  const std::string directory = NewDirectory();
  const CommandResult run = RunLeak({"HBMPROF_STACK_DEPTH=1", "HBMPROF_OUTPUT=" + directory + "/a.pb.gz"});
  EXPECT_EQ(run.exit_code, 7);
  const auto profile = ReadProfile(directory + "/a.pb.gz");
  ASSERT_TRUE(profile.ok()) << profile.status();
  const ProfileView view(*profile);
  ASSERT_THAT(view.samples, SizeIs(1));
  EXPECT_THAT(view.samples[0].functions[0], HasSubstr("main"));
}

}  // namespace
