#include "src/export/utf8.h"

#include <cstdint>
#include <cstring>

namespace hbmprof::internal {

size_t Utf8CharacterLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80;  // bounds of the second byte: no overlong forms, no surrogates, nothing above U+10FFFF
  unsigned char high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t valid = 0;
  while (valid < text.size()) {
    uint64_t word = 0;
    if (text.size() - valid >= sizeof(word)) {
      std::memcpy(&word, text.data() + valid, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {  // ASCII
        valid += sizeof(word);
        continue;
      }
    }
    const size_t length = Utf8CharacterLength(text.substr(valid));
    if (length == 0) break;
    valid += length;
  }
  return valid;
}

std::string ValidUtf8(std::string_view text) {
  std::string valid;
  while (true) {
    const size_t prefix = ValidUtf8Prefix(text);
    valid.append(text.substr(0, prefix));
    text.remove_prefix(prefix);
    if (text.empty()) return valid;
    valid.append("\xEF\xBF\xBD");
    text.remove_prefix(1);
  }
}

}  // namespace hbmprof::internal
