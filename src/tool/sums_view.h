// What top, diff and peek have in common: their options, the lines above their tables, and rows as JSON.
#ifndef HBMPROF_SRC_TOOL_SUMS_VIEW_H_
#define HBMPROF_SRC_TOOL_SUMS_VIEW_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/tool/profile.h"
#include "src/tool/sums.h"
#include "src/tool/text.h"

namespace hbmprof::tool {

// Keys stay in the order in which they are set.
using Json = nlohmann::ordered_json;
// JSON as text for a file or a terminal: bytes that are not UTF-8 become U+FFFD, and what a terminal may obey is
// escaped.
std::string ToText(const Json& json);
// An object of these entries; of entries with the same key, the last. (Setting them one by one takes a time that grows
// with the square of their number.)
Json ObjectOf(std::vector<std::pair<std::string, Json>> entries);

struct SumsOptions {
  std::vector<std::string> files;
  std::string type;
  std::vector<std::string> by;
  std::vector<std::string> where;
  size_t rows = 20;
  bool by_cum = false;
  bool exact = false;
  bool json = false;

  // Adds all but the files.
  void AddTo(CLI::App& arguments);
};

// The options, read against the profiles.
struct SumsQuestion {
  size_t type;
  std::string unit;
  Grouping grouping;
  Conditions conditions;
};
absl::StatusOr<SumsQuestion> ResolveOptions(const ProfileSet& profiles, const SumsOptions& options);

// One line for each memory space that the file's comments tell of: in use, peak, limit, unaccounted; and one if
// allocations were dropped.
std::string DeviceLines(const ProfileSet::File& file, bool exact);

// The rows' own columns: the labels' values, then the frame and its place, under their headings.
std::vector<std::string> RowHeadings(const Grouping& grouping);
std::vector<std::string> RowCells(const Sums::Row& row, const Grouping& grouping);
Json RowJson(const Sums::Row& row, const Grouping& grouping);

// The line below a table that does not show every row; "" if it does.
std::string MoreRows(size_t shown, size_t all);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_VIEW_H_
