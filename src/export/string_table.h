// StringTable: the strings of a profile, each once.
#ifndef HBMPROF_SRC_EXPORT_STRING_TABLE_H_
#define HBMPROF_SRC_EXPORT_STRING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/export/id_table.h"

namespace hbmprof::internal {

class StringTable {
 public:
  StringTable() { Intern(""); }

  // The index of `text`, added if it is new; "" has index 0. Bytes that are not UTF-8, which the format's readers
  // reject, become U+FFFD each.
  int64_t Intern(std::string_view text);

  size_t size() const { return ends_.size(); }
  // Of all strings.
  size_t bytes() const { return bytes_.size(); }
  // Valid until the next Intern.
  std::string_view At(size_t index) const {
    const size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }

 private:
  IdTable ids_;
  std::string bytes_;         // of all strings, one after the other
  std::vector<size_t> ends_;  // of each in there
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_STRING_TABLE_H_
