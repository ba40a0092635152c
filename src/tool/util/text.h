// Text output: formatting of sizes, units with pprof's names and rules, printing that has no effect on a terminal, and
// what is made only on a terminal: colours and a bar of progress.
#ifndef HBMPROF_SRC_TOOL_UTIL_TEXT_H_
#define HBMPROF_SRC_TOOL_UTIL_TEXT_H_

#include <unistd.h>

#include <chrono>

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Whether the descriptor is a terminal that can move its cursor. False if TERM is unset, empty or "dumb".
bool IsTerminal(int descriptor);

// The columns of the terminal of standard output; 0 if they are unknown or standard output is not a terminal.
size_t TerminalColumns();

bool IsUtf8Locale();

enum class Tone { kPlain, kGrowth, kDecrease, kWarning };

// Returns `visible` in the colour of `tone`. Returns it unchanged if standard output is not a terminal or NO_COLOR is
// set and not empty. `visible` must have no effect on a terminal; the result must be printed with PrintVisible.
std::string Colored(std::string visible, Tone tone);
Tone ToneOf(long long change);

// Shows a bar from one second on, whenever work is done, and removes it when the object is destroyed. Shows nothing if
// standard error is not a terminal or TERM is "dumb".
class Progress {
 public:
  // `all` is the amount of work. `text` is printed after the numbers, as in "3 of 12 files read".
  Progress(size_t all, std::string text) : all_(all), text_(std::move(text)) {}
  ~Progress();

  void Advance(size_t count);

 private:
  using Clock = std::chrono::steady_clock;

  const size_t all_;
  const std::string text_;
  const bool is_shown_ = IsTerminal(STDERR_FILENO);
  size_t done_ = 0;
  Clock::time_point next_ = Clock::now() + std::chrono::seconds(1);  // when the bar is drawn
  bool is_drawn_ = false;
};

// Returns `text` as one line that has no effect on a terminal. Control characters (C0, DEL, C1), characters that change
// the direction of text, line separators and bytes that are not UTF-8 become \n, \x1b, \u202e, \xff. A backslash stays
// as it is, so programs cannot convert the result back. The result is UTF-8.
std::string Visible(std::string_view text);

// Writes `text` to standard output, with line feeds unchanged and everything else as in Visible. CloseOutput reports a
// failure.
void Print(std::string_view text);
// Writes `text` to standard output unchanged. Its parts must be results of Visible, Colored or Table::Text.
void PrintVisible(std::string_view text);
// Writes `text` to standard error, with line feeds unchanged and everything else as in ErrorLine, but of any length.
void PrintErrorText(std::string_view text);
// Returns an error's message as one line, as in Visible, with words of more than 1 KiB shortened in their middle, and
// at most about 4 KiB.
std::string ErrorLine(std::string_view message);
// Writes "hbmprof: " or "hbmprof COMMAND: " and ErrorLine(message) to standard error.
void PrintError(std::string_view command, std::string_view message);
// Writes the rest of the output and closes standard output. Must be called once, at the end of the process. Error:
// kUnavailable if any output was lost, with the reason.
absl::Status CloseOutput();

// Returns a value of a sample type as text for users: bytes as "4.88 MiB", other units as "12 count". If `exact` is
// true, the value is not rounded.
std::string FormatValue(int64_t value, std::string_view unit, bool exact = false);
// The same for bytes.
std::string Bytes(int64_t bytes, bool exact = false);
// The same as FormatValue, with a plus sign before a positive value.
std::string FormatChange(int64_t value, std::string_view unit, bool exact = false);
// Returns text such as "12.345 s".
std::string FormatSeconds(double seconds);
// Returns text such as "1.5 s", "12.0 min" or "3.0 h".
std::string FormatDuration(double seconds);
// Returns text such as "12.34%"; "-" if `whole` is 0.
std::string FormatPercent(int64_t part, int64_t whole);
// Returns text such as "2026-11-21T11:53:53Z"; "" for 0.
std::string FormatTime(int64_t unix_nanos);

// Reads "1MiB", "8 KiB", "100", "2.5GiB" (1024-based, also spelled MB and M). Returns false for anything else.
bool ParseBytes(std::string_view text, int64_t* bytes);

// Reads a time such as "60s", "500ms", "5m", "1h" or "60" (seconds). Returns the seconds, or nullopt for anything else.
std::optional<double> ParseSeconds(std::string_view text);
// Returns the seconds that `text` names, the value of the option `option`. Error: kInvalidArgument if it is not a time
// from `least` to `most` seconds; the message says what to write: `range`, such as "a time from 1s to 1h".
absl::StatusOr<double> SecondsOf(std::string_view option, std::string_view text, double least, double most,
                                 std::string_view range);

// Formats rows of cells with aligned columns. The text of each cell goes through Visible.
class Table {
 public:
  // `columns`: for each column, 'l' if it is aligned left, 'r' if it is aligned right.
  explicit Table(std::string columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells, Tone tone = Tone::kPlain);
  // Returns the table for PrintVisible. If `columns` is not 0, longer lines are made to fit, as far as possible: text
  // in columns that are aligned left is shortened in its middle.
  std::string Text(size_t columns = 0) const;

 private:
  std::string columns_;
  struct Row {
    std::vector<std::string> cells;
    Tone tone;
  };
  std::vector<Row> rows_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_TEXT_H_
