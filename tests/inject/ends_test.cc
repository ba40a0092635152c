// Every way in which a process can end: the profiles of the injected and of the linked library. The process must end as
// it does without them. Each test runs ends_program.cc. tests/python/workers_test.cc tests the workers of Python.
#include <elf.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"

namespace {

namespace fs = std::filesystem;
using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::RunningProgram;
using ::hbmprof_test::ViewProfile;
using ::testing::AnyOf;
using ::testing::MatchesRegex;

constexpr char kProgram[] = HBMPROF_INJECT_PROGRAMS "/inject_ends";
constexpr char kLinkedProgram[] = HBMPROF_INJECT_PROGRAMS "/inject_ends_linked";
constexpr char kDoubles[] = "LD_LIBRARY_PATH=" HBMPROF_DOUBLES;

class EndsTest : public ::testing::Test {
 protected:
  CommandResult Run(const std::string& how, std::vector<std::string> environment,
                    const char* program = kProgram) const {
    environment.push_back(kDoubles);
    return RunCommand({program, how}, environment, {directory_, 60});
  }
  CommandResult RunInjected(const std::string& how, std::vector<std::string> environment = {}) const {
    environment.push_back(std::string("LD_PRELOAD=") + HBMPROF_INJECTED);
    environment.push_back("HBMPROF_GPU_OUTPUT=" + directory_ + "/%p.pb.gz");
    environment.push_back("HBMPROF_SOCKET_DIR=" + directory_ + "/sockets");
    return Run(how, environment);
  }
  CommandResult RunLinked(const std::string& how, std::vector<std::string> environment = {}) const {
    environment.insert(environment.end(), {"HBMPROF_OUTPUT=" + directory_ + "/%p.pb.gz", "HBMPROF_OUTPUT_ON_SIGNALS=1",
                                           "HBMPROF_SOCKET_DIR=" + directory_ + "/sockets"});
    return Run(how, std::move(environment), kLinkedProgram);
  }
  std::vector<std::string> Profiles() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().extension() == ".gz") paths.push_back(entry.path());
    }
    return paths;
  }
  // Runs both programs.
  std::vector<CommandResult> RunBoth(const std::string& how, const std::vector<std::string>& environment = {}) const {
    return {RunInjected(how, environment), RunLinked(how, environment)};
  }
  // Runs the linked program with this library, which ends the process. Returns its exit code.
  int EndsInLibrary(const std::string& library) const {
    return RunCommand({kLinkedProgram, "in_library", library},
                      {kDoubles, "HBMPROF_OUTPUT=" + directory_ + "/%p.pb.gz", "HBMPROF_OUTPUT_ON_SIGNALS=1"},
                      {directory_, 60})
        .exit_code;
  }
  // Expects that there are `count` profiles, each with the memory of HoldMemory.
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
  size_t profiles;             // of the injected library
  size_t linked_profiles;      // of the linked library
  bool leaves_socket = false;  // `hbmprof ps` removes it
};
void PrintTo(const End& end, std::ostream* out) { *out << end.how; }

class KilledTest : public EndsTest, public ::testing::WithParamInterface<bool> {};

class EveryEnd : public EndsTest, public ::testing::WithParamInterface<End> {
 protected:
  void ExpectSame(const CommandResult& with, const CommandResult& without) const {
    EXPECT_FALSE(with.timed_out);
    EXPECT_EQ(with.status & ~0x80, without.status & ~0x80) << "but for the core dump, which the machine may not make";
    EXPECT_EQ(with.out, without.out);
    EXPECT_EQ(with.err, without.err);
    EXPECT_EQ(fs::is_empty(directory_ + "/sockets"), !GetParam().leaves_socket);
  }
};

TEST_P(EveryEnd, InjectedLibraryWritesProfileAndEndIsUnchanged) {
  const CommandResult without = Run(GetParam().how, {});
  ExpectSame(RunInjected(GetParam().how), without);
  ExpectProfiles(GetParam().profiles);
}

TEST_P(EveryEnd, LinkedLibraryWritesProfileAndEndIsUnchanged) {
  const CommandResult without = Run(GetParam().how, {"HBMPROF=0"}, kLinkedProgram);
  ExpectSame(RunLinked(GetParam().how), without);
  ExpectProfiles(GetParam().linked_profiles);
}

constexpr End kEnds[] = {
    {"return", 1, 1},
    {"cancelled_thread", 1, 1},
    {"term", 1, 1},
    {"idle_term", 0, 0},
    {"int", 1, 1},
    {"hup", 1, 1},
    {"quit", 1, 1},
    {"term_in_thread", 1, 1},
    {"abort", 1, 1},
    {"terminate", 1, 1},
    {"segv", 1, 1},
    {"fpe", 1, 1},
    {"_exit", 1, 1},
    {"_Exit", 1, 1},
    {"exit_on_small_stack", 1, 1},
    {"quick_exit", 1, 1},
    {"own_handler", 1, 1},
    {"ignored", 1, 1},
    {"vfork", 1, 1},
    {"worker", 2, 2},
    {"own_handler_in_worker", 1, 1},
    {"own_handler_in_holder", 2, 2},
    {"idle_child", 1, 1},
    {"term_in_child", 1, 1},
    {"term_in_worker", 2, 2},
    {"interrupt_key", 1, 1},
    {"quit_key", 1, 1},
    {"execl", 1, 1, true},
    {"execle", 1, 1, true},
    {"execlp", 1, 1, true},
    {"execv", 1, 1, true},
    {"execve", 1, 1, true},
    {"execvp", 1, 1, true},
    {"execvpe", 1, 1, true},
    {"exec_in_thread", 1, 1, true},
    {"exec_in_child", 1, 1},
    {"exec_fails", 1, 1},
    {"overflow", 0, 0, true},  // no stack is left for a handler
    // The thread that writes gets no memory; the process ends five seconds later.
    {"term_in_malloc", 0, 0},
    {"default_again", 1, 1},
    {"default_again_raise", 1, 1},
    {"default_again_in_handler", 1, 1},
    {"default_again_from_outside", 0, 0, true},
};
INSTANTIATE_TEST_SUITE_P(Ends, EveryEnd, ::testing::ValuesIn(kEnds),
                         [](const auto& info) { return std::string(info.param.how); });

// Two ends at once: argv[1] of the program and its status, which can also be 0 if the process returns from main first.
struct TwoEnds {
  const char* how;
  int status;
};
constexpr TwoEnds kTwoEnds[] = {{"term_in_write", SIGTERM},
                                {"term_in_thread_in_write", SIGTERM},
                                {"return_in_write", 0},
                                {"exit_in_write", 0},
                                {"second_term", SIGTERM}};

TEST_F(EndsTest, TwoAtOnceLeaveAProfile) {
  size_t runs = 0;
  for (const bool is_linked : {false, true}) {
    for (const TwoEnds& ends : kTwoEnds) {
      const CommandResult run = is_linked ? RunLinked(ends.how) : RunInjected(ends.how);
      EXPECT_THAT(run.status, AnyOf(ends.status, 0)) << ends.how << ": " << run.err;
      EXPECT_EQ(run.err, "") << ends.how;
      EXPECT_EQ(Profiles().size(), ++runs) << ends.how;
    }
  }
  ExpectProfiles(runs);
}

// The dynamic linker makes only whole pages read-only after the relocation. With large pages of the kernel (64 KiB on
// aarch64), the last page of that range usually also has data of the library. In the copy of the library that this test
// makes, the range ends 16 bytes before the end of its only page.
TEST_F(EndsTest, PartlyReadOnlyPageStaysWritable) {
  const std::string path = directory_ + "/library.so";
  std::ifstream original(HBMPROF_RELRO_LIBRARY, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(original), {}};
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  auto* const segments = reinterpret_cast<Elf64_Phdr*>(bytes.data() + header.e_phoff);
  auto* const relro = std::find_if(segments, segments + header.e_phnum,
                                   [](const Elf64_Phdr& segment) { return segment.p_type == PT_GNU_RELRO; });
  ASSERT_NE(relro, segments + header.e_phnum);
  relro->p_memsz -= 16;
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(EndsInLibrary(path), 5);
  ExpectProfiles(1);
}

// The profiler is made while a library is loaded: the library's references stay unchanged.
TEST_F(EndsTest, LibraryThatIsBeingLoadedStaysUnchanged) {
  EXPECT_EQ(EndsInLibrary(HBMPROF_IFUNC_LIBRARY), 5);
  ExpectProfiles(0);
}

TEST_F(EndsTest, ReferenceInCodeStaysUnchanged) {
  EXPECT_EQ(EndsInLibrary(HBMPROF_TEXT_RELOCATION_LIBRARY), 5);
  ExpectProfiles(0);
}

class OutOfMemoryTest : public EndsTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(OutOfMemoryTest, IsReportedForEachDevice) {
  const CommandResult run = RunInjected(GetParam(), {"FAKE_CUDA_DEVICES=2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "held\ndone\n");
  EXPECT_THAT(run.err, MatchesRegex("hbmprof: out of memory on GPU:0: cuMemAlloc_v2 of 3.00 GiB failed\n"
                                    "  verdict    the request of 3.00 GiB is larger than the device, which has 1.00 "
                                    "GiB\\.\n(.*\n)*"
                                    "  requested by .*RequestTooMuch < .*\n(.*\n)*.*HoldMemory (< .*)?< main\n"
                                    "  profile    .*/hbmprof\\.oom\\.[0-9]+\\.0\\.pb\\.gz\n"
                                    "  more       hbmprof top .*/hbmprof\\.oom\\.[0-9]+\\.0\\.pb\\.gz\n"
                                    "hbmprof: out of memory on GPU:1: cuMemCreate of 3.00 GiB failed\n(.*\n)*"));
  ExpectProfiles(3);
}

INSTANTIATE_TEST_SUITE_P(Ends, OutOfMemoryTest, ::testing::Values("too_much", "too_much_on_small_stack"),
                         [](const auto& info) { return std::string(info.param); });

// Kills programs that write a profile every few milliseconds, also while they write.
TEST_P(KilledTest, KeepsTheProfileOfTheLastInterval) {
  for (int i = 0; i < 5; ++i) {
    const std::string directory = NewDirectory();
    std::vector<std::string> environment =
        GetParam() ? std::vector<std::string>{"HBMPROF_OUTPUT=" + directory + "/x", "HBMPROF_OUTPUT_INTERVAL=0.004"}
                   : std::vector<std::string>{"LD_PRELOAD=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + directory + "/x",
                                              "HBMPROF_OUTPUT_INTERVAL=0.004"};
    environment.push_back(kDoubles);
    RunningProgram program({GetParam() ? kLinkedProgram : kProgram, "sleep"}, environment);
    EXPECT_EQ(program.ReadLine(), "held");
    // The first profiles can be older than the memory.
    const auto has_memory = [&] {
      return fs::exists(directory + "/x") && ViewProfile(directory + "/x").Sum("inuse_space") != 0;
    };
    for (int waited = 0; waited < 1000 && !has_memory(); ++waited) usleep(5'000);
    usleep(static_cast<useconds_t>(1'000 * i));
    kill(program.pid(), SIGKILL);
    EXPECT_EQ(program.Wait(), SIGKILL);
    const ProfileView view = ViewProfile(directory + "/x");
    EXPECT_EQ(view.SumUnder("inuse_space", "(anonymous namespace)::HoldMemory"), 1 << 20);
    EXPECT_EQ(view.Sum("inuse_space"), 1 << 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Ends, KilledTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "linked" : "injected"; });

// A snapshot and the driver allocate memory while they hold a lock, which the thread that writes the profile needs.
TEST_F(EndsTest, SignalInALockIsHandledAfterIt) {
  for (const char call : {'1', '2', '3', '4'}) {
    for (const bool is_linked : {false, true}) {
      if (!is_linked && call > '2') continue;
      SCOPED_TRACE(call);
      const std::string how = std::string("term_in_lock_") + call;
      const CommandResult run = is_linked ? RunLinked(how) : RunInjected(how);
      EXPECT_EQ(run.status, SIGTERM) << run.err;
      const std::vector<std::string> profiles = Profiles();
      ASSERT_EQ(profiles.size(), 1u);
      EXPECT_GE(ViewProfile(profiles[0]).Sum("inuse_space"), 1 << 20);
      fs::remove(profiles[0]);
    }
  }
}

TEST_F(EndsTest, EachDelayedSignalIsDelayedForItsOwnTime) {
  const CommandResult run = RunLinked("two_delayed_signals_2");
  EXPECT_EQ(run.status, SIGINT) << run.err;
  ExpectProfiles(1);
}

// The first process of a container: the kernel ignores the signals that it does not handle.
class FirstProcessTest : public EndsTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    if (Run("first_process_returns", {}).exit_code == 77) GTEST_SKIP() << "process id name spaces are not permitted";
  }
  // Runs the program, and expects that it ends as without hbmprof, and that its profile has so many bytes in use.
  void ExpectEnd(const std::string& how, int64_t bytes, const std::vector<std::string>& environment = {}) const {
    const CommandResult without = GetParam() ? Run(how, {"HBMPROF=0"}, kLinkedProgram) : Run(how, {});
    const CommandResult with = GetParam() ? RunLinked(how, environment) : RunInjected(how, environment);
    EXPECT_EQ(with.status & ~0x80, without.status & ~0x80) << with.err;
    EXPECT_EQ(with.out, without.out);
    EXPECT_EQ(with.err, "");
    const std::vector<std::string> profiles = Profiles();
    ASSERT_EQ(profiles.size(), 1u);
    EXPECT_EQ(ViewProfile(profiles[0]).Sum("inuse_space"), bytes);
  }
};

TEST_P(FirstProcessTest, SignalWritesProfileAndProcessContinues) { ExpectEnd("first_process_killed", 2 << 20); }

TEST_P(FirstProcessTest, LaterEndWritesLaterProfile) { ExpectEnd("first_process_returns", 3 << 20); }

TEST_P(FirstProcessTest, AbortWritesProfile) { ExpectEnd("first_process_aborts", 1 << 20); }

INSTANTIATE_TEST_SUITE_P(Ends, FirstProcessTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "linked" : "injected"; });

constexpr char kIncomplete[] =
    "hbmprof: the process ends before its profile or recording is complete: no progress for 5 seconds, or 30 in all; "
    "HBMPROF_OUTPUT_INTERVAL=60 (hbmprof run --interval 60) also writes profiles before\n";

TEST_F(EndsTest, ProfileIsWrittenEvenIfTheRecordingHangs) {
  for (const char* const how : {"term_while_recording_hangs", "return_while_recording_hangs"}) {
    const CommandResult run = RunLinked(how, {"HBMPROF_RECORD=" + directory_ + "/" + how + ".hbmrec"});
    EXPECT_FALSE(run.timed_out) << how;
    // If the process waited for ten seconds, the recording would have a message of its own.
    const bool is_exit = std::string(how) == "return_while_recording_hangs";
    EXPECT_EQ(run.err, is_exit ? kIncomplete : "") << how;
  }
  ExpectProfiles(2);
}

TEST_F(EndsTest, DiskThatHangsDelaysTheEndOnly) {
  for (const CommandResult& run : RunBoth("return_while_disk_hangs")) {
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.out, "held\ndone\n");
    EXPECT_EQ(run.err, kIncomplete);
  }
  ExpectProfiles(0);
}

// Failed before: the profile was lost after five seconds.
TEST_F(EndsTest, WriteThatMakesProgressGetsMoreTime) {
  const CommandResult run = RunInjected("return_while_write_is_slow");
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.err, "");
  ExpectProfiles(1);
}

// A probe of the program never returns, or the driver: another thread is stuck in it with its lock held.
TEST_F(EndsTest, ProfileIsWrittenWithoutTheDeviceThatHangs) {
  size_t runs = 0;
  for (const char* const how : {"stuck_return", "stuck_end", "stuck_term"}) {
    for (const CommandResult& run : RunBoth(how)) {
      EXPECT_EQ(run.status, std::string(how) == "stuck_term" ? SIGTERM : 0) << how << ": " << run.err;
      ++runs;
    }
  }
  ExpectProfiles(runs);
  for (const std::string& path : Profiles()) {
    EXPECT_THAT(ViewProfile(path).Comment("warning", "text"),
                MatchesRegex("(GPU:0|hangs)%20did%20not%20answer%20at%20the%20end%20of%20the%20process;.*"));
  }
}

TEST_F(EndsTest, SignalInAProbeIsHandledAfterIt) {
  const CommandResult run = RunLinked("term_in_probe");
  EXPECT_EQ(run.status, SIGTERM) << run.err;
  ExpectProfiles(1);
  for (const std::string& path : Profiles()) EXPECT_EQ(ViewProfile(path).Comment("warning", "text"), "");
}

TEST_F(EndsTest, SignalWritesNoProfileIfSwitchedOff) {
  const CommandResult run = RunInjected("term", {"HBMPROF_OUTPUT_ON_SIGNALS=0"});
  EXPECT_EQ(run.status, SIGTERM);
  ExpectProfiles(0);
}

}  // namespace
