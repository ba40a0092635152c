// Attributes samples to the program's own code: to the first frame outside of known libraries
// (src/export/known_code.h).
#ifndef HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_
#define HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/tool/profile/profile.h"
#include "src/tool/profile/regex.h"

namespace hbmprof::tool {

// Decides which frames belong to known libraries. Not thread-safe.
class KnownLibraries {
 public:
  // `more`: regular expressions for the binaries, source files and functions of further libraries. Error:
  // kInvalidArgument for an expression that RE2 does not accept.
  static absl::StatusOr<KnownLibraries> Make(const std::vector<std::string>& more);

  // Returns for each frame of the location, innermost first, whether it is the program's own code: it has a name or a
  // binary, and is not of a known library. `profiles` must be the same in all calls.
  std::vector<bool> OwnFrames(const ProfileSet& profiles, uint64_t location);

 private:
  KnownLibraries() = default;
  bool IsOwn(const ProfileSet& profiles, ProfileSet::String name, ProfileSet::String source, ProfileSet::String binary);

  std::vector<NamePattern> more_;
};

// Removes the frames below the first own frame from each stack, so that this frame becomes the leaf. Also removes the
// outermost locations without an own frame: the start of the program, of the thread or of the interpreter. Does not
// change stacks without an own frame. Returns whether the leaf of any stack changed.
bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_
