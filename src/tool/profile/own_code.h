// Attributes samples to the program's own code: to the first frame outside of known libraries
// (src/export/known_code.h).
#ifndef HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_
#define HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_

#include "src/export/known_code.h"
#include "src/tool/profile/profile.h"
#include "src/tool/profile/regex.h"

namespace hbmprof::tool {

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
};

// Removes the frames below the first own frame from each stack, so that this frame becomes the leaf. Also removes the
// outermost locations without an own frame: the start of the program, of the thread or of the interpreter. Does not
// change stacks without an own frame. Returns whether the leaf of any stack changed.
bool AttributeToOwnCode(KnownLibraries& libraries, ProfileSet& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_OWN_CODE_H_
