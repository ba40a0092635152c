// CutText: text of at most so many bytes.
#ifndef HBMPROF_SRC_BASE_CUT_TEXT_H_
#define HBMPROF_SRC_BASE_CUT_TEXT_H_

#include <cstddef>
#include <string_view>

namespace hbmprof::internal {

// The first `max_bytes` bytes of `text`, or fewer: a UTF-8 character is kept whole or left out. Text that is not UTF-8
// is cut at `max_bytes`.
inline std::string_view CutText(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  constexpr size_t kLongestCharacter = 4;
  size_t end = max_bytes;
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  while (end > 0 && end + kLongestCharacter > max_bytes && continues(end)) --end;
  return text.substr(0, continues(end) ? max_bytes : end);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_CUT_TEXT_H_
