// RunOnThreads: one function on several threads at once.
#ifndef HBMPROF_SRC_TOOL_UTIL_THREADS_H_
#define HBMPROF_SRC_TOOL_UTIL_THREADS_H_

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace hbmprof::tool {

// Calls work() on this thread and, at the same time, on `threads` - 1 others. Waits for all of them. If the system
// starts fewer threads, work() is called less often. REQUIRES: work() does not throw.
template <typename Work>
void RunOnThreads(size_t threads, const Work& work) {
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < threads) others.emplace_back([&work] { work(); });
  } catch (const std::system_error&) {
    // Those that have started do all the work.
  }
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_THREADS_H_
