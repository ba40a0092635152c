// Checks that end the process, and a time limit; knows nothing of the library.
#ifndef HBMPROF_TESTS_PROGRAMS_CHECK_H_
#define HBMPROF_TESTS_PROGRAMS_CHECK_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

// Kills a program that hangs, and so fails its test.
inline void LimitTime() { alarm(60); }

// Ends the process with exit code 1 and a line on stderr unless `holds`.
inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::_Exit(1);
}
#define CHECK_THAT(condition) Check(static_cast<bool>(condition), #condition)

#endif  // HBMPROF_TESTS_PROGRAMS_CHECK_H_
