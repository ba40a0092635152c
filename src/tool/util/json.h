// JSON, for the output of commands and for the data of pages.
#ifndef HBMPROF_SRC_TOOL_UTIL_JSON_H_
#define HBMPROF_SRC_TOOL_UTIL_JSON_H_

#include <nlohmann/json.hpp>

#include "src/tool/util/text.h"

namespace hbmprof::tool {

// Keys stay in the order in which they are set.
using Json = nlohmann::ordered_json;
// Returns JSON as text, in ASCII, so that it has no effect on a terminal. Bytes that are not UTF-8 become U+FFFD.
inline std::string ToText(const Json& json) { return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n"; }
// The same in one line, without a line feed.
inline std::string Compact(const Json& json) { return json.dump(-1, ' ', true, Json::error_handler_t::replace); }
// Returns the value; null if there is none.
template <typename Value>
Json OrNull(const std::optional<Value>& value) {
  return value.has_value() ? Json(*value) : Json();
}
// Returns an object of these entries. If several entries have the same key, the last one is used. Takes linear time. To
// set the entries one by one would take quadratic time.
inline Json ObjectOf(std::vector<std::pair<std::string, Json>> entries) {
  absl::flat_hash_map<std::string_view, size_t> last;
  for (size_t i = 0; i < entries.size(); ++i) last[entries[i].first] = i;
  Json::object_t object;
  object.reserve(last.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    if (last[entries[i].first] != i) continue;
    object.Container::emplace_back(entries[i].first, std::move(entries[i].second));
  }
  return object;
}

// The value of "version" in every JSON output. It changes if a field is removed or changes its meaning. docs/command.md
// documents the fields.
constexpr int kJsonVersion = 1;

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_JSON_H_
