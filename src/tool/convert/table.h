// Tables for engines that analyse data (DuckDB, Spark, ClickHouse, pandas): the events of a recording, and the samples
// of profiles, one row each. docs/tables.md describes the columns.
#ifndef HBMPROF_SRC_TOOL_CONVERT_TABLE_H_
#define HBMPROF_SRC_TOOL_CONVERT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "src/base/atomic_file.h"
#include "src/export/recording.h"
#include "src/tool/profile/view.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/util/progress.h"

namespace hbmprof::tool {

enum class TableFormat : uint8_t {
  kCsv,     // with a line of names; RFC 4180
  kNdjson,  // one JSON object in each line
};

// Returns the format with this name; nullopt if there is none.
std::optional<TableFormat> TableFormatNamed(const std::string& name);

// One row as text. Its cells must be added in the order of the columns.
class TableRow {
 public:
  TableRow(TableFormat format, const std::vector<std::string>& columns) : format_(format), columns_(columns) {}

  void Number(int64_t value);
  void Text(std::string_view value);
  void Plain(std::string_view value);   // letters, digits and the characters of times only
  void Json(const std::string& value);  // serialized
  void Missing();
  // Adds `count` cells. `cells` is the text() of another TableRow that started at the same column.
  void Cells(std::string_view cells, size_t count);
  // Sets the column of the next cell without adding cells: for a row whose text is passed to Cells of another row.
  void StartAt(size_t column) { column_ = column; }
  std::string_view text() const { return text_; }
  // Ends the row and appends it to `output`.
  absl::Status End(internal::FileOutput& output);

 private:
  void Begin();

  const TableFormat format_;
  const std::vector<std::string>& columns_;
  size_t column_ = 0;
  std::string text_;
};

// Writes the events and the samples of a recording. Memory: that of the reader.
absl::Status WriteEventTable(TableFormat format, internal::RecordingReader& recording, const RecordedStacks& stacks,
                             internal::FileOutput& output, Progress& progress);
// Writes the samples of the profiles. Memory: that of one profile. Errors: those of ReadView; kInvalidArgument if a
// profile has none of the sample types of the first one.
absl::Status WriteSampleTable(TableFormat format, const std::vector<std::string>& files, const ViewOptions& options,
                              internal::FileOutput& output);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_CONVERT_TABLE_H_
