// The injected library on a real GPU and the real driver. The programs and the library are in the folder of this test.
// Skips with the reason if there is no usable GPU.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

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

std::string Beside(const std::string& name) {
  static const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return here / name;
}

struct Result {
  CommandResult run;
  ProfileView view{hbmprof_test::Profile()};
};

Result RunInjected(const std::string& program, const std::vector<std::string>& arguments) {
  const std::string output = NewDirectory() + "/profile.pb.gz";
  std::vector<std::string> command = {Beside(program)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Result result;
  result.run = RunCommand(command, {"LD_PRELOAD=" + Beside("libhbmprof_gpu.so"), "HBMPROF_GPU_OUTPUT=" + output});
  if (result.run.exit_code == 0) result.view = ViewProfile(output);
  return result;
}

// 127: the dynamic linker misses a library.
#define SKIP_UNLESS_POSSIBLE(run)                                                           \
  if ((run).exit_code == -1) GTEST_SKIP() << "not built: the toolkit lacked what it needs"; \
  if ((run).exit_code == 77) GTEST_SKIP() << (run).out;                                     \
  if ((run).exit_code == 127) GTEST_SKIP() << (run).err;                                    \
  ASSERT_EQ((run).exit_code, 0) << (run).err

class InjectGpuTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(InjectGpuTest, RecordsOnceWithUserFrame) {
  const auto& [program, mode] = GetParam();
  const Result result = RunInjected(program, {mode});
  SKIP_UNLESS_POSSIBLE(result.run);
  std::istringstream out(result.run.out);
  std::string kind;
  int64_t bytes = 0;
  int64_t taken = 0;
  int64_t granularity = 0;
  out >> kind >> bytes >> taken >> granularity;
  int64_t found = 0;
  int64_t objects = 0;
  for (const ProfileView::Sample& sample : result.view.samples) {
    if (!sample.Has("user_allocates") || sample.labels.at("kind") != kind) continue;
    found += sample.values.at("inuse_space");
    objects += sample.values.at("inuse_objects");
  }
  EXPECT_EQ(found, bytes);
  EXPECT_EQ(objects, 1);
  EXPECT_EQ(result.view.Comment("tracker", "replaced_records"), "0");
  if (kind == "managed" || kind == "pinned_host") return;  // not, or not only, in the memory of the device
  // The driver has also allocated the idle memory of pools and graphs.
  const std::string device = mode == "second_device" ? "device GPU:1" : "device GPU:0";
  const bool pooled = mode == "async" || mode == "pool" || kind == "graph";
  const int64_t idle = pooled ? std::stoll("0" + result.view.Comment(device, "driver_cache")) : 0;
  std::printf("recorded %" PRId64 ", idle in pools %" PRId64 ", the driver has taken %" PRId64 " in steps of %" PRId64
              "\n",
              found, idle, taken, granularity);
  EXPECT_NEAR(static_cast<double>(found + idle), static_cast<double>(taken), static_cast<double>(granularity));
}

INSTANTIATE_TEST_SUITE_P(Gpu, InjectGpuTest,
                         ::testing::Combine(::testing::Values("gpu_program_static", "gpu_program_shared",
                                                              "gpu_program_per_thread"),
                                            ::testing::Values("linear", "pitch", "managed", "pinned", "async", "pool",
                                                              "array", "vmm", "graph", "captured", "second_device")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

TEST(InjectGpuTest, UntrackedMemoryIsUnaccounted) {
  const Result before = RunInjected("gpu_program_static", {"linear"});
  SKIP_UNLESS_POSSIBLE(before.run);
  const Result after = RunInjected("gpu_program_static", {"behind_our_back"});
  SKIP_UNLESS_POSSIBLE(after.run);
  const std::string unaccounted = after.view.Comment("device GPU:0", "unaccounted");
  const std::string baseline = after.view.Comment("device GPU:0", "baseline");
  ASSERT_NE(unaccounted, "n/a");
  ASSERT_NE(baseline, "");
  const int64_t grown = std::stoll(unaccounted) - std::stoll(baseline);
  std::printf("unaccounted %s (%s), baseline %s\n", unaccounted.c_str(),
              after.view.Comment("device GPU:0", "driver_scope").c_str(), baseline.c_str());
  EXPECT_NEAR(static_cast<double>(grown), 64 << 20, 4 << 20) << "within the driver's granularity";
}

TEST(InjectGpuTest, KernelProgramIsRecorded) {
  const Result result = RunInjected("gpu_program_kernel", {});
  SKIP_UNLESS_POSSIBLE(result.run);
  EXPECT_EQ(result.view.SumUnder("inuse_space", "user_allocates"), 4 << 20);
  std::printf("code, as far as it could be measured: %" PRId64 "\n",
              result.view.SumWhere("inuse_space", "kind", "executable"));
}

// NVIDIA's libraries, each of which contains its own runtime.
struct Library {
  const char* program;
  const char* name;    // its argument
  const char* module;  // what its file's name starts with

  friend std::ostream& operator<<(std::ostream& out, const Library& library) { return out << library.name; }
};

class LibraryGpuTest : public ::testing::TestWithParam<Library> {
 protected:
  // Returns whether the sample is device memory other than code. The driver decides how much memory code takes.
  static bool IsMemory(const ProfileView::Sample& sample) {
    const auto kind = sample.labels.find("kind");
    return kind != sample.labels.end() && (kind->second == "device" || kind->second == "vmm");
  }
};

TEST_P(LibraryGpuTest, MemoryOfLibraryIsRecordedExactly) {
  const Library& library = GetParam();
  const Result held = RunInjected(library.program, {library.name, "hold"});
  SKIP_UNLESS_POSSIBLE(held.run);
  EXPECT_GT(held.view.Sum("alloc_objects", [&](const auto& sample) { return sample.HasModule(library.module); }), 0);

  const int64_t bytes = held.view.Sum("inuse_space", IsMemory);
  const int64_t objects = held.view.Sum("inuse_objects", IsMemory);
  int64_t taken = 0;
  int64_t granularity = 0;
  std::istringstream(held.run.out) >> taken >> granularity;
  std::printf("recorded %" PRId64 " in %" PRId64 " objects, the driver has taken %" PRId64 " in steps of %" PRId64 "\n",
              bytes, objects, taken, granularity);
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(taken), static_cast<double>(granularity * objects));

  const Result freed = RunInjected(library.program, {library.name, "free"});
  ASSERT_EQ(freed.run.exit_code, 0) << freed.run.err;
  EXPECT_EQ(freed.view.Sum("inuse_space", IsMemory), 0);
}

INSTANTIATE_TEST_SUITE_P(Gpu, LibraryGpuTest,
                         ::testing::Values(Library{"gpu_program_cublas", "cublas", "libcublas"},
                                           Library{"gpu_program_cublas", "cublaslt", "libcublasLt"},
                                           Library{"gpu_program_nccl", "nccl", "libnccl"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(InjectGpuTest, ReportsCostOfACall) {
  const CommandResult plain = RunCommand({Beside("gpu_program_static"), "time"});
  SKIP_UNLESS_POSSIBLE(plain);
  const Result injected = RunInjected("gpu_program_static", {"time"});
  double plain_ns[2] = {};
  double injected_ns[2] = {};
  std::istringstream(plain.out) >> plain_ns[0] >> plain_ns[1];
  std::istringstream(injected.run.out) >> injected_ns[0] >> injected_ns[1];
  std::printf("cudaMalloc+cudaFree: %.0f ns, injected %.0f ns: x%.2f\n", plain_ns[0], injected_ns[0],
              injected_ns[0] / plain_ns[0]);
  std::printf("cudaMallocAsync+cudaFreeAsync: %.0f ns, injected %.0f ns: x%.2f\n", plain_ns[1], injected_ns[1],
              injected_ns[1] / plain_ns[1]);
  EXPECT_GT(plain_ns[0], 0);
}

}  // namespace
