#include "src/tool/util/text.h"

#include <sys/ioctl.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/time/time.h"
#include "src/base/bytes_text.h"
#include "src/base/cut_text.h"
#include "src/export/utf8.h"

namespace hbmprof::tool {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// The number of columns on a terminal, approximately: the number of code points.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      absl::c_count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// The maximum width of a column, so that one long cell does not pad every row.
constexpr size_t kMaxPaddedWidth = 200;

// The width to which a column is not shortened further.
constexpr size_t kLeastWidth = 12;

// Returns `cell` with at most `width` code points. The end of a name or path says more than its beginning.
std::string Shortened(const std::string& cell, size_t width) {
  if (Width(cell) <= width) return cell;
  const std::string mark = IsUtf8Locale() ? "\u2026" : "..";
  const size_t kept = width - std::min(width, Width(mark));
  const size_t head = kept / 3;
  std::string text;
  size_t at = 0;  // the number of code points before this byte, plus 1
  const size_t all = Width(cell);
  for (const char c : cell) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80 && at++ == head) text += mark;
    if (at <= head || at > all - (kept - head)) text += c;
  }
  return text;
}

// Removes the decimal number at the start of `text`, such as "12" or "1.5", and returns it. SimpleAtod alone would also
// read 0x10, 1e3, +1 and inf.
std::optional<double> TakeNumber(std::string_view* text) {
  const std::string number(text->substr(0, text->find_first_not_of("0123456789.")));
  text->remove_prefix(number.size());
  double value = 0;
  return absl::SimpleAtod(number, &value) && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// Maximum length: an error message can contain text from a file, such as the names of all its sample types.
constexpr size_t kMaxErrorBytes = 4096;

// Returns `text` with its words of more than 1 KiB shortened in their middle. A message begins with a path, which can
// have any length, and its end says what is wrong.
std::string WithShortWords(std::string_view text) {
  constexpr size_t kMostBytes = 1024;
  std::string out;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find_first_of(" \n"));
    const auto [begin, end] = internal::CutMiddle(word, kMostBytes);
    out += Cat(begin, end.empty() ? "" : "...", end, text.substr(word.size(), 1));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return out;
}

// The errno of the first failed write to standard output; 0 if there was none.
int output_error = 0;

uint32_t CodePointOf(std::string_view character) {
  uint32_t value = static_cast<unsigned char>(character[0]);
  if (character.size() > 1) value &= 0x7Fu >> character.size();
  for (const char c : character.substr(1)) value = value << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  return value;
}

// Returns whether this character can control a terminal or change the order in which text is shown.
bool HasEffect(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string EscapeOf(uint32_t c) {
  if (c == '\n' || c == '\t' || c == '\r') return c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
  return c < 0x80 ? absl::StrFormat("\\x%02x", c) : absl::StrFormat("\\u%04x", c);
}

std::string Escaped(std::string_view text, bool keeps_lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && ((text[end] >= ' ' && text[end] < 0x7F) || (keeps_lines && text[end] == '\n'))) ++end;
    out.append(text, i, end - i);
    i = end;
    if (i == text.size()) break;
    const std::string_view character = text.substr(i, internal::Utf8CharacterLength(text.substr(i)));
    if (character.empty()) {
      out += absl::StrFormat("\\x%02x", static_cast<unsigned char>(text[i]));
    } else if (const uint32_t c = CodePointOf(character); HasEffect(c)) {
      out += EscapeOf(c);
    } else {
      out += character;
    }
    i += std::max<size_t>(character.size(), 1);
  }
  return out;
}

}  // namespace

size_t TerminalColumns() {
  winsize size = {};
  return IsTerminal(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool IsTerminal(int descriptor) {
  const std::string_view kind = Variable("TERM");
  return !kind.empty() && kind != "dumb" && isatty(descriptor) != 0;
}

bool IsUtf8Locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string locale = absl::AsciiStrToLower(std::string(Variable(name)));
    if (locale.empty()) continue;
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

std::string Colored(std::string visible, Tone tone) {
  static const bool colored = IsTerminal(STDOUT_FILENO) && Variable("NO_COLOR").empty();
  if (!colored || tone == Tone::kPlain || visible.empty()) return visible;
  const char* const code = tone == Tone::kGrowth ? "\033[31m" : tone == Tone::kDecrease ? "\033[32m" : "\033[33m";
  return code + visible + "\033[0m";
}

Tone ToneOf(long long change) { return change > 0 ? Tone::kGrowth : change < 0 ? Tone::kDecrease : Tone::kPlain; }

void Progress::Advance(size_t count) {
  constexpr size_t kWidth = 40;
  done_ += count;
  if (!is_shown_ || Clock::now() < next_) return;
  next_ = Clock::now() + std::chrono::milliseconds(200);
  is_drawn_ = true;
  const size_t done = std::min(done_, all_);
  const size_t filled = all_ == 0 ? 0 : kWidth * done / all_;
  std::fprintf(stderr, "\r[%s%s] %zu of %zu %s", std::string(filled, '#').c_str(),
               std::string(kWidth - filled, ' ').c_str(), done, all_, text_.c_str());
}

Progress::~Progress() {
  if (is_drawn_) std::fputs("\r\033[K", stderr);
}

std::string Visible(std::string_view text) { return Escaped(text, false); }

void Print(std::string_view text) { PrintVisible(Escaped(text, true)); }

void PrintVisible(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && output_error == 0) {
    output_error = errno != 0 ? errno : EIO;
  }
}

void PrintErrorText(std::string_view text) { std::fputs(WithShortWords(Escaped(text, true)).c_str(), stderr); }

std::string ErrorLine(std::string_view message) {
  const std::string text = WithShortWords(Visible(message));
  return text.size() <= kMaxErrorBytes ? text : Cat(internal::CutText(text, kMaxErrorBytes), "...");
}

void PrintError(std::string_view command, std::string_view message) {
  const std::string text = Cat("hbmprof", command.empty() ? "" : " ", command, ": ", ErrorLine(message), "\n");
  std::fputs(text.c_str(), stderr);
}

absl::Status CloseOutput() {
  errno = 0;
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && output_error == 0) {
    output_error = errno != 0 ? errno : EIO;
  }
  // Some file systems report a full disk only here. EBADF means that standard output was closed from the start, and
  // nothing was printed.
  if (std::fclose(stdout) != 0 && output_error == 0 && errno != EBADF) output_error = errno;
  if (output_error == 0) return absl::OkStatus();
  return Unavailable("cannot write to standard output: ", std::strerror(output_error));
}

std::string FormatValue(int64_t value, std::string_view unit, bool exact) {
  const bool is_bytes = unit == "bytes" || unit == "byte" || unit == "B";
  if (!is_bytes) return unit.empty() || unit == "count" ? std::to_string(value) : Cat(value, " ", unit);
  return exact ? Cat(value, " B") : internal::BytesText(value);
}

std::string Bytes(int64_t bytes, bool exact) { return FormatValue(bytes, "bytes", exact); }

std::string FormatChange(int64_t value, std::string_view unit, bool exact) {
  return Cat(value > 0 ? "+" : "", FormatValue(value, unit, exact));
}

std::string FormatPercent(int64_t part, int64_t whole) {
  return whole == 0 ? "-" : absl::StrFormat("%.2f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string FormatSeconds(double seconds) { return absl::StrFormat("%.3f s", seconds); }

std::string FormatDuration(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.1f s", seconds);
  return seconds < 7200 ? absl::StrFormat("%.1f min", seconds / 60) : absl::StrFormat("%.1f h", seconds / 3600);
}

std::string FormatTime(int64_t unix_nanos) {
  if (unix_nanos == 0) return "";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(unix_nanos / 1000000000), absl::UTCTimeZone());
}

std::optional<double> ParseSeconds(std::string_view text) {
  const std::optional<double> value = TakeNumber(&text);
  if (!value.has_value()) return std::nullopt;
  if (text == "ms") return *value / 1000;
  if (text.empty() || text == "s") return *value;
  if (text == "m") return *value * 60;
  if (text == "h") return *value * 3600;
  return std::nullopt;
}

absl::StatusOr<double> SecondsOf(std::string_view option, std::string_view text, double least, double most,
                                 std::string_view range) {
  const std::optional<double> seconds = ParseSeconds(text);
  if (seconds.has_value() && *seconds >= least && *seconds <= most) return *seconds;
  return InvalidArgument(option, " ", text, ": write ", range);
}

bool ParseBytes(std::string_view text, int64_t* bytes) {
  const std::optional<double> number = TakeNumber(&text);
  if (!number.has_value()) return false;
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string unit = absl::AsciiStrToLower(std::string(text));
  double factor = 1;
  constexpr std::string_view kPrefixes = "kmgt";
  if (!unit.empty() && unit != "b") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return false;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (*number * factor > 9e18) return false;
  *bytes = static_cast<int64_t>(std::llround(*number * factor));
  return true;
}

void Table::Add(std::vector<std::string> cells, Tone tone) {
  for (std::string& cell : cells) cell = Visible(cell);
  rows_.push_back({std::move(cells), tone});
}

std::string Table::Text(size_t columns) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const Row& row : rows_) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      widths[i] = std::max(widths[i], std::min(Width(row.cells[i]), kMaxPaddedWidth));
    }
  }
  size_t line_width = widths.empty() ? 0 : 2 * (widths.size() - 1);
  for (const size_t width : widths) line_width += width;
  for (; columns != 0 && line_width > columns; --line_width) {
    size_t* widest = nullptr;
    for (size_t i = 0; i < widths.size(); ++i) {
      const bool can_shrink = columns_[i] == 'l' && widths[i] > kLeastWidth;
      if (can_shrink && (widest == nullptr || widths[i] > *widest)) widest = &widths[i];
    }
    if (widest == nullptr) break;
    --*widest;
  }
  std::string text;
  for (const Row& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const bool is_cut = columns != 0 && columns_[i] == 'l';
      const std::string cell = is_cut ? Shortened(row.cells[i], widths[i]) : row.cells[i];
      const std::string pad(widths[i] - std::min(Width(cell), widths[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += columns_[i] == 'r' ? pad + cell : cell + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += Colored(std::move(line), row.tone) + "\n";
  }
  return text;
}

}  // namespace hbmprof::tool
