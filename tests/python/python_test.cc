// Python programs under the injected library, on the double of the driver: the functions in the profiles are compared
// with what Python says itself, for each interpreter that is found.
#include <glob.h>
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
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::ExpectDone;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::Profile;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::ReadProfile;
using ::hbmprof_test::RunCommand;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The interpreters of this machine with their versions "3.X.Y", by path: HBMPROF_TEST_PYTHONS (a list separated by
// colons), those in /usr/bin and those that pyenv has installed.
std::map<std::string, std::string> FindInterpreters() {
  std::vector<std::string> paths;
  const char* named = std::getenv("HBMPROF_TEST_PYTHONS");
  std::istringstream list(named == nullptr ? "" : named);
  for (std::string path; std::getline(list, path, ':');) paths.push_back(path);
  const char* home = std::getenv("HOME");
  const std::string pyenv = std::string(home == nullptr ? "" : home) + "/.pyenv/versions/3.*/bin/python3";
  for (const std::string& pattern : {std::string("/usr/bin/python3"), std::string("/usr/bin/python3.*"), pyenv}) {
    glob_t found;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
      globfree(&found);
    }
  }
  std::map<std::string, std::string> interpreters;
  std::map<std::string, std::string> by_file;
  for (const std::string& path : paths) {
    char* file = realpath(path.c_str(), nullptr);
    if (file == nullptr) continue;
    const std::string target = file;
    std::free(file);
    const CommandResult asked = RunCommand(
        {path, "-c",
         "import sys, ctypes; print('%d.%d.%d' % sys.version_info[:3] if sys.version_info[0] == 3 else '')"});
    if (asked.exit_code != 0 || asked.out.size() < 2 || !by_file.emplace(target, path).second) continue;
    interpreters[path] = asked.out.substr(0, asked.out.size() - 1);
  }
  return interpreters;
}

const std::map<std::string, std::string>& Interpreters() {
  static const auto* interpreters = new std::map<std::string, std::string>(FindInterpreters());
  return *interpreters;
}

int MinorOf(const std::string& version) { return std::atoi(version.c_str() + 2); }

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

struct Frame {
  std::string function;
  std::string file;
  int64_t line;
  bool operator==(const Frame& other) const {
    return function == other.function && file == other.file && line == other.line;
  }
  friend void PrintTo(const Frame& frame, std::ostream* out) {
    *out << frame.function << " " << frame.file << ":" << frame.line;
  }
};

struct Stack {
  int64_t count = 0;
  std::vector<Frame> frames;
};

// What frames_program.py has written, by size.
std::map<int64_t, Stack> ReadExpected(const std::string& path) {
  std::map<int64_t, Stack> stacks;
  std::ifstream file(path);
  Stack* stack = nullptr;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos) {
      char* count = nullptr;
      const long long size = std::strtoll(line.c_str(), &count, 10);
      stack = &stacks[size];
      stack->count = std::atoll(count);
    } else {
      const size_t last = line.rfind('\t');
      stack->frames.push_back({line.substr(0, tab), line.substr(tab + 1, last - tab - 1), std::atoll(&line[last])});
    }
  }
  return stacks;
}

const std::string& Text(const Profile& profile, int64_t index) { return profile.string_table(static_cast<int>(index)); }

// Each frame of the sample, innermost first. Those with an address have no file here.
std::vector<Frame> FramesOf(const Profile& profile, const hbmprof::pprof::Sample& sample) {
  std::vector<Frame> frames;
  for (const uint64_t id : sample.location_id()) {
    const auto& location = profile.location(static_cast<int>(id) - 1);
    const auto& function = profile.function(static_cast<int>(location.line(0).function_id()) - 1);
    frames.push_back({Text(profile, function.name()), Text(profile, function.filename()), location.line(0).line()});
    if (!frames.back().file.empty()) {
      EXPECT_EQ(location.mapping_id(), 0u);
      EXPECT_EQ(location.address(), 0u);
    }
  }
  return frames;
}

std::vector<Frame> PythonFrames(std::vector<Frame> frames) {
  frames.erase(std::remove_if(frames.begin(), frames.end(), [](const Frame& frame) { return frame.file.empty(); }),
               frames.end());
  return frames;
}

int64_t SizeOf(const Profile& profile, const hbmprof::pprof::Sample& sample) {
  for (const auto& label : sample.label()) {
    if (Text(profile, label.key()) == "bytes") return label.num();
  }
  return 0;
}

constexpr int kAllocObjects = 0;

class PythonTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Skips, with the reason, where the machine has no such interpreter.
  std::vector<std::string> InterpretersOfVersion() const {
    std::vector<std::string> found;
    for (const auto& [path, version] : Interpreters()) {
      if (MinorOf(version) == MinorOf(GetParam())) found.push_back(path);
    }
    return found;
  }
};

#define SKIP_WITHOUT_INTERPRETER(found) \
  if ((found).empty()) GTEST_SKIP() << "no CPython " << GetParam() << " in /usr/bin, ~/.pyenv or HBMPROF_TEST_PYTHONS"

TEST_P(PythonTest, StacksHaveTheFunctionsFilesAndLinesThatPythonSays) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  for (const std::string& python : interpreters) {
    SCOPED_TRACE(python);
    const PythonRun run = RunPython(python, {HBMPROF_PYTHON_PROGRAMS "/frames_program.py", "EXPECTED", "50"},
                                    {"HBMPROF_STACK_DEPTH=512"});
    const std::map<int64_t, Stack> expected = ReadExpected(run.directory + "/expected");
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

// Where `name` is in the stack; its size if it is not there.
size_t PositionOf(const std::vector<Frame>& frames, const std::string& name) {
  return static_cast<size_t>(
      std::find_if(frames.begin(), frames.end(), [&](const Frame& frame) { return frame.function == name; }) -
      frames.begin());
}

TEST_P(PythonTest, NativeFramesStandBetweenThePythonFunctionsThatTheyJoin) {
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

TEST_P(PythonTest, FunctionsThatAreMadeAndDroppedKeepTheirNames) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  constexpr int kAllocations = 100000;
  const PythonRun run =
      RunPython(interpreters[0], {HBMPROF_PYTHON_PROGRAMS "/stress_program.py", std::to_string(kAllocations)}, {});
  int64_t total = 0;
  for (const auto& sample : run.profile.sample()) {
    const int64_t size = SizeOf(run.profile, sample);
    total += sample.value(kAllocObjects);
    const std::vector<Frame> frames = PythonFrames(FramesOf(run.profile, sample));
    ASSERT_GE(frames.size(), 3u) << size;
    const bool has_qualified_names = MinorOf(GetParam()) >= 11;
    if (size < 30000) {
      const std::string number = std::to_string(size);
      EXPECT_EQ(frames[1], (Frame{"made_" + number, "<made " + number + ">", size % 7 + 2}));
    } else {
      EXPECT_EQ(frames[1].function,
                (has_qualified_names ? "work.<locals>.fixed_" : "fixed_") + std::to_string(size - 30000));
    }
    EXPECT_EQ(frames[0].function, has_qualified_names ? "work.<locals>.allocate" : "allocate");
    EXPECT_EQ(frames[2].function, "work");
  }
  EXPECT_EQ(total, kAllocations);
}

// The file of the interpreter's shared library; "" if it is linked into the executable.
std::string LibraryOf(const std::string& python) {
  const CommandResult asked = RunCommand({python, "-c",
                                          "import os, sysconfig as s; p = os.path.join(s.get_config_var('LIBDIR') or "
                                          "'', s.get_config_var('INSTSONAME') or "
                                          "''); print(p if '.so' in p and os.path.exists(p) else '')"});
  return asked.out.empty() ? "" : asked.out.substr(0, asked.out.size() - 1);
}

TEST_P(PythonTest, AnEmbeddedInterpreterIsReadWhileItRuns) {
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

INSTANTIATE_TEST_SUITE_P(Python, PythonTest, ::testing::Values("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"),
                         [](const auto& info) {
                           std::string name = "V" + info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

struct OddInterpreter {
  const char* library;
  const char* version;
  const char* problem;
};

class OddInterpreterTest : public ::testing::TestWithParam<OddInterpreter> {};

TEST_P(OddInterpreterTest, IsLeftAloneAndTheProfileSaysWhy) {
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

INSTANTIATE_TEST_SUITE_P(
    Python, OddInterpreterTest,
    ::testing::Values(OddInterpreter{"too_new", "3.15.2", "hbmprof%20does%20not%20know%20this%20version"},
                      OddInterpreter{"free_threaded", "3.13.1", "it%20is%20free-threaded"},
                      OddInterpreter{"undescribed", "3.14.0",
                                     "it%20describes%20its%20structs%20in%20an%20unknown%20way"},
                      OddInterpreter{"other_types", "3.12.1", "its%20types%20have%20an%20unknown%20layout"}),
    [](const auto& info) { return std::string(info.param.library); });

}  // namespace
