// The work that peers.sh runs with each tracker: pairs of free and malloc at the end of a call chain.
//
// usage: peer_bench none|hbmprof THREADS STACKS LIVE SECONDS
//
// PEER_LIBRARY in the environment names a library whose functions peer_allocate and peer_free are called in place of
// malloc and free.
//
// The program is compiled twice. Without frame pointers it is peer_bench; with them, in all of its functions, it is
// peer_bench_fp, for trackers that walk by them. The C library has none, so each thread's chain of frame pointers ends
// at RunAsOutermost: some of these trackers follow the chain without a check.
//
// Prints wall nanoseconds per pair over all threads, and processor nanoseconds per pair of the working threads.

#include <dlfcn.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/profiler.h"

// Calls `function(argument)` with a frame pointer of 0, which ends the chain of frame pointers.
extern "C" void RunAsOutermost(void (*function)(void* argument), void* argument);
#if defined(__x86_64__)
asm(R"(
  .text
  .type RunAsOutermost, @function
RunAsOutermost:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  xor %ebp, %ebp
  mov %rdi, %rax
  mov %rsi, %rdi
  call *%rax
  pop %rbp
  .cfi_def_cfa_offset 8
  .cfi_restore %rbp
  ret
  .cfi_endproc
  .size RunAsOutermost, . - RunAsOutermost
)");
#else
void RunAsOutermost(void (*function)(void*), void* argument) { function(argument); }
#endif

// jemalloc's, if it is preloaded.
extern "C" [[gnu::weak]] int mallctl(const char* name, void* old_value, size_t* old_size, void* value, size_t size);

namespace hbmprof::benchmarks {
namespace {

constexpr size_t kBytes = 256;

using Allocate = void* (*)(size_t bytes);
using Free = void (*)(void* memory, size_t bytes);

void* AllocateByMalloc(size_t bytes) { return std::malloc(bytes); }
void FreeByFree(void* memory, size_t) { std::free(memory); }

struct Block {
  Profiler* profiler;  // null: no tracker, or one that wraps the functions below
  Allocate allocate;
  Free free;
  void** slot;

  static void Replace(void* argument) {
    auto* self = static_cast<Block*>(argument);
    if (self->profiler != nullptr) self->profiler->RecordFree(*self->slot);
    self->free(*self->slot, kBytes);
    *self->slot = self->allocate(kBytes);
    if (self->profiler != nullptr) self->profiler->RecordAlloc(*self->slot, kBytes);
  }
};

// Sets `allocate` and `free` to the functions of the library that PEER_LIBRARY names. Returns false, and prints the
// reason, if it cannot be loaded.
bool LoadPeer(Allocate* allocate, Free* free) {
  const char* path = std::getenv("PEER_LIBRARY");
  if (path == nullptr) return true;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) {
    *allocate = reinterpret_cast<Allocate>(dlsym(library, "peer_allocate"));
    *free = reinterpret_cast<Free>(dlsym(library, "peer_free"));
    if (*allocate != nullptr && *free != nullptr) return true;
  }
  std::fprintf(stderr, "PEER_LIBRARY=%s: %s\n", path, dlerror());
  return false;
}

// Makes jemalloc record this thread's allocations. peers.sh starts its variant that walks by frame pointers so that no
// thread does, because the chain of a thread that has not called RunAsOutermost has no end.
void RecordThisThread() {
  bool is_on = true;
  if (mallctl != nullptr) mallctl("thread.prof.active", nullptr, nullptr, &is_on, sizeof(is_on));
}

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The options of a run, and what its threads share.
struct Run {
  Profiler* profiler;
  Allocate allocate = AllocateByMalloc;
  Free free = FreeByFree;
  int stacks;
  int live;  // of each thread
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> pairs{0};
};

struct Thread {
  Run* run;
  int number;
  double processor_seconds = 0;

  // `argument` is the Thread.
  static void Work(void* argument) {
    auto* self = static_cast<Thread*>(argument);
    Run& run = *self->run;
    RecordThisThread();
    Random random(static_cast<uint64_t>(self->number) + 1);
    std::vector<uint64_t> paths;
    for (int i = 0; i < run.stacks; ++i) paths.push_back(PathOf(static_cast<uint64_t>(self->number * run.stacks + i)));
    std::vector<void*> blocks(static_cast<size_t>(run.live));
    for (void*& slot : blocks) slot = run.allocate(kBytes);
    Block block{run.profiler, run.allocate, run.free, nullptr};
    for (void*& slot : blocks) {
      block.slot = &slot;
      CALL_CHAIN::Descend(17, paths[random.Next() % paths.size()], &Block::Replace, &block);
    }
    run.ready.fetch_add(1);
    while (!run.go.load(std::memory_order_acquire)) std::this_thread::yield();
    int64_t pairs = 0;
    const double start = ThreadSeconds();
    while (!run.stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 20; ++i) {
        const uint64_t draw = random.Next();
        block.slot = &blocks[(draw >> 32) % blocks.size()];
        CALL_CHAIN::Descend(17, paths[draw % paths.size()], &Block::Replace, &block);
      }
      pairs += 20;
    }
    self->processor_seconds = ThreadSeconds() - start;
    run.pairs.fetch_add(pairs);
  }
};

int Main(char** argv) {
  const bool own = std::strcmp(argv[1], "hbmprof") == 0;
  const int count = std::atoi(argv[2]);
  const double seconds = std::atof(argv[5]);

  std::unique_ptr<Profiler> profiler = own ? std::make_unique<Profiler>() : nullptr;
  Run run;
  run.profiler = profiler.get();
  run.stacks = std::atoi(argv[3]);
  run.live = std::atoi(argv[4]) / count;
  if (!LoadPeer(&run.allocate, &run.free)) return 1;
  std::vector<Thread> threads;
  for (int number = 0; number < count; ++number) threads.push_back({&run, number});
  std::vector<std::thread> running;
  for (Thread& thread : threads) running.emplace_back(&RunAsOutermost, &Thread::Work, &thread);
  while (run.ready.load() != count) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  run.go.store(true, std::memory_order_release);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  run.stop.store(true, std::memory_order_relaxed);
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::thread& thread : running) thread.join();
  double processor = 0;
  for (const Thread& thread : threads) processor += thread.processor_seconds;
  const auto pairs = static_cast<double>(run.pairs.load());
  std::printf("%.1f %.1f\n", elapsed * 1e9 / pairs, processor * 1e9 / pairs);
  return 0;
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  if (argc != 6 || std::atoi(argv[2]) < 1 || std::atoi(argv[3]) < 1 || std::atoi(argv[4]) < std::atoi(argv[2])) {
    std::fputs("usage: peer_bench none|hbmprof THREADS STACKS LIVE SECONDS\n", stderr);
    return 2;
  }
  return hbmprof::benchmarks::Main(argv);
}
