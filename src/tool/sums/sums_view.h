// Parts of the output of top, diff and peek: options, the lines above tables, rows of tables, and JSON.
#ifndef HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_
#define HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_

#include "src/tool/profile/view.h"
#include "src/tool/sums/sums.h"
#include "src/tool/util/json.h"

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
  bool trimmed = false;  // as in ApplyView
  bool exact = false;    // SumsOptions::exact

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

// Returns one line for each memory space in the comments of the file (in use, peak, limit, unaccounted), and a line if
// allocations were dropped. For PrintVisible.
std::string DeviceLines(const ProfileSet::File& file, bool exact);

// The first fields of the output: the files, the sample type, and the total.
Json HeadJson(const SumsQuery& query, int64_t total);
// The fields that identify a row: the values of the labels, then the frame and its position.
Json RowJson(const Sums::Row& row, const Grouping& grouping);

// A column of values in a table of rows.
struct ValueColumn {
  std::string heading;
  std::function<std::string(const Sums::Row&)> cell;
};
// Returns a table of the first `shown` rows (0: all), with the value columns, then the labels, the frame and its
// position, and the line MoreRows. `tone` gives the colour of a row; it may be null. For PrintVisible.
std::string RowTable(const std::vector<Sums::Row>& rows, size_t shown, const Grouping& grouping,
                     const std::vector<ValueColumn>& columns,
                     const std::function<Tone(const Sums::Row&)>& tone = nullptr);

// Returns a table of the call tree (call_tree.cc), with the line MoreRows: the `shown` largest nodes (0: all),
// percentages of `total`. The first `base_files` files are subtracted; if there are some, the values are changes. For
// PrintVisible.
std::string TreeTable(const SumsQuery& query, size_t base_files, size_t shown, int64_t total);
// Returns the list of all nodes.
Json TreeJson(const SumsQuery& query, size_t base_files);

// Returns the line below a table that does not show every row; "" if it shows all. `option` limits the rows; 0 shows
// all.
std::string MoreRows(size_t shown, size_t all, const std::string& option = "-n");

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_SUMS_VIEW_H_
