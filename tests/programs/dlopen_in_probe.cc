// dlopen_in_probe MODULE: a probe waits for the dynamic linker's lock while another thread, which holds it, runs the
// constructor of a library that reads the profiler's statistics.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/programs/program.h"

namespace {

std::atomic<bool> in_constructor{false};
std::atomic<bool> in_probe{false};

void Await(const std::atomic<bool>& flag) {
  while (!flag.load()) std::this_thread::yield();
}

}  // namespace

// Called by the module's constructor and destructor.
extern "C" [[gnu::visibility("default")]] void AllocateFromConstructor() {
  in_constructor.store(true);
  Await(in_probe);
  // The probe is at dlopen by now, or soon.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.Stats(hbmprof::kDefaultDevice);
  profiler.TakeSnapshot();
}

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  std::atomic<int> calls{0};
  profiler.SetDeviceProbe(hbmprof::kDefaultDevice, [&] {
    // The constructor's own calls are made while the first call waits.
    if (calls.fetch_add(1) > 0) return hbmprof::DeviceProbe{};
    Await(in_constructor);
    in_probe.store(true);
    void* self = dlopen(nullptr, RTLD_NOW);
    CHECK_THAT(self != nullptr);
    dlclose(self);
    return hbmprof::DeviceProbe{1000};
  });
  void* module = nullptr;
  std::thread loader([&] { module = dlopen(argv[1], RTLD_NOW); });
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).bytes_limit == 1000);
  loader.join();
  CHECK_THAT(module != nullptr);
  CHECK_THAT(calls.load() == 3);

  // A probe that loads the library itself: the constructor reads statistics on the thread that is in the probe.
  dlclose(module);
  in_constructor.store(false);
  profiler.SetDeviceProbe(hbmprof::kDefaultDevice, [&] {
    CHECK_THAT(dlopen(argv[1], RTLD_NOW) != nullptr);
    CHECK_THAT(in_constructor.load());
    return hbmprof::DeviceProbe{2000};
  });
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).bytes_limit == 2000);
  std::puts("done");
  std::fflush(stdout);
  std::_Exit(0);
}
