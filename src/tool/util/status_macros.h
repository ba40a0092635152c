// RETURN_IF_ERROR and ASSIGN_OR_RETURN, as in other code that uses absl::Status.
#ifndef HBMPROF_SRC_TOOL_UTIL_STATUS_MACROS_H_
#define HBMPROF_SRC_TOOL_UTIL_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"    // IWYU pragma: export
#include "absl/status/statusor.h"  // IWYU pragma: export

// Returns the status that the expression has as its value, if it is an error.
#define RETURN_IF_ERROR(...)                                                             \
  do {                                                                                   \
    if (absl::Status status_of_expression = (__VA_ARGS__); !status_of_expression.ok()) { \
      return status_of_expression;                                                       \
    }                                                                                    \
  } while (false)

// ASSIGN_OR_RETURN(const Profile profile, ParseProfile(bytes)): defines `profile` as the value that the StatusOr has,
// or returns its error. The part before the first comma can also be an existing variable.
#define ASSIGN_OR_RETURN(variable, ...) \
  HBMPROF_ASSIGN_OR_RETURN_1(HBMPROF_JOIN(result_of_line_, __LINE__), variable, __VA_ARGS__)
#define HBMPROF_ASSIGN_OR_RETURN_1(result, variable, ...) \
  auto result = (__VA_ARGS__);                            \
  if (!result.ok()) return std::move(result).status();    \
  variable = *std::move(result)
#define HBMPROF_JOIN(a, b) HBMPROF_JOIN_1(a, b)
#define HBMPROF_JOIN_1(a, b) a##b

#endif  // HBMPROF_SRC_TOOL_UTIL_STATUS_MACROS_H_
