#include "src/tool/util/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace hbmprof::tool {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

winsize SizeOfTerminal() {
  winsize size = {};
  if (!IsTerminal(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

}  // namespace

size_t TerminalRows() { return SizeOfTerminal().ws_row; }
size_t TerminalColumns() { return SizeOfTerminal().ws_col; }

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

const char* BarOf(size_t eighths) {
  static const bool has_utf8 = IsUtf8Locale();
  static constexpr const char* kBars[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                          "\u2585", "\u2586", "\u2587", "\u2588"};
  return has_utf8 ? kBars[eighths - 1] : eighths >= 4 ? "#" : "_";
}

std::string Colored(std::string visible, Tone tone) {
  static const bool colored = IsTerminal(STDOUT_FILENO) && Variable("NO_COLOR").empty();
  if (!colored || tone == Tone::kPlain || visible.empty()) return visible;
  const char* const code = tone == Tone::kGrowth ? "\033[31m" : tone == Tone::kDecrease ? "\033[32m" : "\033[33m";
  return code + visible + "\033[0m";
}

Tone ToneOf(long long change) { return change > 0 ? Tone::kGrowth : change < 0 ? Tone::kDecrease : Tone::kPlain; }

std::string GrowthSign(long long change) {
  static const bool signs = IsTerminal(STDOUT_FILENO) && IsUtf8Locale();
  return !signs || change == 0 ? "" : change > 0 ? "\u25b2 " : "\u25bc ";
}

Progress::Progress(size_t all, std::string text) : all_(all), text_(std::move(text)) {
  if (all_ == 0 || !IsTerminal(STDERR_FILENO)) return;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    // If no thread can be started, no bar is shown.
  }
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::Run() {
  constexpr size_t kWidth = 40;
  std::unique_lock<std::mutex> hold(mutex_);
  if (ended_.wait_for(hold, std::chrono::seconds(1), [this] { return end_; })) return;
  do {
    const size_t done = std::min(done_.load(std::memory_order_relaxed), all_);
    const size_t filled = kWidth * done / all_;
    std::fprintf(stderr, "\r[%s%s] %zu of %zu %s", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, ' ').c_str(), done, all_, text_.c_str());
    std::fflush(stderr);
  } while (!ended_.wait_for(hold, std::chrono::milliseconds(200), [this] { return end_; }));
  std::fputs("\r\033[K", stderr);
}

}  // namespace hbmprof::tool
