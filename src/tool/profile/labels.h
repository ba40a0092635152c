// To which code and process memory belongs: known libraries (src/export/known_code.h), the program's own code, to which
// samples are attributed, and labels for the library (MemoryHolder) and the rank of a sample. Also the memory that only
// the driver reports, and regular expressions for the strings of profiles.
#ifndef HBMPROF_SRC_TOOL_PROFILE_LABELS_H_
#define HBMPROF_SRC_TOOL_PROFILE_LABELS_H_

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
  explicit NamePattern(std::unique_ptr<RE2> expression) : expression_(std::move(expression)) {}
  // Returns whether the expression matches a part of the string. `profiles` must be the same in all calls.
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

// The label that names the library, and the one that names the rank.
inline constexpr char kLibraryLabel[] = "library";
inline constexpr char kRankLabel[] = "rank";

// Gives each sample the label kLibraryLabel, if it has none: a tag of this name, which the program sets, is not
// changed.
void LabelLibraries(KnownLibraries& libraries, ProfileSet& profiles);

// Returns the number of the process in its run; if only its number on its host is known, "HOST/NUMBER"; else the path
// of the file.
std::string RankOf(const ProfileSet::File& file);
// Returns a text that identifies the process that wrote the file; "" if it is unknown. In containers with the network
// of the host, processes of different ranks can have the same host and id (ProcessIn).
std::string ProcessAndRankOf(const ProfileSet::File& file);
// The variables with the number of ranks.
inline constexpr const char* kRankCountVariables[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                      "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"};
// Returns whether the files are those of the ranks of one run, as far as their environments tell.
bool AreRanks(const ProfileSet& profiles);
// Gives each sample the label kRankLabel, as LabelLibraries does.
void LabelRanks(ProfileSet& profiles);

// Memory of a device that is in use for the driver, and that no sample has.
struct UnaccountedMemory {
  std::string device;
  std::string_view name;      // as a value of kLibraryLabel
  std::string_view function;  // the name of the frame that shows it
  int64_t bytes;              // at least 1
};
// Returns what the comments of the file state: unaccounted memory, and the idle bytes of the driver's own pools. With
// it, the samples add up to all bytes in use for the driver, unless more is recorded than the driver reports.
std::vector<UnaccountedMemory> UnaccountedOf(const ProfileSet::File& file);

// Adds a sample for each element of UnaccountedOf, with the labels kLibraryLabel and "device". Does nothing without a
// sample type of bytes in use.
void AddUnaccounted(ProfileSet& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_LABELS_H_
