// Text that is valid UTF-8.
#ifndef HBMPROF_SRC_EXPORT_UTF8_H_
#define HBMPROF_SRC_EXPORT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace hbmprof::internal {

// Returns the length in bytes of the UTF-8 character at the beginning of `text`; 0 if there is none. REQUIRES: `text` is
// not empty.
size_t Utf8CharacterLength(std::string_view text);

// Returns the length of the longest prefix of `text` that is valid UTF-8, in bytes.
size_t ValidUtf8Prefix(std::string_view text);

// Returns `text` with U+FFFD in place of each byte that is not valid UTF-8.
std::string ValidUtf8(std::string_view text);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_UTF8_H_
