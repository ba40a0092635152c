// What a program that runs out of device memory prints and leaves. Each program is out_of_memory_program.cc's.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
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
using ::testing::ContainsRegex;
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

TEST_F(OutOfMemoryTest, IsReportedOnceForEachDeviceIfTheDeviceIsNotNamed) {
  const std::string text = Run({"nameless"}).err;
  EXPECT_EQ(ReportsIn(text), 2) << text;
  EXPECT_THAT(text, HasSubstr("out of memory on sim:0: Nameless failed"));
  EXPECT_THAT(text, HasSubstr("out of memory on sim:1: Nameless failed"));
}

TEST_F(OutOfMemoryTest, ReservesNoMemoryIfSwitchedOff) { Run({"mapped"}, {"HBMPROF_OOM_REPORT=0"}); }

// The profiles of the program `many`, and the sum of their bytes.
std::pair<size_t, size_t> ProfilesIn(const std::string& directory) {
  std::pair<size_t, size_t> profiles = {0, 0};
  for (const auto& [name, contents] : FilesIn(directory)) {
    if (name.rfind("oom.", 0) != 0) continue;
    profiles.first += 1;
    profiles.second += std::filesystem::file_size(directory + "/" + name);
  }
  return profiles;
}

TEST_F(OutOfMemoryTest, TheLastProfilesAreKept) {
  const CommandResult run = Run({"many", "5"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz", "HBMPROF_DUMP_KEEP=2"});
  EXPECT_EQ(ReportsIn(run.err), 5);
  const auto files = FilesIn(directory_);
  EXPECT_EQ(ProfilesIn(directory_).first, 2u);
  EXPECT_EQ(files.count("oom.3.pb.gz") + files.count("oom.4.pb.gz"), 2u);
}

TEST_F(OutOfMemoryTest, ProfilesHaveALimitOfBytes) {
  Run({"many", "5"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz"});
  const auto [count, bytes] = ProfilesIn(directory_);
  EXPECT_EQ(count, 5u);
  for (const auto& [name, contents] : FilesIn(directory_)) std::filesystem::remove(directory_ + "/" + name);
  const size_t limit = bytes / 2;
  Run({"many", "5"}, {"HBMPROF_OOM_OUTPUT=oom.%n.pb.gz", "HBMPROF_DUMP_KEEP_BYTES=" + std::to_string(limit)});
  EXPECT_LE(ProfilesIn(directory_).second, limit);
  EXPECT_GE(ProfilesIn(directory_).first, 1u);
  EXPECT_EQ(FilesIn(directory_).count("oom.4.pb.gz"), 1u) << "the last one is kept";
  const CommandResult run = Run({"full"}, {"HBMPROF_OOM_OUTPUT=large.%n.pb.gz", "HBMPROF_DUMP_KEEP_BYTES=100"});
  EXPECT_THAT(run.err, ContainsRegex("\n  profile    none: it has [0-9]+ bytes, more than HBMPROF_DUMP_KEEP_BYTES"));
  EXPECT_EQ(FilesIn(directory_).count("large.0.pb.gz"), 0u);
}

TEST_F(OutOfMemoryTest, NoProfileFillsTheDisk) {
  const std::string disk = directory_ + "/disk";
  std::filesystem::create_directory(disk);
  const std::vector<std::string> with_disk = {
      "unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=60m disk " + disk + " && exec \"$@\"", "sh"};
  std::vector<std::string> command = with_disk;
  command.push_back("true");
  if (RunCommand(command).exit_code != 0) GTEST_SKIP() << "cannot mount a file system here";
  command = with_disk;
  command.insert(command.end(), {HBMPROF_OUT_OF_MEMORY_PROGRAM, "full"});
  const CommandResult run = RunCommand(command, {"HBMPROF_OOM_OUTPUT=" + disk + "/%n.pb.gz"}, {directory_, 0});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("\n  profile    none: less than 64 MiB of the disk would remain free\n"));
}

struct Cause {
  const char* name;
  const char* verdict;
};
class OutOfMemoryVerdictTest : public OutOfMemoryTest, public ::testing::WithParamInterface<Cause> {};

TEST_P(OutOfMemoryVerdictTest, NamesTheCause) {
  const std::string text = Run({"verdict", GetParam().name}).err;
  EXPECT_EQ(ReportsIn(text), 1);
  EXPECT_THAT(text, ContainsRegex(std::string("\n  verdict    [^\n]*") + GetParam().verdict));
}

constexpr Cause kCauses[] = {
    {"full", "the device is full: the recorded buffers of this process hold 48.00 MiB of 64.00 MiB"},
    {"too_large", "the request of 128.00 MiB is larger than the device, which has 64.00 MiB"},
    {"fragmented", "32.00 MiB are free, but the largest free block has 4.00 MiB"},
    {"limit", "a limit"},
    {"idle_pool", "pools of this process hold 48.00 MiB of idle memory, which would be enough"},
    {"other_processes", "other processes hold"},
    {"unaccounted", "32.00 MiB"},
    {"unknown", "the device does not report its capacity"},
    {"locked_memory", "ulimit -l"},
};
INSTANTIATE_TEST_SUITE_P(Causes, OutOfMemoryVerdictTest, ::testing::ValuesIn(kCauses),
                         [](const auto& info) { return std::string(info.param.name); });

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
