// `hbmprof run` and `hbmprof doctor` as a user calls them, on the fake driver.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "tests/support/profile_checker.h"
#include "tests/support/resident_bytes.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

using ::hbmprof_test::CommandPlace;
using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ReadProfile;
using ::hbmprof_test::ResidentBytes;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::RunTool;
using ::hbmprof_test::SchemaProblem;
using ::hbmprof_test::ScratchDir;
using ::hbmprof_test::ToolPath;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Program(const std::string& name) { return HBMPROF_INJECT_PROGRAMS "/" + name; }

constexpr char kDoubles[] = "LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_NVML_DOUBLE;

// The program finds the fake libraries unless `environment` sets LD_LIBRARY_PATH.
CommandResult Tool(const std::vector<std::string>& arguments, std::vector<std::string> environment = {}) {
  const bool is_set = std::any_of(environment.begin(), environment.end(), [](const std::string& variable) {
    return variable.rfind("LD_LIBRARY_PATH=", 0) == 0;
  });
  if (!is_set) environment.push_back(kDoubles);
  return RunTool(arguments, environment);
}

std::vector<std::string> Profiles(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gz") paths.push_back(entry.path());
  }
  return paths;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(RunTest, SummaryShowsEachDeviceAndProfile) {
  const std::string folder = ScratchDir() + "/made/on/the/way";
  const CommandResult run = Tool({"run", "--output", folder, "--", Program("inject_cases"), "untracked_memory"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "done\n") << "the program's output is its own";
  const std::vector<std::string> profiles = Profiles(folder);
  ASSERT_EQ(profiles.size(), 1u);
  EXPECT_THAT(run.err, HasSubstr(profiles[0]));
  EXPECT_THAT(run.err, ContainsRegex("GPU:0 +peak 1.00 MiB +in use 1.00 MiB +unaccounted 67.00 MiB of this process, "
                                     "3.00 MiB of it from the start; .64.00 MiB since then, outside tracked"));
  EXPECT_TRUE(ReadProfile(profiles[0]).ok());
}

TEST(RunTest, PythonLeavesItsProfileAtKeyboardInterrupt) {
  const std::string folder = ScratchDir() + "/interrupted";
  // Python then restores the default action of SIGINT and sends the signal to itself.
  const CommandResult run = Tool({"run", "--output", folder, "--", "/usr/bin/env", "python3", "-c", R"(
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
raise KeyboardInterrupt)"});
  EXPECT_EQ(run.exit_code, 128 + SIGINT) << run.err;
  const std::vector<std::string> profiles = Profiles(folder);
  ASSERT_EQ(profiles.size(), 1u) << run.err;
  EXPECT_THAT(RunTool({"top", "--type", "inuse_space", profiles[0]}).out, HasSubstr("4.00 KiB"));
}

TEST(RunTest, PythonProfileShowsWhatTheProgramHeldAtItsEnd) {
  const std::string folder = ScratchDir() + "/held";
  // The interpreter destroys the variable `buffer`, which frees its memory. The first buffer was freed before.
  const CommandResult run = Tool({"run", "--output", folder, "--", "/usr/bin/env", "python3", "-c", R"(
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
class Buffer:
    def __init__(self, size):
        self.memory = ctypes.c_uint64()
        cuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(size))
    def __del__(self, free=cuda.cuMemFree_v2):
        free(self.memory)
buffer = Buffer(1 << 20)
buffer = Buffer(4096))"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::vector<std::string> profiles = Profiles(folder);
  ASSERT_EQ(profiles.size(), 1u) << run.err;
  const auto profile = ReadProfile(profiles[0]);
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(hbmprof_test::ProfileView(*profile).Sum("inuse_space"), 4096);
}

TEST(RunTest, MessagesHaveNoEffectOnATerminal) {
  const std::string folder = ScratchDir() + "/a\x1b[2Jb";
  const CommandResult run = Tool({"run", "--output", folder, "--", Program("inject_cases"), "plain"});
  EXPECT_THAT(run.err, HasSubstr("/a\\x1b[2Jb/"));
  EXPECT_THAT(run.err, Not(HasSubstr("\x1b")));
  for (const std::string& program : {std::string("/none\x1b[2J"), folder}) {
    const CommandResult missing = Tool({"run", "--output", folder, "--", program});
    EXPECT_THAT(missing.err, HasSubstr("\\x1b[2J"));
    EXPECT_THAT(missing.err, Not(HasSubstr("\x1b")));
  }
}

TEST(RunTest, OptionsAfterTheProgramAreItsOwn) {
  const CommandResult run = Tool({"run", "--output", ScratchDir(), "echo", "-c", "--interval", "x", "--", "--help"});
  EXPECT_EQ(run.out, "-c --interval x -- --help\n") << run.err;
  EXPECT_THAT(Tool({"doctor", "echo", "--nonsense"}).out, HasSubstr("echo"));
  EXPECT_THAT(Tool({"run", "--nonsense", "echo"}).err, HasSubstr("no option '--nonsense'"));
}

TEST(RunTest, SummaryNamesScopeOfUnaccounted) {
  const std::string folder = ScratchDir();
  CommandResult run =
      Tool({"run", "--output", folder, "--", Program("inject_cases"), "plain"}, {"FAKE_NVML_PROCESS=0"});
  EXPECT_THAT(run.err, HasSubstr("unaccounted 3.00 MiB of all processes on the device"));
  const std::vector<std::string> reset = {"run",      "--output", folder, "--", Program("inject_cases"),
                                          "contexts", "reset"};
  run = Tool(reset, {"FAKE_NVML_PROCESS=0"});
  EXPECT_THAT(run.err, HasSubstr("unaccounted 0 B of all processes on the device")) << "NVML needs no context";
  run = Tool(reset, {"FAKE_NVML_PROCESS=0", "FAKE_NVML_MEMORY=0"});
  EXPECT_THAT(run.err, HasSubstr("unaccounted n/a"));
}

// Runs the shell script, in which "$@" is `hbmprof run --output FOLDER --` and `command`.
CommandResult Shell(const std::string& script, const std::string& folder, const std::vector<std::string>& command) {
  std::vector<std::string> argv = {"bash", "-c", script, "bash", ToolPath(), "run", "--output", folder, "--"};
  argv.insert(argv.end(), command.begin(), command.end());
  CommandPlace place;
  place.time_limit_s = 60;
  const CommandResult result = RunCommand(argv, {kDoubles}, place);
  EXPECT_FALSE(result.timed_out) << script;
  return result;
}

void WriteScript(const std::string& path, const std::string& text, mode_t mode = 0755) {
  std::ofstream(path) << text;
  ASSERT_EQ(chmod(path.c_str(), mode), 0);
}

TEST(RunTest, RunningProgramAnswersPsAndDump) {
  const std::string folder = ScratchDir();
  const std::string script =
      "export HBMPROF_SOCKET_DIR=\"$4/sockets\"; \"$@\" & "
      "until \"$1\" ps 2> /dev/null | grep \"inject_ends.*1.00 MiB\"; do sleep 0.05; done; "
      "\"$1\" dump inject_ends -o \"$4/now\" && kill $! && wait $!; echo \"ended $?\"; \"$1\" ps";
  const CommandResult result = Shell(script, folder, {Program("inject_ends"), "sleep"});
  EXPECT_THAT(result.out, ContainsRegex("inject_ends +GPU:0 +device +1.00 MiB +1.00 MiB +1.00 GiB\n(.*\n)*.*/now\n"
                                        "ended 143\n$"))
      << result.err;
  const auto dumped = ReadProfile(folder + "/now");
  ASSERT_TRUE(dumped.ok()) << dumped.status();
  EXPECT_EQ(hbmprof_test::ProfileView(*dumped).SumUnder("inuse_space", "(anonymous namespace)::HoldMemory"), 1 << 20);
  ASSERT_EQ(Profiles(folder).size(), 1u) << "the one of its end";
}

// A service must start also if its profiles cannot be written.
TEST(RunTest, ProgramRunsWithoutAFolderForItsProfiles) {
  const CommandResult none = Tool({"run", "--output", "/proc/nothing", "--", Program("inject_cases"), "exit"});
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.err, HasSubstr("hbmprof run: /proc/nothing: no profile can be written there: No such file or "
                                  "directory. The program runs without one: `hbmprof dump PROCESS` saves one elsewhere "
                                  "while it runs; --output DIR names another folder\n"));
  EXPECT_THAT(none.err, HasSubstr("no profile: /proc/nothing: No such file or directory\n"));
  const CommandResult off = Tool({"run", "--output", "/proc/nothing", "--", "sh", "-c", "exit 3"}, {"HBMPROF=0"});
  EXPECT_EQ(off.exit_code, 3);
  EXPECT_EQ(off.err, "hbmprof: no profile: HBMPROF=0 in the environment turns recording off\n");
  const std::string script =
      "export HBMPROF_SOCKET_DIR=\"$4/sockets\"; \"$1\" run --output /proc/nothing -- \"$6\" sleep & "
      "for i in $(seq 200); do \"$1\" dump inject_ends -o \"$4/now\" 2> /dev/null && break; sleep 0.05; done; kill $!";
  const std::string folder = ScratchDir();
  EXPECT_THAT(Shell(script, folder, {Program("inject_ends")}).out, HasSubstr("/now\n"));
  EXPECT_TRUE(ReadProfile(folder + "/now").ok());
}

TEST(RunTest, FullDiskIsTheReasonOfNoProfile) {
  const std::string disk = ScratchDir();
  if (RunCommand({"unshare", "-rm", "mount", "-t", "tmpfs", "disk", disk}).exit_code != 0) {
    GTEST_SKIP() << "cannot mount a file system here";
  }
  const std::string setup = "mount -t tmpfs -o size=64k disk " + disk + " && head -c 1m /dev/zero > " + disk + "/x; ";
  const CommandResult run = RunCommand({"unshare", "-rm", "sh", "-c", setup + "\"$@\"", "sh", ToolPath(), "run",
                                        "--output", disk, "--", Program("inject_cases"), "untracked_memory"},
                                       {kDoubles});
  EXPECT_EQ(run.out, "done\n");
  EXPECT_THAT(run.err, HasSubstr(disk + ": no profile can be written there: 0 B are free. The program runs "));
  EXPECT_THAT(run.err, HasSubstr("no profile: " + disk + ": 0 B are free"));
}

TEST(RunTest, PsShowsWhatIsUsedOnTheDevice) {
  const std::string script =
      "export HBMPROF_SOCKET_DIR=\"$4/sockets\"; \"$@\" & \"$@\" & "
      "until [ $(\"$1\" ps 2> /dev/null | grep -c \"inject_ends.*1.00 MiB\") = 2 ]; do sleep 0.05; done; "
      "\"$1\" ps | tail -n 1; \"$1\" ps --json; kill %1 %2; wait";
  const std::string out = Shell(script, ScratchDir(), {Program("inject_ends"), "sleep"}).out;
  const std::string device = "GPU:0 (GPU-fa4e0000-0000-4000-8000-000000000001)";
  EXPECT_THAT(out, HasSubstr("\n" + device +
                             ": 4.00 MiB used: 2.00 MiB recorded above, 2.00 MiB not (other processes, "
                             "contexts)\n{"));
  const json ps = json::parse(out.substr(out.find('{')), nullptr, false);
  EXPECT_EQ(ps["devices"], json::parse(R"([{"name": ")" + device + R"(", "used": 4194304, "recorded": 2097152}])"));
}

TEST(RunTest, EndsAsTheProgramEnds) {
  const std::string folder = ScratchDir();
  EXPECT_EQ(Tool({"run", "--output", folder, "--", "sh", "-c", "exit 7"}).exit_code, 7);
  const CommandResult crash = Tool({"run", "--output", folder, "--", Program("inject_cases"), "crash"});
  ASSERT_TRUE(WIFSIGNALED(crash.status)) << "a caller must be able to read the signal";
  EXPECT_EQ(WTERMSIG(crash.status), SIGSEGV);
  EXPECT_THAT(crash.err, HasSubstr("signal 11 ended the program"));
  EXPECT_THAT(crash.err, ContainsRegex("GPU:0 +peak 100 B +in use 100 B")) << "a crash leaves its profile";
  const CommandResult killed = Tool({"run", "--output", folder, "--", "sh", "-c", "kill -KILL $$"});
  EXPECT_EQ(killed.status, SIGKILL);
  EXPECT_THAT(killed.err, HasSubstr("hbmprof doctor -- "));
  const CommandResult off = RunTool({"run", "--output", folder, "--", "true"}, {"HBMPROF=OFF"});
  EXPECT_THAT(off.err, HasSubstr("no profile: HBMPROF=OFF in the environment turns recording off\n"));
  EXPECT_EQ(Tool({"run", "--output", folder, "--", "sh", "-c", "kill -INT $$; exit 3"}).status, SIGINT);
}

TEST(RunTest, ExitCodeAbove128IsNoSignal) {
  const CommandResult run = Tool({"run", "--output", ScratchDir(), "--", "sh", "-c", "exit 139"});
  EXPECT_TRUE(WIFEXITED(run.status));
  EXPECT_EQ(run.exit_code, 139);
  EXPECT_THAT(run.err, Not(HasSubstr("signal")));
}

TEST(RunTest, ForwardsSignals) {
  // The program, a shell, prints each signal that it gets, and continues when it has read a line. It reads with a time
  // limit, since a signal that arrives just before bash blocks in read(2) has its trap run only when that returns.
  const std::string signals = "HUP INT QUIT TERM USR1 USR2 ABRT PWR";
  const std::string program = "for s in " + signals +
                              "; do trap \"echo $s\" $s; done; echo ready; "
                              "for i in 1 2 3 4 5 6 7 8; do until read -t 0.2 line; do :; done; done; exit 5";
  const std::string sender =
      "mkfifo in out; exec 7<>in 8<>out; env --default-signal=INT,QUIT \"$@\" <&7 >&8 & read line <&8; for s in " +
      signals + "; do kill -$s $!; read line <&8; echo $line; echo next >&7; done; wait $!; echo $?";
  const std::string folder = ScratchDir();
  const CommandResult run = Shell("cd '" + folder + "'; " + sender, folder, {"bash", "-c", program});
  EXPECT_EQ(run.out, "HUP\nINT\nQUIT\nTERM\nUSR1\nUSR2\nABRT\nPWR\n5\n") << run.err;
}

TEST(RunTest, GroupSignalOfProgramArrivesOnce) {
  const std::string program = "trap 'echo got' USR1; kill -USR1 0; sleep 0.2; exit 0";
  EXPECT_EQ(Shell("exec setsid -w \"$@\"", ScratchDir(), {"bash", "-c", program}).out, "got\n");
}

TEST(RunTest, EndedProcessGetsNoSignal) {
  const CommandResult run =
      Tool({"run", "--output", ScratchDir(), "--", "sh", "-c", "exit 3"}, {"LD_PRELOAD=" HBMPROF_LATE_SIGNAL});
  EXPECT_EQ(run.exit_code, 3) << "as if the signal had found no process";
  EXPECT_THAT(run.err, HasSubstr("late signal sent"));
  EXPECT_THAT(run.err, Not(HasSubstr("sent on")));
}

TEST(RunTest, ProgramInheritsSignalSettings) {
  const std::vector<std::string> program = {"grep", "Sig[BIC]", "/proc/self/status"};
  for (const char* before : {"", "--ignore-signal=CHLD,HUP,INT,TERM,PIPE ", "--block-signal=TERM,USR1,CHLD "}) {
    const std::string start = std::string("exec env ") + before;
    const std::string without = Shell(start + "\"${@:6}\"", "/", program).out;
    EXPECT_THAT(without, HasSubstr("SigIgn"));
    EXPECT_EQ(Shell(start + "\"$@\"", ScratchDir(), program).out, without) << before;
  }
}

TEST(RunTest, ExitCodeIsKnownWithIgnoredSigchld) {
  EXPECT_EQ(Shell("trap '' CHLD; exec \"$@\"", ScratchDir(), {"sh", "-c", "exit 7"}).exit_code, 7);
}

TEST(RunTest, ClosedDescriptorsStayClosed) {
  for (const std::string closed : {"<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    SCOPED_TRACE(closed);
    const std::string folder = ScratchDir();
    const CommandResult run =
        Shell("exec \"$@\" " + closed, folder,
              {"sh", "-c", "ls /proc/self/fd > '" + folder + "/open'; " + Program("inject_cases") + " plain; exit 6"});
    EXPECT_EQ(run.exit_code, 6);
    Shell("exec \"${@:6}\" " + closed, folder, {"sh", "-c", "ls /proc/self/fd > '" + folder + "/open_without'"});
    EXPECT_NE(Contents(folder + "/open"), "");
    EXPECT_EQ(Contents(folder + "/open"), Contents(folder + "/open_without"));
    EXPECT_EQ(Profiles(folder).size(), 1u);
  }
}

TEST(RunTest, ClosedStderrIsIgnored) {
  const CommandResult run =
      Shell("exec 3>&1; { \"$@\" 2>&1 >&3; echo $? >&3; } | true", ScratchDir(), {"sh", "-c", "sleep 0.2; exit 3"});
  EXPECT_EQ(run.out, "3\n");
}

TEST(RunTest, ProgramThatCannotStartIs126Or127) {
  const std::string folder = ScratchDir();
  WriteScript(folder + "/plain", "exit 5\n", 0644);
  WriteScript(folder + "/lost", "#!/nonexistent/interpreter\n");
  const std::string output = folder + "/profiles";
  const std::vector<std::pair<std::string, int>> cases = {{"no-such-program", 127},       {folder + "/none", 127},
                                                          {folder + "/plain/below", 127}, {folder + "/lost", 127},
                                                          {folder + "/plain", 126},       {folder, 126}};
  for (const auto& [program, code] : cases) {
    const CommandResult run = Tool({"run", "--output", output, "--", program});
    EXPECT_EQ(run.exit_code, code) << program;
    EXPECT_THAT(run.err, HasSubstr("hbmprof run: " + program));
    EXPECT_EQ(Tool({"doctor", "--", program}).exit_code, 1);
  }
}

TEST(RunTest, FileOfUnknownFormatIsAScript) {
  const std::string folder = ScratchDir();
  WriteScript(folder + "/script", "echo \"$#: $2\"; " + Program("inject_cases") + " plain; exit 5\n");
  const CommandResult run = Tool({"run", "--output", folder + "/profiles", "--", folder + "/script", "a", "b c"});
  EXPECT_EQ(run.exit_code, 5) << run.err;
  EXPECT_EQ(run.out, "2: b c\ndone\n");
  EXPECT_EQ(Profiles(folder + "/profiles").size(), 1u);
}

TEST(RunTest, PercentInFolderNameIsLiteral) {
  const std::string folder = ScratchDir() + "/%p %n%%p%";
  const CommandResult run = Tool({"run", "--output", folder, "--", Program("inject_cases"), "plain"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(Profiles(folder).size(), 1u);
  EXPECT_THAT(run.err, HasSubstr(Profiles(folder)[0]));
}

TEST(RunTest, PercentInTheWorkingDirectoryOfARecordingIsLiteral) {
  const std::string scratch = ScratchDir();
  const std::string folder = scratch + "/%p %n%%p%";
  fs::create_directory(folder);
  const CommandResult run =
      RunCommand({ToolPath(), "run", "--record=x%%.hbmrec", "--", Program("inject_cases"), "plain"},
                 {kDoubles, "HBMPROF_SOCKET_DIR=" + scratch}, {folder, 0});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(fs::exists(folder + "/x%.hbmrec")) << run.err;
}

TEST(RunTest, TheFileOfARecordingCanBeAWordOfItsOwn) {
  const std::string folder = ScratchDir();
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "--output", folder});
    return Tool(arguments);
  };
  const std::string file = folder + "/out.hbmrec";
  for (const bool has_dashes : {true, false}) {
    std::vector<std::string> arguments = {"--record", file};
    if (has_dashes) arguments.emplace_back("--");
    arguments.insert(arguments.end(), {Program("inject_cases"), "plain"});
    const CommandResult recorded = run(arguments);
    EXPECT_EQ(recorded.exit_code, 0) << recorded.err;
    EXPECT_TRUE(fs::remove(file)) << recorded.err;
  }
  // Arguments of the program stay its own.
  EXPECT_EQ(run({"--", "echo", "--record", "x.hbmrec"}).out, "--record x.hbmrec\n");
  EXPECT_EQ(run({"echo", "--record", "x.hbmrec"}).out, "--record x.hbmrec\n");
  EXPECT_EQ(run({"--nvtx", "path", "echo", "--nvtx", "path"}).out, "--nvtx path\n");
  // A file with any name, if -- is behind it.
  const CommandResult other = run({"--record", folder + "/out.bin", "--", Program("inject_cases"), "plain"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_TRUE(fs::exists(folder + "/out.bin")) << other.err;
}

TEST(RunTest, RunningProcessIsNamed) {
  const std::string folder = ScratchDir() + "/profiles";
  const std::string program = "(while [ ! -e " + folder + ".go ]; do sleep 0.01; done; exec " +
                              Program("inject_cases") + " plain) >/dev/null 2>&1 & exit 0";
  // The function Shell waits for all programs.
  const CommandResult run = Shell("\"$@\"; echo $?; ls -d \"$4\"; > \"$4.go\"", folder, {"sh", "-c", program});
  EXPECT_EQ(run.out, "0\n" + folder + "\n");
  EXPECT_THAT(run.err, ContainsRegex("hbmprof: process [0-9]+ still runs; it writes " + folder));
  EXPECT_EQ(Profiles(folder).size(), 1u);
}

TEST(RunTest, OnlyAProcessThatRecordsIsAwaited) {
  const std::string folder = ScratchDir() + "/profiles";
  const CommandResult run =
      Tool({"run", "--output", folder, "--", "sh", "-c",
            "sleep 20 >/dev/null 2>&1 & echo $! > " + folder + "/helper; exec " + Program("inject_cases") + " plain"});
  kill(std::atoi(Contents(folder + "/helper").c_str()), SIGKILL);
  EXPECT_EQ(Profiles(folder).size(), 1u) << run.err;
  EXPECT_THAT(run.err, Not(HasSubstr("still runs")));
}

// Python's resource tracker ends by itself, but a little later than the program.
TEST(RunTest, HelperThatEndsAfterTheProgramIsNotAwaited) {
  const CommandResult run = Tool({"run", "--output", ScratchDir(), "--", "/usr/bin/env", "python3", "-c", R"(
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool: pool.map(abs, [1]))"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("hbmprof: no profile: "));
  EXPECT_THAT(run.err, Not(HasSubstr("still runs")));
}

TEST(RunTest, ResultAsJsonIsTheLastLineOfStandardError) {
  const json schema = json::parse(std::ifstream(HBMPROF_SCHEMAS "/run.json"));
  const auto result_of = [&schema](const CommandResult& run) {
    const size_t last = run.err.rfind('\n', run.err.size() - 2);
    const json result = json::parse(run.err.substr(last == std::string::npos ? 0 : last + 1), nullptr, false);
    EXPECT_EQ(SchemaProblem(schema, result), "") << run.err;
    return result;
  };
  const std::string folder = ScratchDir();
  const CommandResult run =
      Tool({"run", "--json", "--output", folder, "--", "sh", "-c", Program("inject_cases") + " plain; exit 3"});
  EXPECT_EQ(run.out, "done\n");
  EXPECT_EQ(run.exit_code, 3);
  const json result = result_of(run);
  EXPECT_EQ(result["exit_code"], 3);
  ASSERT_EQ(result["processes"].size(), 1u);
  EXPECT_EQ(result["processes"][0]["file"], Profiles(folder)[0]);
  EXPECT_EQ(result["processes"][0]["memories"][0]["name"], "GPU:0");
  EXPECT_EQ(result["next"], "hbmprof explain " + Profiles(folder)[0]);
  for (const std::string& record : {std::string("--record"), "--record=" + folder + "/%p.hbmrec"}) {
    const json recorded =
        result_of(Tool({"run", "--json", record, "--output", ScratchDir(), "--", Program("inject_cases"), "plain"}));
    EXPECT_THAT(recorded["next"].get<std::string>(), ContainsRegex("hbmprof explain .*[0-9]\\.hbmrec$")) << record;
  }
  // Failed before: the second run named the recording of the first one, and nothing was quoted.
  const std::string spaced = ScratchDir() + "/my files";
  const std::string file = spaced + "/run.hbmrec";
  for (const char* suffix : {"", ".1", ".2"}) {
    const json named = result_of(
        Tool({"run", "--json", "--record=" + file, "--output", spaced, "--", Program("inject_cases"), "plain"}));
    EXPECT_EQ(named["next"], "hbmprof explain '" + file + suffix + "'");
  }
  const json profile = result_of(Tool({"run", "--json", "--output", spaced, "--", Program("inject_cases"), "plain"}));
  EXPECT_THAT(profile["next"].get<std::string>(),
              ContainsRegex("^hbmprof explain '" + spaced + "/[^ ]*[.]0[.]pb[.]gz'$"));
  const json two = result_of(Tool({"run", "--json", "--output", spaced, "--", "sh", "-c",
                                   Program("inject_cases") + " plain; " + Program("inject_cases") + " plain"}));
  EXPECT_THAT(two["next"].get<std::string>(),
              ContainsRegex("^hbmprof explain '" + spaced + "/[-0-9a-f]*'[.][*][.]pb[.]gz$"));
  const json killed = result_of(Tool({"run", "--json", "--output", folder, "--", "sh", "-c", "kill -TERM $$"}));
  EXPECT_EQ(killed["signal"], SIGTERM);
  EXPECT_EQ(killed["exit_code"], nullptr);
  EXPECT_EQ(killed["next"], nullptr);
}

// Failed before: the next command read the profiles of the end only, and found nothing wrong.
TEST(RunTest, TheNextCommandShowsThatMemoryRanOut) {
  const auto program = [](const std::string& end) {
    return R"(
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
while cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(200 << 20)) == 0: pass
)" + end;
  };
  const std::string fails = program("raise MemoryError");
  const std::vector<std::vector<std::string>> commands = {
      {"python3", "-c", fails},
      {"sh", "-c", "python3 -c \"$0\"; python3 -c \"$0\"; exit 1", fails},
      {"python3", "-c", program("os.kill(os.getpid(), 9)")}};
  for (const std::vector<std::string>& command : commands) {
    const std::string folder = ScratchDir() + "/failed";
    std::vector<std::string> arguments = {"run", "--json", "--output", folder, "--"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    const CommandResult run = Tool(arguments);
    const json result = json::parse(run.err.substr(run.err.rfind('\n', run.err.size() - 2) + 1), nullptr, false);
    ASSERT_TRUE(result.is_object() && result["next"].is_string()) << run.err;
    const std::string next = result["next"];
    const CommandResult explain = RunCommand({"sh", "-c", "exec " + ToolPath() + next.substr(next.find(' '))});
    EXPECT_EQ(explain.exit_code, 1) << next << explain.err;
    EXPECT_THAT(explain.out, HasSubstr("1. OUT_OF_MEMORY  ")) << next;
  }
}

TEST(RunTest, ProcessThatIsKilledAtASignalLeavesItsProfile) {
  const std::string folder = ScratchDir() + "/profiles";
  // As vLLM does: the program kills its engine when it gets the signal.
  const std::string engine = R"(
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
open(")" + folder + R"(/ready", "w").close()
time.sleep(60))";
  const std::string program = R"(
import signal, subprocess, sys
def end(*_):
    engine.kill()
    engine.wait()
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
signal.pause())";
  const CommandResult run = Shell("\"$@\" & until [ -e \"$4/ready\" ]; do sleep 0.05; done; kill -TERM $!; wait $!",
                                  folder, {"/usr/bin/env", "python3", "-c", program, engine});
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("hbmprof: process [0-9]+ \\(python3[0-9.]*\\) was killed before it wrote a "
                                     "profile; its profile is of the moment of the signal\n"));
  const std::vector<std::string> profiles = Profiles(folder);
  ASSERT_EQ(profiles.size(), 1u) << run.err;
  EXPECT_THAT(run.err, HasSubstr(profiles[0]));
  EXPECT_THAT(RunTool({"top", "--type", "inuse_space", profiles[0]}).out, HasSubstr("4.00 KiB"));
}

// At the first signal the process answers with its profile, at the second one no more.
TEST(RunTest, SecondSignalKeepsTheFirstProfile) {
  const std::string folder = ScratchDir() + "/profiles";
  ASSERT_TRUE(fs::create_directories(folder + "/sockets"));
  ASSERT_EQ(chmod((folder + "/sockets").c_str(), 0700), 0);
  hbmprof_test::ProfileMaker maker;
  maker.Sample({maker.Frame("AllocatePage")}, {1, 4096});
  maker.Write(folder + "/answer");
  const std::string program = R"(
import os, signal, socket, sys
folder = sys.argv[1]
signals = 0
def end(*_):
    global signals
    signals += 1
    if signals == 2:
        os._exit(3)
    open(folder + "/first", "w").close()
signal.signal(signal.SIGTERM, end)
server = socket.socket(socket.AF_UNIX)
server.bind(f"{folder}/sockets/hbmprof.{os.getpid()}.sock")
server.listen()
open(folder + "/ready", "w").close()
profile = open(folder + "/answer", "rb").read()
while True:
    with server.accept()[0] as connection:
        body = f"pid {os.getpid()}\nname engine\nseconds 60\n".encode()
        if connection.recv(100).startswith(b"profile"):
            body, profile = profile, b""
        if body:
            connection.sendall(b"ok %d\n" % len(body) + body))";
  const CommandResult run = Shell(
      "export HBMPROF_SOCKET_DIR=\"$4/sockets\"; \"$@\" & for mark in ready first; do until [ -e \"$4/$mark\" ]; do "
      "sleep 0.05; done; kill -TERM $!; done; wait $!",
      folder, {"/usr/bin/env", "python3", "-c", program, folder});
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, HasSubstr("(engine) was killed before it wrote a profile; its profile is of the moment"));
  const std::vector<std::string> profiles = Profiles(folder);
  ASSERT_EQ(profiles.size(), 1u) << run.err;
  EXPECT_EQ(Contents(profiles[0]), Contents(folder + "/answer"));
}

TEST(RunTest, RunsInOneFolderAreSeparate) {
  const std::string folder = ScratchDir();
  // The second run starts and ends while the program of the first one runs, which writes a profile too.
  const std::string program = Program("inject_cases") + " plain";
  const std::string second = ToolPath() + " run --output " + folder + " -- " + program + " 2>" + folder + ".second; ";
  const CommandResult first = Tool({"run", "--output", folder, "--", "sh", "-c", second + program});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(Profiles(folder).size(), 2u);
  const auto reported = [&](const std::string& text) {
    std::vector<std::string> found;
    for (const std::string& path : Profiles(folder)) {
      if (text.find(path) != std::string::npos) found.push_back(path);
    }
    return found;
  };
  ASSERT_EQ(reported(first.err).size(), 1u) << first.err;
  ASSERT_EQ(reported(Contents(folder + ".second")).size(), 1u);
  EXPECT_NE(reported(first.err), reported(Contents(folder + ".second")));
}

TEST(RunTest, NestedRunPreloadsOnce) {
  const std::string folder = ScratchDir();
  const CommandResult run = Tool({"run", "--output", folder, "--", ToolPath(), "run", "--output", folder, "--", "sh",
                                  "-c", "echo $LD_PRELOAD; exit 4"});
  EXPECT_EQ(run.exit_code, 4) << run.err;
  EXPECT_EQ(run.out, HBMPROF_INJECTED "\n");
}

// torch_npu and MindSpore report their blocks only with such a file.
TEST(RunTest, WithCannAHookIsPreloadedOnce) {
  const std::string folder = ScratchDir();
  const std::string hook = fs::path(HBMPROF_INJECTED).parent_path() / "libascend_kernel_hook.so";
  const std::vector<std::string> command = {"run",      "--output", folder, "--", ToolPath(), "run",
                                            "--output", folder,     "--",   "sh", "-c",       "echo $LD_PRELOAD"};
  EXPECT_EQ(Tool(command, {"ASCEND_HOME_PATH=" HBMPROF_CANN}).out, std::string(HBMPROF_INJECTED ":") + hook + "\n");
  EXPECT_EQ(Tool(command, {"ASCEND_HOME_PATH=" + folder}).out, HBMPROF_INJECTED "\n");
  const std::string other = folder + "/libascend_kernel_hook.so";
  fs::copy_file(hook, other);
  EXPECT_EQ(Tool(command, {"ASCEND_HOME_PATH=" HBMPROF_CANN, "LD_PRELOAD=" + other}).out,
            HBMPROF_INJECTED ":" + other + "\n");
}

TEST(RunTest, UnusableLibraryPathIsRefused) {
  for (const std::string name : {"with space", "with:colon", "with$ORIGIN"}) {
    const std::string folder = ScratchDir() + "/" + name;
    fs::create_directories(folder);
    const std::string library = folder + "/libhbmprof_gpu.so";
    fs::copy_file(HBMPROF_INJECTED, library);
    const CommandResult run = Tool({"run", "--library", library, "--output", folder + "/out", "--", "echo", "started"});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, HasSubstr(library + " cannot be preloaded: "));
    EXPECT_THAT(Tool({"doctor", "--library", library}).out, HasSubstr(library + " cannot be preloaded: "));
  }
}

// A program that would fail with the library runs without it, and one line prints the reason.
void ExpectRunsWithout(const std::string& program, const std::string& folder, const std::string& reason) {
  const CommandResult run = Tool({"run", "--output", folder, "--", program});
  EXPECT_EQ(run.exit_code, 5) << run.err;
  EXPECT_EQ(run.out, "done\n");
  EXPECT_THAT(run.err, ContainsRegex("^hbmprof: " + program + " runs without hbmprof: .*" + reason));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_FALSE(fs::exists(folder));
  const CommandResult doctor = Tool({"doctor", "--", program});
  EXPECT_EQ(doctor.exit_code, 1);
  EXPECT_THAT(doctor.out, ContainsRegex("! +.hbmprof run. will not inject it: .*" + reason));
}

TEST(RunTest, RunsWithoutInjectionWithMusl) {
  if (*HBMPROF_MUSL_PROGRAM == '\0') GTEST_SKIP() << "there was no musl-gcc when this was built";
  ExpectRunsWithout(HBMPROF_MUSL_PROGRAM, ScratchDir() + "/profiles", "another C library than glibc .*ld-musl");
}

TEST(RunTest, RunsWithoutInjectionWithAsan) {
  if (*HBMPROF_ASAN_PROGRAM == '\0') GTEST_SKIP() << "this compiler has no shared AddressSanitizer";
  const std::string folder = ScratchDir();
  ExpectRunsWithout(HBMPROF_ASAN_PROGRAM, folder + "/profiles", "loads libasan");
  WriteScript(folder + "/script", "#!" HBMPROF_ASAN_PROGRAM "\n");
  ExpectRunsWithout(folder + "/script", folder + "/profiles", "loads libasan");
}

TEST(RunTest, RunsWithoutInjectionIfLibrariesAreTooOld) {
  const CommandResult run =
      Tool({"run", "--library", HBMPROF_NEEDS_NEW_LIBRARY, "--output", ScratchDir(), "--", "echo", "done"},
           {"LD_LIBRARY_PATH=" HBMPROF_OLD_LIBRARY_FOLDER});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "done\n");
  EXPECT_THAT(run.err, ContainsRegex("runs without hbmprof: the dynamic linker says: .*not found .required by "));
}

// --- A terminal. ---

// Replaces this process, a child, by the command. A background process of a script ignores SIGINT, and one of nohup
// SIGHUP; the command must not inherit that.
[[noreturn]] void Execute(std::vector<std::string>& command) {
  for (const int signal_number : {SIGINT, SIGQUIT, SIGHUP}) signal(signal_number, SIG_DFL);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  _exit(127);
}

// A shell with job control on a terminal of its own. It runs the command as its foreground job and resumes it there
// whenever it stops.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> command) : terminal_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    grantpt(terminal_);
    unlockpt(terminal_);
    const std::string name = ptsname(terminal_);
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) std::abort();
    report_ = report[0];
    shell_ = fork();
    if (shell_ == 0) BeShell(name, report[1], command);
    close(report[1]);
  }
  ~Terminal() {
    kill(shell_, SIGKILL);
    waitpid(shell_, nullptr, 0);
    close(report_);
    close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Returns all output on the terminal, as soon as it contains `text`.
  const std::string& ReadUntil(const std::string& text) {
    pollfd input = {terminal_, POLLIN, 0};
    while (screen_.find(text) == std::string::npos) {
      char buffer[4096];
      const ssize_t count = poll(&input, 1, 60'000) == 1 ? read(terminal_, buffer, sizeof(buffer)) : -1;
      if (count <= 0) {
        ADD_FAILURE() << "no '" << text << "' on the screen, but: " << screen_;
        break;
      }
      screen_.append(buffer, static_cast<size_t>(count));
    }
    return screen_;
  }
  void Type(const std::string& keys) {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Returns how the job stopped or ended, as the shell sees it.
  int NextStatus() {
    int status = -1;
    pollfd input = {report_, POLLIN, 0};
    EXPECT_EQ(poll(&input, 1, 60'000), 1) << "the shell sees nothing; on the screen is: " << screen_;
    EXPECT_EQ(read(report_, &status, sizeof(status)), static_cast<ssize_t>(sizeof(status)));
    return status;
  }

 private:
  [[noreturn]] static void BeShell(const std::string& terminal, int report, std::vector<std::string>& command) {
    setsid();
    const int tty = open(terminal.c_str(), O_RDWR);  // becomes the controlling terminal
    signal(SIGTTOU, SIG_IGN);
    const pid_t job = fork();
    if (job == 0) {
      setpgid(0, 0);
      tcsetpgrp(tty, getpid());
      signal(SIGTTOU, SIG_DFL);
      for (int i = 0; i < 3; ++i) dup2(tty, i);
      Execute(command);
    }
    setpgid(job, job);
    for (int status = 0; waitpid(job, &status, WUNTRACED) == job;) {
      if (write(report, &status, sizeof(status)) != sizeof(status) || !WIFSTOPPED(status)) break;
      tcsetpgrp(tty, job);
      kill(-job, SIGCONT);
    }
    // The output on the terminal is lost when the last process closes it.
    pause();
    _exit(0);
  }

  const int terminal_;
  int report_;
  pid_t shell_;
  std::string screen_;
};

std::vector<std::string> InTerminal(const std::string& script) {
  return {ToolPath(), "run", "--output", ScratchDir(), "--", "bash", "-c", script};
}

TEST(RunTerminalTest, InterruptKeyEndsTheProgram) {
  Terminal caught(InTerminal("trap 'echo cau''ght' INT; echo ready; read x; sleep 0.2; exit 3"));
  caught.ReadUntil("ready");
  caught.Type("\x03");
  caught.ReadUntil("caught");
  caught.Type("\n");
  const int status = caught.NextStatus();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  const std::string screen = caught.ReadUntil("hbmprof: no profile");
  EXPECT_EQ(screen.find("caught"), screen.rfind("caught")) << "the program gets it once";

  Terminal killed(InTerminal("echo ready; exec sleep 60"));
  killed.ReadUntil("ready");
  killed.Type("\x03");
  EXPECT_EQ(killed.NextStatus(), SIGINT) << "a shell's loop ends with it";
}

TEST(RunTerminalTest, StopsAndContinuesWithProgram) {
  Terminal by_key(InTerminal("echo ready; read x; echo \"got $x\"; exit 4"));
  by_key.ReadUntil("ready");
  by_key.Type("\x1a");
  EXPECT_TRUE(WIFSTOPPED(by_key.NextStatus()));
  by_key.Type("y\n");
  by_key.ReadUntil("got y");
  EXPECT_EQ(WEXITSTATUS(by_key.NextStatus()), 4);
}

TEST(RunTerminalTest, ProgramCanTakeTheTerminal) {
  // An interactive shell puts itself and each of its jobs into a group of its own.
  Terminal terminal({ToolPath(), "run", "--output", ScratchDir(), "--", "bash", "--norc", "-i"});
  terminal.Type("sh -c 'echo rea''dy; exec sleep 60'\n");
  terminal.ReadUntil("ready");
  terminal.Type("\x03");  // for that job only
  terminal.Type("echo $((40 + 2)) $?; exit 8\n");
  terminal.ReadUntil("42 130");
  EXPECT_EQ(WEXITSTATUS(terminal.NextStatus()), 8);
}

TEST(RunTerminalTest, HangupEndsTheProgramOfASessionLeader) {
  std::vector<std::string> command = InTerminal("echo ready; exec sleep 60");
  int terminal = -1;
  const pid_t leader = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (leader == 0) Execute(command);
  ASSERT_GT(leader, 0);
  std::string screen;
  char buffer[256];
  for (ssize_t count; screen.find("ready") == std::string::npos;) {
    count = read(terminal, buffer, sizeof(buffer));
    ASSERT_GT(count, 0) << screen;
    screen.append(buffer, static_cast<size_t>(count));
  }
  close(terminal);
  int status = 0;
  pid_t ended = 0;
  for (int waited = 0; ended == 0 && waited < 400; ++waited) {
    usleep(50'000);
    ended = waitpid(leader, &status, WNOHANG);
  }
  if (ended == 0) {
    kill(leader, SIGTERM);  // `hbmprof run` passes it on to the program
    waitpid(leader, &status, 0);
  }
  EXPECT_EQ(ended, leader) << "hbmprof or the program still runs after 20 s";
  EXPECT_EQ(status, SIGHUP);
}

TEST(RunTest, EachProcessHasItsOwnProfile) {
  const std::string folder = ScratchDir();
  const std::string program = Program("inject_cases");
  const CommandResult run =
      Tool({"run", "--output", folder, "--", "sh", "-c", program + " plain; " + program + " module"});
  EXPECT_EQ(Profiles(folder).size(), 2u);
  for (const std::string& path : Profiles(folder)) EXPECT_THAT(run.err, HasSubstr(path));
}

TEST(RunTest, IntervalWritesProfiles) {
  const std::string folder = ScratchDir();
  const CommandResult run =
      Tool({"run", "-o", folder, "--interval", "100ms", "--", Program("inject_cases"), "interval"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GE(Profiles(folder).size(), 2u);
  EXPECT_THAT(run.err, Not(HasSubstr(".0.pb.gz")));
}

TEST(RunTest, ReportsErrorsBeforeStarting) {
  const CommandResult library = Tool({"run", "--library", "/nonexistent.so", "--", "true"});
  EXPECT_EQ(library.exit_code, 2);
  EXPECT_THAT(library.err, HasSubstr("/nonexistent.so"));
  CommandPlace place;
  place.time_limit_s = 20;
  const CommandResult empty = RunCommand({ToolPath(), "run", "--output", "", "--", "true"}, {kDoubles}, place);
  EXPECT_FALSE(empty.timed_out);
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("--output: the value is empty"));
  const std::string file = ScratchDir() + "/file";
  std::ofstream(file) << "x";
  EXPECT_THAT(Tool({"run", "--output", file, "true"}).err, HasSubstr("--output '" + file + "': not a folder"));
  for (const char* interval : {"never", "0", "1e9"}) {
    const CommandResult run = Tool({"run", "--interval", interval, "--", "true"});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, HasSubstr(std::string("--interval ") + interval + ": write a time such as 60s"));
  }
}

TEST(DoctorTest, ShowsDriverAndEntryPoints) {
  const CommandResult run = Tool({"doctor", "--entry-points", "--", Program("inject_matrix_static")});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr(HBMPROF_DOUBLES "/libcuda.so.1, CUDA 13.2, 2 devices"));
  EXPECT_THAT(run.out,
              HasSubstr("  attach           the driver's functions have a form that `hbmprof attach` knows\n"));
  EXPECT_THAT(RunTool({"doctor"}, {"LD_LIBRARY_PATH=" HBMPROF_LACKING_STUB}).out,
              HasSubstr("  attach           the driver's functions have an unknown form: `hbmprof attach` refuses"));
  EXPECT_THAT(run.out, ContainsRegex("library +/.*libhbmprof_gpu.so can be preloaded"));
  EXPECT_THAT(run.out, HasSubstr("cuMemAlloc_v2: tracked"));
  EXPECT_THAT(run.out, HasSubstr("cuMemPoolTrimTo: passed through: "));
  EXPECT_THAT(run.out, HasSubstr("cuCtxCreate_v3: absent"));
}

TEST(DoctorTest, ShowsUnrecordedMemory) {
  const CommandResult run = RunTool({"doctor", "--", HBMPROF_STATIC_PROGRAM}, {"LD_LIBRARY_PATH="});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("statically linked: nothing can be preloaded into it"));
  EXPECT_THAT(Tool({"doctor", "--", "no-such-program"}).out, HasSubstr("! program"));
  EXPECT_THAT(Tool({"doctor", "--library", "/nonexistent.so"}).out, HasSubstr("! library"));
}

// The measured number and that of the README are the same.
TEST(HostMemory, PerBufferIsThatOfTheReadme) {
  constexpr int64_t kBuffers = 1000000;
  hbmprof::Profiler profiler;
  ASSERT_TRUE(profiler.RecordAlloc(hbmprof::BufferId(uint64_t{512}), 512));
  const int64_t before = ResidentBytes();
  for (int64_t i = 2; i < kBuffers; ++i) profiler.RecordAlloc(hbmprof::BufferId(static_cast<uint64_t>(i) * 512), 512);
  const double measured = static_cast<double>(ResidentBytes() - before) / kBuffers;
  ASSERT_EQ(profiler.Stats(hbmprof::kDefaultDevice).num_live, kBuffers - 1);

  const auto said = [](const std::string& text, const std::string& pattern) {
    std::smatch match;
    EXPECT_TRUE(std::regex_search(text, match, std::regex(pattern))) << text;
    return match.size() < 2 ? 0 : std::stoi(match[1]);
  };
  std::ifstream file(HBMPROF_README);
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  const int by_readme = said(readme, "([0-9]+) bytes per live buffer");
  EXPECT_NEAR(measured, by_readme, 4);
}

TEST(DoctorTest, ResolvesScriptInterpreter) {
  const CommandResult run = Tool({"doctor", "--", HBMPROF_SCRIPT});
  EXPECT_THAT(run.out, HasSubstr("is a script for bash"));
  EXPECT_THAT(run.out, ContainsRegex("program +/.*/bash\n"));
}

TEST(DoctorTest, EscapesTextOfFiles) {
  const std::string script = ScratchDir() + "/script";
  WriteScript(script, "#!/x\x1b]0;title\x07/y\n");
  const CommandResult run = Tool({"doctor", "--", script});
  EXPECT_THAT(run.out, ContainsRegex("is a script for /x.*title.*/y"));
  EXPECT_EQ(run.out.find_first_of("\x1b\x07"), std::string::npos) << run.out;
}

}  // namespace
