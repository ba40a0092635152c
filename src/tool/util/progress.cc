// See progress.h.
#include "src/tool/util/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <system_error>

#include "src/tool/util/terminal.h"

namespace hbmprof::tool {
namespace {

constexpr char kRemove[] = "\r\033[K";

}  // namespace

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

std::unique_lock<std::mutex> Progress::Hide() {
  std::unique_lock<std::mutex> hold(mutex_);
  if (shown_) std::fputs(kRemove, stderr);
  shown_ = false;
  return hold;
}

void Progress::Run() {
  constexpr auto kDelay = std::chrono::seconds(1);
  constexpr auto kInterval = std::chrono::milliseconds(200);
  constexpr size_t kWidth = 40;
  std::unique_lock<std::mutex> hold(mutex_);
  if (ended_.wait_for(hold, kDelay, [this] { return end_; })) return;
  do {
    const size_t done = std::min(done_.load(std::memory_order_relaxed), all_);
    const size_t filled = kWidth * done / all_;
    std::fprintf(stderr, "\r[%s%s] %zu of %zu %s", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, ' ').c_str(), done, all_, text_.c_str());
    std::fflush(stderr);
    shown_ = true;
  } while (!ended_.wait_for(hold, kInterval, [this] { return end_; }));
  if (shown_) std::fputs(kRemove, stderr);
}

}  // namespace hbmprof::tool
