// Regular expressions that store their results for the strings of profiles.
#ifndef HBMPROF_SRC_TOOL_PROFILE_REGEX_H_
#define HBMPROF_SRC_TOOL_PROFILE_REGEX_H_

#include <re2/re2.h>

#include "src/tool/profile/profile.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {

// Compiles the argument `expression` of the option or argument `option`. Error: kInvalidArgument if it is not a regular
// expression in RE2's syntax.
inline absl::StatusOr<std::unique_ptr<RE2>> CompileRegex(const std::string& option, const std::string& expression) {
  RE2::Options options;
  options.set_log_errors(false);
  auto compiled = std::make_unique<RE2>(expression, options);
  if (compiled->ok()) return compiled;
  return InvalidArgument(option, " ", expression, ": not a regular expression in RE2 syntax: ", compiled->error());
}

// A regular expression with its results by string number of one ProfileSet. Not thread-safe.
class NamePattern {
 public:
  explicit NamePattern(std::unique_ptr<RE2> expression = nullptr) : expression_(std::move(expression)) {}
  bool is_set() const { return expression_ != nullptr; }
  // Returns whether the expression matches a part of the string. `profiles` must be the same in all calls. REQUIRES:
  // is_set().
  bool Matches(const ProfileSet& profiles, ProfileSet::String number) {
    if (number >= matches_.size()) matches_.resize(number + 1, -1);
    if (matches_[number] < 0) matches_[number] = RE2::PartialMatch(profiles.text(number), *expression_) ? 1 : 0;
    return matches_[number] == 1;
  }

 private:
  std::unique_ptr<RE2> expression_;
  std::vector<int8_t> matches_;  // -1: not yet known
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_REGEX_H_
