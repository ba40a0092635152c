#include "src/core/run_environment.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/descriptor.h"

namespace hbmprof::internal {
namespace {

constexpr std::string_view operator""_block(const char* text, size_t size) { return {text, size}; }

TEST(RunEnvironment, HasTheKnownVariables) {
  EXPECT_EQ(RunEnvironmentIn(""), Variables());
  EXPECT_EQ(RunEnvironmentIn("WORLD_SIZE=16\0RANK=3\0RANK_OF_ANOTHER_PROGRAM=4\0SLURM_PROCID=\0RANK=9\0"_block),
            (Variables{{"RANK", "3"}, {"WORLD_SIZE", "16"}}));
  EXPECT_EQ(RunEnvironmentIn("PYTORCH_ALLOC_CONF=expandable_segments:True"),
            (Variables{{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}}));
}

// A program can overwrite its environment, as for its title in lists of processes.
TEST(RunEnvironment, SkipsWhatIsNoVariable) {
  EXPECT_EQ(RunEnvironmentIn("server: idle\0\0=\0==\0RANK=3"_block), (Variables{{"RANK", "3"}}));
}

TEST(RunEnvironment, CutsLongValues) {
  const Variables variables = RunEnvironmentIn("POD_NAME=" + std::string(100'000, 'x'));
  ASSERT_EQ(variables.size(), 1u);
  EXPECT_EQ(variables[0].second, std::string(256, 'x'));
}

TEST(RunEnvironment, IsThatOfThisProcess) {
  EXPECT_EQ(RunEnvironment(), RunEnvironmentIn(ReadProcFile("/proc/self/environ")));
}

}  // namespace
}  // namespace hbmprof::internal
