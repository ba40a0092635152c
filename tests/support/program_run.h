// What tests of programs share: a place for what a program leaves, and what is expected of all of them.
// Not here: running a program (pprof_tool.h), reading a profile without a test (profile_checker.h).
#ifndef HBMPROF_TESTS_SUPPORT_PROGRAM_RUN_H_
#define HBMPROF_TESTS_SUPPORT_PROGRAM_RUN_H_

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"

namespace hbmprof_test {

// A new, empty directory; left where it is when the test ends.
inline std::string NewDirectory() {
  std::string path = ::testing::TempDir() + "/hbmprof_test_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path;
  return path;
}

// The profile in `path`, which is well-formed or the test fails.
inline ProfileView ViewProfile(const std::string& path) {
  const auto profile = ReadProfile(path);
  if (!profile.ok()) {
    ADD_FAILURE() << path << ": " << profile.status();
    return ProfileView(Profile());
  }
  EXPECT_EQ(CheckProfile(*profile), "") << path;
  return ProfileView(*profile);
}

// Of a program whose last word is "done".
inline void ExpectDone(const CommandResult& run) {
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "done\n");
  EXPECT_EQ(run.err, "");
}

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_PROGRAM_RUN_H_
