#include "src/export/string_table.h"

#include "src/base/hash.h"
#include "src/export/utf8.h"

namespace hbmprof::internal {

int64_t StringTable::Intern(std::string_view text) {
  if (ValidUtf8Prefix(text) < text.size()) return Intern(ValidUtf8(text));
  const uint32_t id = ids_.IdOf(HashBytes(text.data(), text.size(), kHashSeed0),
                                [&](uint32_t candidate) { return At(candidate) == text; });
  if (id == ends_.size()) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  return id;
}

}  // namespace hbmprof::internal
