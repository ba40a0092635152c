// Options that select samples: labels, pprof's focus and ignore, and the view of the program's own code. Every command
// that reads samples has them.
#ifndef HBMPROF_SRC_TOOL_PROFILE_VIEW_H_
#define HBMPROF_SRC_TOOL_PROFILE_VIEW_H_

#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

struct ViewOptions {
  explicit ViewOptions(bool own_by_default = true) : own(own_by_default) {}

  std::vector<std::string> by;  // what the rows of the output are made by: the keys of labels, for some commands frames
  std::vector<std::string> where;
  std::string focus;
  std::string ignore;
  bool own;
  std::vector<std::string> known;

  // Returns whether an option removes samples that still count in totals.
  bool has_filter() const { return !focus.empty() || !ignore.empty(); }
  bool Names(const std::string& label) const;
};

// Gives samples the labels of labels.h that an option names. Then applies `where`, and `focus` and `ignore` as pprof
// does. Samples without the labels of `where` do not count in totals; samples that the others remove do, as in pprof.
// Prints a warning of the subcommand `command` for a filter that matches nothing. Error: kInvalidArgument for a wrong
// expression or a label that no sample has.
absl::Status ApplyFilters(const std::string& command, const ViewOptions& options, ProfileSet& profiles);

// Applies the options to the profiles, including `own`. Sets `*trimmed` to whether the view of own code changed the
// leaf of a stack; `trimmed` may be null. Errors: those of ApplyFilters; kInvalidArgument for a wrong expression in
// `known`.
absl::Status ApplyView(const std::string& command, const ViewOptions& options, ProfileSet& profiles,
                       bool* trimmed = nullptr);

// The line that says so, for commands that print text.
inline constexpr char kTrimmedText[] =
    "stacks start at the first frame outside of known libraries (--no-own shows all frames)\n";

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_VIEW_H_
