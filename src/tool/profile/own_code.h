// Regular expressions for the strings of profiles, and the program's own code: the first frame outside of known
// libraries (src/export/known_code.h), to which samples are attributed.
#ifndef HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_
#define HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_

#include <re2/re2.h>

#include <set>

#include "src/export/known_code.h"
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

// Decides which frames belong to known libraries. Not thread-safe.
class KnownLibraries {
 public:
  // `more`: further libraries, which come before those of the table. Each is a regular expression for binaries, source
  // files and functions, as "REGEX" or "NAME=REGEX". The name has letters, digits and the characters "_.+-"; without a
  // name, the library has the expression as its name. Error: kInvalidArgument for an expression that RE2 does not
  // accept.
  static absl::StatusOr<KnownLibraries> Make(const std::vector<std::string>& more);

  // Returns what each frame of the location belongs to, innermost first. The names live as long as this object.
  // `profiles` must be the same in all calls.
  std::vector<internal::FrameOwner> OwnersOf(const ProfileSet& profiles, uint64_t location);

 private:
  KnownLibraries() = default;
  internal::FrameOwner OwnerOf(const ProfileSet& profiles, ProfileSet::String name, ProfileSet::String source,
                               ProfileSet::String binary);

  struct Library {
    std::unique_ptr<const std::string> name;  // its address does not change
    NamePattern pattern;
  };
  std::vector<Library> more_;
  std::set<std::string> packages_;  // their names
};

// Removes the frames below the first own frame (OwnRank) from each stack, so that this frame becomes the leaf, under
// the name OwnName. Also removes the outermost locations without an own frame: the start of the program, of the thread
// or of the interpreter, and the code of the interpreter between two Python functions. Returns whether the leaf of any
// stack changed.
bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_
