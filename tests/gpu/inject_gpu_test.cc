// The injected library on a real GPU and the real driver. Programs and library lie beside this test, wherever that is.
// Skips, and says why, where there is no usable GPU.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"

namespace {

using ::hbmprof_test::CheckProfile;
using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::ReadProfile;
using ::hbmprof_test::RunCommand;

std::string Beside(const std::string& name) {
  static const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return here / name;
}

std::string Scratch() {
  std::string path = ::testing::TempDir() + "/hbmprof_gpu_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path;
  return path;
}

struct Result {
  CommandResult run;
  ProfileView view{hbmprof_test::Profile()};
};

Result RunInjected(const std::string& program, const std::string& mode) {
  const std::string output = Scratch() + "/profile.pb.gz";
  Result result;
  result.run = RunCommand({Beside(program), mode},
                          {"LD_PRELOAD=" + Beside("libhbmprof_cuda.so"), "HBMPROF_CUDA_OUTPUT=" + output});
  if (result.run.exit_code != 0) return result;
  const auto profile = ReadProfile(output);
  if (!profile.ok()) {
    ADD_FAILURE() << profile.status();
    return result;
  }
  EXPECT_EQ(CheckProfile(*profile), "");
  result.view = ProfileView(*profile);
  return result;
}

#define SKIP_UNLESS_POSSIBLE(run)                       \
  if ((run).exit_code == 77) GTEST_SKIP() << (run).out; \
  ASSERT_EQ((run).exit_code, 0) << (run).err

class InjectGpuTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(InjectGpuTest, OneRecordOfTheRightSizeKindAndUserFrame) {
  const auto& [program, mode] = GetParam();
  const Result result = RunInjected(program, mode);
  SKIP_UNLESS_POSSIBLE(result.run);
  std::istringstream out(result.run.out);
  std::string kind;
  int64_t bytes = 0;
  out >> kind >> bytes;
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
}

INSTANTIATE_TEST_SUITE_P(Gpu, InjectGpuTest,
                         ::testing::Combine(::testing::Values("gpu_program_static", "gpu_program_shared",
                                                              "gpu_program_per_thread"),
                                            ::testing::Values("linear", "pitch", "managed", "pinned", "async", "pool",
                                                              "array", "vmm", "graph", "captured", "second_device")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

TEST(InjectGpuTest, WhatIsTakenBehindOurBackIsUnaccounted) {
  const Result before = RunInjected("gpu_program_static", "linear");
  SKIP_UNLESS_POSSIBLE(before.run);
  const Result after = RunInjected("gpu_program_static", "behind_our_back");
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

TEST(InjectGpuTest, CublassWorkspaceIsSeenWithItsLibraryInTheStack) {
  const Result result = RunInjected("gpu_program_cublas", "cublas");
  if (result.run.exit_code == -1) GTEST_SKIP() << "not built: no cuBLAS in the toolkit";
  SKIP_UNLESS_POSSIBLE(result.run);
  EXPECT_GT(result.view.Sum("inuse_objects"), 1);
}

TEST(InjectGpuTest, ReportsWhatACallCosts) {
  const CommandResult plain = RunCommand({Beside("gpu_program_static"), "time"});
  SKIP_UNLESS_POSSIBLE(plain);
  const Result injected = RunInjected("gpu_program_static", "time");
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
