// The exit status of the command.
#ifndef HBMPROF_SRC_TOOL_UTIL_EXIT_CODE_H_
#define HBMPROF_SRC_TOOL_UTIL_EXIT_CODE_H_

namespace hbmprof::tool {

enum ExitCode : int {
  kSuccess = 0,
  kFinding = 1,   // the result needs attention: a damaged profile, growth above --fail-over
  kUnusable = 2,  // no result: wrong usage, unreadable input, output that cannot be written
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_EXIT_CODE_H_
