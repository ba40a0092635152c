// everything_at_once MODULE [SECONDS]: for SECONDS (2) and at the same time: eight threads allocate; one loads and
// unloads a library whose constructor allocates; one writes profiles; one throws exceptions through frames whose
// destructors allocate; one forks children that are off, unless their parent had no event yet. All of them must make
// progress until the end.

#include <dlfcn.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/program.h"

#if defined(__SANITIZE_THREAD__)
// The loader's strings are ordered by a lock of its own, which the sanitizer does not see.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() { return "race:dl_iterate_phdr\n"; }
#endif

namespace {

std::atomic<uint64_t> next_owner{100};

// Allocates when it begins and frees when it ends.
class Scratch {
 public:
  Scratch() { CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(id_, 512)); }
  ~Scratch() { CHECK_THAT(hbmprof::Profiler::Default().RecordFree(id_)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  const hbmprof::BufferId id_ = Buffer(next_owner.fetch_add(1), 0);
};

[[gnu::noinline]] void ThrowThrough(int frames) {
  Scratch scratch;
  if (frames == 0) throw std::runtime_error("on purpose");
  ThrowThrough(frames - 1);
}

void Throw() {
  bool is_caught = false;
  try {
    ThrowThrough(5);
  } catch (const std::runtime_error&) {
    is_caught = true;
  }
  CHECK_THAT(is_caught);
}

void Dump() { CHECK_THAT(hbmprof::device_memory_profile().ok()); }

[[maybe_unused]] void Fork() {
  const pid_t child = fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    alarm(20);
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    const bool records = profiler.RecordAlloc(Buffer(99, 0), 512);
    CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).bytes_in_use == (records ? 512 : 0));
    CHECK_THAT(hbmprof::device_memory_profile().ok() == records);
    std::_Exit(0);
  }
  int status = 0;
  CHECK_THAT(waitpid(child, &status, 0) == child);
  CHECK_THAT(status == 0);
}

}  // namespace

// Called by the module's constructor and destructor.
extern "C" [[gnu::visibility("default")]] void AllocateFromConstructor() { Scratch scratch; }

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int seconds = argc > 2 ? std::atoi(argv[2]) : 2;
  alarm(static_cast<unsigned>(seconds + 60));
  std::vector<std::function<void()>> activities = {Throw, Dump, [&] {
                                                     void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
                                                     if (library == nullptr) Check(false, dlerror());
                                                     dlclose(library);
                                                   }};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // A sanitizer's allocator does not survive a fork while another thread allocates host memory.
  activities.push_back(Fork);
#endif
  for (uint64_t i = 0; i < 8; ++i) std::thread(AllocateForEver, i, 1000).detach();
  std::vector<std::atomic<int>> rounds(activities.size());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < activities.size(); ++i) {
    threads.emplace_back([&, i] {
      while (!stop.load()) {
        activities[i]();
        ++rounds[i];
      }
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  int64_t allocations = 0;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const int64_t now = profiler.Stats(hbmprof::kDefaultDevice).num_allocs;
    CHECK_THAT(now > allocations);
    allocations = now;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  std::fprintf(stdout, "%lld allocations", static_cast<long long>(allocations));
  for (std::atomic<int>& count : rounds) {
    CHECK_THAT(count.load() > 0);
    std::fprintf(stdout, ", %d", count.load());
  }
  std::puts("\ndone");
  std::fflush(stdout);
  std::_Exit(0);
}
