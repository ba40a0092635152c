// Checks of test programs. A failing check ends the process. Independent of the library.
#ifndef HBMPROF_TESTS_SUPPORT_CHECK_H_
#define HBMPROF_TESTS_SUPPORT_CHECK_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

// Lets the kernel end the process after 60 seconds, so that a test of a program that hangs fails.
inline void LimitTime() { alarm(60); }

// Ends the process with exit code 1 and a line on stderr unless `holds`.
inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::_Exit(1);
}
#define CHECK_THAT(condition) Check(static_cast<bool>(condition), #condition)

#endif  // HBMPROF_TESTS_SUPPORT_CHECK_H_
