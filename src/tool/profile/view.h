// Options that select samples and frames: labels, pprof's filters, and the view of the program's own code. Every
// command that reads samples has them.
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
  std::string hide;
  std::string show;
  std::string show_from;
  std::string tag_focus;
  std::string tag_ignore;
  bool own;
  // The profiles are a part of those of the command: a label, or what a filter matches, can be in another part.
  bool is_part = false;
  std::vector<std::string> known;

  // Returns whether an option other than `own` removes samples or frames.
  bool has_filter() const;
  // Returns whether an option selects or shows the libraries that hold the memory.
  bool needs_libraries() const;
};

// Gives samples the label of libraries.h if an option needs it. Then applies `where` and pprof's filters to the
// samples, as pprof does. Samples without the labels of `where` do not count in totals; samples that a filter removes
// do, as in pprof. Prints a warning of the subcommand `command` for a filter that matches nothing. Error:
// kInvalidArgument for a wrong expression or a label that no sample has.
absl::Status ApplyFilters(const std::string& command, const ViewOptions& options, ProfileSet& profiles);

// Returns whether `where`, which CheckView accepts, keeps a sample with the labels `labels` and no others.
bool WhereKeeps(const ViewOptions& options, const std::vector<std::pair<std::string, std::string>>& labels);

// Checks the options that can be checked without profiles. Error: kInvalidArgument for a wrong expression or label.
absl::Status CheckView(const ViewOptions& options);

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
