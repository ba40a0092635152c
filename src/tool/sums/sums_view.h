// Parts of the output of top and diff: options, the lines above tables, the columns of rows.
#ifndef HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_
#define HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_

#include "src/tool/profile/view.h"
#include "src/tool/sums/sums.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {

struct SumsOptions : ViewOptions {
  explicit SumsOptions(bool own_by_default = true) : ViewOptions(own_by_default) {}

  std::vector<std::string> files;
  std::string type;
  std::string older;  // only live buffers older than this time; empty: all
  size_t rows = 20;
  bool by_cum = false;
  bool exact = false;
  bool json = false;
  bool tree = false;
  bool has_rows = false;  // `rows` was given

  // Whether an option selects or shows the births of buffers.
  bool NeedsAges() const { return !older.empty() || absl::c_linear_search(by, kBirthLabel); }
  // The number of nodes of a tree to show; 0: all.
  size_t nodes() const { return has_rows ? rows : 100; }
};

// The profiles with the options applied.
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
  std::string Change(int64_t change) const { return GrowthSign(change) + FormatChange(change, unit, exact); }
};
// Applies the options to profiles that are already read. Errors: those of
// ApplyView; kInvalidArgument for a sample type or label that the profiles do not have.
absl::StatusOr<SumsQuery> MakeQuery(const std::string& command, ProfileSet profiles, const SumsOptions& options);

// Removes the files from `first` on that are earlier profiles of a process of which there is a later one: profiles of
// one process are a series, and their sum means nothing. If there are such files, says so in one line on stderr.
void KeepLastOfEachProcess(const std::string& command, size_t first, ProfileSet& profiles);

// Checks the label keys of --by. Error: kInvalidArgument for a label that no sample has.
absl::Status CheckLabels(const ProfileSet& profiles, const std::vector<std::string>& keys);

// Returns the limit that the option --fail-over sets, in `unit`, the unit of the compared sample type, rounded down.
// `text` is the value of the option: a size if `unit` is a unit of memory, and otherwise a number in that unit. If
// `text` is empty, returns 0. Error: kInvalidArgument for other text.
absl::StatusOr<int64_t> FailOverLimit(const std::string& text, const std::string& unit);

// Whether a process had stopped recording when its profile was made.
bool IsOff(const ProfileSet& profiles);
// Returns the line of it for the time OffSince, for PrintVisible, without a line feed.
std::string OffText(const std::string& since);

// Returns one line for each memory space in the comments of the file (in use, peak, limit, unaccounted), and a line if
// allocations were dropped or recording is off. For PrintVisible.
std::string DeviceLines(const ProfileSet::File& file, bool exact);

// The first fields of the output: the files from `first` on, the sample type, and the total.
Json HeadJson(const SumsQuery& query, size_t first, int64_t total);
// Returns the sentence of SumsQuery::all_freed as a line; "" if something is in use.
std::string FreedLine(const SumsQuery& query);

// A column of values of the sample type.
using RowValue = std::function<int64_t(const Sums::Row&)>;
RowField<Sums::Row> ValueField(const SumsQuery& query, const std::string& name, RowValue value);
// The same, as changes in the table.
RowField<Sums::Row> ChangeField(const SumsQuery& query, const std::string& name, RowValue value);
// A column of the table: the value as a part of `whole`.
RowField<Sums::Row> ShareField(const std::string& heading, int64_t whole, RowValue value);
// Adds the columns that identify a row: the values of the labels, the frame and its position.
void AddNameFields(const Grouping& grouping, RowFields<Sums::Row>& columns);

// Shows the call tree (call_tree.cc): the `shown` largest nodes (0: all), percentages of `total`. The first
// `base_files` files are subtracted; if there are some, the values are changes. `json`: null: prints a table; else the
// nodes are added to it.
void ShowTree(const SumsQuery& query, size_t base_files, size_t shown, int64_t total, Json* json);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_
