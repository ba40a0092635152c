// The interleaving that deadlocks if a lock or guard is held while the dynamic linker's lock is taken:
//
//   thread A: dlopen(argv[2])                        thread B
//   its constructor runs, the linker's lock is held
//                                                    the first use of the object that argv[1] names
//                                                    waits for the linker's lock
//   the constructor uses the same object
//
// An alarm ends the program if that does not end by itself.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "hbmprof/cuda.h"
#include "hbmprof/profiler.h"

namespace {

std::atomic<bool> in_constructor{false};
std::atomic<pid_t> thread_b{0};
std::function<void()> first_use;

// Returns when the thread has slept for a while. Returns after a second at the latest, because the thread may not need
// to wait.
void AwaitThatItWaits(pid_t thread) {
  int asleep = 0;
  for (int i = 0; i < 1000 && asleep < 50; ++i) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string number;
    std::string name;
    std::string state;
    file >> number >> name >> state;
    asleep = state == "S" ? asleep + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void hbmprof_test_in_constructor() {
  in_constructor = true;
  while (thread_b == 0) std::this_thread::yield();
  AwaitThatItWaits(thread_b);
  first_use();
}

int main(int, char** argv) {
  alarm(30);
  const std::string what = argv[1];
  if (what == "allocation") {
    first_use = [] {
      void* ptr = nullptr;
      if (hbmprof::cuda::Malloc(&ptr, 1000) != cudaSuccess) std::_Exit(2);
    };
  } else if (what == "nvml") {
    // Looks up the driver's functions now, so that later the linker is called for NVML only.
    void* ptr = nullptr;
    if (hbmprof::cuda::Malloc(&ptr, 1000) != cudaSuccess) return 2;
    first_use = [] {
      hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
      const hbmprof::DeviceStats stats = profiler.Stats(profiler.Device("GPU:0"));
      if (stats.driver_scope != hbmprof::DriverScope::kProcess) std::_Exit(2);
    };
  } else {
    void* plugin = dlopen(what.c_str(), RTLD_NOW);
    auto* get = plugin == nullptr ? nullptr : reinterpret_cast<void* (*)()>(dlsym(plugin, "GetPjrtApi"));
    if (get == nullptr) return 2;
    first_use = [get] {
      static std::atomic<void*> given{nullptr};
      void* none = nullptr;
      void* const api = get();
      if (!given.compare_exchange_strong(none, api) && none != api) std::_Exit(2);
    };
  }
  std::thread a([&] {
    if (dlopen(argv[2], RTLD_NOW) == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::_Exit(2);
    }
  });
  while (!in_constructor) std::this_thread::yield();
  std::thread b([] {
    thread_b = static_cast<pid_t>(syscall(SYS_gettid));
    first_use();
  });
  a.join();
  b.join();
  std::printf("done\n");
  return 0;
}
