// Profiles at growth and of full devices. Each test runs dump_program.cc.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::StartsWith;

class DumpTriggersTest : public ::testing::Test {
 protected:
  std::vector<std::string> Environment(const std::string& triggers) const {
    return {"HBMPROF_OUTPUT=" + directory_ + "/exit.pb.gz", "HBMPROF_DUMP=" + triggers};
  }
  std::string Path(const RunningProgram& program, int number) const {
    return directory_ + "/hbmprof.dump." + std::to_string(program.pid()) + "." + std::to_string(number) + ".pb.gz";
  }
  static void Hold(const RunningProgram& program, int mebibytes) {
    program.WriteLine(std::to_string(mebibytes));
    EXPECT_EQ(program.ReadLine(), "held");
  }
  std::string Errors() const {
    std::ifstream file(errors_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Waits until a line about the profile has been printed, 20 seconds at most.
  std::string AwaitError(const std::string& text) const {
    for (int i = 0; i < 2000 && Errors().find(text) == std::string::npos; ++i) usleep(10'000);
    return Errors();
  }
  const std::string directory_ = NewDirectory();
  const std::string errors_ = NewDirectory() + "/errors";
};

TEST_F(DumpTriggersTest, FullDeviceIsDumpedOnce) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment("90%"), errors_);
  Hold(program, 57);
  usleep(1'200'000);
  EXPECT_TRUE(FilesIn(directory_).empty()) << "89 %";
  Hold(program, 60);
  const std::string path = Path(program, 0);
  EXPECT_EQ(AwaitError("0.pb.gz\n"), "hbmprof: sim:0 has 93.8 % of its memory in use: " + path + "\n");
  EXPECT_EQ(ViewProfile(path).Sum("inuse_space"), 60 << 20);
  usleep(11'200'000);
  EXPECT_EQ(FilesIn(directory_).size(), 1u) << "it was not below the share meanwhile";
  EXPECT_EQ(program.Wait(), 0);
}

// Failed before: an interval filled the disk to its last byte.
TEST_F(DumpTriggersTest, NoProfileOfAnIntervalFillsTheDisk) {
  const std::string disk = directory_ + "/disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  const std::string mount = "mount -t tmpfs -o size=60m disk " + disk;
  if (RunCommand({"unshare", "-rm", "sh", "-c", mount}).exit_code != 0) {
    GTEST_SKIP() << "cannot mount a file system here";
  }
  RunningProgram program(
      {"/usr/bin/unshare", "-rm", "sh", "-c", mount + " && \"$@\"; ls " + disk, "sh", HBMPROF_DUMP_PROGRAM},
      {"HBMPROF_OUTPUT=" + disk + "/%n.pb.gz", "HBMPROF_OUTPUT_INTERVAL=0.1"}, errors_);
  Hold(program, 1);
  EXPECT_THAT(AwaitError("\n"), StartsWith("hbmprof: no profile: less than 64 MiB of the disk would remain free\n"));
  program.CloseInput();
  EXPECT_EQ(program.ReadLine(), "0.pb.gz") << "the profile at the end";
  EXPECT_EQ(program.ReadLine(), "");
}

TEST_F(DumpTriggersTest, GrownPeakIsDumped) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment("10485760,99%"), errors_);
  Hold(program, 9);
  Hold(program, 15);
  EXPECT_EQ(AwaitError("0.pb.gz\n"), "hbmprof: the peak of sim:0 has grown to 15.00 MiB: " + Path(program, 0) + "\n");
  Hold(program, 1);
  Hold(program, 24);
  Hold(program, 26);
  Hold(program, 2);
  EXPECT_THAT(AwaitError("1.pb.gz\n"),
              HasSubstr("the peak of sim:0 has grown to 26.00 MiB: " + Path(program, 1) + "\n"));
  EXPECT_EQ(ViewProfile(Path(program, 1)).Sum("peak_space"), 26 << 20);
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(DumpTriggersTest, ProcessEndsWhileAProfileIsWritten) {
  for (const int signal : {0, SIGTERM}) {
    SCOPED_TRACE(signal);
    const std::string directory = NewDirectory();
    const std::vector<std::string> environment = {"HBMPROF_OUTPUT=" + directory + "/exit.pb.gz", "HBMPROF_DUMP=1",
                                                  "HBMPROF_OUTPUT_ON_SIGNALS=1"};
    std::vector<std::string> hanging = environment;
    hanging.push_back("DUMP_PROGRAM_HANGS=1");
    RunningProgram program({HBMPROF_DUMP_PROGRAM}, hanging, errors_);
    program.WriteLine("3");
    EXPECT_THAT((std::set<std::string>{program.ReadLine(), program.ReadLine()}), ElementsAre("hangs", "held"));
    EXPECT_EQ(signal == 0 ? 0 : kill(program.pid(), signal), 0);
    EXPECT_EQ(program.Wait(), signal) << "the status of waitpid";
    EXPECT_EQ(ViewProfile(directory + "/exit.pb.gz").Sum("inuse_space"), 3 << 20);
    EXPECT_THAT(FilesIn(directory), ElementsAre(Key(".hbmprof.0.tmp"), Key("exit.pb.gz")));

    // The next process that writes a profile there removes the file that was not finished.
    RunningProgram next({HBMPROF_DUMP_PROGRAM}, environment, errors_);
    EXPECT_EQ(next.Wait(), 0);
    EXPECT_THAT(FilesIn(directory), ElementsAre(Key("exit.pb.gz")));
  }
  EXPECT_EQ(Errors(), "");
}

TEST_F(DumpTriggersTest, ProfileThatCannotBeWrittenIsTriedAgain) {
  RunningProgram program({HBMPROF_DUMP_PROGRAM}, Environment("1"), errors_);
  ASSERT_EQ(rmdir(directory_.c_str()), 0);
  Hold(program, 1);
  const std::string reason = "hbmprof: the peak of sim:0 has grown to 1.00 MiB: ";
  EXPECT_THAT(AwaitError("\n"), StartsWith(reason + "no profile: "));
  ASSERT_EQ(mkdir(directory_.c_str(), 0700), 0);
  EXPECT_THAT(AwaitError(".pb.gz\n"), HasSubstr("\n" + reason + directory_ + "/hbmprof.dump."));
  EXPECT_EQ(program.Wait(), 0);
}

}  // namespace
