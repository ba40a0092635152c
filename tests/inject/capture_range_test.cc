// `hbmprof run --capture-range`: a profile and a recording of each range that the program delimits, and nothing else.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kMiB = 1 << 20;

struct Outcome {
  CommandResult run;
  std::string folder;
  std::map<std::string, std::vector<std::string>>
      files;  // by process, sorted; the name without the run and the process
};

Outcome RunProgram(const std::vector<std::string>& options, const std::vector<std::string>& program,
                   std::vector<std::string> environment = {}) {
  Outcome outcome;
  outcome.folder = NewDirectory();
  std::vector<std::string> command = {HBMPROF_TOOL, "run", "--library", HBMPROF_INJECTED, "--output", outcome.folder};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back("--");
  command.insert(command.end(), program.begin(), program.end());
  environment.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES);
  outcome.run = RunCommand(command, environment, {"", 120});
  for (const auto& entry : fs::directory_iterator(outcome.folder)) {
    // RUN.PROCESS.NUMBER.ENDING; RUN has no dot.
    const std::string name = entry.path().filename();
    const size_t process = name.find('.') + 1;
    const size_t number = name.find('.', process) + 1;
    outcome.files[name.substr(process, number - process - 1)].push_back(name.substr(number));
  }
  for (auto& [process, names] : outcome.files) std::sort(names.begin(), names.end());
  return outcome;
}

// Returns the path of the file NUMBER.ENDING of a process; of the only process if `process` is empty.
std::string PathOf(const Outcome& outcome, const std::string& name, const std::string& process = "") {
  for (const auto& entry : fs::directory_iterator(outcome.folder)) {
    const std::string path = entry.path();
    const std::string end = "." + (process.empty() ? "" : process + ".") + name;
    if (path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0) return path;
  }
  ADD_FAILURE() << "no file " << name << " of process " << process;
  return "";
}

std::vector<std::string> OnlyFiles(const Outcome& outcome) {
  EXPECT_THAT(outcome.files, SizeIs(1));
  return outcome.files.empty() ? std::vector<std::string>() : outcome.files.begin()->second;
}

CommandResult Read(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {HBMPROF_TOOL};
  command.insert(command.end(), arguments.begin(), arguments.end());
  CommandResult result = RunCommand(command, {}, {"", 120});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

// What `hbmprof explain` says. Its exit code is that of its findings.
std::string Explain(const std::string& source) { return RunCommand({HBMPROF_TOOL, "explain", source}).out; }

// Returns the bytes in use, in MiB: "1+2" for 1 MiB that Outside has allocated and 2 MiB that Inside has.
std::string InUse(const ProfileView& view) {
  return std::to_string(view.SumUnder("inuse_space", "(anonymous namespace)::Outside") / kMiB) + "+" +
         std::to_string(view.SumUnder("inuse_space", "(anonymous namespace)::Inside") / kMiB);
}

constexpr char kApi[] = "--capture-range=cudaProfilerApi";

TEST(CaptureRangeTest, EachRangeHasAProfileAndARecording) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "two"});
  EXPECT_EQ(outcome.run.exit_code, 0);
  EXPECT_EQ(outcome.run.out, "start 0\nstop 0\nstart 0\nstop 0\n");
  ASSERT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz", "1.hbmrec", "1.pb.gz"));
  EXPECT_THAT(outcome.run.err, AllOf(HasSubstr(".1.pb.gz\n"), HasSubstr("2 profiles of ranges are in ")));

  const ProfileView first = ViewProfile(PathOf(outcome, "0.pb.gz"));
  EXPECT_EQ(InUse(first), "1+2");
  EXPECT_EQ(first.Sum("peak_space"), 11 * kMiB) << "the peak is that of the range";
  EXPECT_EQ(InUse(ViewProfile(PathOf(outcome, "1.pb.gz"))), "5+18");

  // The recordings have the events of their ranges only.
  const std::string recording = PathOf(outcome, "0.hbmrec");
  EXPECT_THAT(Read({"diff", recording + "@mark:cudaProfilerStart", recording + "@end"}).out,
              AllOf(HasSubstr("inuse_space: +2.00 MiB, from 1.00 MiB to 3.00 MiB"), HasSubstr("Inside"),
                    Not(HasSubstr("Outside"))));
  EXPECT_THAT(Read({"top", recording + "@peak"}).out, HasSubstr("inuse_space: 11.00 MiB\n"));
  EXPECT_THAT(Read({"top", recording + "@mark:cudaProfilerStart"}).out, HasSubstr("inuse_space: 1.00 MiB\n"));
  EXPECT_THAT(Read({"top", recording + "@mark:" + fs::path(PathOf(outcome, "0.pb.gz")).filename().string()}).out,
              HasSubstr("inuse_space: 3.00 MiB\n"));
  const std::string second = PathOf(outcome, "1.hbmrec");
  EXPECT_THAT(Read({"diff", second + "@mark:cudaProfilerStart", second + "@end"}).out,
              HasSubstr("inuse_space: +16.00 MiB, from 7.00 MiB to 23.00 MiB"));
  for (const std::string& name : {recording, second, PathOf(outcome, "0.pb.gz")}) {
    EXPECT_THAT(Explain(name), HasSubstr("trust: complete since the start; 0 dropped"));
  }
}

TEST(CaptureRangeTest, TheEnvironmentVariableDoesTheSame) {
  const std::string folder = NewDirectory();
  const CommandResult run = RunCommand(
      {HBMPROF_PROGRAM, "two"}, {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES,
                                 "HBMPROF_GPU_OUTPUT=" + folder + "/p.pb.gz", "HBMPROF_CAPTURE_RANGE=cudaProfilerApi",
                                 "HBMPROF_OUTPUT_INTERVAL=0.01", "HBMPROF_RECORD=" + folder + "/all.hbmrec"});
  EXPECT_EQ(run.err, "hbmprof: HBMPROF_OUTPUT_INTERVAL and HBMPROF_RECORD have no effect with HBMPROF_CAPTURE_RANGE\n");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("p.0.pb.gz", "p.0.hbmrec", "p.1.pb.gz", "p.1.hbmrec"));
  // With the command, the variable is the option, unless there is an option for the whole run.
  const std::string variable = "HBMPROF_CAPTURE_RANGE=cudaProfilerApi";
  EXPECT_THAT(OnlyFiles(RunProgram({}, {HBMPROF_PROGRAM, "two"}, {variable})), SizeIs(4));
  const Outcome whole = RunProgram({"--interval=60"}, {HBMPROF_PROGRAM, "two"}, {variable});
  EXPECT_EQ(InUse(ViewProfile(PathOf(whole, "0.pb.gz"))), "37+18") << "failed before: the options were refused";
  EXPECT_THAT(whole.run.err, HasSubstr("HBMPROF_CAPTURE_RANGE has no effect with --interval and --record\n"));
}

// Failed before: each subcommand refused to start.
TEST(CaptureRangeTest, OnlyRunReadsTheVariable) {
  const std::string variable = "HBMPROF_CAPTURE_RANGE=none";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"ps"}, {"run", "--help"}}) {
    std::vector<std::string> command = {HBMPROF_TOOL};
    command.insert(command.end(), words.begin(), words.end());
    EXPECT_THAT(RunCommand(command, {variable}).err, Not(HasSubstr("'none'"))) << words[0];
  }
  const Outcome outcome = RunProgram({}, {HBMPROF_PROGRAM, "two"}, {variable});
  EXPECT_EQ(outcome.run.exit_code, 2);
  EXPECT_THAT(outcome.run.err, HasSubstr("HBMPROF_CAPTURE_RANGE: 'none' is neither cudaProfilerApi nor nvtx:NAME"));
}

TEST(CaptureRangeTest, ABadVariableMeansNoRanges) {
  const std::string output = NewDirectory() + "/p.pb.gz";
  const CommandResult run =
      RunCommand({HBMPROF_PROGRAM, "two"}, {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES,
                                            "HBMPROF_GPU_OUTPUT=" + output, "HBMPROF_CAPTURE_RANGE=nvtx:"});
  EXPECT_THAT(run.err, HasSubstr("HBMPROF_CAPTURE_RANGE='nvtx:' is not cudaProfilerApi or nvtx:NAME"));
  EXPECT_EQ(InUse(ViewProfile(output)), "37+18");
}

TEST(CaptureRangeTest, WithoutRangesNothingIsWritten) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "none"});
  EXPECT_THAT(outcome.files, IsEmpty());
  EXPECT_THAT(outcome.run.err,
              HasSubstr("hbmprof: no profile: the program made no successful call of cudaProfilerStart"));
}

TEST(CaptureRangeTest, AStartInARangeAndAStopOutsideOfOneHaveNoEffect) {
  const Outcome nested = RunProgram({kApi}, {HBMPROF_PROGRAM, "nested"});
  EXPECT_EQ(nested.run.out, "start 0\nstart 0\nstop 0\nstop 0\n");
  EXPECT_THAT(OnlyFiles(nested), ElementsAre("0.hbmrec", "0.pb.gz"));
  EXPECT_EQ(InUse(ViewProfile(PathOf(nested, "0.pb.gz"))), "0+1");
}

TEST(CaptureRangeTest, AnOpenRangeEndsWithTheProcess) {
  const Outcome returned = RunProgram({kApi}, {HBMPROF_PROGRAM, "stop_first"});
  EXPECT_THAT(OnlyFiles(returned), ElementsAre("0.hbmrec", "0.pb.gz"));
  EXPECT_EQ(InUse(ViewProfile(PathOf(returned, "0.pb.gz"))), "1+2");
  for (const char* end : {"signal", "_exit"}) {
    SCOPED_TRACE(end);
    const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, end});
    EXPECT_EQ(outcome.run.exit_code, std::string(end) == "signal" ? 128 + 15 : 0);
    EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz"));
    EXPECT_EQ(InUse(ViewProfile(PathOf(outcome, "0.pb.gz"))), "0+1");
    EXPECT_THAT(Explain(PathOf(outcome, "0.hbmrec")), HasSubstr("trust: complete since the start; 0 dropped"));
  }
  const Outcome replaced = RunProgram({kApi}, {HBMPROF_PROGRAM, "exec"});
  EXPECT_THAT(OnlyFiles(replaced), ElementsAre("0.hbmrec", "0.pb.gz", "1.hbmrec", "1.pb.gz", "2.hbmrec", "2.pb.gz"));
}

TEST(CaptureRangeTest, TheRecordingOfARangeRemainsAfterSigkill) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "kill"});
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec"));
  EXPECT_THAT(Read({"top", PathOf(outcome, "0.hbmrec") + "@end"}).out, HasSubstr("inuse_space: 1.00 MiB\n"));
}

TEST(CaptureRangeTest, AFailedAllocationOutsideOfARangeIsReportedWithoutAFile) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "no_memory"});
  EXPECT_EQ(outcome.run.out, "malloc 2\nstart 0\nstop 0\n");
  EXPECT_THAT(outcome.run.err, HasSubstr("hbmprof: out of memory on GPU:0"));
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz"));
}

TEST(CaptureRangeTest, ACallThatTheDriverRefusesBeginsNoRange) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "no_context"});
  EXPECT_EQ(outcome.run.out, "start 3\n");
  EXPECT_THAT(outcome.files, IsEmpty());
}

TEST(CaptureRangeTest, AnyThreadEndsTheRange) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "other_thread"});
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz"));
  EXPECT_EQ(InUse(ViewProfile(PathOf(outcome, "0.pb.gz"))), "0+1");
}

TEST(CaptureRangeTest, RangesOfManyThreadsAreWholeAndNumbered) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "threads"});
  EXPECT_EQ(outcome.run.exit_code, 0);
  EXPECT_THAT(outcome.run.err, Not(HasSubstr("has failed")));
  const std::vector<std::string> names = OnlyFiles(outcome);
  const size_t ranges = names.size() / 2;
  EXPECT_GE(ranges, 1u);
  EXPECT_LE(ranges, 40u);
  for (size_t i = 0; i < ranges; ++i) {
    SCOPED_TRACE(i);
    EXPECT_LE(ViewProfile(PathOf(outcome, std::to_string(i) + ".pb.gz")).Sum("inuse_space"), 4 * kMiB);
    const std::string recording = PathOf(outcome, std::to_string(i) + ".hbmrec");
    EXPECT_THAT(Explain(recording), HasSubstr("trust: complete since the start; 0 dropped"));
  }
}

TEST(CaptureRangeTest, TheSummaryShowsTheLastOfManyRanges) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "many"});
  EXPECT_THAT(OnlyFiles(outcome), SizeIs(44));
  const std::string& text = outcome.run.err;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 13) << text;
  EXPECT_THAT(
      text, AllOf(Not(HasSubstr(".20.pb.gz")), testing::ContainsRegex("hbmprof: process [0-9]+: .*\\.21\\.pb\\.gz"),
                  HasSubstr("hbmprof: 22 profiles of ranges are in " + fs::canonical(outcome.folder).string() + "\n")));
}

TEST(CaptureRangeTest, AChildOfVforkLeavesItsParentsRange) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "vfork"});
  EXPECT_EQ(outcome.run.out, "start 0\nstop 0\n");
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz"));
  EXPECT_EQ(InUse(ViewProfile(PathOf(outcome, "0.pb.gz"))), "0+2");
}

TEST(CaptureRangeTest, AForkedChildHasNoRanges) {
  const Outcome outcome = RunProgram({kApi}, {HBMPROF_PROGRAM, "fork"});
  EXPECT_EQ(outcome.run.out, "start 0\nstop 0\nstart 0\nstop 0\nstop 0\n");
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz"));
  EXPECT_EQ(InUse(ViewProfile(PathOf(outcome, "0.pb.gz"))), "1+18");
}

TEST(CaptureRangeTest, WrongUsageIsRefused) {
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{{"--capture-range=all"},
                                             {"--capture-range=nvtx:"},
                                             {"--capture-range=nvtx:" + std::string(129, 'x')},
                                             {kApi, "--interval=1s"},
                                             {kApi, "--record"}}) {
    const Outcome outcome = RunProgram(options, {HBMPROF_PROGRAM, "two"});
    EXPECT_EQ(outcome.run.exit_code, 2) << options.back();
    EXPECT_THAT(outcome.run.err, HasSubstr("--capture-range"));
    EXPECT_THAT(outcome.run.out, IsEmpty());
  }
}

#ifdef HBMPROF_NVTX_PROGRAM
TEST(CaptureRangeTest, NvtxRangeOfThisNameIsCaptured) {
  const Outcome outcome = RunProgram({"--capture-range=nvtx:step"}, {HBMPROF_NVTX_PROGRAM, "push"});
  EXPECT_EQ(outcome.run.exit_code, 0);
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz", "1.hbmrec", "1.pb.gz"));
  const ProfileView first = ViewProfile(PathOf(outcome, "0.pb.gz"));
  EXPECT_EQ(first.Sum("inuse_space"), 3 * kMiB);
  EXPECT_EQ(first.SumWhere("inuse_space", "nvtx", "step"), 0) << "labels need --nvtx";
  EXPECT_EQ(ViewProfile(PathOf(outcome, "1.pb.gz")).Sum("inuse_space"), 15 * kMiB);
  EXPECT_THAT(Read({"top", PathOf(outcome, "1.hbmrec") + "@mark:step"}).out, HasSubstr("inuse_space: 7.00 MiB\n"));
}

TEST(CaptureRangeTest, NvtxRangeThatBelongsToNoThreadIsCaptured) {
  const Outcome outcome = RunProgram({"--capture-range=nvtx:step", "--nvtx"}, {HBMPROF_NVTX_PROGRAM, "start"});
  EXPECT_THAT(OnlyFiles(outcome), ElementsAre("0.hbmrec", "0.pb.gz", "1.hbmrec", "1.pb.gz"));
  EXPECT_EQ(ViewProfile(PathOf(outcome, "0.pb.gz")).Sum("inuse_space"), 3 * kMiB);
  const ProfileView second = ViewProfile(PathOf(outcome, "1.pb.gz"));
  EXPECT_EQ(second.Sum("inuse_space"), 15 * kMiB);
  EXPECT_EQ(second.SumWhere("inuse_space", "nvtx", "step"), 8 * kMiB);
}

TEST(CaptureRangeTest, NvtxRangesOfOtherNamesAreNot) {
  const Outcome outcome = RunProgram({"--capture-range=nvtx:steps"}, {HBMPROF_NVTX_PROGRAM, "push"});
  EXPECT_THAT(outcome.files, IsEmpty());
  EXPECT_THAT(outcome.run.err, HasSubstr("hbmprof: no profile: the program began no NVTX range with the name steps"));
  const Outcome other = RunProgram({"--capture-range=nvtx:step"}, {HBMPROF_NVTX_PROGRAM, "push"},
                                   {"NVTX_INJECTION64_PATH=/opt/other/libtool.so"});
  EXPECT_THAT(other.run.err, HasSubstr("already names another tool, /opt/other/libtool.so; unset it to use "
                                       "--capture-range=nvtx:NAME\n"));
}
#endif

}  // namespace
