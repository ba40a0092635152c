// The example on a real PJRT plugin: the CPU plugin that scripts/test.sh installs, or the one that
// HBMPROF_TEST_PJRT_PLUGIN names (for a TPU or GPU).
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/program_run.h"

namespace {

using hbmprof_test::CommandResult;
using hbmprof_test::ProfileView;
using hbmprof_test::RunCommand;
using hbmprof_test::ViewProfile;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kLeaked = 300 * 8 * 32 * 4;

class PjrtInference : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const named = std::getenv("HBMPROF_TEST_PJRT_PLUGIN");
    plugin_ = named != nullptr ? named : HBMPROF_PYPI "/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";
    if (access(plugin_.c_str(), R_OK) != 0) {
      GTEST_SKIP() << "no real PJRT plugin here (scripts/test.sh installs one where PyPI is reachable)";
    }
  }

  // Runs the example on `plugin` and returns its output.
  CommandResult Serve(std::vector<std::string> options, const std::string& plugin,
                      const std::vector<std::string>& environment = {}) {
    options.insert(options.begin(), HBMPROF_PJRT_INFERENCE);
    options.push_back(plugin);
    options.push_back(HBMPROF_SOURCE_DIR "/examples/pjrt_inference/encoder.mlir");
    CommandResult run = RunCommand(options, environment);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run;
  }
  CommandResult ServeWithProfiles(std::vector<std::string> options) {
    options.insert(options.end(), {"--before", before_, "--after", after_});
    return Serve(options, plugin_);
  }
  // Returns the line that begins with `word`.
  static std::string Line(const CommandResult& run, const std::string& word) {
    const size_t start = run.out.find(word);
    return start == std::string::npos ? "" : run.out.substr(start, run.out.find('\n', start) - start);
  }

  const std::string directory_ = hbmprof_test::NewDirectory();
  const std::string before_ = directory_ + "/before.pb.gz";
  const std::string after_ = directory_ + "/after.pb.gz";
  std::string plugin_;
};

// Returns the line in device.cc that executes the program.
int ExecuteLine() {
  std::ifstream source(HBMPROF_SOURCE_DIR "/examples/pjrt_inference/device.cc");
  int number = 0;
  for (std::string line; std::getline(source, line);) {
    ++number;
    if (line.find("PJRT_LoadedExecutable_Execute(&args)") != std::string::npos) return number;
  }
  return -1;
}

TEST_F(PjrtInference, DiffShowsTheExactLeakAndLine) {
  const CommandResult run = ServeWithProfiles({"--leak"});
  EXPECT_THAT(run.out, HasSubstr("leaked     300 answers x 1024 B = 307200 B"));
  const ProfileView before = ViewProfile(before_);
  const ProfileView after = ViewProfile(after_);
  EXPECT_EQ(after.Sum("inuse_space") - before.Sum("inuse_space"), kLeaked);
  EXPECT_EQ(after.SumUnder("inuse_space", "inference::(anonymous namespace)::Server::Answer"), kLeaked);
  EXPECT_EQ(after.SumWhere("inuse_space", "executable", "encoder"), kLeaked) << "the module's own name";
  EXPECT_EQ(after.SumWhere("inuse_space", "shape", "f32[8,32]"), kLeaked);
  // Printed when the client is destroyed.
  EXPECT_THAT(run.err, HasSubstr("300 x 1024 B, kind device, on "));
  EXPECT_THAT(run.err, HasSubstr("made in inference::Device::Execute"));

  const hbmprof_test::PprofTool pprof = hbmprof_test::GooglePprof();
  if (pprof.command.empty()) GTEST_SKIP() << "google/pprof is not here: the source line was not looked at";
  const CommandResult top =
      pprof.Run({"-symbolize=force", "-lines", "-top", "-unit=bytes", "-diff_base", before_, after_});
  const std::string where = "device.cc:" + std::to_string(ExecuteLine());
  EXPECT_THAT(top.out, ::testing::ContainsRegex("\n +307200B +[0-9.]+% +[0-9.]+% +307200B +[0-9.]+%  "
                                                "inference::Device::Execute [^\n]*" +
                                                where));
}

TEST_F(PjrtInference, DiffWithoutLeakIsZero) {
  const CommandResult run = ServeWithProfiles({});
  EXPECT_THAT(run.err, IsEmpty()) << "nothing is left at the end";
  const ProfileView before = ViewProfile(before_);
  const ProfileView after = ViewProfile(after_);
  // The weights: four layers of 128 x 128 + 128 and the head of 128 x 32, 4 B each; and the program's code.
  EXPECT_EQ(after.SumWhere("inuse_space", "kind", "device"), 4 * (4 * (128 * 128 + 128) + 128 * 32));
  EXPECT_EQ(after.Sum("inuse_space"), before.Sum("inuse_space"));
  EXPECT_EQ(after.Comment("tracker", "foreign_frees"), "0");
  for (const hbmprof_test::PprofTool& pprof : hbmprof_test::PprofTools()) {
    EXPECT_THAT(pprof.Run({"-top", "-base", before_, after_}).out, HasSubstr("Showing nodes accounting for 0, "));
  }
}

TEST_F(PjrtInference, WrapperDoesNotChangeAnswers) {
  const std::string bare = Line(Serve({"--bare"}, plugin_), "requests");
  EXPECT_THAT(bare, HasSubstr("checksum of the answers "));
  EXPECT_EQ(Line(Serve({}, plugin_), "requests"), bare);
  EXPECT_EQ(Line(Serve({"--bare"}, HBMPROF_PJRT_SHIM, {"HBMPROF_PJRT_PLUGIN=" + plugin_}), "requests"), bare);
}

}  // namespace
