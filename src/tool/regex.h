// Regular expressions that the user gives.
#ifndef HBMPROF_SRC_TOOL_REGEX_H_
#define HBMPROF_SRC_TOOL_REGEX_H_

#include <re2/re2.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/tool/text.h"

namespace hbmprof::tool {

// Compiles the argument `expression` of the option or argument `option`. Error: kInvalidArgument if it is not a regular
// expression in RE2's syntax.
inline absl::StatusOr<std::unique_ptr<RE2>> CompileRegex(const std::string& option, const std::string& expression) {
  RE2::Options options;
  options.set_log_errors(false);
  auto compiled = std::make_unique<RE2>(expression, options);
  if (compiled->ok()) return compiled;
  return absl::InvalidArgumentError(
      Cat(option, " ", expression, ": not a regular expression in RE2 syntax: ", compiled->error()));
}

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REGEX_H_
