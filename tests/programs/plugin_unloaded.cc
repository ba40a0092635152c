// plugin_unloaded PLUGIN: closes a plugin that contains the library while four threads that have recorded with it are
// alive. Then the threads end, the process forks, the plugin is loaded again and records, and the process ends.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/support/check.h"

namespace {

using Record = void(uint64_t first, int count);

struct Plugin {
  explicit Plugin(const char* path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    CHECK_THAT(handle != nullptr);
    record = reinterpret_cast<Record*>(dlsym(handle, "RecordInPlugin"));
    CHECK_THAT(record != nullptr);
  }
  void* handle;
  Record* record;
};

}  // namespace

int main(int, char** arguments) {
  LimitTime();
  constexpr int kThreads = 4;
  std::atomic<int> recorded{0};
  std::atomic<bool> is_closed{false};
  std::vector<std::thread> threads;
  {
    const Plugin plugin(arguments[1]);
    for (uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&recorded, &is_closed, record = plugin.record, i] {
        record((i + 1) << 20, 200);
        recorded.fetch_add(1);
        while (!is_closed.load()) std::this_thread::yield();
      });
    }
    while (recorded.load() < kThreads) std::this_thread::yield();
    CHECK_THAT(dlclose(plugin.handle) == 0);
  }
  is_closed.store(true);
  for (std::thread& thread : threads) thread.join();

  const pid_t child = fork();
  if (child == 0) std::exit(0);
  int status = -1;
  CHECK_THAT(waitpid(child, &status, 0) == child && status == 0);

  const Plugin again(arguments[1]);
  again.record(uint64_t{9} << 20, 200);
  CHECK_THAT(dlclose(again.handle) == 0);
  std::puts("done");
}
