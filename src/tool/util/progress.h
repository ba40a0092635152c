// Progress of long work, on standard error.
#ifndef HBMPROF_SRC_TOOL_UTIL_PROGRESS_H_
#define HBMPROF_SRC_TOOL_UTIL_PROGRESS_H_

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Shows a bar after one second and removes it when the object is destroyed. Shows nothing if standard error is not a
// terminal or TERM is "dumb".
class Progress {
 public:
  // `all` is the amount of work. `text` is printed after the numbers, as in "3 of 12 files read".
  Progress(size_t all, std::string text);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Reports that `count` more units of work are done. Thread-safe.
  void Advance(size_t count) { done_.fetch_add(count, std::memory_order_relaxed); }
  // Removes the bar, so that a message can be written. It is shown again after the returned lock has been released.
  std::unique_lock<std::mutex> Hide();

 private:
  void Run();

  const size_t all_;
  const std::string text_;
  std::atomic<size_t> done_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;    // guarded by mutex_
  bool shown_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_PROGRESS_H_
