// StringTable: the strings of a profile, each once.
#ifndef HBMPROF_SRC_EXPORT_STRING_TABLE_H_
#define HBMPROF_SRC_EXPORT_STRING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/hash.h"

namespace hbmprof::internal {

class StringTable {
 public:
  StringTable() { Intern(""); }

  // The index of `text`, added if it is new; "" has index 0. Bytes that are not UTF-8, which the format's readers
  // reject, become U+FFFD each.
  int64_t Intern(std::string_view text);

  // By index.
  const std::vector<std::string_view>& strings() const { return strings_; }

 private:
  struct Hash {
    size_t operator()(std::string_view text) const { return HashBytes(text.data(), text.size(), kHashSeed0); }
  };

  // A copy that lives as long as the table.
  std::string_view Keep(std::string_view text);

  std::vector<std::string_view> strings_;
  std::unordered_map<std::string_view, int64_t, Hash> index_;
  std::vector<std::unique_ptr<char[]>> chunks_;  // what the strings point into
  char* free_ = nullptr;                         // in the last chunk
  size_t free_bytes_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_STRING_TABLE_H_
