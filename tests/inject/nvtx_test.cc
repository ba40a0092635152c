// A program with NVTX ranges, under `hbmprof run --nvtx`.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

struct Outcome {
  CommandResult run;
  std::map<std::string, int64_t> kib;  // in use by label, "" for none
};

Outcome RunRanges(const std::vector<std::string>& options, std::vector<std::string> environment = {}) {
  const std::string folder = NewDirectory();
  std::vector<std::string> command = {HBMPROF_TOOL, "run", "--library", HBMPROF_INJECTED, "--output", folder};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--", HBMPROF_NVTX_PROGRAM});
  environment.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES);
  Outcome outcome;
  outcome.run = RunCommand(command, environment, {"", 120});
  EXPECT_EQ(outcome.run.exit_code, 0) << outcome.run.err;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    for (const ProfileView::Sample& sample : ViewProfile(entry.path().string()).samples) {
      const auto label = sample.labels.find("nvtx");
      outcome.kib[label == sample.labels.end() ? "" : label->second] += sample.values.at("inuse_space") / 1024;
    }
  }
  return outcome;
}

// In no range, and in ranges with wide names, which are no labels.
constexpr int64_t kWithoutLabel = 1 + 8 + 64 + 128 + 256;

TEST(NvtxTest, InnermostRangeOfTheThreadIsALabel) {
  const Outcome outcome = RunRanges({"--nvtx"});
  EXPECT_THAT(outcome.kib, UnorderedElementsAre(Pair("", kWithoutLabel), Pair("step", 2), Pair("aten::add", 4),
                                                Pair("gemm", 16 + 32)));
  EXPECT_THAT(outcome.run.out, HasSubstr("level 0 ended 0 extra 1\n"));
}

TEST(NvtxTest, OutermostRangeIsALabelOnRequest) {
  const Outcome outcome = RunRanges({"--nvtx=outermost"});
  EXPECT_THAT(outcome.kib, UnorderedElementsAre(Pair("", kWithoutLabel), Pair("step", 2 + 4 + 16 + 32)));
}

TEST(NvtxTest, PathOfRangesIsALabelOnRequest) {
  const Outcome outcome = RunRanges({"--nvtx=path"});
  EXPECT_THAT(outcome.kib, UnorderedElementsAre(Pair("", kWithoutLabel), Pair("step", 2), Pair("step/aten::add", 4),
                                                Pair("step/gemm", 16 + 32)));
}

TEST(NvtxTest, WithoutTheOptionThereIsNoLabel) { EXPECT_THAT(RunRanges({}).kib, UnorderedElementsAre(Pair("", 511))); }

TEST(NvtxTest, AnotherToolKeepsItsInjection) {
  const Outcome outcome = RunRanges({"--nvtx"}, {"NVTX_INJECTION64_PATH=/opt/other/libtool.so"});
  EXPECT_THAT(outcome.kib, UnorderedElementsAre(Pair("", 511)));
  EXPECT_THAT(outcome.run.err, HasSubstr("hbmprof: no NVTX ranges: NVTX_INJECTION64_PATH already names another tool, "
                                         "/opt/other/libtool.so; unset it to use --nvtx\n"));
}

TEST(NvtxTest, UnknownChoiceIsRefused) {
  const CommandResult run =
      RunCommand({HBMPROF_TOOL, "run", "--library", HBMPROF_INJECTED, "--nvtx=all", "--", "true"}, {}, {"", 60});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--nvtx"));
  EXPECT_THAT(run.out, IsEmpty());
}

}  // namespace
