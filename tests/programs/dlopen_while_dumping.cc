// dlopen_while_dumping MODULE: loads and unloads a library whose constructor allocates, under the loader's lock, while
// another thread writes profiles, which lists the loaded libraries.

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/programs/program.h"

#if defined(__SANITIZE_THREAD__)
// The loader's strings are ordered by a lock of its own, which the sanitizer does not see.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() { return "race:dl_iterate_phdr\n"; }
#endif

namespace {

std::atomic<uint64_t> calls{0};

}  // namespace

// Called by the module's constructor and destructor.
extern "C" [[gnu::visibility("default")]] void AllocateFromConstructor() {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const uint64_t call = calls.fetch_add(1);
  hbmprof::ScopedTag tag("loading", call % 2 == 0 ? "constructor" : "destructor");
  // New sizes, and so new sites, besides known ones.
  CHECK_THAT(profiler.RecordAlloc(Buffer(call, 0), 100));
  CHECK_THAT(profiler.RecordAlloc(Buffer(call, 1), 1 + call % 200));
  CHECK_THAT(profiler.RecordFree(Buffer(call, 1)));
  profiler.Stats(hbmprof::kDefaultDevice);
}

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  std::atomic<bool> stop{false};
  std::atomic<int> dumps{0};
  std::thread dumper([&] {
    while (!stop.load()) {
      CHECK_THAT(hbmprof::device_memory_profile().ok());
      ++dumps;
    }
  });
  uint64_t loads = 0;
  while (loads < 300 || dumps.load() < 10) {
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Check(false, dlerror());
    dlclose(library);
    ++loads;
  }
  stop.store(true);
  dumper.join();
  CHECK_THAT(calls.load() == 2 * loads);
  CHECK_THAT(hbmprof::Profiler::Default().Stats(hbmprof::kDefaultDevice).num_live == static_cast<int64_t>(2 * loads));
  std::puts("done");
}
