// The answer of a command, as text or as JSON, and rows in it: a table or a list of objects. Both are made of the same
// fields, so that a value has one definition.
#ifndef HBMPROF_SRC_TOOL_UTIL_LISTING_H_
#define HBMPROF_SRC_TOOL_UTIL_LISTING_H_

#include "src/tool/util/json.h"

namespace hbmprof::tool {

// A column of the table and a value in JSON, of rows of the type `Row`.
template <typename Row>
struct RowField {
  using ToneOfRow = std::function<Tone(const Row&)>;
  std::string heading;  // of the table; used only if `text` is set
  char align = 'l';     // as in Table
  // The cell of a row. Null: it is not in the table.
  std::function<std::string(const Row&)> text;
  std::string key;  // of the value in the JSON object of a row; used only if `json` is set
  // The value of a row. Null: it is not in the JSON. A null value is left out.
  std::function<Json(const Row&)> json;
};
template <typename Row>
using RowFields = std::vector<RowField<Row>>;

// Returns how many of `all` rows are shown if `wanted` were asked for (0: all).
inline size_t ShownOf(size_t wanted, size_t all) { return wanted == 0 ? all : std::min(wanted, all); }

// Returns the line below a table that does not show every row; "" if it shows all. `option` limits the rows; 0 shows
// all.
inline std::string MoreRows(size_t shown, size_t all, const std::string& option = "-n") {
  return shown >= all ? "" : Cat("... and ", all - shown, " more rows (", option, " 0 shows all)\n");
}

// Returns a table of the first `wanted` rows (0: all), with a line of headings, and the line MoreRows. `tone` gives the
// colour of a row; it may be null. `option`: as for MoreRows. For PrintVisible.
template <typename Row>
std::string TableOf(const std::vector<Row>& rows, const RowFields<Row>& fields, size_t wanted,
                    const std::function<Tone(const Row&)>& tone = nullptr, const std::string& option = "-n") {
  std::string align;
  std::vector<std::string> cells;
  const auto for_each = [&fields](const auto& visit) {
    for (const RowField<Row>& field : fields) {
      if (field.text) visit(field);
    }
  };
  for_each([&](const RowField<Row>& field) {
    align += field.align;
    cells.push_back(field.heading);
  });
  Table table(align);
  table.Add(cells);
  const size_t shown = ShownOf(wanted, rows.size());
  for (size_t i = 0; i < shown; ++i) {
    cells.clear();
    for_each([&](const RowField<Row>& field) { cells.push_back(field.text(rows[i])); });
    table.Add(cells, tone ? tone(rows[i]) : Tone::kPlain);
  }
  return table.Text(TerminalColumns()) + MoreRows(shown, rows.size(), option);
}

// Sets `key` of `json` to the list of the first `wanted` rows (0: all), and "left_out" to the number of the others if
// there are some.
template <typename Row>
void AddRows(const char* key, const std::vector<Row>& rows, const RowFields<Row>& fields, size_t wanted, Json& json) {
  const size_t shown = ShownOf(wanted, rows.size());
  Json& list = json[key] = Json::array();
  for (size_t i = 0; i < shown; ++i) {
    Json& entry = list.emplace_back(Json::object());
    for (const RowField<Row>& field : fields) {
      if (!field.json) continue;
      if (Json value = field.json(rows[i]); !value.is_null()) entry[field.key] = std::move(value);
    }
  }
  if (shown < rows.size()) json["left_out"] = rows.size() - shown;
}

// What a command prints. The one of `json` and `text` that is not printed may be incomplete.
struct Answer {
  explicit Answer(bool prints_json) : is_json(prints_json) {}

  // Adds the first `wanted` rows (0: all), as in TableOf and AddRows.
  template <typename Row>
  void Add(const char* key, const std::vector<Row>& rows, const RowFields<Row>& fields, size_t wanted,
           const typename RowField<Row>::ToneOfRow& tone = nullptr) {
    if (is_json) return AddRows(key, rows, fields, wanted, json);
    text += TableOf(rows, fields, wanted, tone);
  }
  // Prints it and returns `exit_code`.
  int Print() const {
    is_json ? tool::Print(ToText(json)) : PrintVisible(text);
    return exit_code;
  }

  const bool is_json;
  int exit_code = kSuccess;
  Json json = {{"version", kJsonVersion}};
  std::string text;  // for PrintVisible
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_LISTING_H_
