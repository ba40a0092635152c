// Functions that the tests of Python programs share: for the interpreters of this machine, and for Python functions in
// profiles.
#ifndef HBMPROF_TESTS_PYTHON_PYTHON_PROGRAMS_H_
#define HBMPROF_TESTS_PYTHON_PYTHON_PROGRAMS_H_

#include <glob.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"

namespace hbmprof_test {

// The interpreters of this machine with their versions "3.X.Y", by path: HBMPROF_TEST_PYTHONS (a list separated by
// colons), those in /usr/bin and those that pyenv has installed.
inline std::map<std::string, std::string> FindInterpreters() {
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

inline const std::map<std::string, std::string>& Interpreters() {
  static const auto* interpreters = new std::map<std::string, std::string>(FindInterpreters());
  return *interpreters;
}

inline int MinorOf(const std::string& version) { return std::atoi(version.c_str() + 2); }

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

inline const std::string& Text(const Profile& profile, int64_t index) {
  return profile.string_table(static_cast<int>(index));
}

// Each frame of the sample, innermost first. Those with an address have no file here.
inline std::vector<Frame> FramesOf(const Profile& profile, const hbmprof::pprof::Sample& sample) {
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

inline std::vector<Frame> PythonFrames(std::vector<Frame> frames) {
  frames.erase(std::remove_if(frames.begin(), frames.end(), [](const Frame& frame) { return frame.file.empty(); }),
               frames.end());
  return frames;
}

// The stack of the allocations of one size, as a program has written it.
struct ExpectedStack {
  int64_t count = 0;
  std::vector<Frame> frames;
};

// Returns the stacks that frames_program.py or plugin_program.py has written, by size.
inline std::map<int64_t, ExpectedStack> ReadExpected(const std::string& path) {
  std::map<int64_t, ExpectedStack> stacks;
  std::ifstream file(path);
  ExpectedStack* stack = nullptr;
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

inline int64_t SizeOf(const Profile& profile, const hbmprof::pprof::Sample& sample) {
  for (const auto& label : sample.label()) {
    if (Text(profile, label.key()) == "bytes") return label.num();
  }
  return 0;
}

inline constexpr int kAllocObjects = 0;

// One version, such as "3.11"; each interpreter of it that was found.
class PythonTest : public ::testing::TestWithParam<std::string> {
 protected:
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

inline std::string NameOf(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = "V" + info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}
#define ALL_VERSIONS ::testing::Values("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")

inline constexpr int kStressAllocations = 1000000;

// Expects that the profile of stress_program.py has the right functions.
inline void ExpectFunctionsOfStress(const Profile& profile, bool has_qualified_names) {
  int64_t total = 0;
  for (const auto& sample : profile.sample()) {
    const int64_t size = SizeOf(profile, sample);
    total += sample.value(kAllocObjects);
    const std::vector<Frame> frames = PythonFrames(FramesOf(profile, sample));
    ASSERT_GE(frames.size(), 3u) << size;
    if (size < 30000) {
      const std::string number = std::to_string(size);
      EXPECT_EQ(frames[1], (Frame{"made_" + number, "<made " + number + ">", size % 7 + 2}));
    } else {
      const std::string function = "fixed_" + std::to_string(size - 30000);
      EXPECT_EQ(frames[1].function, has_qualified_names ? "work.<locals>." + function : function);
    }
    EXPECT_EQ(frames[0].function, has_qualified_names ? "work.<locals>.allocate" : "allocate");
    EXPECT_EQ(frames[2].function, "work");
  }
  EXPECT_EQ(total, kStressAllocations);
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_PYTHON_PYTHON_PROGRAMS_H_
