// Programs that use TensorFlow's BFC allocator, started with the injected library: with the real
// libtensorflow_framework.so.2 on a double of the driver, and with a double of it whose reports are wrong.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/inject/framework_tests.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ExpectLeakOfKvCache;
using ::hbmprof_test::ExpectNoWarning;
using ::hbmprof_test::IsBlockOf;
using ::hbmprof_test::IsFromUser;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

bool IsBlock(const ProfileView::Sample& sample) { return IsBlockOf("tensorflow", sample); }

// Expects that the profile has the totals that the program printed: those of the device's allocator and of the driver.
void ExpectTotals(const ProfileView& view, const CommandResult& run, int device) {
  long long allocations = -1, allocated = -1, driver = -1;
  const size_t at = run.out.find("device " + std::to_string(device) + ":");
  ASSERT_NE(at, std::string::npos) << run.out;
  std::sscanf(run.out.c_str() + at, "device %*d: allocations %lld allocated %lld driver %lld", &allocations, &allocated,
              &driver);
  const std::string name = "GPU:" + std::to_string(device);
  const auto is_block = [&](const ProfileView::Sample& sample) {
    return IsBlock(sample) && sample.labels.at("device") == name;
  };
  EXPECT_GT(allocated, 0);
  EXPECT_EQ(view.Sum("alloc_objects", is_block), allocations);
  EXPECT_EQ(view.Sum("inuse_space", is_block), allocated);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", name), driver);
  EXPECT_EQ(view.Comment("device " + name, "pool"), std::to_string(driver));
  EXPECT_EQ(view.Comment("device " + name, "idle"), std::to_string(driver - allocated));
}

class TensorflowReleaseTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Library())) {
      GTEST_SKIP() << "no TensorFlow " << GetParam() << " in build/tensorflow: scripts/test.sh reads it from PyPI";
    }
  }
  static std::string Library() {
    return HBMPROF_TENSORFLOW_LIBRARIES "/" + GetParam() + "/libtensorflow_framework.so.2";
  }
  CommandResult Run(const std::string& name, std::vector<std::string> environment = {}) const {
    environment.push_back("LD_PRELOAD=" HBMPROF_INJECTED);
    environment.push_back("HBMPROF_GPU_OUTPUT=" + output_);
    environment.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES);
    environment.push_back("TF_CPP_MIN_LOG_LEVEL=3");
    return RunCommand({HBMPROF_TENSORFLOW_PROGRAM, Library(), name}, environment, {"", 120});
  }
  ProfileView View() const { return ViewProfile(output_); }

  std::string output_ = NewDirectory() + "/profile.pb.gz";
};

TEST_P(TensorflowReleaseTest, RandomOperationsAreExact) {
  const CommandResult run = Run("random");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  ExpectTotals(view, run, 0);
  ExpectNoWarning(view);
  EXPECT_GT(view.Sum("alloc_objects", &IsBlock), 50000);
  for (const ProfileView::Sample& sample : view.samples) {
    EXPECT_TRUE(IsFromUser(sample) || !IsBlock(sample));
    EXPECT_FALSE(sample.Has("_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll"));
  }
}

TEST_P(TensorflowReleaseTest, BlocksAfterAttach) {
  const CommandResult run = RunCommand({HBMPROF_TENSORFLOW_PROGRAM, Library(), "attach"},
                                       {"ATTACH_LIBRARY=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + output_,
                                        "LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "TF_CPP_MIN_LOG_LEVEL=3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  long long allocated = -1, driver = -1;
  std::sscanf(run.out.c_str(), "device 0: allocations %*d allocated %lld driver %lld", &allocated, &driver);
  const ProfileView view = View();
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), allocated);
  constexpr int64_t kContext = 3 * kMiB;
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), driver + kContext);
  EXPECT_THAT(view.comments, ::testing::Not(::testing::Contains(::testing::HasSubstr("warning"))));
  EXPECT_GE(view.SumUnder("inuse_space", "grow_kv_cache"), kMiB / 2);
}

TEST_P(TensorflowReleaseTest, TwoDevicesAreDistinguished) {
  const CommandResult run = Run("two_devices");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  for (const int device : {0, 1}) ExpectTotals(view, run, device);
  ExpectNoWarning(view);
}

TEST_P(TensorflowReleaseTest, BlocksOfHostMemoryAreNotRecorded) {
  const CommandResult run = Run("host");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  ExpectTotals(view, run, 0);
  ExpectNoWarning(view);
}

TEST_P(TensorflowReleaseTest, ChildCanFreeInheritedBlocks) {
  const CommandResult run = Run("fork");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ExpectTotals(View(), run, 0);
}

TEST_P(TensorflowReleaseTest, BlocksBeyondALimitAreDroppedWithoutAWarning) {
  const CommandResult run = Run("leak", {"HBMPROF_MAX_LIVE=8"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  EXPECT_THAT(view.comments, Not(Contains(HasSubstr("warning"))));
  EXPECT_NE(view.Comment("tracker", "dropped_records"), "0");
}

#if defined(HBMPROF_TOOL)
TEST_P(TensorflowReleaseTest, DiffShowsTheLeakFirst) {
  const std::string directory = NewDirectory();
  ASSERT_EQ(Run("serve").exit_code, 0);
  std::filesystem::rename(output_, directory + "/before.pb.gz");
  ASSERT_EQ(Run("leak").exit_code, 0);
  std::filesystem::rename(output_, directory + "/after.pb.gz");
  ExpectLeakOfKvCache(HBMPROF_TOOL, directory + "/before.pb.gz", directory + "/after.pb.gz");
}
#endif

INSTANTIATE_TEST_SUITE_P(Tensorflow, TensorflowReleaseTest, ::testing::Values("2.12.0", "2.21.0"),
                         [](const auto& info) {
                           std::string name = "release_" + info.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

// --- The double. ---

CommandResult RunDouble(const std::string& scenario, const std::string& output, std::vector<std::string> more = {},
                        std::vector<std::string> environment = {}) {
  std::vector<std::string> program = {HBMPROF_DOUBLE_PROGRAM, HBMPROF_TENSORFLOW_DOUBLE, scenario};
  program.insert(program.end(), more.begin(), more.end());
  environment.insert(environment.end(), {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES,
                                         "HBMPROF_GPU_OUTPUT=" + output});
  const CommandResult run = RunCommand(program, environment, {"", 120});
  EXPECT_EQ(run.exit_code, 0) << "TensorFlow's own function gets each report: " << run.out;
  EXPECT_EQ(run.err, "");
  return run;
}
ProfileView ViewDouble(const std::string& scenario, std::vector<std::string> environment = {}) {
  const std::string output = NewDirectory() + "/profile.pb.gz";
  RunDouble(scenario, output, {}, std::move(environment));
  return ViewProfile(output);
}

struct WrongReport {
  const char* name;
  const char* reason;
};
class TensorflowWrongReportTest : public ::testing::TestWithParam<WrongReport> {};

TEST_P(TensorflowWrongReportTest, ShowsSegmentsAndReason) {
  const ProfileView view = ViewDouble(GetParam().name);
  EXPECT_EQ(view.Sum("inuse_objects", &IsBlock), 0);
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string(20 * kMiB));
  EXPECT_EQ(view.Comment("device GPU:0", "idle"), std::to_string(20 * kMiB));
  const std::string text = view.Comment("warning", "text");
  EXPECT_THAT(text, HasSubstr("TensorFlow's%20blocks%20are%20not%20shown,%20only%20its%20segments"));
  EXPECT_THAT(text, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(Tensorflow, TensorflowWrongReportTest,
                         ::testing::Values(WrongReport{"unknown free", "where%20it%20has%20reported%20no%20block"},
                                           WrongReport{"free of another size", "a%20block%20of%20another%20size"},
                                           WrongReport{"live twice", "at%20the%20address%20of%20a%20live%20block"},
                                           WrongReport{"unknown event", "in%20another%20way"}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

TEST(TensorflowDoubleTest, UnknownFirstReportIsAWarning) {
  const ProfileView view = ViewDouble("unknown first event");
  EXPECT_EQ(view.Sum("inuse_objects", &IsBlock), 0);
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string(20 * kMiB));
  EXPECT_THAT(view.Comment("warning", "text"),
              HasSubstr("this%20version%20reports%20its%20blocks%20in%20another%20way"));
}

TEST(TensorflowDoubleTest, ReportsThatAgreeAreBlocks) {
  const ProfileView view = ViewDouble("");
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), 3 * kMiB);
  EXPECT_EQ(view.Comment("device GPU:0", "idle"), std::to_string(17 * kMiB));
  ExpectNoWarning(view);
}

TEST(TensorflowDoubleTest, FindsFunctionOfReloadedLibrary) {
  const CommandResult run = RunDouble("", NewDirectory() + "/profile.pb.gz", {"twice"});
  EXPECT_EQ(run.out, "made 8 got 8\nmade 8 got 8\n");
}

TEST(TensorflowDoubleTest, SegmentsWithoutReportsAreAWarning) {
  EXPECT_THAT(ViewDouble("silence").Comment("warning", "text"), HasSubstr("it%20reports%20no%20blocks"));
  ExpectNoWarning(ViewDouble("silence", {"TF_GPU_ALLOCATOR=cuda_malloc_async"}));
}

}  // namespace
