// The examples of the adapters: each runs, and its profile shows the memory of the example's functions.
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/adapters/onnx_model.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/temporary_directory.h"

namespace {

using hbmprof_test::CommandResult;
using hbmprof_test::ProfileView;

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

class AdapterExampleTest : public testing::Test {
 protected:
  // Runs the example, or skips the test if it is not built here.
  void Run(const std::string& name, std::vector<std::string> arguments = {}) {
    const std::string program = HBMPROF_ADAPTER_EXAMPLES "/adapter_example_" + name;
    if (access(program.c_str(), X_OK) != 0) GTEST_SKIP() << "not built: the library that it uses is missing";
    const std::string path = directory_ + "/profile.pb.gz";
    arguments.insert(arguments.begin(), program);
    arguments.push_back(path);
    const CommandResult run = hbmprof_test::RunCommand(arguments);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    out_ = run.out;
    for (const ProfileView::Sample& sample : hbmprof_test::ViewProfile(path).samples) {
      for (const std::string& function : sample.functions) {
        const std::string key = function.substr(0, function.find('(')) + "/" + sample.labels.at("kind");
        sums_[key] += sample.values.at("inuse_space");
      }
      allocators_.insert({sample.labels.at("allocator"), 0});
    }
  }

  const std::string directory_ = hbmprof_test::NewDirectory();
  std::string out_;
  std::map<std::string, int64_t> sums_;  // bytes in use under each function, by kind
  std::map<std::string, int> allocators_;
};

TEST_F(AdapterExampleTest, CubShowsBlocksAndIdleMemory) {
  Run("cub_cache");
  if (IsSkipped() || HasFatalFailure()) return;
  // CUB rounds 1 MiB up to 2 MiB, and 100 KiB to 256 KiB.
  EXPECT_EQ(out_, "in use " + std::to_string(6 * kMiB + 256 * kKiB) + " B, idle in the pool " +
                      std::to_string(256 * kKiB) + " B\n");
  EXPECT_EQ(sums_["AllocateKeys/device"], 6 * kMiB);
  EXPECT_EQ(sums_["[idle memory of cub]/pool"], 256 * kKiB);
  EXPECT_EQ(allocators_.count("cub"), 1u);
}

TEST_F(AdapterExampleTest, CudaResourceShowsWeights) {
  Run("cuda_resource");
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(out_, "in use " + std::to_string(3 * kMiB) + " B\n");
  EXPECT_EQ(sums_["LoadWeights/device"], 3 * kMiB);
  EXPECT_EQ(sums_["MakeActivations/device"], 0);
  EXPECT_EQ(allocators_.count("cuda_mr"), 1u);
}

TEST_F(AdapterExampleTest, TensorRtShowsEngine) {
  Run("tensorrt_allocator");
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(sums_["DeserializeEngine/device"], 8 * kMiB);
  EXPECT_EQ(sums_["CreateContext/device"], 0);
}

TEST_F(AdapterExampleTest, OnnxRuntimeShowsResult) {
  const std::string model = directory_ + "/model.onnx";
  std::ofstream(model, std::ios::binary) << onnx_model::MatMulRelu(256);
  Run("onnxruntime_session", {model});
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_GE(sums_["Infer/device"], 256 * kKiB);
  EXPECT_EQ(allocators_.count("onnxruntime"), 1u);
}

}  // namespace
