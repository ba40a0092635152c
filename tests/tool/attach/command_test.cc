// `hbmprof attach` with the injected library, on the fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/support/program_run.h"
#include "tests/support/running_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// The folders of a test, and a program on the fake driver that has printed "ready".
class AttachedProgramTest : public ::testing::Test {
 protected:
  explicit AttachedProgramTest(const std::vector<std::string>& program,
                               const std::string& libraries = HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE)
      : target_(program, {"LD_LIBRARY_PATH=" + libraries, "FAKE_CUDA_DEVICES=1"}),
        ready_(target_.ReadLine()),
        id_(std::to_string(target_.pid())) {}

  CommandResult Run(const std::vector<std::string>& arguments) const {
    return RunTool(arguments, {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
  std::vector<std::string> AttachArguments() const {
    return {"attach", "--library", HBMPROF_INJECTED, "-o", profiles_, id_};
  }
  CommandResult Attach() const { return Run(AttachArguments()); }
  // The only profile, which the program has written at its end.
  ProfileView LastProfile() {
    EXPECT_EQ(target_.Wait(), 0);
    const std::filesystem::directory_iterator files(profiles_);
    if (files == std::filesystem::directory_iterator()) {
      ADD_FAILURE() << "no profile in " << profiles_;
      return ProfileView(Profile());
    }
    return ViewProfile(files->path());
  }
  // Judges twelve dumps, one every 0.2 s.
  CommandResult LeaksOfDumps() const {
    std::vector<std::string> arguments = {"leaks"};
    for (int i = 0; i < 12; ++i) {
      if (i > 0) usleep(200'000);
      arguments.push_back(dumps_ + "/" + std::to_string(i));
      EXPECT_EQ(Run({"dump", id_, "-o", arguments.back()}).exit_code, 0);
    }
    return Run(arguments);
  }

  const std::string sockets_ = NewDirectory();
  const std::string profiles_ = NewDirectory();
  const std::string dumps_ = NewDirectory();
  RunningProgram target_;
  const std::string ready_;
  const std::string id_;
};

class AttachCommandTest : public AttachedProgramTest {
 protected:
  AttachCommandTest() : AttachedProgramTest({ATTACH_LEAKING}) {}
};

TEST_F(AttachCommandTest, LeakThatBeganEarlierIsNamed) {
  const CommandResult attach = Attach();
  ASSERT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_THAT(attach.out, MatchesRegex("attached to " + id_ +
                                       " \\(attach_leaking\\): CUDA driver.*, ([0-9]+) of ([0-9]+) functions\n"
                                       "before attach: [0-9.]+ MiB in use on GPU:0\n"));
  const CommandResult leaks = LeaksOfDumps();
  EXPECT_THAT(leaks.out, ContainsRegex("LEAK.*\n(.*\n)*.*LeakOneStep")) << leaks.err;
  EXPECT_THAT(leaks.out, Not(ContainsRegex("LEAK.*\n.*before attach")));
  const CommandResult ps = Run({"ps"});
  EXPECT_THAT(ps.out, HasSubstr("attach_leaking"));
  const nlohmann::json schema = nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS "/attach.json"));
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"attach", id_}, {"attach", id_, "--detach"}}) {
    const bool is_detached = command.size() == 3;
    std::vector<std::string> arguments = command;
    arguments.push_back("--json");
    const nlohmann::json json = nlohmann::json::parse(Run(arguments).out, nullptr, false);
    EXPECT_EQ(SchemaProblem(schema, json), "") << json;
    EXPECT_EQ(json["id"], id_);
    EXPECT_EQ(json["state"], is_detached ? "detached" : "attached");
  }
  EXPECT_THAT(Run({"explain", id_}).out, HasSubstr("next: hbmprof attach " + id_ + "\n"));
  EXPECT_EQ(target_.Wait(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(profiles_), {}), 1) << "no profile at the end";
}

// A folder that the process cannot make its socket in. Afterwards nothing is attached, so another folder can be named.
TEST_F(AttachCommandTest, NoControlSocketRefuses) {
  const CommandResult refused = RunTool(AttachArguments(), {"HBMPROF_SOCKET_DIR=/proc/none"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("process " + id_ + ": the process can make no control socket"));
  EXPECT_THAT(refused.err, HasSubstr("name another folder with HBMPROF_SOCKET_DIR; it is now /proc/none"));
  const CommandResult attach = Attach();
  EXPECT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_EQ(Run({"attach", "--detach", id_}).exit_code, 0);
}

TEST_F(AttachCommandTest, MemoryFromBeforeShrinksExactly) {
  ASSERT_EQ(Attach().exit_code, 0);
  const auto before = [&] {
    const CommandResult top = Run({"top", id_, "--exact", "--focus", "before attach"});
    return top.out;
  };
  const std::string first = before();
  EXPECT_THAT(first, HasSubstr("[before attach]"));
  target_.WriteLine("");
  ASSERT_EQ(target_.ReadLine(), "freed");
  EXPECT_NE(before(), first);
}

TEST_F(AttachCommandTest, DetachesAndAttachesAgain) {
  const int cycles = std::getenv("HBMPROF_ATTACH_FULL") != nullptr ? 500 : 10;
  for (int i = 0; i < cycles; ++i) {
    const CommandResult attach = Attach();
    ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
    EXPECT_EQ(attach.err, i == 0 ? "" : "hbmprof attach: it was attached before, so the options of that time stay\n");
    const CommandResult detach = Run({"attach", "--detach", id_});
    ASSERT_EQ(detach.exit_code, 0) << i << detach.err;
    EXPECT_EQ(detach.out, "detached from " + id_ + " (attach_leaking)\n");
  }
  EXPECT_THAT(Run({"attach", "--detach", id_}).err, HasSubstr("hbmprof is not attached"));
  // Nothing would be recorded.
  const CommandResult tracking = Run({"control", id_, "tracking", "on"});
  EXPECT_NE(tracking.exit_code, 0);
  EXPECT_THAT(tracking.err, HasSubstr("hbmprof is detached from the process: hbmprof attach records it again"));
}

TEST_F(AttachCommandTest, SecondAttachChangesNothing) {
  ASSERT_EQ(Attach().exit_code, 0);
  const CommandResult second = Attach();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("attached to " + id_));
}

// Failed before: "runs without hbmprof", and "the process has ended".
TEST_F(AttachCommandTest, ChannelInAnotherFolderIsNamed) {
  ASSERT_EQ(Attach().exit_code, 0);
  const std::string other = NewDirectory();
  const std::string text = "process " + id_ + " is recorded, but its control channel is not in " + other +
                           ": set HBMPROF_SOCKET_DIR=" + sockets_ + "\n";
  for (std::vector<std::string> command :
       {AttachArguments(), {"attach", "--detach", id_}, {"top", id_}, {"explain", id_}}) {
    const CommandResult result = RunTool(command, {"HBMPROF_SOCKET_DIR=" + other});
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_THAT(result.err, testing::EndsWith(text)) << command[0];
  }
  EXPECT_THAT(RunTool({"ps"}, {"HBMPROF_SOCKET_DIR=" + other}).err, ContainsRegex("such as .*" + sockets_));
}

TEST_F(AttachCommandTest, FindsAProcessByItsName) {
  EXPECT_THAT(Run({"attach", "--library", HBMPROF_INJECTED, "no_such_name"}).err,
              HasSubstr("there is no process no_such_name"));
}

TEST_F(AttachCommandTest, DetachNeedsAnAttachment) {
  EXPECT_EQ(Run({"attach", "--detach", id_}).err, "hbmprof attach: process " + id_ + " is not attached\n");
}

class AttachPythonTest : public AttachedProgramTest {
 protected:
  AttachPythonTest() : AttachedProgramTest({"/usr/bin/env", "python3", ATTACH_PYTHON}) {}
};

TEST_F(AttachPythonTest, LeakThatBeganEarlierIsNamed) {
  const CommandResult attach = Attach();
  ASSERT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_THAT(attach.out, ContainsRegex(" functions\nbefore attach: [0-9.]+ MiB in use on GPU:0\n"));
  const CommandResult leaks = LeaksOfDumps();
  EXPECT_THAT(leaks.out, ContainsRegex("LEAK.*\n(.*\n)*.*leak_one_step")) << leaks.err;
  EXPECT_THAT(leaks.out, Not(ContainsRegex("LEAK.*\n.*before attach")));
  EXPECT_GT(LastProfile().SumUnder("inuse_space", "leak_one_step"), 0);
}

// PyTorch's own libc10_cuda.so.
class AttachTorchTest : public AttachedProgramTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static std::string Library() { return std::string(ATTACH_TORCH_LIBRARIES "/") + GetParam() + "/libc10_cuda.so"; }
  AttachTorchTest()
      : AttachedProgramTest({ATTACH_TORCH, Library(), "live"},
                            HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE ":" ATTACH_CUDART) {}
  void SetUp() override {
    if (!std::filesystem::exists(Library())) {
      GTEST_SKIP() << "no " << Library() << ": scripts/test.sh reads it from PyPI";
    }
    ASSERT_EQ(ready_, "ready");
  }
  // Returns the driver's bytes of the device after the program has done that.
  long long ReadTotalsAfter(const std::string& what) {
    target_.WriteLine(what);
    long long driver = -1;
    std::sscanf(target_.ReadLine().c_str(), "device 0: blocks %*d allocated %*d reserved %*d driver %lld", &driver);
    return driver;
  }
  // Dumps, and compares the bytes of the device with those of the driver.
  ProfileView DumpWithTheDriversTotal() {
    const long long driver = ReadTotalsAfter("");
    constexpr long long kContext = 3 << 20;  // fake_cuda_context_bytes
    const std::string path = profiles_ + "/dump";
    EXPECT_EQ(Run({"dump", id_, "-o", path}).exit_code, 0);
    ProfileView view = ViewProfile(path);
    std::filesystem::remove(path);
    EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), driver + kContext);
    return view;
  }
};

TEST_P(AttachTorchTest, LeakThatBeganEarlierIsNamedAndTotalsAreTheDrivers) {
  const CommandResult attach = Attach();
  ASSERT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_THAT(attach.out, ContainsRegex(" functions, PyTorch blocks\nbefore attach: [0-9.]+ MiB in use on GPU:0"));
  const CommandResult leaks = LeaksOfDumps();
  // On a busy machine the program leaks so unevenly that the series is too short to be sure.
  EXPECT_THAT(leaks.out, ContainsRegex("1\\. (LEAK|GROWS).*\n(.*\n)*.*grow_kv_cache")) << leaks.err;
  EXPECT_THAT(leaks.out, Not(HasSubstr("before attach")));
  ReadTotalsAfter("s");
  const int64_t before = DumpWithTheDriversTotal().SumUnder("inuse_space", "[before attach]");
  EXPECT_GE(before, 67 << 20);
  ReadTotalsAfter("f");
  EXPECT_LE(DumpWithTheDriversTotal().SumUnder("inuse_space", "[before attach]"), before - (67 << 20));
  // What was allocated while it was detached is memory from before.
  ASSERT_EQ(Run({"attach", "--detach", id_}).exit_code, 0);
  ReadTotalsAfter("g");
  ASSERT_EQ(Attach().exit_code, 0);
  ReadTotalsAfter("g");
  EXPECT_EQ(DumpWithTheDriversTotal().SumUnder("inuse_space", "grow_kv_cache"), 5 << 20);
}

INSTANTIATE_TEST_SUITE_P(Torch, AttachTorchTest, ::testing::Values("2.1.2", "2.5.1", "2.8.0", "2.11.0", "newest"),
                         [](const auto& info) {
                           std::string name = std::string("release_") + info.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

// tests/inject/attach_program.cc, which waits for the names of functions that allocate.
class AttachServerTest : public AttachedProgramTest {
 protected:
  AttachServerTest() : AttachedProgramTest({ATTACH_PROGRAM, "-", "serve", "0"}) {}
};

TEST_F(AttachServerTest, ProfileAtExitAfterDetachHasWhatWasRecorded) {
  ASSERT_EQ(Attach().exit_code, 0);
  target_.WriteLine("a");
  ASSERT_EQ(target_.ReadLine(), "allocated 0");
  ASSERT_EQ(Run({"attach", "--detach", id_}).exit_code, 0);
  target_.WriteLine("b");
  ASSERT_EQ(target_.ReadLine(), "allocated 0");
  EXPECT_THAT(Run({"top", id_}).out, HasSubstr("allocate_after"));
  const ProfileView view = LastProfile();
  EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_after"), 1);
  EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_before"), 0);
}

// A program with a filter of its own, which gives an error.
class AttachSandboxTest : public AttachedProgramTest {
 protected:
  AttachSandboxTest()
      : AttachedProgramTest({ATTACH_TARGET, "forbid", "memfd_create", "error", ATTACH_PROGRAM, "-", "serve", "0"}) {}
};

TEST_F(AttachSandboxTest, UserAllowsTheFilter) {
  ASSERT_EQ(ready_, "ready 0");
  const CommandResult refused = Attach();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("process " + id_ + " has a seccomp filter of its own"));
  std::vector<std::string> arguments = AttachArguments();
  arguments.push_back("--allow-seccomp");
  const CommandResult attach = Run(arguments);
  EXPECT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_EQ(Run({"attach", "--detach", id_}).exit_code, 0);
}

// --- Users and namespaces. ---

const std::vector<std::string> kNobody = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};

std::vector<std::string> Joined(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class AttachUserTest : public AttachedProgramTest {
 protected:
  AttachUserTest() : AttachedProgramTest(Joined(AsUser(), {ATTACH_PROGRAM, "-", "serve", "0"})) {}
  void SetUp() override {
    if (ready_ != "ready 0") GTEST_SKIP() << "the user nobody cannot be used here, or may not read the build folder";
    for (const std::string& folder : {sockets_, profiles_}) {
      ASSERT_EQ(geteuid() == 0 ? chown(folder.c_str(), 65534, 65534) : 0, 0);
    }
  }
  static std::vector<std::string> AsUser() { return geteuid() == 0 ? kNobody : std::vector<std::string>(); }
  CommandResult RunAsUser(const std::vector<std::string>& arguments) const {
    return RunCommand(Joined(AsUser(), Joined({ToolPath()}, arguments)), {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
};

TEST_F(AttachUserTest, OrdinaryUserAttachesToAnOwnProcess) {
  std::ifstream scope("/proc/sys/kernel/yama/ptrace_scope");
  char yama = '0';
  if (scope >> yama && yama != '0') GTEST_SKIP() << "kernel.yama.ptrace_scope is " << yama;
  const CommandResult attach = RunAsUser(AttachArguments());
  EXPECT_EQ(attach.exit_code, 0) << attach.err;
  target_.WriteLine("a");
  EXPECT_EQ(target_.ReadLine(), "allocated 0");
  const CommandResult detach = RunAsUser({"attach", "--detach", id_});
  EXPECT_EQ(detach.exit_code, 0) << detach.err;
  EXPECT_EQ(LastProfile().SumUnder("alloc_objects", "allocate_after"), 1);
}

TEST_F(AttachUserTest, RootAttachesToTheProcessOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const CommandResult attach = Attach();
  EXPECT_EQ(attach.exit_code, 0) << attach.err;
  const CommandResult detach = Run({"attach", "--detach", id_});
  EXPECT_EQ(detach.exit_code, 0) << detach.err;
}

TEST_F(AttachUserTest, ProcessOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  RunningProgram other({ATTACH_LEAKING}, {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES});
  ASSERT_EQ(other.ReadLine(), "ready");
  const CommandResult attach = RunAsUser({"attach", "--library", HBMPROF_INJECTED, std::to_string(other.pid())});
  EXPECT_EQ(attach.exit_code, 2);
  EXPECT_THAT(attach.err, HasSubstr("you may not attach to " + std::to_string(other.pid()) +
                                    ": it belongs to user 0; run the command as root"));
}

class AttachUserNamespaceTest : public AttachedProgramTest {
 protected:
  AttachUserNamespaceTest()
      : AttachedProgramTest({"/usr/bin/unshare", "-U", "-r", "-m", "-p", "-f", ATTACH_PROGRAM, "-", "serve", "0"}) {}
};

TEST_F(AttachUserNamespaceTest, ProcessInNamespacesOfItsOwn) {
  if (ready_ != "ready 0") GTEST_SKIP() << "no user namespace can be made here";
  std::ifstream file("/proc/" + id_ + "/task/" + id_ + "/children");
  std::string id;
  ASSERT_TRUE(file >> id);
  const CommandResult attach = Run({"attach", "--library", HBMPROF_INJECTED, "-o", profiles_, id});
  ASSERT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_THAT(attach.out, HasSubstr("the other commands find it with HBMPROF_SOCKET_DIR=/proc/" + id + "/root" +
                                    sockets_ + " hbmprof leaks 1\n"));
  target_.WriteLine("a");
  EXPECT_EQ(target_.ReadLine(), "allocated 0");
  const CommandResult top = RunTool({"top", "1"}, {"HBMPROF_SOCKET_DIR=/proc/" + id + "/root" + sockets_});
  EXPECT_THAT(top.out, HasSubstr("allocate_after")) << top.err;
  const CommandResult detach = Run({"attach", "--detach", id});
  EXPECT_EQ(detach.exit_code, 0) << detach.err;
}

// --- Beside threads that hammer, with each allocator. HBMPROF_ATTACH_FULL=1 makes these tests long. ---

int Number(int few, int many) { return std::getenv("HBMPROF_ATTACH_FULL") != nullptr ? many : few; }

class AttachHammerTest : public ::testing::TestWithParam<const char*> {
 protected:
  // tests/inject/attach_program.cc. `threads` hammer.
  class Server {
   public:
    explicit Server(const std::string& threads, const std::string& preload = "",
                    const std::string& program = ATTACH_PROGRAM)
        : program_({program, "-", "serve", threads}, {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "LD_PRELOAD=" + preload}) {
      EXPECT_EQ(program_.ReadLine(), "ready 0");
    }
    // Makes the program allocate in allocate_after ("a") or allocate_before ("b").
    void Allocate(const char* name) {
      program_.WriteLine(name);
      ASSERT_EQ(program_.ReadLine(), "allocated 0");
    }
    RunningProgram* operator->() { return &program_; }

   private:
    RunningProgram program_;
  };

  CommandResult Attach(Server& server) const {
    return RunTool({"attach", "--library", HBMPROF_INJECTED, "-o", profiles_, std::to_string(server->pid())},
                   {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
  RunningProgram StartAttach(Server& server) const {
    return RunningProgram(
        {ToolPath(), "attach", "--library", HBMPROF_INJECTED, "-o", profiles_, std::to_string(server->pid())},
        {"HBMPROF_SOCKET_DIR=" + sockets_}, errors_);
  }
  CommandResult Detach(Server& server) const {
    return RunTool({"attach", "--detach", std::to_string(server->pid())}, {"HBMPROF_SOCKET_DIR=" + sockets_});
  }
  // Checks the only profile, which the program has written at its end, and removes it.
  void ExpectProfile(int64_t allocations) const {
    const std::filesystem::directory_iterator files(profiles_);
    ASSERT_NE(files, std::filesystem::directory_iterator());
    const ProfileView view = ViewProfile(files->path());
    EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_after"), allocations);
    EXPECT_EQ(view.SumUnder("alloc_objects", "allocate_before"), 0);
    std::filesystem::remove(files->path());
  }
  // Each allocation while it is attached counts once, and no other one.
  void RunCycles(int cycles, Server server) {
    for (int i = 0; i < cycles; ++i) {
      const CommandResult attach = Attach(server);
      ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
      server.Allocate("a");
      const CommandResult detach = Detach(server);
      ASSERT_EQ(detach.exit_code, 0) << i << detach.err;
      server.Allocate("b");
    }
    ASSERT_EQ(Attach(server).exit_code, 0);
    EXPECT_EQ(server->Wait(), 0);
    ExpectProfile(cycles);
  }

  const std::string sockets_ = NewDirectory();
  const std::string profiles_ = NewDirectory();
  const std::string errors_ = NewDirectory() + "/errors";
};

TEST_P(AttachHammerTest, EachMarkedCallCountsOnce) { RunCycles(Number(1, 500), Server(GetParam())); }

TEST_P(AttachHammerTest, PreloadedAllocators) {
  if (std::string(GetParam()) != "4") GTEST_SKIP() << "few threads are enough here";
  for (const char* const allocator : {HBMPROF_JEMALLOC, HBMPROF_TCMALLOC}) {
    if (*allocator == '\0') continue;
    SCOPED_TRACE(allocator);
    RunCycles(Number(1, 50), Server(GetParam(), allocator));
  }
}

#ifdef ATTACH_PROGRAM_JEMALLOC
TEST_P(AttachHammerTest, LinkedJemalloc) {
  if (std::string(GetParam()) != "4") GTEST_SKIP() << "few threads are enough here";
  RunCycles(Number(1, 50), Server(GetParam(), "", ATTACH_PROGRAM_JEMALLOC));
}
#endif

#ifdef ATTACH_PROGRAM_TCMALLOC
TEST_P(AttachHammerTest, LinkedTcmalloc) {
  if (std::string(GetParam()) != "4") GTEST_SKIP() << "few threads are enough here";
  RunCycles(Number(1, 50), Server(GetParam(), "", ATTACH_PROGRAM_TCMALLOC));
}
#endif

// Two commands at the same time: both find it attached.
TEST_P(AttachHammerTest, TwoCommands) {
  for (int i = 0; i < Number(2, 30); ++i) {
    Server server(GetParam());
    RunningProgram first = StartAttach(server);
    RunningProgram second = StartAttach(server);
    EXPECT_EQ(first.Wait() | second.Wait(), 0) << std::ifstream(errors_).rdbuf();
    server.Allocate("a");
    ASSERT_EQ(server->Wait(), 0) << i;
    ExpectProfile(1);
  }
}

TEST_P(AttachHammerTest, FreshProcesses) {
  const int processes = Number(1, 100);
  for (int i = 0; i < processes; ++i) {
    Server server(GetParam());
    server.Allocate("b");
    const CommandResult attach = Attach(server);
    ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
    server.Allocate("a");
    ASSERT_EQ(server->Wait(), 0) << i;
    ExpectProfile(1);
  }
}

// Each fifth kill meets a fresh process, so that the kills reach the loading.
TEST_P(AttachHammerTest, KilledCommands) {
  const int kills = Number(5, 150);
  std::mt19937 random(1);
  std::unique_ptr<Server> server;
  for (int i = 0; i < kills; ++i) {
    if (i % 5 == 0) server = std::make_unique<Server>(GetParam());
    RunningProgram command = StartAttach(*server);
    usleep(static_cast<useconds_t>(random() % 150'000));
    kill(command.pid(), SIGKILL);
    command.Wait();
    server->Allocate("b");
    if (i % 5 != 4) continue;
    const CommandResult attach = Attach(*server);
    ASSERT_EQ(attach.exit_code, 0) << i << attach.err;
    ASSERT_EQ((*server)->Wait(), 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, AttachHammerTest, ::testing::Values("4", "100"),
                         [](const auto& info) { return std::string(info.param) + "_threads"; });

// NVIDIA's own libraries, if they are there. They have no device.
TEST(AttachRealDriverTest, AllFunctionsOfEachVersion) {
  std::error_code error;
  int versions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ATTACH_DRIVERS, error)) {
    const std::string driver = entry.path() / "libcuda.so.1";
    if (!std::filesystem::exists(driver, error)) continue;
    SCOPED_TRACE(driver);
    const std::string sockets = NewDirectory();
    RunningProgram target({ATTACH_WAITER, driver});
    ASSERT_EQ(target.ReadLine(), "ready");
    const CommandResult attach =
        RunTool({"attach", "--library", HBMPROF_INJECTED, "-o", sockets, std::to_string(target.pid())},
                {"HBMPROF_SOCKET_DIR=" + sockets});
    EXPECT_EQ(attach.exit_code, 0) << attach.err;
    const std::string version = std::filesystem::canonical(driver).filename().string().substr(11);
    EXPECT_THAT(attach.out, HasSubstr("CUDA driver " + version + ", "));
    int some = 0;
    int all = 0;
    const size_t functions = attach.out.find(version + ", ");
    ASSERT_NE(functions, std::string::npos) << attach.out;
    ASSERT_EQ(std::sscanf(attach.out.c_str() + functions + version.size(), ", %d of %d functions", &some, &all), 2);
    EXPECT_EQ(some, all);
    EXPECT_GT(all, 60);
    EXPECT_EQ(
        RunTool({"attach", "--detach", std::to_string(target.pid())}, {"HBMPROF_SOCKET_DIR=" + sockets}).exit_code, 0);
    EXPECT_EQ(target.Wait(), 0);
    ++versions;
  }
  if (versions == 0) GTEST_SKIP() << "no driver in " << ATTACH_DRIVERS;
}

#ifdef ATTACH_WAITER_LLD
// lld lets all parts of a small program begin in the file's first page.
TEST(AttachLinkerTest, SmallProgramOfLldIsAttached) {
  const std::string sockets = NewDirectory();
  RunningProgram target({ATTACH_WAITER_LLD, HBMPROF_DOUBLES "/libcuda.so.1"});
  ASSERT_EQ(target.ReadLine(), "ready");
  const CommandResult attach =
      RunTool({"attach", "--library", HBMPROF_INJECTED, "-o", sockets, std::to_string(target.pid())},
              {"HBMPROF_SOCKET_DIR=" + sockets});
  EXPECT_EQ(attach.exit_code, 0) << attach.err;
  EXPECT_EQ(target.Wait(), 0);
}
#endif

TEST(AttachRunTest, ProgramUnderRunIsRefused) {
  const std::string sockets = NewDirectory();
  RunningProgram target({ATTACH_LEAKING}, {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES, "LD_PRELOAD=" HBMPROF_INJECTED,
                                           "HBMPROF_SOCKET_DIR=" + sockets});
  ASSERT_EQ(target.ReadLine(), "ready");
  const CommandResult attach = RunTool({"attach", "--library", HBMPROF_INJECTED, std::to_string(target.pid())},
                                       {"HBMPROF_SOCKET_DIR=" + sockets});
  EXPECT_EQ(attach.exit_code, 2);
  EXPECT_EQ(attach.err, "hbmprof attach: process " + std::to_string(target.pid()) +
                            ": the program was started with hbmprof: it is recorded from its start, but not "
                            "if HBMPROF=0 was set\n");
}

}  // namespace
}  // namespace hbmprof_test
