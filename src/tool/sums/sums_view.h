// Parts of the answers of top and diff: options, the beginning, the columns of rows.
#ifndef HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_
#define HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_

#include "src/tool/profile/view.h"
#include "src/tool/sums/sums.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {

struct SumsOptions : ViewOptions {
  std::vector<std::string> files;
  std::string type;
  std::string older;  // only live buffers older than this time; empty: all
  size_t rows = 20;
  bool by_cum = false;
  bool exact = false;
  bool json = false;
  bool tree = false;
  bool has_rows = false;  // `rows` was given

  // The number of nodes of a tree to show; 0: all.
  size_t nodes() const { return has_rows ? rows : 100; }
};

struct SumsQuery {
  ProfileSet profiles;
  size_t type;
  std::string type_name;
  std::string unit;
  Grouping grouping;
  bool trimmed = false;    // as in ApplyView
  bool exact = false;      // SumsOptions::exact
  bool all_freed = false;  // nothing is in use, so the peak is shown

  // Returns a value of the sample type, or a change of it, as text.
  std::string Text(int64_t value) const { return FormatValue(value, unit, exact); }
  std::string Change(int64_t change) const { return FormatChange(change, unit, exact); }
};
// Applies the options to profiles that are already read. Errors: those of
// ApplyView; kInvalidArgument for a sample type or label that the profiles do not have.
absl::StatusOr<SumsQuery> MakeQuery(const std::string& command, ProfileSet profiles, const SumsOptions& options);

// Removes the files from `first` on that are earlier profiles of a process of which there is a later one: profiles of
// one process are a series, and their sum means nothing. If there are such files, says so in one line on stderr.
void KeepLastOfEachProcess(const std::string& command, size_t first, ProfileSet& profiles);

// Checks the label keys of --by. Error: kInvalidArgument for a label that no sample has.
absl::Status CheckLabels(const ProfileSet& profiles, const std::vector<std::string>& keys);

// Returns the limit that the option --fail-over sets, in `unit`, the unit of the compared sample type. `text` is the
// value of the option: a size if `unit` is "bytes", and otherwise a number in that unit. If `text` is empty, returns 0.
// Error: kInvalidArgument for other text.
absl::StatusOr<int64_t> FailOverLimit(const std::string& text, const std::string& unit);

// Returns the line that a process has stopped recording, for the time OffSince, for PrintVisible, without a line feed.
std::string OffText(const std::string& since);

// Adds what is to be known of a file: a line for each warning, one if allocations were dropped, one if values of tags
// were. What it lacks is also in "problems". If the process had stopped recording, that is a finding.
void AddProblems(const ProfileSet::File& file, bool exact, Answer& answer);

// Begins the answer to a query: the files, of which the first `base_files` are the base, with a line for each memory
// space in their comments, and AddProblems; the sample type; the total; and what is to be known of the values.
// `summary`: the line on the values, for PrintVisible.
Answer AnswerTo(const SumsQuery& query, bool is_json, size_t base_files, int64_t total, const std::string& summary);

// A column of values of the sample type.
using RowValue = std::function<int64_t(const Sums::Row&)>;
RowField<Sums::Row> ValueField(const SumsQuery& query, const std::string& name, RowValue value);
// The same, as changes in the table.
RowField<Sums::Row> ChangeField(const SumsQuery& query, const std::string& name, RowValue value);
// A column of the table: the value as a part of `whole`.
RowField<Sums::Row> ShareField(const std::string& heading, int64_t whole, RowValue value);
// Adds the columns that identify a row: the values of the labels, the frame and its position.
void AddNameFields(const Grouping& grouping, RowFields<Sums::Row>& columns);

// Adds the call tree (call_tree.cc): the `shown` largest nodes (0: all), percentages of `total`. The first
// `base_files` files are subtracted; if there are some, the values are changes.
void AddTree(const SumsQuery& query, size_t base_files, size_t shown, int64_t total, Answer& answer);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_
