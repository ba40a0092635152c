// Every call of malloc and related functions ends the program while device memory is being recorded in the same thread:
// in a thread's first event, on deep stacks, at new sites, sizes and devices, while tables grow, and while a thread
// ends. So a record cannot wait for a malloc that it interrupted.
#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/hostile/hostile.h"
#if defined(HOSTILE_LINKED)
#include "hbmprof/profiler.h"
#endif

namespace {

__attribute__((tls_model("initial-exec"))) __thread bool is_recording = false;

#if defined(HOSTILE_DRIVER)
// The driver itself may call malloc; it does so from its own library and from libstdc++.
bool MayCall(const void* from) {
  dl_find_object found;
  if (_dl_find_object(const_cast<void*>(from), &found) != 0) return false;
  const char* name = found.dlfo_link_map->l_name;
  return std::strstr(name, "libcuda") != nullptr || std::strstr(name, "libstdc++") != nullptr;
}
#else
bool MayCall(const void* /*from*/) { return false; }
#endif

void Forbid(const void* from) {
  if (!is_recording || MayCall(from)) return;
  constexpr char kMessage[] = "malloc was called while device memory was being recorded\n";
  [[maybe_unused]] const ssize_t written = write(2, kMessage, sizeof(kMessage) - 1);
  std::abort();
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);

void* malloc(size_t bytes) {
  Forbid(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Forbid(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  Forbid(__builtin_return_address(0));
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  Forbid(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Forbid(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  Forbid(__builtin_return_address(0));
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;
}
void free(void* memory) {
  if (memory != nullptr) Forbid(__builtin_return_address(0));
  __libc_free(memory);
}
}

namespace {

struct Recording {
  Recording() { is_recording = true; }
  ~Recording() { is_recording = false; }
};

// Each thread must call this before it allocates.
void Prepare() {
#if defined(HOSTILE_DRIVER)
  Free(Allocate(1));
#endif
}

[[gnu::noinline]] void* AllocateOn([[maybe_unused]] int device, size_t bytes) {
  const Recording recording;
#if defined(HOSTILE_LINKED)
  static std::atomic<uintptr_t> next{uintptr_t{1} << 50};
  void* memory = reinterpret_cast<void*>(next.fetch_add(4096));
  REQUIRE(hbmprof_record_alloc(memory, bytes, device));
  return memory;
#else
  return Allocate(bytes);
#endif
}

void Release(void* memory) {
  const Recording recording;
  Free(memory);
}

[[gnu::noinline]] void* Deep(int depth, int device, size_t bytes) {
  void* memory = depth == 0 ? AllocateOn(device, bytes) : Deep(depth - 1, device, bytes);
  asm volatile("");  // no tail call
  return memory;
}

struct Tag {
  Tag([[maybe_unused]] const char* key, [[maybe_unused]] const char* value) {
#if defined(HOSTILE_LINKED)
    const Recording recording;
    hbmprof_tag_push(key, value);
#endif
  }
  ~Tag() {
#if defined(HOSTILE_LINKED)
    const Recording recording;
    hbmprof_tag_pop();
#endif
  }
};

// A pool's segments, one inside a block of the other, and their blocks.
void UsePool([[maybe_unused]] int number) {
#if defined(HOSTILE_LINKED)
  const Recording recording;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::Pool outer = {hbmprof::kDefaultDevice, hbmprof::AllocatorId{1}};
  const hbmprof::Pool inner = {hbmprof::kDefaultDevice, hbmprof::AllocatorId{2}};
  const uint64_t start = (uint64_t{1} << 48) + (static_cast<uint64_t>(number) << 32);
  const auto at = [&](uint64_t page) { return hbmprof::BufferId(start + page * 4096); };
  constexpr size_t kBytes = 256 * 4096;
  REQUIRE(profiler.RecordSegment(outer, at(0), kBytes));
  for (uint64_t page = 0; page < 200; ++page) {
    REQUIRE(profiler.RecordBlock(outer, at(page), 4096));
    if (page % 2 == 0) {
      REQUIRE(profiler.RecordBlockFree(outer, at(page)) && profiler.RecordBlock(outer, at(page), 4096));
    }
  }
  for (const uint64_t page : {150, 152}) {
    REQUIRE(profiler.RecordSegment(inner, at(page), 4096));
    REQUIRE(profiler.RecordBlock(inner, at(page), 1024));
  }
  REQUIRE(profiler.RecordSegmentFree(inner, at(150)) == 4096);
  REQUIRE(profiler.RecordResize(at(0), 2 * kBytes));
  REQUIRE(profiler.RecordBlockResize(outer, at(199), 2 * 4096));
  REQUIRE(profiler.RecordResize(at(0), kBytes / 2));
  REQUIRE(profiler.RecordFree(at(0)) == kBytes / 2);
#endif
}

struct AtThreadExit {
  void* memory = nullptr;
  ~AtThreadExit() {
    Release(memory);
    Release(AllocateOn(0, 4321));
  }
};

void Work(int number) {
  static thread_local AtThreadExit at_exit;
  std::vector<void*> held(1000, nullptr);
  Prepare();
  UsePool(number);
  at_exit.memory = Deep(number % 3 * 100, number % 8, 64);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < held.size(); ++i) {
      const char value[3] = {static_cast<char>('a' + i % 26), static_cast<char>('a' + i / 26 % 26), '\0'};
      const Tag layer("layer", value);
      const Tag thread(number % 2 == 0 ? "even" : "odd", value + 1);
      held[i] = Deep(static_cast<int>(i % 40), static_cast<int>(i % 8), 1 + i * static_cast<size_t>(number + 1));
    }
    for (void*& memory : held) Release(memory);
  }
}

}  // namespace

int main() {
  Prepare();
  Churn(1);  // makes the profiler
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back(&Work, round * 8 + i);
    for (std::thread& thread : threads) thread.join();
  }
  std::puts("done");
}
