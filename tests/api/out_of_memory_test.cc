// What a program that runs out of device memory prints and leaves. Each program is out_of_memory_program.cc's.
#include <cstdlib>
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
using ::testing::MatchesRegex;

class OutOfMemoryTest : public ::testing::Test {
 protected:
  CommandResult Run(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
    arguments.insert(arguments.begin(), HBMPROF_OUT_OF_MEMORY_PROGRAM);
    const CommandResult run = RunCommand(arguments, environment, {directory_, 0});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.out, "done\n");
    return run;
  }

  static int ReportsIn(const std::string& text) {
    int count = 0;
    for (size_t at = 0; (at = text.find("hbmprof: out of memory on", at)) != std::string::npos; ++at) ++count;
    return count;
  }

  const std::string directory_ = NewDirectory();
};

TEST_F(OutOfMemoryTest, IsReportedWithHoldersAndGrowth) {
  const CommandResult run = Run({"full"});
  EXPECT_THAT(run.err, MatchesRegex("hbmprof: out of memory on sim:0: Allocate of 32.00 MiB failed \\(phase=decode\\)\n"
                                    "  verdict    the device is full: .* hold 48.00 MiB of 64.00 MiB. .*\n"
                                    "  device     64.00 MiB in all, 16.00 MiB free, largest free block 16.00 MiB\n"
                                    "  recorded   48.00 MiB of this process, peak 48.00 MiB.*\n"
                                    "  in use by call stack, largest first, with the change since the last profile:\n"
                                    "   32.00 MiB  66.7 %        2 live    \\+16.00 MiB  .*GrowCache < main < .*\n"
                                    "   16.00 MiB  33.3 %        1 live          \\+0 B  .*LoadWeights < main < .*\n"));
  EXPECT_EQ(FilesIn(directory_).size(), 1u) << "only before.pb.gz";
}

TEST_F(OutOfMemoryTest, WritesAProfileWhereAsked) {
  const CommandResult run = Run({"full"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz"});
  EXPECT_THAT(run.err, HasSubstr("\n  profile    oom.0.pb.gz\n"));
  EXPECT_EQ(ViewProfile(directory_ + "/oom.0.pb.gz").Sum("inuse_space"), 48 << 20);
}

TEST_F(OutOfMemoryTest, SaysWhyNoProfileWasWritten) {
  const CommandResult run = Run({"full"}, {"HBMPROF_OOM_OUTPUT=missing/oom.pb.gz"});
  EXPECT_THAT(run.err, HasSubstr("\n  profile    none: "));
  EXPECT_THAT(run.err, HasSubstr("missing"));
}

TEST_F(OutOfMemoryTest, IsSilentIfSwitchedOff) {
  EXPECT_EQ(Run({"full"}, {"HBMPROF_OOM_REPORT=0", "HBMPROF_OOM_OUTPUT=oom.pb.gz"}).err, "");
  EXPECT_EQ(FilesIn(directory_).size(), 1u);
  EXPECT_EQ(Run({"full"}, {"HBMPROF=0"}).err, "");
}

TEST_F(OutOfMemoryTest, IsReportedOnceAMinuteForEachDevice) {
  const CommandResult run = Run({"again", "1000"});
  EXPECT_EQ(ReportsIn(run.err), 2) << run.err;
  EXPECT_THAT(run.err, HasSubstr("out of memory on sim:1: Allocate of 128.00 MiB failed (phase=decode)\n"
                                 "  verdict    the request of 128.00 MiB is larger than the device"));
}

TEST_F(OutOfMemoryTest, IsReportedOnceByManyThreads) { EXPECT_EQ(ReportsIn(Run({"threads", "32"}).err), 1); }

TEST_F(OutOfMemoryTest, GrowthIsOfTheDeviceThatIsFull) {
  EXPECT_THAT(Run({"devices"}).err, HasSubstr("   16.00 MiB 100.0 %        1 live          +0 B  "));
}

TEST_F(OutOfMemoryTest, TellsFragmentation) {
  EXPECT_THAT(Run({"fragments"}).err, HasSubstr("32.00 MiB are free, but the largest free block has 4.00 MiB"));
}

TEST_F(OutOfMemoryTest, IsReportedByAForkedChildToo) { EXPECT_EQ(ReportsIn(Run({"child"}).err), 2); }

TEST_F(OutOfMemoryTest, IsReportedWithOneMebibyteOfHostMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow memory does not fit into a limit on the address space";
#endif
  const std::string text = Run({"host", "1048576"}).err;
  EXPECT_THAT(text, HasSubstr("the device is full"));
  EXPECT_THAT(text, HasSubstr("(anonymous namespace)::GrowCache"));
  // With nothing left, at least the figures.
  EXPECT_THAT(Run({"host", "0"}).err, HasSubstr("the device is full"));
}

}  // namespace
