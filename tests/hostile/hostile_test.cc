// Programs with unusual behaviour, run without hbmprof and with it: exit status, output and the files that they leave
// must be the same. A program that hangs is killed, with all its processes, and fails.
//
// Each program is built up to three times (hostile.h) and compared:
//   linked    with the same program without hbmprof (the plain build); HBMPROF_OUTPUT is set
//   preload   the driver build with LD_PRELOAD, with the same without
//   interval  the same, with a profile every 5 ms
//   run       the driver build under `hbmprof run`, with the same without
// Its working directory is new and empty, and the profiles go elsewhere.
//
// To add a program: write NAME.cc, whose first comment describes what it does and what can fail, with Allocate() and
// Free() of hostile.h; add the line hostile_program(NAME ...) to CMakeLists.txt, which lists the options. It must end
// in 30 seconds also on a busy machine, and print nothing that differs from run to run. To run one alone:
//   hostile_test --gtest_filter='*NAME*'
#include <sys/resource.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandPlace;
using ::hbmprof_test::CommandResult;
using ::hbmprof_test::FilesIn;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::HasSubstr;

constexpr int kTimeLimitS = 60;

struct Program {
  const char* name;
  std::string only;
  int status;
  int64_t in_use;  // -1: not checked
  const char* shell;
  const char* variable;
  const char* says;
  const char* needs;
};

const Program kPrograms[] = {
#include "hostile_programs.inc"
};

struct Outcome {
  CommandResult result;
  std::map<std::string, std::string> files;  // in the working directory
  std::string profiles;                      // the folder
};

// Runs the program of the build `variant`. `command` is the part of the command line before the program's path.
Outcome RunProgram(const Program& program, const std::string& variant, std::vector<std::string> command,
                   const std::string& profiles) {
  if (*program.variable != '\0') {
    command.insert(command.begin(), {"env", program.variable});
  }
  command.push_back(std::string(HBMPROF_HOSTILE_PROGRAMS "/hostile_") + program.name + "_" + variant);
  // Variables for the program only: the shell that starts it must not be injected.
  if (*program.shell != '\0') command.insert(command.begin(), {"sh", "-c", program.shell, "sh"});
  CommandPlace place;
  place.directory = NewDirectory();
  place.time_limit_s = kTimeLimitS;
  Outcome run;
  run.result = RunCommand(command, {}, place);
  run.files = FilesIn(place.directory);
  run.profiles = profiles;
  return run;
}

Outcome RunAs(const Program& program, const std::string& mode) {
  const std::string profiles = NewDirectory();
  const std::string output = profiles + "/%p.pb.gz";
  if (mode == "plain") return RunProgram(program, "plain", {}, profiles);
  if (mode == "linked") return RunProgram(program, "linked", {"env", "HBMPROF_OUTPUT=" + output}, profiles);
#ifdef HBMPROF_INJECTED
  std::vector<std::string> command = {"env", "LD_LIBRARY_PATH=" HBMPROF_DOUBLES};
  if (mode == "run") {
    command.insert(command.end(), {HBMPROF_HOSTILE_TOOL, "run", "--output", profiles, "--"});
  } else if (mode != "driver") {
    command.insert(command.end(), {"LD_PRELOAD=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + output});
    if (mode == "interval") command.push_back("HBMPROF_OUTPUT_INTERVAL=0.005");
  }
  return RunProgram(program, "driver", command, profiles);
#else
  return {};
#endif
}

// Returns the program's own output. `own` gets hbmprof's lines: those that start with its name and the indented ones
// that follow.
std::string WithoutOwnLines(const std::string& text, std::vector<std::string>* own) {
  std::string rest;
  std::istringstream lines(text);
  bool ours = false;
  for (std::string line; std::getline(lines, line);) {
    ours = line.rfind("hbmprof: ", 0) == 0 || (ours && line.rfind("  ", 0) == 0);
    if (ours) {
      own->push_back(line);
    } else {
      rest += line + (lines.eof() ? "" : "\n");
    }
  }
  return rest;
}

// The sum over all profiles, each of which must be well-formed.
int64_t InUse(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& [name, contents] : FilesIn(folder)) {
    if (name.rfind(".hbmprof.", 0) == 0) continue;  // the process ended while it wrote the file
    bytes += ViewProfile(folder + "/" + name).Sum("inuse_space");
  }
  return bytes;
}

struct Case {
  Program program;
  std::string mode;
};

std::string NameOf(const Case& one) { return std::string(one.program.name) + "_" + one.mode; }
void PrintTo(const Case& one, std::ostream* out) { *out << NameOf(one); }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Program& program : kPrograms) {
    if (program.only != "driver") cases.push_back({program, "linked"});
#ifdef HBMPROF_INJECTED
    if (program.only == "linked") continue;
    cases.push_back({program, "preload"});
    cases.push_back({program, "interval"});
    cases.push_back({program, "run"});
#endif
  }
  return cases;
}

class HostileTest : public ::testing::TestWithParam<Case> {};

TEST_P(HostileTest, BehavesTheSameWithInjection) {
  const auto& [program, mode] = GetParam();
  if (*program.needs != '\0') {
    const CommandResult able = RunCommand({"sh", "-c", program.needs});
    if (able.exit_code != 0) GTEST_SKIP() << "cannot run here: " << program.needs << "\n" << able.out << able.err;
  }
  // Some programs crash; their core dumps are not needed.
  rlimit cores = {};
  getrlimit(RLIMIT_CORE, &cores);
  cores.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &cores);

  const Outcome without = RunAs(program, mode == "linked" ? "plain" : "driver");
  ASSERT_FALSE(without.result.timed_out) << "the program hangs by itself: " << without.result.err;
  ASSERT_EQ(without.result.exit_code, program.status) << "the program by itself: " << without.result.err;

  const Outcome with = RunAs(program, mode);
  EXPECT_FALSE(with.result.timed_out) << "it hangs, or left a process that hangs";
  if (mode == "run") {
    EXPECT_EQ(with.result.exit_code, program.status) << with.result.err;
  } else {
    EXPECT_EQ(with.result.status, without.result.status) << with.result.err;
  }
  EXPECT_EQ(with.result.out, without.result.out);
  EXPECT_EQ(with.files, without.files);
  std::vector<std::string> own;
  EXPECT_EQ(WithoutOwnLines(with.result.err, &own), without.result.err);
  for (const std::string& line : own) {
    if (mode == "run") break;
    if (*program.says == '\0') {
      ADD_FAILURE() << "unexpected output: " << line;
    } else {
      EXPECT_THAT(line, HasSubstr(program.says));
    }
  }
  const int64_t in_use = InUse(with.profiles);
  if (program.in_use >= 0) {
    EXPECT_EQ(in_use, program.in_use);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, HostileTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
