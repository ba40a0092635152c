// The profiles of the workers of Python's multiprocessing (workers_program.py), for each start method and both
// libraries.
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;

// Start method and library.
class PythonWorkersTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  bool is_linked() const { return std::string(std::get<1>(GetParam())) == "linked"; }
  CommandResult Run(std::vector<std::string> environment, const std::string& workers) const {
    environment.insert(environment.end(), {"PYTHONWARNINGS=ignore", "PYTHONDONTWRITEBYTECODE=1"});
    environment.push_back(is_linked() ? "HBMPROF_TEST_LIBRARY=" HBMPROF_LINKED_LIBRARY
                                      : "LD_LIBRARY_PATH=" HBMPROF_DOUBLES);
    return RunCommand({"python3", HBMPROF_PYTHON_PROGRAMS "/workers_program.py", std::get<0>(GetParam()), workers},
                      environment, {directory_, 60});
  }
  std::vector<std::string> Options() const {
    if (is_linked()) return {"HBMPROF_OUTPUT=" + directory_ + "/%p.pb.gz", "HBMPROF_OUTPUT_ON_SIGNALS=1"};
    return {"LD_PRELOAD=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + directory_ + "/%p.pb.gz"};
  }

  const std::string directory_ = NewDirectory();
};

TEST_P(PythonWorkersTest, WriteProfilesAndEndUnchanged) {
  if (RunCommand({"python3", "-c", "import ctypes, multiprocessing"}).exit_code != 0) {
    GTEST_SKIP() << "there is no python3";
  }
  const CommandResult without = Run({"HBMPROF=0"}, NewDirectory());
  EXPECT_EQ(without.out, "work 0\nwork_and_exit 3\nheld\ndone\n") << without.err;
  const std::string workers = NewDirectory();
  const CommandResult with = Run(Options(), workers);
  EXPECT_FALSE(with.timed_out);
  EXPECT_EQ(with.status, without.status);
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.err, without.err);
  EXPECT_EQ(FilesIn(workers).size(), 3u);
  for (const auto& [pid, contents] : FilesIn(workers)) {
    EXPECT_EQ(ViewProfile(directory_ + "/" + pid + ".pb.gz").Sum("inuse_space"), 1 << 20) << pid;
  }
}

// With the other start methods a worker is a new process.
TEST_P(PythonWorkersTest, ForkedWorkersOfAParentThatHoldsMemoryAreOff) {
  if (!is_linked()) return;
  std::vector<std::string> options = Options();
  options.push_back("HBMPROF_TEST_HOLDS=1");
  const std::string workers = NewDirectory();
  const CommandResult run = Run(options, workers);
  EXPECT_FALSE(run.timed_out);
  EXPECT_EQ(run.out, "work 0\nwork_and_exit 3\nheld\ndone\n") << run.err;
  EXPECT_EQ(FilesIn(workers).size(), 3u);
  const bool is_forked = std::string(std::get<0>(GetParam())) == "fork";
  for (const auto& [pid, contents] : FilesIn(workers)) {
    EXPECT_EQ(std::filesystem::exists(directory_ + "/" + pid + ".pb.gz"), !is_forked) << pid;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, PythonWorkersTest,
                         ::testing::Combine(::testing::Values("fork", "forkserver", "spawn"),
                                            ::testing::Values("injected", "linked")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                         });

}  // namespace
