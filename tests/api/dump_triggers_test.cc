// Profiles at growth and upon a signal. Each test runs dump_program.cc.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// The thread sanitizer delays the handler of a signal while the program waits for input.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSignalsAreDelayed = true;
#else
constexpr bool kSignalsAreDelayed = false;
#endif
#define SKIP_IF_SIGNALS_ARE_DELAYED() \
  if (kSignalsAreDelayed) GTEST_SKIP() << "the thread sanitizer delays signals while the program waits for input"

class DumpTriggersTest : public ::testing::Test {
 protected:
  // The environment of a program with these triggers and a check every second.
  std::vector<std::string> Environment(std::vector<std::string> triggers) const {
    triggers.push_back("HBMPROF_DUMP_OUTPUT=" + directory_ + "/%n.pb.gz");
    triggers.push_back("HBMPROF_DUMP_INTERVAL=1");
    return triggers;
  }
  static void Hold(const RunningProgram& program, int mebibytes) {
    program.WriteLine(std::to_string(mebibytes));
    EXPECT_EQ(program.ReadLine(), "held");
  }
  std::string Errors() const {
    std::ifstream file(errors_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Waits until a line about the profile has been printed, ten seconds at most.
  std::string AwaitError(const std::string& text) const {
    for (int i = 0; i < 1000 && Errors().find(text) == std::string::npos; ++i) usleep(10'000);
    return Errors();
  }
  bool Has(const std::string& name) const { return FilesIn(directory_).count(name) == 1; }
  int64_t InUse(const std::string& name) const { return ViewProfile(directory_ + "/" + name).Sum("inuse_space"); }

  const std::string directory_ = NewDirectory();
  const std::string errors_ = NewDirectory() + "/errors";
};

TEST_F(DumpTriggersTest, FullDeviceIsDumpedOnce) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment({"HBMPROF_DUMP_IN_USE_PERCENT=90"}), errors_);
  Hold(program, 57);
  usleep(1'200'000);
  EXPECT_TRUE(FilesIn(directory_).empty()) << "89 %";
  Hold(program, 60);
  EXPECT_EQ(AwaitError("0.pb.gz\n"), "hbmprof: sim:0 has 93.8 % of its memory in use: " + directory_ + "/0.pb.gz\n");
  EXPECT_EQ(InUse("0.pb.gz"), 60 << 20);
  usleep(1'200'000);
  EXPECT_FALSE(Has("1.pb.gz")) << "it was not below the share meanwhile";
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(DumpTriggersTest, GrownPeakIsDumpedAndOldDumpsAreRemoved) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM},
                         Environment({"HBMPROF_DUMP_PEAK_GROWTH=10485760", "HBMPROF_DUMP_KEEP=1"}), errors_);
  Hold(program, 9);
  Hold(program, 15);
  EXPECT_EQ(AwaitError("0.pb.gz\n"), "hbmprof: the peak of sim:0 has grown to 15.00 MiB: " + directory_ + "/0.pb.gz\n");
  Hold(program, 1);
  Hold(program, 24);
  Hold(program, 26);
  Hold(program, 2);
  EXPECT_THAT(AwaitError("1.pb.gz\n"),
              HasSubstr("the peak of sim:0 has grown to 26.00 MiB: " + directory_ + "/1.pb.gz\n"));
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(ViewProfile(directory_ + "/1.pb.gz").Sum("peak_space"), 26 << 20);
  EXPECT_FALSE(Has("0.pb.gz")) << "one is kept";
}

TEST_F(DumpTriggersTest, SignalWritesAProfile) {
  SKIP_IF_SIGNALS_ARE_DELAYED();
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment({"HBMPROF_DUMP_SIGNAL=USR2"}), errors_);
  for (int i = 0; i < 3; ++i) {
    Hold(program, i + 1);
    kill(program.pid(), SIGUSR2);
    const std::string name = std::to_string(i) + ".pb.gz";
    EXPECT_THAT(AwaitError(name),
                HasSubstr("hbmprof: received the signal for a profile: " + directory_ + "/" + name + "\n"));
    EXPECT_EQ(InUse(name), (i + 1) << 20);
  }
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(DumpTriggersTest, DumpDuringTheExitDoesNotDisturbIt) {
  SKIP_IF_SIGNALS_ARE_DELAYED();
  for (int i = 0; i < 10; ++i) {
    RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment({"HBMPROF_DUMP_SIGNAL=USR2"}), errors_);
    Hold(program, 1);
    kill(program.pid(), SIGUSR2);
    AwaitError(std::to_string(i) + ".pb.gz");
    for (int j = 0; j < 20; ++j) kill(program.pid(), SIGUSR2);
    EXPECT_EQ(program.Wait(), 0) << Errors();
  }
}

TEST_F(DumpTriggersTest, WithoutATriggerTheSignalEndsTheProgram) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment({}), errors_);
  Hold(program, 1);
  kill(program.pid(), SIGUSR2);
  EXPECT_EQ(program.Wait(), SIGUSR2);
  EXPECT_EQ(Errors(), "");
}

TEST_F(DumpTriggersTest, SignalHandlerOfProgramIsKept) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM, "ignore_usr2"}, Environment({"HBMPROF_DUMP_SIGNAL=USR2"}), errors_);
  Hold(program, 1);
  kill(program.pid(), SIGUSR2);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_THAT(Errors(), MatchesRegex("hbmprof: no profiles at signal 12: the program handles or ignores it\n"));
  EXPECT_TRUE(FilesIn(directory_).empty());
}

TEST_F(DumpTriggersTest, MissingPathIsReported) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, {"HBMPROF_DUMP_PEAK_GROWTH=1"}, errors_);
  Hold(program, 1);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(Errors(), "hbmprof: the profile triggers are off: set HBMPROF_DUMP_OUTPUT to the path of their profiles\n");
}

TEST_F(DumpTriggersTest, RemovedDirectoryIsReported) {
  SKIP_IF_SIGNALS_ARE_DELAYED();
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment({"HBMPROF_DUMP_SIGNAL=USR2"}), errors_);
  Hold(program, 1);
  ASSERT_EQ(rmdir(directory_.c_str()), 0);
  kill(program.pid(), SIGUSR2);
  EXPECT_THAT(AwaitError("\n"), HasSubstr("hbmprof: received the signal for a profile: no profile: "));
  EXPECT_EQ(program.Wait(), 0);
}

}  // namespace
