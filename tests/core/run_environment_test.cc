#include "src/core/run_environment.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

class RunEnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override { clearenv(); }
};

TEST_F(RunEnvironmentTest, HasTheVariablesThatAreSetNow) {
  EXPECT_EQ(RunEnvironment(), Variables());
  setenv("WORLD_SIZE", "16", 1);
  setenv("RANK", "3", 1);
  setenv("RANK_OF_ANOTHER_PROGRAM", "4", 1);
  setenv("SLURM_PROCID", "", 1);
  EXPECT_EQ(RunEnvironment(), (Variables{{"RANK", "3"}, {"WORLD_SIZE", "16"}}));
  unsetenv("RANK");
  EXPECT_EQ(RunEnvironment(), (Variables{{"WORLD_SIZE", "16"}}));
}

TEST_F(RunEnvironmentTest, CutsLongValues) {
  setenv("POD_NAME", std::string(100'000, 'x').c_str(), 1);
  const Variables variables = RunEnvironment();
  ASSERT_EQ(variables.size(), 1u);
  EXPECT_GE(variables[0].second.size(), 256u);
  EXPECT_LT(variables[0].second.size(), 400u);
}

// setenv frees the list of variables when it becomes longer. Reading it as getenv does would read freed memory.
TEST_F(RunEnvironmentTest, ReadsWhileAnotherThreadChangesTheEnvironment) {
  setenv("RANK", "3", 1);
  std::atomic<bool> end{false};
  std::thread changes([&end] {
    for (int i = 0; !end; ++i) {
      setenv(("VARIABLE_" + std::to_string(i % 100)).c_str(), "value", 1);
      if (i % 100 == 99) clearenv();
    }
  });
  for (int i = 0; i < 50; ++i) RunEnvironment();
  end = true;
  changes.join();
  clearenv();
  setenv("RANK", "5", 1);
  EXPECT_EQ(RunEnvironment(), (Variables{{"RANK", "5"}}));
}

}  // namespace
}  // namespace hbmprof::internal
