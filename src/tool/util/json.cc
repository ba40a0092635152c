#include "src/tool/util/json.h"

#include "src/tool/util/text.h"

namespace hbmprof::tool {

std::string ToText(const Json& json) {
  return VisibleJson(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string Compact(const Json& json) { return VisibleJson(json.dump(-1, ' ', false, Json::error_handler_t::replace)); }

Json ObjectOf(std::vector<std::pair<std::string, Json>> entries) {
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

}  // namespace hbmprof::tool
