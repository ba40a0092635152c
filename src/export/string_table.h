// StringTable: the distinct strings of a profile. Not thread-safe.
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

  // Returns the index of `text`, which is added if it is new; "" has index 0. Each byte that is not valid UTF-8 is
  // replaced by U+FFFD, because readers of the format reject it.
  int64_t Intern(std::string_view text);

  size_t size() const { return ends_.size(); }
  // The total length of all strings, in bytes.
  size_t bytes() const { return bytes_.size(); }
  // Valid until the next Intern.
  std::string_view At(size_t index) const {
    const size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }

 private:
  IdTable ids_;
  std::string bytes_;         // all strings, concatenated
  std::vector<size_t> ends_;  // of each string in bytes_
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_STRING_TABLE_H_
