// Python programs under the injected library, on the double of the driver: the functions in the profiles are compared
// with Python's own stacks, for each interpreter that is found.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/python/python_programs.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace hbmprof_test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct PythonRun {
  std::string directory = NewDirectory();
  CommandResult result;
  Profile profile;
};

PythonRun RunPython(const std::string& python, std::vector<std::string> arguments,
                    std::vector<std::string> environment) {
  PythonRun run;
  const std::string output = run.directory + "/profile.pb.gz";
  arguments.insert(arguments.begin(), python);
  for (std::string& argument : arguments) {
    if (argument == "EXPECTED") argument = run.directory + "/expected";
  }
  environment.insert(environment.end(), {"LD_PRELOAD=" HBMPROF_INJECTED, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES,
                                         "HBMPROF_CUDA_OUTPUT=" + output});
  run.result = RunCommand(arguments, environment);
  ExpectDone(run.result);
  const auto profile = ReadProfile(output);
  EXPECT_TRUE(profile.ok()) << profile.status();
  if (profile.ok()) run.profile = *profile;
  EXPECT_EQ(hbmprof_test::CheckProfile(run.profile), "");
  return run;
}

TEST_P(PythonTest, StacksMatchPythonsTraceback) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  for (const std::string& python : interpreters) {
    SCOPED_TRACE(python);
    const PythonRun run = RunPython(python, {HBMPROF_PYTHON_PROGRAMS "/frames_program.py", "EXPECTED", "50"},
                                    {"HBMPROF_STACK_DEPTH=512"});
    const std::map<int64_t, ExpectedStack> expected = ReadExpected(run.directory + "/expected");
    EXPECT_EQ(expected.size(), 38u);
    std::map<int64_t, int64_t> counts;
    for (const auto& sample : run.profile.sample()) {
      const int64_t size = SizeOf(run.profile, sample);
      const auto found = expected.find(size);
      ASSERT_NE(found, expected.end()) << size;
      const std::vector<Frame> frames = FramesOf(run.profile, sample);
      EXPECT_THAT(PythonFrames(frames), ElementsAreArray(found->second.frames)) << size;
      for (const Frame& frame : frames) EXPECT_NE(frame.function, "_PyEval_EvalFrameDefault") << size;
      counts[size] += sample.value(kAllocObjects);
    }
    for (const auto& [size, stack] : expected) EXPECT_EQ(counts[size], stack.count) << size;
    const ProfileView view(run.profile);
    EXPECT_EQ(view.Comment("python", "functions"), "read");
    EXPECT_THAT(Interpreters().at(python), HasSubstr(view.Comment("python", "version")));
  }
}

// Returns the position of `name` in the stack, or the size of the stack if it does not contain `name`.
size_t PositionOf(const std::vector<Frame>& frames, const std::string& name) {
  return static_cast<size_t>(
      std::find_if(frames.begin(), frames.end(), [&](const Frame& frame) { return frame.function == name; }) -
      frames.begin());
}

TEST_P(PythonTest, NativeFramesAreBetweenPythonFunctions) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  for (const std::string& python : interpreters) {
    SCOPED_TRACE(python);
    const PythonRun run =
        RunPython(python, {HBMPROF_PYTHON_PROGRAMS "/frames_program.py", "EXPECTED", "1"}, {"HBMPROF_STACK_DEPTH=512"});
    bool found = false;
    for (const auto& sample : run.profile.sample()) {
      if (SizeOf(run.profile, sample) != 10501) continue;
      found = true;
      const std::vector<Frame> frames = FramesOf(run.profile, sample);
      const bool has_qualified_names = MinorOf(GetParam()) >= 11;
      const size_t compare = PositionOf(frames, has_qualified_names ? "callbacks.<locals>.compare" : "compare");
      const size_t qsort = std::min(PositionOf(frames, "qsort"), PositionOf(frames, "qsort_r"));
      const size_t callbacks = PositionOf(frames, "callbacks");
      EXPECT_LT(PositionOf(frames, "allocate"), compare);
      EXPECT_LT(compare, qsort);
      EXPECT_LT(qsort, callbacks);
      EXPECT_LT(callbacks, PositionOf(frames, "<module>"));
      EXPECT_LT(PositionOf(frames, "<module>"), frames.size());
      EXPECT_EQ(frames.back().function, "_start");
    }
    EXPECT_TRUE(found);
  }
}

TEST_P(PythonTest, TurnedOffLeavesNativeStacks) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  const PythonRun run =
      RunPython(interpreters[0], {HBMPROF_PYTHON_PROGRAMS "/frames_program.py", "EXPECTED", "1"}, {"HBMPROF_PYTHON=0"});
  for (const auto& sample : run.profile.sample()) EXPECT_THAT(PythonFrames(FramesOf(run.profile, sample)), IsEmpty());
  const ProfileView view(run.profile);
  EXPECT_EQ(view.Comment("python", "functions"), "not_read");
  EXPECT_EQ(view.Comment("python", "problem"), "turned%20off");
}

TEST_P(PythonTest, DestroyedFunctionsKeepTheirNames) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  const PythonRun run = RunPython(
      interpreters[0], {HBMPROF_PYTHON_PROGRAMS "/stress_program.py", std::to_string(kStressAllocations)}, {});
  ExpectFunctionsOfStress(run.profile, MinorOf(GetParam()) >= 11);
}

// The file of the interpreter's shared library; "" if it is linked into the executable.
std::string LibraryOf(const std::string& python) {
  const CommandResult asked = RunCommand({python, "-c",
                                          "import os, sysconfig as s; p = os.path.join(s.get_config_var('LIBDIR') or "
                                          "'', s.get_config_var('INSTSONAME') or "
                                          "''); print(p if '.so' in p and os.path.exists(p) else '')"});
  return asked.out.empty() ? "" : asked.out.substr(0, asked.out.size() - 1);
}

TEST_P(PythonTest, EmbeddedInterpreterIsReadWhileItRuns) {
  std::string library;
  std::string version;
  for (const std::string& python : InterpretersOfVersion()) {
    if (!library.empty()) break;
    library = LibraryOf(python);
    version = Interpreters().at(python);
  }
  if (library.empty()) GTEST_SKIP() << "no shared library of CPython " << GetParam();
  for (const char* scope : {"RTLD_LOCAL", "RTLD_GLOBAL"}) {
    SCOPED_TRACE(scope);
    const PythonRun run = RunPython(HBMPROF_EMBEDDING_PROGRAM, {library, scope}, {});
    std::map<int64_t, int64_t> counts;
    for (const auto& sample : run.profile.sample()) {
      const int64_t size = SizeOf(run.profile, sample);
      counts[size] += sample.value(kAllocObjects);
      const std::vector<Frame> frames = PythonFrames(FramesOf(run.profile, sample));
      if (size == 31000 || size == 31001) {
        const std::string function = "in_round_" + std::to_string(size - 31000);
        EXPECT_THAT(frames, ElementsAreArray({Frame{function, "<string>", 2}, Frame{"<module>", "<string>", 6}}));
      } else if (size == 32000 || size == 32001) {
        EXPECT_THAT(frames, ElementsAreArray({Frame{"from_thread", "<string>", 4}, Frame{"<module>", "<string>", 1}}));
      } else {
        EXPECT_THAT(frames, IsEmpty()) << size;
      }
    }
    EXPECT_THAT(counts, ::testing::ElementsAre(std::pair(30001, 2), std::pair(30002, 2), std::pair(31000, 40),
                                               std::pair(31001, 40), std::pair(32000, 40), std::pair(32001, 40),
                                               std::pair(33000, 2), std::pair(34000, 40), std::pair(35000, 40)));
    EXPECT_EQ(ProfileView(run.profile).Comment("python", "functions"), "read");
  }
}

struct OddInterpreter {
  const char* library;
  const char* version;
  const char* problem;
};

class OddInterpreterTest : public ::testing::TestWithParam<OddInterpreter> {};

TEST_P(OddInterpreterTest, IsNotReadAndProfileHasTheReason) {
  const OddInterpreter& odd = GetParam();
  const std::string output = NewDirectory() + "/profile.pb.gz";
  const std::string library = std::string(HBMPROF_PYTHON_LIBRARIES "/libpython_") + odd.library + ".so";
  ExpectDone(RunCommand({HBMPROF_INJECT_CASES, "plain"},
                        {"LD_PRELOAD=" HBMPROF_INJECTED ":" + library, "LD_LIBRARY_PATH=" HBMPROF_DOUBLES,
                         "HBMPROF_CUDA_OUTPUT=" + output}));
  const ProfileView view = hbmprof_test::ViewProfile(output);
  EXPECT_FALSE(view.samples.empty());
  EXPECT_EQ(view.Comment("python", "version"), odd.version);
  EXPECT_EQ(view.Comment("python", "functions"), "not_read");
  EXPECT_EQ(view.Comment("python", "problem"), odd.problem);
}

TEST(DoctorTest, SaysThatAnInterpreterIsTooNew) {
  if (*HBMPROF_TOOL_PATH == '\0') GTEST_SKIP() << "the command is not built";
  const CommandResult doctor =
      RunCommand({HBMPROF_TOOL_PATH, "doctor", "--", HBMPROF_PYTHON_LIBRARIES "/libpython_too_new.so"});
  EXPECT_EQ(doctor.exit_code, 1);
  EXPECT_THAT(doctor.out, HasSubstr("! Python           3.15.2: Python functions are not in the stacks"));
  EXPECT_THAT(doctor.out, HasSubstr("JAX_SEND_TRACEBACK_TO_RUNTIME=FULL"));
}

TEST_P(PythonTest, DoctorNamesTheInterpreter) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  if (*HBMPROF_TOOL_PATH == '\0') GTEST_SKIP() << "the command is not built";
  for (const std::string& python : interpreters) {
    EXPECT_THAT(RunCommand({HBMPROF_TOOL_PATH, "doctor", "--", python}).out,
                HasSubstr("  Python           " + GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Python, PythonTest, ALL_VERSIONS, NameOf);
INSTANTIATE_TEST_SUITE_P(
    Python, OddInterpreterTest,
    ::testing::Values(OddInterpreter{"too_new", "3.15.2", "hbmprof%20does%20not%20know%20this%20version"},
                      OddInterpreter{"free_threaded", "3.13.1", "it%20is%20free-threaded"},
                      OddInterpreter{"undescribed", "3.14.0",
                                     "it%20describes%20its%20structs%20in%20an%20unknown%20way"},
                      OddInterpreter{"other_types", "3.12.1", "its%20types%20have%20an%20unknown%20layout"}),
    [](const auto& info) { return std::string(info.param.library); });

}  // namespace
}  // namespace hbmprof_test
