// Output that the command makes only on a terminal: colours, growth signs and a bar of progress.
#ifndef HBMPROF_SRC_TOOL_UTIL_TERMINAL_H_
#define HBMPROF_SRC_TOOL_UTIL_TERMINAL_H_

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Whether the descriptor is a terminal that can move its cursor. False if TERM is unset, empty or "dumb".
bool IsTerminal(int descriptor);

// The size of the terminal of standard output; 0 if it is unknown or standard output is not a terminal.
size_t TerminalRows();
size_t TerminalColumns();

// Whether the locale of the environment has the character set UTF-8.
bool IsUtf8Locale();

// Returns a character of this height, 1 to 8 eighths of a line. In other locales than UTF-8 there are two heights.
const char* BarOf(size_t eighths);

enum class Tone { kPlain, kGrowth, kDecrease, kWarning };

// Returns `visible` in the colour of `tone`. Returns it unchanged if standard output is not a terminal or NO_COLOR is
// set and not empty. `visible` must have no effect on a terminal; the result must be printed with PrintVisible.
std::string Colored(std::string visible, Tone tone);
// Returns kGrowth, kDecrease or kPlain for a change.
Tone ToneOf(long long change);
// Returns an arrow up or down and a space for a change that is not 0. Returns "" if standard output is not a terminal
// or the locale is not UTF-8.
std::string GrowthSign(long long change);

// Shows a bar after one second and removes it when the object is destroyed. Shows nothing if standard error is not a
// terminal or TERM is "dumb".
class Progress {
 public:
  // `all` is the amount of work. `text` is printed after the numbers, as in "3 of 12 files read".
  Progress(size_t all, std::string text);
  ~Progress();

  // Reports that `count` more units of work are done. Thread-safe.
  void Advance(size_t count) { done_.fetch_add(count, std::memory_order_relaxed); }

 private:
  void Run();

  const size_t all_;
  const std::string text_;
  std::atomic<size_t> done_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_TERMINAL_H_
