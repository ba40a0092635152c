// The stacks that other unwinders find, to compare captures with.
#ifndef HBMPROF_TESTS_CAPTURE_ORACLES_H_
#define HBMPROF_TESTS_CAPTURE_ORACLES_H_

#include <cstdint>
#include <string>

#include "hbmprof/caller.h"
#include "src/capture/capture.h"

namespace capture_test {

// A stack without memory from malloc, for use in signal handlers.
struct Stack {
  int depth = 0;
  bool truncated = false;
  uintptr_t pcs[hbmprof::internal::kMaxStackDepth];
};
bool operator==(const Stack& a, const Stack& b);

Stack Capture(const hbmprof::internal::StackCapture& capture, const hbmprof::Caller& caller,
              int max_depth = hbmprof::internal::kMaxStackDepth);

// The stack that glibc's backtrace() finds, from the caller to a signal's trampoline or to the end.
Stack GlibcStack(const hbmprof::Caller& caller);

// Loads libunwind.so.8 at the first call, and returns whether it can be used. Must not be called in a signal handler.
bool HasLibunwind();
// The same, found by libunwind. Empty unless HasLibunwind has returned true.
Stack LibunwindStack(const hbmprof::Caller& caller);

// The addresses with the names of their functions, for messages of failures.
std::string Describe(const Stack& stack);

}  // namespace capture_test

#endif  // HBMPROF_TESTS_CAPTURE_ORACLES_H_
