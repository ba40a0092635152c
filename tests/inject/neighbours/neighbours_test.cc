// Programs on the fake driver with the injected library and another library that interposes or observes, each before
// the other. The other libraries of this folder interpose in the way of tools that are used in practice. Each test
// prints a row of the table in docs/preload.md, which scripts/neighbours.sh makes, and checks that it is there.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/program_run.h"
#include "tests/support/temporary_directory.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ExpectDone;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

enum Order { kBefore, kAfter };

std::string NameOf(const ::testing::TestParamInfo<Order>& info) { return info.param == kBefore ? "Before" : "After"; }

// One way to load the other library: by LD_PRELOAD, before or after the injected one.
class NeighbourTest : public ::testing::TestWithParam<Order> {
 protected:
  // Runs the command with both libraries, on the fake driver unless the environment has another LD_LIBRARY_PATH.
  CommandResult Run(const std::vector<std::string>& command, std::vector<std::string> environment = {}) {
    const std::string folder = NewDirectory();
    profile_ = folder + "/profile.pb.gz";
    log_ = folder + "/log";
    std::string preload = HBMPROF_INJECTED;
    if (!library_.empty()) {
      preload = GetParam() == kBefore ? library_ + ":" HBMPROF_INJECTED : HBMPROF_INJECTED ":" + library_;
    }
    environment.insert(environment.begin(), {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "LD_PRELOAD=" + preload,
                                             "HBMPROF_GPU_OUTPUT=" + profile_, "NEIGHBOUR_LOG=" + log_});
    ++programs_;
    return RunCommand(command, environment);
  }

  // Runs a program of matrix_program.cc, and expects that it does what it does alone and that its allocation of `bytes`
  // is recorded once.
  ProfileView RunMatrix(const std::string& route, const std::string& kind, const std::string& mode, int64_t bytes,
                        const std::vector<std::string>& environment = {}) {
    SCOPED_TRACE(route + " " + kind + " " + mode);
    ExpectDone(Run({HBMPROF_INJECT_PROGRAMS "/inject_matrix_" + route, kind, mode}, environment));
    const ProfileView view = ViewProfile(profile_);
    EXPECT_EQ(view.Sum("alloc_objects"), 1);
    EXPECT_EQ(view.Sum("alloc_space"), bytes);
    EXPECT_EQ(view.SumUnder("alloc_space", "user_allocates"), bytes);
    EXPECT_EQ(view.Sum("inuse_space"), mode == "hold" ? bytes : 0);
    EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
    EXPECT_EQ(view.Comment("tracker", "replaced_records"), "0");
    EXPECT_EQ(view.Comment("tracker", "dropped_records"), "0");
    return view;
  }

  const std::string& ProfilePath() const { return profile_; }

  // What the other library has counted (counts.h).
  std::string Log() const {
    std::ifstream file(log_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  // Prints the row of docs/preload.md, and expects it there.
  void ExpectRow(const std::string& neighbour, const std::string& order, const std::string& result) const {
    if (HasFailure()) return;
    const std::string row = "| " + neighbour + " | " + order + " | " + result + " |\n";
    std::printf("%s", row.c_str());
    std::ifstream file(HBMPROF_TABLE);
    const std::string table(std::istreambuf_iterator<char>(file), {});
    EXPECT_NE(table.find(row), std::string::npos) << "not in the table: scripts/neighbours.sh makes it";
  }
  void ExpectPreloadRow(const std::string& neighbour, const std::string& result) const {
    ExpectRow(neighbour, GetParam() == kBefore ? "before hbmprof" : "after hbmprof", result);
  }
  std::string Programs() const { return std::to_string(programs_) + " programs"; }

  std::string library_;
  int programs_ = 0;

 private:
  std::string profile_, log_;
};

constexpr struct {
  const char* name;
  int64_t bytes;
} kKinds[] = {{"linear", 12345}, {"managed", 2222}, {"pinned", 3333}, {"async", 4444}, {"vmm", 2 << 20}};

TEST_P(NeighbourTest, ThatInterposesDlsymAndTheDriver) {
  library_ = HBMPROF_DLSYM_NEIGHBOUR;
  for (const char* route : {"linked", "dlsym", "get_proc_address", "static", "shared"}) {
    for (const auto& kind : kKinds) {
      for (const std::string mode : {"hold", "free"}) {
        RunMatrix(route, kind.name, mode, kind.bytes);
        // Mapped physical memory is released in both modes.
        const bool is_freed = mode == "free" || kind.name == std::string("vmm");
        const std::string opened = route == std::string("linked") ? " 0\n" : " 1\n";
        EXPECT_EQ(Log(), (is_freed ? "1 1" : "1 0") + opened) << route << " " << kind.name << " " << mode;
      }
    }
  }
  ExpectPreloadRow("interposes `dlsym` and the driver's functions, as HAMi-core does",
                   "both see each call, once (" + Programs() + ")");
}

TEST_P(NeighbourTest, ThatExportsTheDriversFunctions) {
  library_ = HBMPROF_EXPORTS_NEIGHBOUR;
  for (const auto& kind : kKinds) {
    RunMatrix("linked", kind.name, "free", kind.bytes);
    EXPECT_EQ(Log(), GetParam() == kBefore ? "1 1 0\n" : "0 0 0\n") << kind.name;
  }
  ExpectPreloadRow("exports the driver's functions, but not `dlsym`",
                   GetParam() == kBefore ? "both see each call of programs that link the driver (" + Programs() + ")"
                                         : "hbmprof sees each call, the library none: name it before hbmprof");
}

TEST_P(NeighbourTest, ThatInterposesTheRuntime) {
  library_ = HBMPROF_RUNTIME_NEIGHBOUR;
  for (const char* mode : {"hold", "free"}) {
    const std::string counts = mode == std::string("hold") ? "1 0 0\n" : "1 1 0\n";
    RunMatrix("shared", "linear", mode, 12345);
    EXPECT_EQ(Log(), counts);
    const ProfileView view = RunMatrix("shared", "linear", mode, 2 << 20, {"NEIGHBOUR_MAPS=1"});
    EXPECT_EQ(view.SumWhere("alloc_space", "kind", "vmm"), 2 << 20);
    EXPECT_EQ(Log(), counts);
  }
  ExpectPreloadRow(
      "interposes `cudaMalloc` and `cudaFree`, as torch_memory_saver does",
      "both see each call, once; memory that it maps is recorded with the program's stack (" + Programs() + ")");
}

#define SKIP_WITHOUT(library) \
  library_ = library;         \
  if (library_.empty()) GTEST_SKIP() << #library ": not found when this was built"

TEST_P(NeighbourTest, IsJemalloc) {
  SKIP_WITHOUT(HBMPROF_JEMALLOC);
  for (const char* route : {"linked", "dlsym", "get_proc_address", "static", "shared"}) {
    for (const auto& kind : kKinds) RunMatrix(route, kind.name, "free", kind.bytes);
  }
  ExpectPreloadRow("jemalloc", "each allocation is recorded once (" + Programs() + ")");
}

TEST_P(NeighbourTest, IsTcmalloc) {
  SKIP_WITHOUT(HBMPROF_TCMALLOC);
  for (const char* route : {"linked", "dlsym", "get_proc_address", "static", "shared"}) {
    for (const auto& kind : kKinds) RunMatrix(route, kind.name, "free", kind.bytes);
  }
  ExpectPreloadRow("tcmalloc", "each allocation is recorded once (" + Programs() + ")");
}

TEST_P(NeighbourTest, IsAddressSanitizer) {
  SKIP_WITHOUT(HBMPROF_ASAN);
  const std::string name = "AddressSanitizer's library";
  if (GetParam() == kAfter) {
    const CommandResult run = Run({HBMPROF_INJECT_PROGRAMS "/inject_matrix_linked", "linear", "free"});
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.err, HasSubstr("ASan runtime does not come first in initial library list"));
    ExpectPreloadRow(name, "AddressSanitizer ends the program with a message");
    return;
  }
  for (const char* route : {"linked", "dlsym", "get_proc_address", "static", "shared"}) {
    // The sanitizer looks for leaks of the program, which ends while it holds memory of the fake driver.
    for (const auto& kind : kKinds) RunMatrix(route, kind.name, "free", kind.bytes, {"ASAN_OPTIONS=detect_leaks=0"});
  }
  ExpectPreloadRow(name, "each allocation is recorded once (" + Programs() + ")");
}

TEST_P(NeighbourTest, SubscribesToCupti) {
  library_ = HBMPROF_TOOL_NEIGHBOUR;
  const std::string cupti = HBMPROF_CUPTI_FOLDER;
  if (cupti.empty()) GTEST_SKIP() << "no CUPTI in build/pypi: scripts/test.sh reads it from PyPI";
  // As root, a real driver makes /dev/nvidiactl. Programs that are started without this right cannot.
  prctl(PR_CAPBSET_DROP, CAP_MKNOD, 0, 0, 0);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(HBMPROF_REAL_DRIVERS, error)) {
    SCOPED_TRACE(entry.path());
    const std::vector<std::string> environment = {"LD_LIBRARY_PATH=" + entry.path().string() + ":" + cupti,
                                                  "NEIGHBOUR_CUPTI=libcupti.so.12"};
    const CommandResult run = Run({HBMPROF_DRIVER_PROGRAM, "threads"}, environment);
    std::vector<std::string> alone = environment;
    alone.push_back("LD_PRELOAD=" + library_);
    const CommandResult expected = RunCommand({HBMPROF_DRIVER_PROGRAM, "threads"}, alone);
    EXPECT_EQ(run.exit_code, expected.exit_code);
    EXPECT_EQ(run.out, expected.out);
    EXPECT_EQ(run.err, expected.err);
    EXPECT_THAT(run.out, HasSubstr("cuptiSubscribe: "));
  }
  if (programs_ == 0) GTEST_SKIP() << "no real driver library is in build/driver: scripts/test.sh downloads them";
  ExpectPreloadRow("subscribes to CUPTI, on real drivers without a device", "the same answers as without hbmprof");
}

INSTANTIATE_TEST_SUITE_P(Preloaded, NeighbourTest, ::testing::Values(kBefore, kAfter), NameOf);

// Libraries that the program, the driver or NVTX loads.
class LoadedNeighbourTest : public NeighbourTest {};

TEST_P(LoadedNeighbourTest, IsAProfilerPlugin) {
  ExpectDone(Run({HBMPROF_PLUGIN_PROGRAM, HBMPROF_PLUGIN}));
  const ProfileView view = ViewProfile(ProfilePath());
  EXPECT_EQ(view.Sum("inuse_space"), 12345);
  EXPECT_EQ(view.Sum("alloc_space"), 12345 + 2 * 4096 + 1000);
  EXPECT_EQ(view.Sum("alloc_objects"), 4);
  EXPECT_EQ(view.SumWhere("alloc_space", "kind", "pinned_host"), 1000);
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
  EXPECT_EQ(Log(), "2 2 0\n");
  ExpectRow("a profiler plugin, as NCCL loads it", "loaded by the program",
            "both work; the plugin's own memory is recorded too");
}

TEST_P(LoadedNeighbourTest, IsNamedByCudaInjection64Path) {
  const std::vector<std::string> environment = {"CUDA_INJECTION64_PATH=" HBMPROF_TOOL_NEIGHBOUR};
  for (const char* route : {"linked", "dlsym", "get_proc_address", "static", "shared"}) {
    for (const auto& kind : kKinds) {
      RunMatrix(route, kind.name, "free", kind.bytes, environment);
      EXPECT_EQ(Log(), "1 0 0\n") << "the driver has loaded it once";
    }
  }
  ExpectRow("the library of `CUDA_INJECTION64_PATH`", "loaded by the driver",
            "both work; each allocation is recorded once (" + Programs() + ")");
}

#ifdef HBMPROF_NVTX_PROGRAM
TEST_P(LoadedNeighbourTest, IsNamedByNvtxInjection64Path) {
  const CommandResult run = Run({HBMPROF_NVTX_PROGRAM}, {"NVTX_INJECTION64_PATH=" HBMPROF_TOOL_NEIGHBOUR});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ViewProfile(ProfilePath()).Sum("inuse_space"), 511 * 1024);
  EXPECT_EQ(Log(), "1 0 0\n");
  ExpectRow("the library of `NVTX_INJECTION64_PATH`", "loaded by NVTX", "both work; `--nvtx` has no effect");
}
#endif

INSTANTIATE_TEST_SUITE_P(Loaded, LoadedNeighbourTest, ::testing::Values(kAfter), NameOf);

#ifdef HBMPROF_NVTX_PROGRAM
TEST(NeighboursTableTest, HasARowForEachTest) {
  std::ifstream file(HBMPROF_TABLE);
  int rows = 0;
  bool is_there = false;  // in the section of the table
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) is_there = line == "## Other profilers and libraries";
    rows += is_there && line.rfind("| ", 0) == 0;
  }
  const int heads = 1, this_test = 1;
  EXPECT_EQ(rows - heads, ::testing::UnitTest::GetInstance()->total_test_count() - this_test);
}
#endif

}  // namespace
