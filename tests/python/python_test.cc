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
                                         "HBMPROF_GPU_OUTPUT=" + output});
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
  const PythonRun run = RunPython(interpreters[0], {HBMPROF_PYTHON_PROGRAMS "/frames_program.py", "EXPECTED", "1"},
                                  {"HBMPROF_UNWINDER=native"});
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

// The beginning of programs: a function that allocates on the driver.
constexpr char kAllocate[] = R"(
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemAlloc_v2.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0

def allocate(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), size) == 0
)";

// A cell of a notebook that is edited and run again: code with the same name, file and first line is made at the
// addresses of code that was freed.
TEST_P(PythonTest, EditedFunctionsHaveTheirNewLines) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  const std::string program = std::string(kAllocate) + R"PY(
space = {"allocate": allocate}
for i in range(3000):
    before, between = i * 7 % 6, i * 5 % 4
    lines = ["def cell(n):", "    a = n + 1", "    b = [a, a]", "    c = (a, b)"]
    lines += [""] * before + ["    d = a + n"] + [""] * between
    line = len(lines) + 1
    lines += ["    allocate(n)"] + [""] * (14 - line) + ["    e = (a, b, c)", "    g = [e, e]", "    return d"]
    exec(compile("\n".join(lines), "<cell>", "exec"), space)
    space["cell"](1000 + line)
    del space["cell"]
print("done")
)PY";
  const PythonRun run = RunPython(interpreters[0], {"-c", program}, {});
  for (const auto& sample : run.profile.sample()) {
    const std::vector<Frame> frames = PythonFrames(FramesOf(run.profile, sample));
    ASSERT_GE(frames.size(), 2u);
    EXPECT_EQ(frames[1], (Frame{"cell", "<cell>", SizeOf(run.profile, sample) - 1000}));
  }
}

// Runs the program, and returns the names of the Python functions in the stack of its only allocation.
std::vector<std::string> FunctionsOf(const std::string& python, const std::string& program) {
  const PythonRun run = RunPython(python, {"-c", kAllocate + program + "print('done')\n"}, {"HBMPROF_STACK_DEPTH=64"});
  std::vector<std::string> functions;
  EXPECT_EQ(run.profile.sample_size(), 1);
  if (run.profile.sample_size() != 1) return functions;
  for (const Frame& frame : PythonFrames(FramesOf(run.profile, run.profile.sample(0)))) {
    functions.push_back(frame.function);
  }
  return functions;
}

TEST_P(PythonTest, FunctionCanHaveAnEmptyName) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  EXPECT_THAT(FunctionsOf(interpreters[0], R"(
def outer():
    allocate(100)
names = {"co_name": ""}
if sys.version_info >= (3, 11):
    names["co_qualname"] = ""
outer.__code__ = outer.__code__.replace(**names)
outer()
)"),
              ElementsAreArray({"allocate", "<unnamed>", "<module>"}));
}

// More frames than one evaluation function has in any usual program. Before 3.11 each frame has an evaluation function
// of its own.
TEST_P(PythonTest, DeepRecursionKeepsTheInnermostFunctions) {
  if (MinorOf(GetParam()) < 11) GTEST_SKIP() << "the native stack is too small for so many functions";
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  const std::vector<std::string> functions = FunctionsOf(interpreters[0], R"(
sys.setrecursionlimit(1 << 20)
def deep(n):
    if n == 0:
        allocate(100)
    else:
        deep(n - 1)
deep(70000)
)");
  ASSERT_GT(functions.size(), 30u);
  EXPECT_EQ(functions[0], "allocate");
  for (size_t i = 1; i < functions.size(); ++i) EXPECT_EQ(functions[i], "deep");
}

// Each function is called by code of the interpreter, whose frames would fill the stack.
TEST_P(PythonTest, DeepStackKeepsFunctionsRatherThanNativeFrames) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  std::vector<std::string> expected(50, "called");
  expected.insert(expected.begin(), "allocate");
  expected.push_back("<module>");
  EXPECT_THAT(FunctionsOf(interpreters[0], R"(
def called(n):
    if n == 1:
        allocate(100)
    else:
        list(map(called, [n - 1]))
called(50)
)"),
              ElementsAreArray(expected));
}

// A greenlet runs on the native stack of the code that started it, but its functions do not have that code's functions
// as callers. In its first run the native stack continues in the evaluation functions of that code.
TEST_P(PythonTest, FunctionsOfAGreenletDoNotReachItsStarter) {
  if (MinorOf(GetParam()) > 9) GTEST_SKIP() << "only the interpreters before 3.10 count evaluation functions";
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  EXPECT_THAT(FunctionsOf(interpreters[0], R"(
ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
current_frame = ctypes.c_void_p.from_address(ctypes.pythonapi.PyThreadState_Get() + 24)
def inner():
    allocate(100)
def greenlet():
    inner()
def start():
    own = current_frame.value
    current_frame.value = None
    greenlet()
    current_frame.value = own
start()
)"),
              ElementsAreArray({"allocate", "inner", "greenlet"}));
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
        const std::string function = "from_thread_" + std::to_string(size - 32000);
        EXPECT_THAT(frames, ElementsAreArray({Frame{function, "<string>", 4}, Frame{"<module>", "<string>", 1}}));
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
                         "HBMPROF_GPU_OUTPUT=" + output}));
  const ProfileView view = hbmprof_test::ViewProfile(output);
  EXPECT_FALSE(view.samples.empty());
  EXPECT_EQ(view.Comment("python", "version"), odd.version);
  EXPECT_EQ(view.Comment("python", "functions"), "not_read");
  EXPECT_EQ(view.Comment("python", "problem"), odd.problem);
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
