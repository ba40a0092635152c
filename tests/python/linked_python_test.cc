// Python programs that use the linked library, in which a sanitizer may be.
#include "gtest/gtest.h"
#include "tests/python/python_programs.h"
#include "tests/support/program_run.h"

namespace hbmprof_test {
namespace {

class LinkedPythonTest : public PythonTest {};

TEST_P(LinkedPythonTest, DestroyedFunctionsKeepTheirNames) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  const std::string output = NewDirectory() + "/profile.pb.gz";
  // The interpreter itself leaks.
  ExpectDone(
      RunCommand({interpreters[0], HBMPROF_PYTHON_PROGRAMS "/stress_program.py", std::to_string(kStressAllocations),
                  HBMPROF_LINKED_LIBRARY},
                 {"LD_PRELOAD=" HBMPROF_SANITIZER_RUNTIME, "ASAN_OPTIONS=detect_leaks=0", "HBMPROF_OUTPUT=" + output}));
  const auto profile = ReadProfile(output);
  ASSERT_TRUE(profile.ok()) << profile.status();
  ExpectFunctionsOfStress(*profile, MinorOf(GetParam()) >= 11);
}

TEST_P(LinkedPythonTest, ForksAndEndsWhileDaemonThreadsAllocate) {
  const auto interpreters = InterpretersOfVersion();
  SKIP_WITHOUT_INTERPRETER(interpreters);
  if (GetParam() == "3.10") GTEST_SKIP() << "CPython 3.10 itself crashes when it ends with such threads";
  if (*HBMPROF_SANITIZER_RUNTIME != '\0') {
    GTEST_SKIP() << "the sanitizer sees a known limit: a daemon thread can read its state while the ending interpreter "
                    "frees it (docs/python.md)";
  }
  const std::string output = NewDirectory() + "/%p.pb.gz";
  ExpectDone(RunCommand({interpreters[0], HBMPROF_PYTHON_PROGRAMS "/ending_program.py", HBMPROF_LINKED_LIBRARY},
                        {"LD_PRELOAD=" HBMPROF_SANITIZER_RUNTIME, "ASAN_OPTIONS=detect_leaks=0",
                         "PYTHONWARNINGS=ignore", "HBMPROF_OUTPUT=" + output}));
}

INSTANTIATE_TEST_SUITE_P(Python, LinkedPythonTest, ALL_VERSIONS, NameOf);

}  // namespace
}  // namespace hbmprof_test
