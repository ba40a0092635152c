// Programs that use PyTorch's caching allocator, started with the injected library: with the real libc10_cuda.so of
// several releases on doubles of runtime and driver, and with a double of it whose reports are wrong.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/inject/framework_tests.h"
#include "tests/support/control_socket.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ExpectLeakOfKvCache;
using ::hbmprof_test::ExpectNoWarning;
using ::hbmprof_test::IsBlockOf;
using ::hbmprof_test::IsFromUser;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

struct Totals {
  long long blocks = -1;
  long long allocated = -1;
  long long reserved = -1;
  long long driver = -1;
};

// Returns the totals of a device that the program printed.
Totals TotalsOf(const CommandResult& run, int device) {
  Totals totals;
  const size_t at = run.out.find("device " + std::to_string(device) + ":");
  if (at == std::string::npos) return totals;
  std::sscanf(run.out.c_str() + at, "device %*d: blocks %lld allocated %lld reserved %lld driver %lld", &totals.blocks,
              &totals.allocated, &totals.reserved, &totals.driver);
  return totals;
}

bool IsBlock(const ProfileView::Sample& sample) { return IsBlockOf("pytorch", sample); }

// Expects that the profile has the totals of the allocator and of the driver for the device.
void ExpectTotals(const ProfileView& view, const Totals& totals, int device) {
  const std::string name = "GPU:" + std::to_string(device);
  const auto is_block = [&](const ProfileView::Sample& sample) {
    return IsBlock(sample) && sample.labels.at("device") == name;
  };
  EXPECT_GT(totals.blocks, 0);
  EXPECT_EQ(view.Sum("inuse_objects", is_block), totals.blocks);
  EXPECT_EQ(view.Sum("inuse_space", is_block), totals.allocated);
  EXPECT_EQ(totals.reserved, totals.driver);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", name), totals.driver);
  EXPECT_EQ(view.Comment("device " + name, "pool"), std::to_string(totals.reserved));
  EXPECT_EQ(view.Comment("device " + name, "idle"), std::to_string(totals.reserved - totals.allocated));
}

class TorchReleaseTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Library())) {
      GTEST_SKIP() << "no PyTorch " << GetParam() << " in build/torch: scripts/test.sh reads it from PyPI";
    }
  }
  static std::string Folder() { return std::string(HBMPROF_TORCH_LIBRARIES "/") + GetParam(); }
  static std::string Library() { return Folder() + "/libc10_cuda.so"; }

  CommandResult Run(const std::string& name, std::vector<std::string> environment = {},
                    std::vector<std::string> program = {HBMPROF_TORCH_PROGRAM}) const {
    environment.push_back("LD_PRELOAD=" HBMPROF_INJECTED);
    environment.push_back("HBMPROF_GPU_OUTPUT=" + output_);
    return RunBare(name, std::move(environment), std::move(program));
  }
  static CommandResult RunBare(const std::string& name, std::vector<std::string> environment = {},
                               std::vector<std::string> program = {HBMPROF_TORCH_PROGRAM}) {
    environment.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE ":" HBMPROF_TORCH_CUDART);
    program.insert(program.end(), {Library(), name});
    return RunCommand(program, environment, {"", 200});
  }
  ProfileView View() const { return ViewProfile(output_); }

  std::string output_ = NewDirectory() + "/profile.pb.gz";
};

TEST_P(TorchReleaseTest, BlocksAfterAttachAndSegmentsFromBefore) {
  const CommandResult run = RunBare("attach", {"ATTACH_LIBRARY=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + output_});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const ProfileView view = View();
  EXPECT_THAT(view.comments, Not(Contains(HasSubstr("warning"))));
  const Totals totals = TotalsOf(run, 0);
  constexpr int64_t kContext = 3 * kMiB;
  EXPECT_EQ(view.Sum("inuse_objects", &IsBlock), totals.blocks);
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), totals.allocated);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), totals.driver + kContext);
  EXPECT_GE(view.SumUnder("inuse_space", "grow_kv_cache"), 2 * kMiB);
}

TEST_P(TorchReleaseTest, BlocksAreShownAfterAPause) {
  const std::string sockets = NewDirectory();
  RunningProgram program({HBMPROF_TORCH_PROGRAM, Library(), "live"},
                         {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE ":" HBMPROF_TORCH_CUDART,
                          "LD_PRELOAD=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + output_,
                          "HBMPROF_SOCKET_DIR=" + sockets, "FAKE_CUDA_DEVICES=1"});
  EXPECT_EQ(program.ReadLine(), "ready");
  const auto does = [&](const std::string& actions) {
    program.WriteLine(actions);
    return program.ReadLine();
  };
  const auto tracking = [&](const std::string& state) {
    const std::string socket = sockets + "/hbmprof." + std::to_string(program.pid()) + ".sock";
    hbmprof_test::ControlAnswer(socket, "tracking " + state);
  };
  does("s");
  for (int i = 0; i < 2; ++i) {
    tracking("off");
    does("g");
    if (i == 0) does("f");
    tracking("on");
  }
  // PyTorch has all of this memory in a segment from before.
  const std::string last = does("g");
  EXPECT_EQ(program.Wait(), 0);
  const ProfileView view = View();
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), 5 * kMiB) << "the block after the pause";
  const int64_t in_use = view.SumWhere("inuse_space", "device", "GPU:0");
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string(in_use));
  EXPECT_EQ(view.Comment("device GPU:0", "pool"), std::to_string(in_use)) << "nothing counts twice";
  EXPECT_EQ(in_use, 20 * kMiB) << "the segment of that block; " << last;
  EXPECT_EQ(view.SumUnder("reserved_space", "[before tracking on]"), 20 * kMiB);
  EXPECT_THAT(view.comments, Not(Contains(HasSubstr("not%20shown"))));
  EXPECT_THAT(view.Comment("warning", "text"), HasSubstr("Recording%20was%20off%20from%202"));
}

TEST_P(TorchReleaseTest, RandomOperationsAreExact) {
  const CommandResult run = Run("random");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const ProfileView view = View();
  ExpectTotals(view, TotalsOf(run, 0), 0);
  ExpectNoWarning(view);
  EXPECT_GT(view.Sum("alloc_objects", &IsBlock), 50000);
  for (const ProfileView::Sample& sample : view.samples) {
    EXPECT_TRUE(IsFromUser(sample) || !IsBlock(sample));
    EXPECT_FALSE(sample.Has("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"));
  }
}

TEST_P(TorchReleaseTest, MappedMemoryOfExpandableSegmentsHoldsTheBlocks) {
  const CommandResult run = Run("random", {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  ExpectTotals(view, TotalsOf(run, 0), 0);
  ExpectNoWarning(view);
}

TEST_P(TorchReleaseTest, EmptiedCacheReturnsItsSegments) {
  for (const char* setting : {"", "expandable_segments:True"}) {
    SCOPED_TRACE(setting);
    const CommandResult run = Run("empty", {std::string("PYTORCH_CUDA_ALLOC_CONF=") + setting});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const ProfileView view = View();
    ExpectTotals(view, TotalsOf(run, 0), 0);
    ExpectNoWarning(view);
  }
}

TEST_P(TorchReleaseTest, TwoDevicesAreDistinguished) {
  const CommandResult run = Run("two_devices");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  for (const int device : {0, 1}) ExpectTotals(view, TotalsOf(run, device), device);
  ExpectNoWarning(view);
}

TEST_P(TorchReleaseTest, BlocksAreSeenUnderRtldDeepbind) {
  const CommandResult run = Run("serve", {"DEEP_BIND=1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  ExpectTotals(view, TotalsOf(run, 0), 0);
  ExpectNoWarning(view);
}

TEST_P(TorchReleaseTest, StreamOrderedBackendIsTheDriversMemory) {
  const CommandResult run = Run("one", {"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  EXPECT_EQ(view.SumWhere("inuse_space", "allocator", "cudaMallocAsync"), 3 * kMiB);
  EXPECT_EQ(view.SumUnder("inuse_space", "load_weights"), 3 * kMiB);
  EXPECT_EQ(view.Sum("inuse_space"), 3 * kMiB);
  ExpectNoWarning(view);
}

TEST_P(TorchReleaseTest, PythonProcessIsExact) {
  const CommandResult run = Run("random", {},
                                {"python3", "-c",
                                 "import ctypes, sys\n"
                                 "ctypes.CDLL(sys.argv[1]).torch_case(sys.argv[2].encode(), sys.argv[3].encode())",
                                 HBMPROF_TORCH_PROGRAM_LIBRARY});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  ExpectTotals(view, TotalsOf(run, 0), 0);
  ExpectNoWarning(view);
}

TEST_P(TorchReleaseTest, ChildCanFreeInheritedBlocks) {
  const std::string folder = NewDirectory();
  const CommandResult run = Run("fork", {"HBMPROF_GPU_OUTPUT=" + folder + "/%p.pb.gz"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  int profiles = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const ProfileView view = ViewProfile(entry.path().string());
    EXPECT_THAT(view.comments, Not(Contains(HasSubstr("warning"))));
    ++profiles;
    ExpectTotals(view, TotalsOf(run, 0), 0);
  }
  EXPECT_EQ(profiles, 1) << "the child is off";
}

TEST_P(TorchReleaseTest, BlocksBeyondALimitAreDroppedWithoutAWarning) {
  const CommandResult run = Run("leak", {"HBMPROF_MAX_LIVE=8"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = View();
  EXPECT_THAT(view.comments, Not(Contains(HasSubstr("warning"))));
  EXPECT_NE(view.Comment("tracker", "dropped_records"), "0");
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), TotalsOf(run, 0).driver) << "the segments are complete";
}

TEST_P(TorchReleaseTest, RunningOutOfMemoryIsAWarning) {
  const std::vector<std::string> small = {"FAKE_CUDA_CAPACITY=268435456"};
  const CommandResult bare = RunBare("run_out", small);
  const CommandResult run = Run("run_out", small);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("out of memory after"));
  EXPECT_EQ(run.out, bare.out) << "the program sees no difference";
  // PyTorch calls the driver again after it has emptied its cache.
  const size_t report = run.err.find("hbmprof: out of memory on GPU:0: cuMemAlloc");
  EXPECT_NE(report, std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("hbmprof: out of memory on", report + 1), std::string::npos) << run.err;
  const ProfileView view = View();
  ExpectTotals(view, TotalsOf(run, 0), 0);
  const std::string text = view.Comment("warning", "text");
  EXPECT_THAT(text, HasSubstr("PyTorch%20ran%20out%20of%20memory%20on%20GPU:0"));
  EXPECT_THAT(text, HasSubstr("a%20tensor%20of%2032.00%20MiB"));
}

TEST_P(TorchReleaseTest, LimitOfPyTorchIsReported) {
  const CommandResult run = Run("limit");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("out of memory after 8"));
  EXPECT_THAT(run.err, HasSubstr("hbmprof: out of memory on GPU:0: CUDACachingAllocator of 32.00 MiB failed\n"));
  EXPECT_THAT(run.err, HasSubstr("a limit of the allocator or of the process refused the request"));
  ExpectTotals(View(), TotalsOf(run, 0), 0);
}

TEST_P(TorchReleaseTest, FailureIsReportedOnlyIfTheRetryFailsToo) {
  for (const char* setting : {"", "expandable_segments:True"}) {
    SCOPED_TRACE(setting);
    const std::vector<std::string> small = {"FAKE_CUDA_CAPACITY=268435456",
                                            std::string("PYTORCH_CUDA_ALLOC_CONF=") + setting};
    const CommandResult retry = Run("retry", small);
    ASSERT_EQ(retry.exit_code, 0) << retry.err;
    EXPECT_THAT(retry.err, Not(HasSubstr("hbmprof"))) << "the retry has succeeded";
    const CommandResult run = Run("retry_and_run_out", small);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::string title = "hbmprof: out of memory on GPU:0";
    const size_t report = run.err.find(title);
    ASSERT_NE(report, std::string::npos) << run.err;
    EXPECT_EQ(run.err.find(title, report + 1), std::string::npos) << run.err;
    // The blocks that are live when the last attempt fails: seven, not the six cached ones of the first failure.
    EXPECT_THAT(run.err, HasSubstr("7 live"));
    EXPECT_THAT(run.err, Not(HasSubstr("6 live")));
    EXPECT_THAT(run.err, Not(HasSubstr("192.00 MiB")));
  }
}

#if defined(HBMPROF_TOOL)
TEST_P(TorchReleaseTest, DiffShowsTheLeakFirst) {
  const std::string directory = NewDirectory();
  const std::string before = directory + "/before.pb.gz";
  const std::string after = directory + "/after.pb.gz";
  ASSERT_EQ(Run("serve").exit_code, 0);
  std::filesystem::rename(output_, before);
  ASSERT_EQ(Run("leak").exit_code, 0);
  std::filesystem::rename(output_, after);
  ExpectLeakOfKvCache(HBMPROF_TOOL, before, after);
}

TEST_P(TorchReleaseTest, DiffShowsThePythonLeakFirst) {
  const std::string directory = NewDirectory();
  const auto run = [&](const std::string& output, const std::vector<std::string>& extra) {
    std::vector<std::string> program = {"python3", HBMPROF_TORCH_PYTHON_PROGRAM, HBMPROF_TORCH_PROGRAM_LIBRARY,
                                        Library()};
    program.insert(program.end(), extra.begin(), extra.end());
    const CommandResult result =
        RunCommand(program,
                   {"LD_PRELOAD=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + output,
                    "LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE ":" HBMPROF_TORCH_CUDART},
                   {"", 120});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  const std::string before = directory + "/before.pb.gz";
  const std::string after = directory + "/after.pb.gz";
  run(before, {});
  EXPECT_EQ(ViewProfile(before).SumUnder("inuse_space", "load_weights"), 12 * kMiB) << "freed at the end of Python";
  run(after, {"leak"});
  const CommandResult diff = RunCommand({HBMPROF_TOOL, "diff", "--exact", "--own", "-n", "1", before, after});
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  EXPECT_THAT(diff.out,
              ::testing::ContainsRegex(
                  "where\n\\+393216 B +[0-9.]+% +\\+393216 B +[0-9.]+% .* grow_kv_cache +.*torch_program.py:[0-9]+\n"));
}
#endif

INSTANTIATE_TEST_SUITE_P(Torch, TorchReleaseTest, ::testing::Values("2.1.2", "2.5.1", "2.8.0", "2.11.0", "newest"),
                         [](const auto& info) {
                           std::string name = "release_" + info.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

// --- Reports that do not agree with each other or with the driver's memory. ---

struct WrongReport {
  const char* name;
  const char* reason;
};

ProfileView RunDouble(const std::string& scenario, std::vector<std::string> environment = {},
                      const char* program = HBMPROF_DOUBLE_PROGRAM) {
  const std::string output = NewDirectory() + "/profile.pb.gz";
  environment.push_back("LD_PRELOAD=" HBMPROF_INJECTED);
  environment.push_back("LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_TORCH_DOUBLE_FOLDER);
  environment.push_back("HBMPROF_GPU_OUTPUT=" + output);
  const CommandResult run = RunCommand({program, "libc10_cuda.so", scenario}, environment, {"", 120});
  EXPECT_EQ(run.exit_code, 0) << "PyTorch's own profiler gets each report: " << run.out;
  if (scenario == "out of memory") {
    EXPECT_THAT(run.err, HasSubstr("hbmprof: out of memory on GPU:0: CUDACachingAllocator of 4.60 KiB failed\n"));
  } else {
    EXPECT_EQ(run.err, "");
  }
  return ViewProfile(output);
}

class TorchWrongReportTest : public ::testing::TestWithParam<WrongReport> {};

TEST_P(TorchWrongReportTest, ShowsSegmentsAndReason) {
  const ProfileView view = RunDouble(GetParam().name);
  EXPECT_EQ(view.Sum("inuse_objects", &IsBlock), 0);
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string(20 * kMiB));
  EXPECT_EQ(view.Comment("device GPU:0", "idle"), std::to_string(20 * kMiB));
  const std::string text = view.Comment("warning", "text");
  EXPECT_THAT(text, HasSubstr("PyTorch's%20blocks%20on%20GPU:0%20are%20not%20shown"));
  EXPECT_THAT(text, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    Torch, TorchWrongReportTest,
    ::testing::Values(WrongReport{"total", "its%20total%20is%20not%20the%20sum%20of%20its%20reports"},
                      WrongReport{"reserved", "more%20bytes%20allocated%20than%20reserved"},
                      WrongReport{"unknown free", "it%20frees%20a%20block%20that%20it%20has%20not%20reported"},
                      WrongReport{"free of another size", "it%20frees%20a%20block%20that%20it%20has%20not%20reported"},
                      WrongReport{"live twice", "at%20the%20address%20of%20a%20live%20block"}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name) c = c == ' ' ? '_' : c;
      return name;
    });

TEST(TorchDoubleTest, ReportsThatAgreeAreBlocks) {
  const ProfileView view = RunDouble("");
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), 3 * kMiB);
  EXPECT_EQ(view.Comment("device GPU:0", "idle"), std::to_string(17 * kMiB));
  ExpectNoWarning(view);
}

TEST(TorchDoubleTest, BlocksAreShownAfterTheirMemoryWasUnmapped) {
  const ProfileView view = RunDouble("sleep");
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), kMiB)
      << "the block that was allocated after the memory was mapped again";
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string((20 + 20) * kMiB)) << "nothing counts twice";
  EXPECT_EQ(view.Comment("device GPU:0", "idle"), std::to_string(19 * kMiB));
  EXPECT_THAT(view.comments, ::testing::Not(::testing::Contains(HasSubstr("warning"))));
}

TEST(TorchDoubleTest, BlocksOfAnotherAllocatorDoNotCountAsPyTorchs) {
  const ProfileView view = RunDouble("sleep", {}, HBMPROF_LINKED_DOUBLE_PROGRAM);
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), kMiB);
  const auto is_other = [](const ProfileView::Sample& sample) { return IsBlockOf("other", sample); };
  EXPECT_EQ(view.Sum("inuse_space", is_other), 4 * kMiB);
  EXPECT_EQ(view.Comment("device GPU:0", "in_use"), std::to_string((20 + 20 + 20) * kMiB));
  EXPECT_THAT(view.comments, ::testing::Not(::testing::Contains(HasSubstr("warning"))));
}

TEST(TorchDoubleTest, FindsFunctionOfReloadedLibrary) {
  const CommandResult run = RunCommand(
      {HBMPROF_DOUBLE_PROGRAM, HBMPROF_TORCH_DOUBLE, "", "twice"},
      {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_TORCH_DOUBLE_FOLDER}, {"", 120});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "made 4 got 4\nmade 4 got 4\n");
}

TEST(TorchDoubleTest, UnknownDeviceNumberIsAWarning) {
  const ProfileView view = RunDouble("device number");
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), 3 * kMiB);
  EXPECT_THAT(view.Comment("warning", "text"), HasSubstr("whose%20number%20is%20not%20from%200%20to%2063"));
}

TEST(TorchDoubleTest, SegmentsWithoutReportsAreAWarning) {
  EXPECT_THAT(RunDouble("silence").Comment("warning", "text"), HasSubstr("it%20reports%20no%20blocks"));
  ExpectNoWarning(RunDouble("silence", {"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}));
}

TEST(TorchDoubleTest, OutOfMemoryIsAWarning) {
  const ProfileView view = RunDouble("out of memory");
  EXPECT_THAT(view.Comment("warning", "text"),
              AllOf(HasSubstr("the%20last%20one%20for%20a%20tensor%20of%204.60%20KiB%20(it%20requests%20"
                              "whole%20segments%20from%20the%20driver),%20with%20"),
                    Not(HasSubstr("bytes%20allocated"))));
  EXPECT_EQ(view.Sum("inuse_space", &IsBlock), 3 * kMiB);
}

#if defined(HBMPROF_TOOL)
TEST(TorchDoubleTest, RunAndExplainSayWhyBlocksAreNotShown) {
  const std::string folder = NewDirectory();
  const CommandResult run = RunCommand({HBMPROF_TOOL, "run", "--library", HBMPROF_INJECTED, "--output", folder, "--",
                                        HBMPROF_DOUBLE_PROGRAM, "libc10_cuda.so", "live twice"},
                                       {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_TORCH_DOUBLE_FOLDER}, {"", 120});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err,
              HasSubstr("\n  PyTorch's blocks on GPU:0 are not shown, only its segments: it reports an allocation "
                        "at the address of a live block\n"));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const CommandResult answer = RunCommand({HBMPROF_TOOL, "explain", entry.path().string()});
    EXPECT_EQ(answer.exit_code, 1);
    EXPECT_THAT(answer.out, HasSubstr("PyTorch's blocks on GPU:0 are not shown, only its segments"));
  }
}
#endif

TEST(TorchDoubleTest, NothingIsRecordedWhenRecordingIsOff) {
  const CommandResult run = RunCommand(
      {HBMPROF_DOUBLE_PROGRAM, "libc10_cuda.so", ""},
      {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_TORCH_DOUBLE_FOLDER, "HBMPROF=0"},
      {"", 120});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
}

}  // namespace
