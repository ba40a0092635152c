// A Python program that calls a real PJRT plugin through libhbmprof_pjrt.so: the functions in its profile are compared
// with Python's own stacks, for each interpreter that is found.
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/python/python_programs.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace hbmprof_test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// The frames of Python functions in the stack of each buffer that is in use, and its call location, by size; and the
// output of the program.
struct Stacks {
  std::map<int64_t, std::string> locations;
  std::map<int64_t, std::vector<Frame>> recorded;
  std::map<int64_t, ExpectedStack> expected;
};

Stacks RunOnPlugin(const std::string& python, std::vector<std::string> environment) {
  const std::string directory = NewDirectory();
  const std::string output = directory + "/profile.pb.gz";
  environment.insert(environment.end(),
                     {"HBMPROF_PJRT_PLUGIN=" HBMPROF_PLUGIN, "HBMPROF_OUTPUT=" + output, "HBMPROF_STACK_DEPTH=512"});
  ExpectDone(RunCommand({python, HBMPROF_PLUGIN_PROGRAM, HBMPROF_PJRT_SHIM, directory + "/expected"}, environment));
  Stacks stacks;
  stacks.expected = ReadExpected(directory + "/expected");
  const auto profile = ReadProfile(output);
  EXPECT_TRUE(profile.ok()) << profile.status();
  if (!profile.ok()) return stacks;
  EXPECT_EQ(CheckProfile(*profile), "");
  const ProfileView view(*profile);
  for (size_t i = 0; i < view.samples.size(); ++i) {
    if (view.samples[i].labels.at("kind") != "device") continue;
    EXPECT_EQ(view.samples[i].values.at("inuse_objects"), 1);
    const auto& sample = profile->sample(static_cast<int>(i));
    const int64_t size = SizeOf(*profile, sample);
    stacks.recorded[size] = PythonFrames(FramesOf(*profile, sample));
    const auto& labels = view.samples[i].labels;
    if (const auto found = labels.find("call_location"); found != labels.end()) stacks.locations[size] = found->second;
  }
  return stacks;
}

class PluginInPythonTest : public PythonTest {
 protected:
  void SetUp() override {
    if (access(HBMPROF_PLUGIN, R_OK) != 0) GTEST_SKIP() << "no " HBMPROF_PLUGIN ": scripts/test.sh installs it";
  }
};

TEST_P(PluginInPythonTest, StacksMatchPythonsTraceback) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  for (const std::string& python : interpreters) {
    SCOPED_TRACE(python);
    const Stacks stacks = RunOnPlugin(python, {});
    EXPECT_EQ(stacks.recorded.size(), 4u);
    for (const auto& [size, stack] : stacks.expected) {
      EXPECT_THAT(stacks.recorded.at(size), ElementsAreArray(stack.frames)) << size;
    }
  }
}

TEST_P(PluginInPythonTest, OutputsHaveCallLocationWithoutInterpreter) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  const Stacks stacks = RunOnPlugin(interpreters.front(), {"HBMPROF_UNWINDER=native"});
  EXPECT_EQ(stacks.recorded.size(), 4u);
  for (const auto& [size, frames] : stacks.recorded) EXPECT_THAT(frames, IsEmpty()) << size;
  EXPECT_EQ(stacks.locations.size(), 2u);
  for (const auto& [size, location] : stacks.locations) {
    const Frame& innermost = stacks.expected.at(size).frames.front();
    EXPECT_EQ(location, innermost.file + ":" + std::to_string(innermost.line)) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, PluginInPythonTest, ALL_VERSIONS, NameOf);

}  // namespace
}  // namespace hbmprof_test
