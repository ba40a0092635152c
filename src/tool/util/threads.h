// RunOnThreads: a loop on several threads at once.
#ifndef HBMPROF_SRC_TOOL_UTIL_THREADS_H_
#define HBMPROF_SRC_TOOL_UTIL_THREADS_H_

#include <atomic>
#include <system_error>
#include <thread>

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Calls work(i) once for each i below `count`, on this thread and, at the same time, on up to `threads` - 1 others.
// REQUIRES: work(i) does not throw.
template <typename Work>
void RunOnThreads(size_t count, size_t threads, const Work& work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) work(i);
  };
  threads = std::min(threads, count);
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < threads) others.emplace_back(run);
  } catch (const std::system_error&) {
    // Those that have started do all the work.
  }
  run();
  for (std::thread& thread : others) thread.join();
}

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_THREADS_H_
