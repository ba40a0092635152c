// Attaching to running processes: src/tool/attach with a library and a driver of the test's own. HBMPROF_ATTACH_FULL=1
// makes the repeated tests long.
#include "src/tool/attach/attach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/running_program.h"
#include "tests/tool/tool.h"

// If it is not 0, the process kills itself before as many writes into another one.
int writes_until_death = 0;
extern "C" ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  if (writes_until_death != 0 && --writes_until_death == 0) raise(SIGKILL);
  return syscall(SYS_pwrite64, fd, bytes, count, offset);
}

namespace hbmprof_test {
namespace {

using hbmprof::tool::CheckCanAttach;
using hbmprof::tool::CheckSystemCalls;
using hbmprof::tool::LoadLibrary;
using hbmprof::tool::StopSafeThread;
using hbmprof::tool::Target;
using hbmprof::tool::WhyNotPermitted;
using ::testing::HasSubstr;

constexpr char kOptions[] = "NAME=VALUE\n";

int Number(int few, int many) { return std::getenv("HBMPROF_ATTACH_FULL") != nullptr ? many : few; }

// A program that has printed "ready".
class Ready {
 public:
  // Loads the driver that the program was linked with.
  explicit Ready(const std::vector<std::string>& argv) : program_(argv, {"LD_LIBRARY_PATH="}) {
    EXPECT_EQ(program_.ReadLine(), "ready");
  }
  ~Ready() {
    if (program_.pid() > 0) kill(program_.pid(), SIGKILL);
  }
  RunningProgram* operator->() { return &program_; }

 private:
  RunningProgram program_;
};

absl::StatusOr<int> AttachOnce(pid_t pid, const std::string& library = ATTACH_PROBE) {
  absl::StatusOr<std::unique_ptr<Target>> target = Target::Open(pid);
  if (!target.ok()) return target.status();
  if (absl::Status status = CheckCanAttach(**target); !status.ok()) return status;
  if (absl::Status status = CheckSystemCalls(**target); !status.ok()) return status;
  return LoadLibrary(**target, library, kOptions);
}

std::string Refusal(pid_t pid, const std::string& library = ATTACH_PROBE) {
  return std::string(AttachOnce(pid, library).status().message());
}

// --- The borrowed thread goes on as if nothing had happened. ---

class WaitTest : public ::testing::TestWithParam<const char*> {};

TEST_P(WaitTest, GoesOnUnchanged) {
  Ready target({ATTACH_TARGET, "wait", GetParam()});
  const absl::StatusOr<int> attached = AttachOnce(target->pid());
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(*attached, 0);
  target->WriteLine("go");
  EXPECT_EQ(target->ReadLine(), "end");
  EXPECT_EQ(target->Wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Waits, WaitTest,
                         ::testing::Values("poll", "ppoll", "poll_input", "nanosleep", "nanosleep_locks", "epoll",
                                           "sem", "cond", "read", "epoll_signal", "poll_signal", "read_signal",
                                           "read_signal_restarting"),
                         [](const auto& info) { return std::string(info.param); });

// The command dies when it has started the borrowed thread: the thread goes on by itself.
TEST(AttachTest, ThreadGoesOnAfterTheCommandDied) {
  std::vector<std::unique_ptr<Ready>> targets;
  for (const char* const kind : {"poll", "nanosleep", "epoll", "cond", "read"}) {
    targets.push_back(std::make_unique<Ready>(std::vector<std::string>{ATTACH_TARGET, "wait", kind}));
  }
  for (const auto& target : targets) {
    const pid_t command = fork();
    if (command == 0) {
      constexpr int kAfterTheTexts = 5;
      writes_until_death = kAfterTheTexts;
      _exit(AttachOnce((*target)->pid()).ok() ? 0 : 1);
    }
    int status = 0;
    waitpid(command, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
  }
  for (const auto& target : targets) {
    (*target)->WriteLine("go");
    EXPECT_EQ((*target)->ReadLine(), "end");
    EXPECT_EQ((*target)->Wait(), 0);
  }
}

// A clock measures the time after which it does so, not the number of waits.
TEST(AttachTest, ThreadOfADeadCommandStaysAwayFiveSeconds) {
  RunningProgram target({ATTACH_TARGET, "wait", "read"}, {"LD_LIBRARY_PATH=", "WAIT_LONGER=1"});
  ASSERT_EQ(target.ReadLine(), "ready");
  const pid_t command = fork();
  if (command == 0) {
    constexpr int kBeforeTheTexts = 2;
    writes_until_death = kBeforeTheTexts;
    _exit(AttachOnce(target.pid()).ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(command, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  const auto start = std::chrono::steady_clock::now();
  target.WriteLine("go");
  EXPECT_EQ(target.ReadLine(), "end");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(target.Wait(), 0);
}

TEST(AttachTest, FileBelowTheProgramThatCannotBeRead) {
  RunningProgram target({ATTACH_TARGET, "wait", "read"}, {"LD_LIBRARY_PATH=", "MAP_BELOW=1"});
  ASSERT_EQ(target.ReadLine(), "ready");
  const absl::StatusOr<int> attached = AttachOnce(target.pid());
  EXPECT_TRUE(attached.ok()) << attached.status();
  target.WriteLine("go");
  EXPECT_EQ(target.ReadLine(), "end");
}

// Another command has stopped the only thread that waits.
TEST(AttachTest, WaitsUntilAnotherCommandHasFinished) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  const auto opened = Target::Open(target->pid());
  ASSERT_TRUE(opened.ok()) << opened.status();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t other = fork();
  if (other == 0) {
    const auto stopped = StopSafeThread(**opened, 10);
    if (write(ready[1], "", 1) != 1) _exit(2);
    usleep(300'000);
    _exit(stopped.ok() ? 0 : 1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(StopSafeThread(**opened, 10).ok());
  int status = -1;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
}

// --- Many times, beside threads that use the dynamic linker, the allocator, forks and signals. ---

class HammerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(HammerTest, OneProcessManyTimes) {
  Ready target({ATTACH_TARGET, "hammer", GetParam()});
  const int cycles = Number(15, 500);
  for (int i = 0; i < cycles; ++i) {
    const absl::StatusOr<int> attached = AttachOnce(target->pid());
    ASSERT_TRUE(attached.ok()) << i << ": " << attached.status();
    ASSERT_EQ(*attached, 0) << i;
  }
  target->WriteLine("end");
  EXPECT_EQ(target->ReadLine(), "done");
  EXPECT_EQ(target->Wait(), 0);
}

TEST_P(HammerTest, ManyProcesses) {
  const int processes = Number(4, 100);
  for (int i = 0; i < processes; ++i) {
    Ready target({ATTACH_TARGET, "hammer", GetParam()});
    const absl::StatusOr<int> attached = AttachOnce(target->pid());
    ASSERT_TRUE(attached.ok()) << i << ": " << attached.status();
    EXPECT_EQ(*attached, 0);
    target->WriteLine("end");
    ASSERT_EQ(target->ReadLine(), "done");
    ASSERT_EQ(target->Wait(), 0);
  }
}

TEST_P(HammerTest, KilledCommands) {
  Ready target({ATTACH_TARGET, "hammer", GetParam()});
  const int kills = Number(10, 150);
  std::mt19937 random(1);
  // How long the whole takes, so that the kills reach all of it.
  const absl::StatusOr<int> first = AttachOnce(target->pid());
  ASSERT_TRUE(first.ok()) << first.status();
  for (int i = 0; i < kills; ++i) {
    const pid_t command = fork();
    if (command == 0) _exit(AttachOnce(target->pid()).ok() ? 0 : 1);
    usleep(static_cast<useconds_t>(random() % 60'000));
    kill(command, SIGKILL);
    waitpid(command, nullptr, 0);
    ASSERT_EQ(kill(target->pid(), 0), 0) << i;
  }
  const absl::StatusOr<int> last = AttachOnce(target->pid());
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(*last, 0);
  target->WriteLine("end");
  EXPECT_EQ(target->ReadLine(), "done");
  EXPECT_EQ(target->Wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, HammerTest, ::testing::Values("4", "100"),
                         [](const auto& info) { return std::string(info.param) + "_threads"; });

// --- Refusals. ---

TEST(AttachRefusal, NoProcess) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(Refusal(child), "process " + std::to_string(child) + " has ended");
  waitpid(child, nullptr, 0);
  EXPECT_EQ(Refusal(child), "there is no process " + std::to_string(child));
}

constexpr char kIsGone[] = "the process has ended, or runs another program now";

TEST(AttachRefusal, ProcessEndsMeanwhile) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  const auto opened = Target::Open(target->pid());
  ASSERT_TRUE(opened.ok()) << opened.status();
  kill(target->pid(), SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(target->pid()), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(std::string(LoadLibrary(**opened, ATTACH_PROBE, kOptions).status().message()), kIsGone);
}

TEST(AttachRefusal, ProcessStartsAnotherProgramMeanwhile) {
  Ready target({ATTACH_TARGET, "exec"});
  const auto opened = Target::Open(target->pid());
  ASSERT_TRUE(opened.ok()) << opened.status();
  target->WriteLine("");
  ASSERT_EQ(target->ReadLine(), "ready");
  EXPECT_EQ(std::string(LoadLibrary(**opened, ATTACH_PROBE, kOptions).status().message()), kIsGone);
  EXPECT_TRUE(AttachOnce(target->pid()).ok());
}

TEST(AttachRefusal, KernelThread) {
  std::ifstream file("/proc/2/comm");
  std::string name;
  if (!std::getline(file, name) || name != "kthreadd") GTEST_SKIP() << "no thread of the kernel is visible";
  EXPECT_EQ(Refusal(2), "2 is a thread of the kernel, not a program");
}

TEST(AttachRefusal, NoDriver) {
  Ready target({ATTACH_WAITER});
  EXPECT_THAT(Refusal(target->pid()), HasSubstr("has not loaded the CUDA driver (libcuda.so.1). Attach after"));
}

TEST(AttachRefusal, StaticProgram) {
  Ready target({ATTACH_WAITER_STATIC});
  EXPECT_THAT(Refusal(target->pid()), HasSubstr("linked statically, so it can load no library"));
}

#ifdef ATTACH_WAITER_MUSL
TEST(AttachRefusal, Musl) {
  Ready target({ATTACH_WAITER_MUSL});
  EXPECT_THAT(RunTool({"attach", "--library", ATTACH_PROBE, std::to_string(target->pid())}).err,
              HasSubstr("built with another C library than glibc"));
}
#endif

#ifdef ATTACH_WAITER_32
TEST(AttachRefusal, Program32Bit) {
  Ready target({ATTACH_WAITER_32});
  EXPECT_THAT(RunTool({"attach", "--library", ATTACH_PROBE, std::to_string(target->pid())}).err,
              HasSubstr("built for another processor than"));
}
#endif

#ifdef ATTACH_GDB
TEST(AttachRefusal, UnderGdb) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  RunningProgram gdb({ATTACH_GDB, "-q", "-nx", "-batch", "-iex", "set auto-load off", "-iex",
                      "set debuginfod enabled off", "-p", std::to_string(target->pid()), "-ex", "echo traced\\n", "-ex",
                      "shell read line"});
  std::string line;
  while (line.find("traced") == std::string::npos) {
    line = gdb.ReadLine();
    if (line.empty() && kill(gdb.pid(), 0) != 0) break;
  }
  EXPECT_EQ(Refusal(target->pid()), "process " + std::to_string(target->pid()) + " is traced by process " +
                                        std::to_string(gdb.pid()) + " (a debugger or strace); end that first");
  gdb.CloseInput();
  EXPECT_EQ(gdb.Wait(), 0);
  EXPECT_TRUE(AttachOnce(target->pid()).ok());
}
#endif

TEST(AttachRefusal, OtherFormOfTheDriver) {
  Ready target({ATTACH_TARGET_OTHER_FORM, "wait", "read"});
  EXPECT_THAT(Refusal(target->pid()), HasSubstr("has an unknown form of cuMemAlloc_v2. hbmprof can attach with"));
}

TEST(AttachRefusal, TracedProcess) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  ASSERT_EQ(ptrace(PTRACE_SEIZE, target->pid(), nullptr, nullptr), 0);
  EXPECT_EQ(Refusal(target->pid()), "process " + std::to_string(target->pid()) + " is traced by process " +
                                        std::to_string(getpid()) + " (a debugger or strace); end that first");
}

TEST(AttachRefusal, StoppedProcess) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  kill(target->pid(), SIGSTOP);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(target->pid()), &info, WSTOPPED | WNOWAIT);
  EXPECT_THAT(Refusal(target->pid()), HasSubstr("is stopped; let it go on"));
}

// A filter ends the process, or its thread, at a call that attaching makes and the program does not.
TEST(AttachRefusal, SandboxedProcess) {
  for (const char* const call : {"pselect6", "socket", "openat"}) {
    for (const char* const action : {"process", "thread"}) {
      SCOPED_TRACE(std::string(call) + " " + action);
      RunningProgram target({ATTACH_TARGET, "wait", "read"}, {"LD_LIBRARY_PATH=", std::string("FORBID=") + call,
                                                              std::string("FORBID_ACTION=") + action});
      ASSERT_EQ(target.ReadLine(), "ready");
      EXPECT_THAT(Refusal(target.pid()), HasSubstr("has a seccomp filter of its own, which can end it"));
      target.WriteLine("go");
      EXPECT_EQ(target.ReadLine(), "end");
      EXPECT_EQ(target.Wait(), 0);
    }
  }
}

// The user has allowed it, and the filter ends the borrowed thread.
TEST(AttachRefusal, ThreadEndsMeanwhile) {
  RunningProgram target({ATTACH_TARGET, "hammer", "4"},
                        {"LD_LIBRARY_PATH=", "FORBID=pselect6", "FORBID_ACTION=thread"});
  ASSERT_EQ(target.ReadLine(), "ready");
  const auto opened = Target::Open(target.pid());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(std::string(LoadLibrary(**opened, ATTACH_PROBE, kOptions).status().message()),
              HasSubstr("the thread that was to load the library has ended meanwhile"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  kill(target.pid(), SIGKILL);
}

TEST(AttachRefusal, NoThreadWaits) {
  Ready target({ATTACH_TARGET, "spin"});
  const auto opened = Target::Open(target->pid());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(std::string(StopSafeThread(**opened, 0.1).status().message()),
              HasSubstr("no thread of the process waited where it can load a library"));
}

TEST(AttachRefusal, NoRoomForThreadLocalData) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  EXPECT_THAT(Refusal(target->pid(), ATTACH_PROBE_LARGE_TLS),
              HasSubstr("cannot allocate memory in static TLS block; other libraries have taken this memory"));
  EXPECT_TRUE(AttachOnce(target->pid()).ok());
}

TEST(AttachRefusal, NoLibrary) {
  Ready target({ATTACH_TARGET, "wait", "read"});
  EXPECT_THAT(Refusal(target->pid(), "/no/such/library.so"), HasSubstr("cannot open shared object file"));
  EXPECT_THAT(Refusal(target->pid(), ATTACH_DRIVER), HasSubstr("has no hbmprof_attach"));
}

TEST(AttachRefusal, OtherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  Ready target({ATTACH_TARGET, "wait", "read"});
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(2);
    _exit(Refusal(target->pid()).find("it belongs to user 0; run the command as root") == std::string::npos ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(AttachRefusal, Permission) {
  EXPECT_THAT(WhyNotPermitted(7, 1000, 1000, 1), HasSubstr("your own child processes only (kernel.yama.ptrace_scope"));
  EXPECT_THAT(WhyNotPermitted(7, 1000, 1000, 2), HasSubstr("ptrace_scope is 2; run the command as root, or with"));
  EXPECT_THAT(WhyNotPermitted(7, 1000, 0, 3), HasSubstr("forbids it for everybody"));
  EXPECT_THAT(WhyNotPermitted(7, 1000, 1001, 0), HasSubstr("it belongs to user 1000"));
  EXPECT_THAT(WhyNotPermitted(7, 1000, 0, -1), HasSubstr("this root has not the capability CAP_SYS_PTRACE"));
  EXPECT_THAT(WhyNotPermitted(7, 1000, 1000, -1), HasSubstr("PR_SET_DUMPABLE"));
}

// --- Containers. ---

pid_t FirstChild(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  pid_t child = -1;
  file >> child;
  return child;
}

// A target in namespaces of its own, where it does not see the folder of the library. `setup`: further commands.
class Container {
 public:
  explicit Container(const std::string& setup, const std::vector<std::string>& starter = {})
      : shell_(Command(setup, starter)) {
    EXPECT_EQ(shell_.ReadLine(), "ready");
    EXPECT_EQ(shell_.ReadLine(), "hidden");
    pid_ = FirstChild(FirstChild(shell_.pid()));
  }
  static bool CanBeMade() { return std::system("unshare -m -p -f true 2> /dev/null") == 0; }
  RunningProgram* operator->() { return &shell_; }
  pid_t pid() const { return pid_; }

 private:
  static std::vector<std::string> Command(const std::string& setup, const std::vector<std::string>& starter) {
    const std::string folder = std::string(ATTACH_PROBE).substr(0, std::string(ATTACH_PROBE).rfind('/'));
    std::vector<std::string> command = {"/usr/bin/unshare", "-m", "-p", "-f"};
    command.insert(command.end(), starter.begin(), starter.end());
    command.insert(command.end(), {"/bin/sh", "-c",
                                   "exec 3<&0; mount --make-rprivate / && cd / && " + setup +
                                       " { " ATTACH_TARGET " wait read <&3 & } && sleep 0.3 && mount -t tmpfs none " +
                                       folder + " && echo hidden; wait"});
    return command;
  }
  RunningProgram shell_;
  pid_t pid_ = -1;
};

TEST(AttachContainer, LibraryIsInvisible) {
  if (!Container::CanBeMade()) GTEST_SKIP() << "no mount namespace can be made here";
  Container container("");
  const auto target = Target::Open(container.pid());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_FALSE((*target)->SharesFiles());
  EXPECT_NE((*target)->inner_pid(), container.pid());
  // The second time it is the library that it has loaded.
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<int> attached = AttachOnce(container.pid());
    EXPECT_TRUE(attached.ok()) << attached.status();
    std::ifstream maps("/proc/" + std::to_string(container.pid()) + "/maps");
    int files = 0;
    for (std::string line; std::getline(maps, line);) {
      if (line.find(" 00000000 ") != std::string::npos && line.find("/memfd:libhbmprof_gpu.so") != std::string::npos) {
        ++files;
      }
    }
    EXPECT_EQ(files, 1) << i;
  }
  container->WriteLine("go");
  EXPECT_EQ(container->ReadLine(), "end");
}

constexpr char kNoFileInMemory[] =
    "the process does not see the library's file and can make no file in memory: Permission denied; copy the library "
    "to "
    "where the process sees it: --library";

TEST(AttachContainer, ProcessMayMakeNoFileInMemory) {
  if (!Container::CanBeMade()) GTEST_SKIP() << "no mount namespace can be made here";
  // The filter of a container holds for its first process too.
  Container container("mount -t proc none /proc &&", {ATTACH_TARGET, "forbid", "memfd_create", "error"});
  EXPECT_EQ(Refusal(container.pid()), kNoFileInMemory);
  container->WriteLine("go");
  EXPECT_EQ(container->ReadLine(), "end");
}

// vm.memfd_noexec belongs to the pid namespace. Since Linux 6.6 it does not concern a file that is mapped.
TEST(AttachContainer, SystemForbidsExecutableFilesInMemory) {
  if (!Container::CanBeMade()) GTEST_SKIP() << "no mount namespace can be made here";
  if (std::system("unshare -p -f sh -c 'echo 2 > /proc/sys/vm/memfd_noexec' 2> /dev/null") != 0) {
    GTEST_SKIP() << "this kernel has no vm.memfd_noexec of a pid namespace, or this user may not set it";
  }
  Container container("echo 2 > /proc/sys/vm/memfd_noexec &&");
  const std::string refusal = Refusal(container.pid());
  std::printf("with vm.memfd_noexec=2: %s\n", refusal.empty() ? "attached" : refusal.c_str());
  EXPECT_THAT(refusal, ::testing::AnyOf("", kNoFileInMemory));
  container->WriteLine("go");
  EXPECT_EQ(container->ReadLine(), "end");
}

}  // namespace
}  // namespace hbmprof_test
