// Runs each program of this folder and checks its exit code, its output and its profiles. A program that hangs
// is killed by its own alarm (exit code 142).

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ExpectDone;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;

CommandResult RunProgram(const std::string& program, std::vector<std::string> arguments = {},
                         std::vector<std::string> environment = {}) {
  arguments.insert(arguments.begin(), HBMPROF_PROGRAMS "/program_" + program);
  // For builds with sanitizers. A leak checker reports memory of the parent's other threads in a forked child as a
  // leak. The thread sanitizer sleeps for a second at each exit.
  environment.push_back("ASAN_OPTIONS=detect_leaks=0");
  const char* const tsan_options = getenv("TSAN_OPTIONS");
  environment.push_back(std::string("TSAN_OPTIONS=") + (tsan_options == nullptr ? "" : tsan_options) +
                        ":atexit_sleep_ms=0");
  return RunCommand(arguments, environment);
}

class ForkTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ForkTest, ChildIsOff) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (GetParam() == "dump") {
    GTEST_SKIP() << "a sanitizer's allocator does not survive a fork while another thread allocates host memory";
  }
#endif
  const std::string directory = NewDirectory();
  ExpectDone(RunProgram("fork_while_allocating", {directory, GetParam()}));
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST(Fork, ChildOfAParentWithoutEventsWritesAProfile) {
  const std::string directory = NewDirectory();
  ExpectDone(RunProgram("fork_before_first_event", {directory}));
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    const ProfileView view = ViewProfile(directory + "/child." + std::to_string(i) + ".pb.gz");
    EXPECT_EQ(view.Sum("inuse_space"), 1000);
    EXPECT_EQ(view.Sum("peak_space"), 10000);
    EXPECT_EQ(view.Sum("alloc_space"), 10000);
    EXPECT_EQ(view.SumWhere("inuse_space", "process", "child"), 1000);
    EXPECT_EQ(view.SumUnder("inuse_space", "main"), 1000);
  }
}

std::string ForkName(const ::testing::TestParamInfo<std::string>& mode) {
  return mode.param == "dump" ? "WhileThreadsAllocateAndDump" : "WhileThreadsAllocate";
}
INSTANTIATE_TEST_SUITE_P(Fork, ForkTest, ::testing::Values("allocate", "dump"), ForkName);

TEST(Fork, EarlierForkHandlersCanRecord) { ExpectDone(RunProgram("fork_with_handlers", {"early"})); }
TEST(Fork, LaterForkHandlersCanRecord) { ExpectDone(RunProgram("fork_with_handlers", {"late"})); }
TEST(Fork, SignalHandlerCanRecordDuringFork) { ExpectDone(RunProgram("fork_with_handlers", {"signals"})); }
TEST(Fork, ChildCanUseWhatAnotherThreadWasMaking) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not survive a fork while another thread allocates host memory";
#endif
  ExpectDone(RunProgram("fork_at_first_use"));
}
TEST(Fork, SignalHandlerCanFork) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allocates host memory in the signal handler";
#endif
  ExpectDone(RunProgram("fork_in_handler"));
}
// A signal handler that interrupted malloc on another thread records while the fork waits for malloc's lock.
TEST(Fork, ThreadsAndTheirSignalHandlersUseWholeProfiler) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not survive a fork while another thread allocates host memory";
#endif
  ExpectDone(RunProgram("fork_beside_threads", {"500"}));
}
TEST(Fork, HandlersCanUseWholeProfiler) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not survive a fork while another thread allocates host memory";
#endif
  ExpectDone(RunProgram("fork_with_handlers", {"stats"}));
}

TEST(Programs, NoCallWaitsForASlowDisk) {
  const CommandResult run = RunProgram("slow_disk", {NewDirectory()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "done\n");
}

TEST(Programs, BuffersOutliveTheirThreads) { ExpectDone(RunProgram("thread_exit")); }

TEST(Programs, ThreadCanExitWhileOthersAllocate) {
  const std::string directory = NewDirectory();
  for (int i = 0; i < 10; ++i) {
    const std::string file = directory + "/" + std::to_string(i) + ".pb.gz";
    const CommandResult run = RunProgram("exit_while_allocating", {}, {"HBMPROF_OUTPUT=" + file});
    ASSERT_EQ(run.exit_code, 3) << run.err;
    EXPECT_EQ(run.err, "");
    EXPECT_GE(ViewProfile(file).Sum("inuse_space"), 200000);
  }
}

TEST(Programs, StaticDestructorsCanAllocate) { ExpectDone(RunProgram("static_destructors")); }

TEST(Programs, StaticDestructorsCanAllocateAtExitDump) {
  const std::string file = NewDirectory() + "/exit.pb.gz";
  ExpectDone(RunProgram("static_destructors", {}, {"HBMPROF_OUTPUT=" + file}));
  // When it is written, the objects that are younger than the profiler are destroyed, and each has left a buffer.
  const ProfileView view = ViewProfile(file);
  EXPECT_EQ(view.Sum("inuse_space"), 3000);
  EXPECT_EQ(view.SumWhere("inuse_space", "when", "static_destruction"), 3000);
}

TEST(Programs, DumpsWhileDeviceIsFull) {
  const std::string file = NewDirectory() + "/full.pb.gz";
  const CommandResult run = RunProgram("out_of_device_memory", {file});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const ProfileView view = ViewProfile(file);
  EXPECT_EQ(view.Sum("inuse_space"), std::stoll(run.out));
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "sim:0"), std::stoll(run.out));
  EXPECT_EQ(view.SumWhere("inuse_space", "allocator", "cache"), std::stoll(run.out));
}

TEST(Programs, DumpsWhileThreadsAllocate) {
  const std::string file = NewDirectory() + "/profile.pb.gz";
  ExpectDone(RunProgram("dump_while_allocating", {file}));
  const ProfileView view = ViewProfile(file);
  EXPECT_GT(view.Sum("inuse_objects"), 0);
  EXPECT_GE(view.Sum("peak_space"), view.Sum("inuse_space"));
}

TEST(Programs, SignalHandlerCanAllocate) { ExpectDone(RunProgram("signal_handler")); }

// HBMPROF_TEST_SECONDS makes it last longer.
TEST(Programs, ConcurrentUseHasNoDeadlock) {
  const char* seconds = std::getenv("HBMPROF_TEST_SECONDS");
  const CommandResult run = RunProgram("everything_at_once", {HBMPROF_PROGRAM_MODULE, seconds ? seconds : "2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, ::testing::EndsWith("\ndone\n"));
  EXPECT_EQ(run.err, "");
}

TEST(Programs, LibraryConstructorCanAllocateDuringDump) {
  ExpectDone(RunProgram("dlopen_while_dumping", {HBMPROF_PROGRAM_MODULE}));
}

TEST(Programs, ClosedDescriptorsAreNotWrittenTo) { ExpectDone(RunProgram("descriptors")); }

class UnwinderTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Every, UnwinderTest, ::testing::Values("auto", "fp", "none"),
                         [](const auto& info) { return info.param; });

TEST_P(UnwinderTest, RecordingIsNoCancellationPoint) {
  ExpectDone(RunProgram("cancelled_threads", {}, {"HBMPROF_UNWINDER=" + GetParam()}));
}

TEST_P(UnwinderTest, StaticProgramIsTracked) {
  const std::string unwinder = GetParam();
  const std::string own = unwinder == "fp" ? "frame_pointer" : unwinder == "none" ? "none" : "cached_rules";
  std::vector<std::string> programs = {"static_program"};
#ifdef HBMPROF_STATIC_PROGRAMS
  programs.insert(programs.end(), {"static", "static-pie"});
#endif
  for (const std::string& program : programs) {
    const std::string file = NewDirectory() + "/profile.pb.gz";
    const CommandResult run = RunProgram(program, {file}, {"HBMPROF_UNWINDER=" + unwinder});
    ASSERT_EQ(run.exit_code, 0) << program << ": " << run.err;
    const ProfileView view = ViewProfile(file);
    EXPECT_EQ(view.Sum("inuse_objects"), 4 * 52 + 1) << program;
    if (unwinder == "auto") {
      EXPECT_EQ(view.SumUnder("inuse_objects", "main"), 1) << program;
    }
    EXPECT_EQ(run.out, own + "\n") << program;
    EXPECT_EQ(run.err, "");
  }
}

TEST(Programs, ProbeCanWaitForLoader) { ExpectDone(RunProgram("dlopen_in_probe", {HBMPROF_PROGRAM_MODULE})); }

TEST(Programs, PluginWithTheLibraryCanBeClosed) {
  const std::string directory = NewDirectory();
  ExpectDone(RunProgram("plugin_unloaded", {HBMPROF_PROGRAM_PLUGIN}, {"HBMPROF_OUTPUT=" + directory + "/%n.pb.gz"}));
  // Recorded before and after it was closed: it was never unloaded. The forked child has recorded nothing, so it writes
  // no profile.
  const ProfileView view = ViewProfile(directory + "/0.pb.gz");
  EXPECT_EQ(view.SumWhere("inuse_space", "where", "plugin"), 50);
  EXPECT_EQ(view.SumUnder("inuse_space", "RecordInPlugin"), 50);
  EXPECT_NE(access((directory + "/1.pb.gz").c_str(), F_OK), 0);
}

}  // namespace
