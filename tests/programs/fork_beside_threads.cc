// fork_beside_threads FORKS: forks while other threads record, name devices, begin tags and take snapshots, and while
// signals interrupt a thread in malloc, whose handler records and begins tags. No process hangs. Each child is
// off.

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/program.h"

namespace {

constexpr uint64_t kHandler = 50;
constexpr uint64_t kChild = 60;
constexpr int kNames = 60;  // of devices; there is space for 64

std::atomic<bool> stop{false};
std::atomic<int> forked{0};
std::atomic<uint64_t> handled{0};
std::atomic<int> named{0};

void OnSignal(int) {
  const uint64_t number = handled.fetch_add(1);
  char text[16];
  std::snprintf(text, sizeof(text), "%u", static_cast<unsigned>(number % 900));
  hbmprof::ScopedTag tag("handler", text);
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  CHECK_THAT(profiler.RecordAlloc(Buffer(kHandler, number), 16));
  CHECK_THAT(profiler.RecordFree(Buffer(kHandler, number)) == 16);
}

std::string NameOf(int i) { return "device " + std::to_string(i); }

// Makes new names, tags and sites: a few for each fork.
void Define() {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  for (uint64_t i = 0; !stop.load(); ++i) {
    if (const int next = named.load(); i % 64 == 0 && next < kNames) {
      profiler.Device(NameOf(next));
      named.store(next + 1);
    }
    hbmprof::ScopedTag outer("outer", std::to_string(forked.load() % 900));
    hbmprof::ScopedTag inner("inner", std::to_string(i % 4));
    CHECK_THAT(profiler.RecordAlloc(Buffer(kHandler + 1, 0), 8));
    CHECK_THAT(profiler.RecordFree(Buffer(kHandler + 1, 0)) == 8);
  }
}

void Ask() {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  for (int64_t i = 0; !stop.load(); ++i) {
    CHECK_THAT(profiler.TakeSnapshot().tracker.live_records >= 0);
    profiler.SetCounter("asked", i);
    profiler.Stats(hbmprof::kDefaultDevice);
  }
}

void UseMalloc() {
  while (!stop.load()) {
    void* volatile blocks[8];
    for (void* volatile& block : blocks) block = std::malloc(5000);
    for (void* volatile& block : blocks) std::free(block);
  }
}

[[noreturn]] void RunChild(int number) {
  LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.Device("child");
  profiler.SetCounter("child", number);
  hbmprof::ScopedTag tag("child", std::to_string(number));
  CHECK_THAT(!profiler.RecordAlloc(Buffer(kChild, 0), 10) && !profiler.RecordFree(Buffer(kChild, 0)));
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).num_allocs == 0);
  CHECK_THAT(profiler.TakeSnapshot().samples.empty());
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int forks = std::atoi(argv[1]);
  if (forks <= 10'000) LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  struct sigaction action = {};
  action.sa_handler = &OnSignal;
  action.sa_flags = SA_RESTART;
  CHECK_THAT(sigaction(SIGUSR1, &action, nullptr) == 0);
  OnSignal(0);
  std::thread interrupted(UseMalloc);
  const pthread_t target = interrupted.native_handle();
  std::vector<std::thread> threads;
  threads.emplace_back(Define);
  threads.emplace_back(Ask);
  threads.emplace_back([target] {
    while (!stop.load()) {
      const uint64_t before = handled.load();
      CHECK_THAT(pthread_kill(target, SIGUSR1) == 0);
      while (handled.load() == before && !stop.load()) std::this_thread::yield();
    }
  });
  for (int i = 0; i < forks; ++i) {
    const pid_t child = fork();
    CHECK_THAT(child >= 0);
    if (child == 0) RunChild(i);
    forked.store(i);
    int status = 0;
    while (waitpid(child, &status, 0) != child) continue;
    CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  interrupted.join();
  // The parent has lost nothing.
  CHECK_THAT(handled.load() > 0);
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).bytes_in_use == 0);
  CHECK_THAT(profiler.GetTrackerStats().foreign_frees == 0);
  CHECK_THAT(profiler.GetTrackerStats().reentrant_events == 0);
  std::puts("done");
}
