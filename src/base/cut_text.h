// CutText and CutMiddle: limit a text to a number of bytes. Printable: a text without control characters.
#ifndef HBMPROF_SRC_BASE_CUT_TEXT_H_
#define HBMPROF_SRC_BASE_CUT_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace hbmprof::internal {

// Returns at most the first `max_bytes` bytes of `text`. A UTF-8 character is kept whole or left out. Text that is not
// UTF-8 is cut at `max_bytes`.
inline std::string_view CutText(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  constexpr size_t kLongestCharacter = 4;
  size_t end = max_bytes;
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  while (end > 0 && end + kLongestCharacter > max_bytes && continues(end)) --end;
  return text.substr(0, continues(end) ? max_bytes : end);
}

// Returns the begin and the end of `text`, between which a message has "...": at most `max_bytes` bytes together. If
// `text` has no more, the begin is the text and the end is empty. Characters are kept whole as in CutText.
inline std::pair<std::string_view, std::string_view> CutMiddle(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return {text, {}};
  std::string_view end = text.substr(text.size() - max_bytes / 2);
  for (int i = 0; i < 3 && !end.empty() && (static_cast<unsigned char>(end[0]) & 0xC0) == 0x80; ++i)
    end.remove_prefix(1);
  return {CutText(text, max_bytes / 2), end};
}

// Returns `text` with "?" in place of each control character, which can have an effect on a terminal.
inline std::string Printable(std::string_view text) {
  std::string printable(text);
  for (char& byte : printable) {
    if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f) byte = '?';
  }
  return printable;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_CUT_TEXT_H_
