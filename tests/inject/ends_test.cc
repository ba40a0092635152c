// Every way in which a process can end: what the injected library leaves of it, and that it ends as without. Each
// program is ends_program.cc's.
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

namespace fs = std::filesystem;
using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::MatchesRegex;

constexpr char kProgram[] = HBMPROF_INJECT_PROGRAMS "/inject_ends";
constexpr char kDoubles[] = "LD_LIBRARY_PATH=" HBMPROF_DOUBLES;

class EndsTest : public ::testing::Test {
 protected:
  CommandResult Run(const std::string& how, std::vector<std::string> environment) const {
    environment.push_back(kDoubles);
    return RunCommand({kProgram, how}, environment, {directory_, 60});
  }
  CommandResult RunInjected(const std::string& how, std::vector<std::string> environment = {}) const {
    environment.push_back(std::string("LD_PRELOAD=") + HBMPROF_INJECTED);
    environment.push_back("HBMPROF_CUDA_OUTPUT=" + directory_ + "/%p.pb.gz");
    environment.push_back("HBMPROF_SOCKET_DIR=" + directory_ + "/sockets");
    return Run(how, environment);
  }
  std::vector<std::string> Profiles() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().extension() == ".gz") paths.push_back(entry.path());
    }
    return paths;
  }
  // That there are `count` profiles, each with the memory of HoldMemory.
  void ExpectProfiles(size_t count) const {
    const std::vector<std::string> paths = Profiles();
    EXPECT_EQ(paths.size(), count);
    for (const std::string& path : paths) {
      const ProfileView view = ViewProfile(path);
      EXPECT_EQ(view.SumUnder("inuse_space", "(anonymous namespace)::HoldMemory"), 1 << 20);
      EXPECT_EQ(view.Sum("inuse_space"), 1 << 20);
    }
  }

  const std::string directory_ = NewDirectory();
};

struct End {
  const char* how;
  size_t profiles;
};
void PrintTo(const End& end, std::ostream* out) { *out << end.how; }

class EveryEnd : public EndsTest, public ::testing::WithParamInterface<End> {};

TEST_P(EveryEnd, LeavesAProfileAndIsTheSameAsWithout) {
  const CommandResult without = Run(GetParam().how, {});
  const CommandResult with = RunInjected(GetParam().how);
  EXPECT_FALSE(with.timed_out);
  EXPECT_EQ(with.status & ~0x80, without.status & ~0x80) << "but for the core dump, which the machine may not make";
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.err, without.err);
  ExpectProfiles(GetParam().profiles);
  const bool leaves_socket = GetParam().profiles == 0;  // `hbmprof ps` removes it
  EXPECT_EQ(fs::is_empty(directory_ + "/sockets"), !leaves_socket);
}

constexpr End kEnds[] = {
    {"return", 1},         {"term", 1},          {"int", 1},      {"hup", 1},      {"quit", 1},   {"term_in_thread", 1},
    {"abort", 1},          {"terminate", 1},     {"segv", 1},     {"fpe", 1},      {"_exit", 1},  {"_Exit", 1},
    {"quick_exit", 1},     {"own_handler", 1},   {"ignored", 1},  {"vfork", 1},    {"worker", 2}, {"idle_child", 1},
    {"term_in_child", 1},  {"interrupt_key", 1}, {"quit_key", 1}, {"overflow", 0},  // no stack is left for a handler
    {"term_in_malloc", 0},  // the thread that writes gets no memory; the process ends five seconds later
    {"default_again", 0},
};
INSTANTIATE_TEST_SUITE_P(Ends, EveryEnd, ::testing::ValuesIn(kEnds),
                         [](const auto& info) { return std::string(info.param.how); });

TEST_F(EndsTest, OutOfMemoryIsReportedForEachDevice) {
  const CommandResult run = RunInjected("too_much", {"FAKE_CUDA_DEVICES=2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "held\ndone\n");
  EXPECT_THAT(run.err, MatchesRegex("hbmprof: out of memory on GPU:0: cuMemAlloc_v2 of 3.00 GiB failed\n"
                                    "  verdict    the request of 3.00 GiB is larger than the device, which has 1.00 "
                                    "GiB\\.\n(.*\n)*.*HoldMemory < main < (.*\n)*"
                                    "  profile    .*/hbmprof\\.oom\\.[0-9]+\\.0\\.pb\\.gz\n"
                                    "hbmprof: out of memory on GPU:1: cuMemCreate of 3.00 GiB failed\n(.*\n)*"));
  ExpectProfiles(3);
}

TEST_F(EndsTest, ByASignalLeaveNoProfileIfSwitchedOff) {
  const CommandResult run = RunInjected("term", {"HBMPROF_OUTPUT_ON_SIGNALS=0"});
  EXPECT_EQ(run.status, SIGTERM);
  ExpectProfiles(0);
}

}  // namespace
