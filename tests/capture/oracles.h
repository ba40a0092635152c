// What other unwinders say about the same stack: the yardstick for captures.
#ifndef HBMPROF_TESTS_CAPTURE_ORACLES_H_
#define HBMPROF_TESTS_CAPTURE_ORACLES_H_

#include <cstdint>
#include <string>

#include "hbmprof/caller.h"
#include "src/capture/capture.h"

namespace capture_test {

// A stack that takes no memory from malloc, for use in signal handlers.
struct Stack {
  int depth = 0;
  bool truncated = false;
  uintptr_t pcs[hbmprof::internal::kMaxStackDepth];
};
bool operator==(const Stack& a, const Stack& b);

Stack Capture(const hbmprof::internal::StackCapture& capture, const hbmprof::Caller& caller,
              int max_depth = hbmprof::internal::kMaxStackDepth);

// glibc's backtrace(), from the caller on; interrupted frames as StackCapture stores them.
Stack GlibcStack(const hbmprof::Caller& caller);

// libunwind frame by frame, with nothing remembered. Empty if libunwind is not installed.
Stack LibunwindStack(const hbmprof::Caller& caller);

// Side by side with the functions' names, for a failure's message.
std::string Describe(const Stack& stack);

}  // namespace capture_test

#endif  // HBMPROF_TESTS_CAPTURE_ORACLES_H_
