// The work of the programs that use the allocator of a framework: functions like those of a user, which allocate and
// free memory.
#ifndef HBMPROF_TESTS_INJECT_FRAMEWORK_POOL_H_
#define HBMPROF_TESTS_INJECT_FRAMEWORK_POOL_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>
#include <vector>

constexpr size_t kMiB = 1 << 20;

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s (%s)\n", what, dlerror());
  std::_Exit(1);
}
#define REQUIRE(condition) Require(static_cast<bool>(condition), #condition)

// The framework's allocator.
class Pool {
 public:
  virtual ~Pool() = default;
  // Sets the device of the thread's next calls.
  virtual void SetDevice(int device) const = 0;
  virtual void* Allocate(size_t bytes) const = 0;
  virtual void Free(void* block) const = 0;
};

// The user's functions.
extern "C" {
[[gnu::noinline]] void* load_weights(const Pool& pool, size_t bytes) { return pool.Allocate(bytes); }
[[gnu::noinline]] void* make_activation(const Pool& pool, size_t bytes) { return pool.Allocate(bytes); }
[[gnu::noinline]] void* grow_kv_cache(const Pool& pool, size_t bytes) { return pool.Allocate(bytes); }
[[gnu::noinline]] void* take_workspace(const Pool& pool, size_t bytes) { return pool.Allocate(bytes); }
[[gnu::noinline]] void* copy_input(const Pool& pool, size_t bytes) { return pool.Allocate(bytes); }
}

using Allocate = void*(const Pool&, size_t);
constexpr Allocate* kFunctions[] = {&load_weights, &make_activation, &grow_kv_cache, &take_workspace, &copy_input};

// Makes `operations` random allocations and frees. Does not free the blocks that are live at the end.
inline void Operate(const Pool& pool, unsigned seed, int operations, int devices) {
  std::mt19937 random(seed);
  std::vector<std::pair<void*, int>> live;
  for (int i = 0; i < operations; ++i) {
    const size_t wanted = live.size() < 24 ? 60 : 40;
    if (live.empty() || random() % 100 < wanted) {
      const int device = static_cast<int>(random() % static_cast<unsigned>(devices));
      pool.SetDevice(device);
      const size_t bytes = random() % 16 == 0 ? random() % (6 * kMiB) + 1 : random() % 100000 + 1;
      live.push_back({kFunctions[random() % 5](pool, bytes), device});
    } else {
      const size_t i_freed = random() % live.size();
      pool.SetDevice(live[i_freed].second);
      pool.Free(live[i_freed].first);
      live[i_freed] = live.back();
      live.pop_back();
    }
  }
}

inline void Random(const Pool& pool, int devices) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back([&pool, i, devices] { Operate(pool, i, 25000, devices); });
  for (std::thread& thread : threads) thread.join();
}

// Allocates blocks with each function and frees them, except the weights. If `leaks` is true, three blocks of
// grow_kv_cache are not freed.
inline void Serve(const Pool& pool, bool leaks) {
  std::vector<void*> weights;
  for (int i = 0; i < 4; ++i) weights.push_back(load_weights(pool, 3 * kMiB));
  for (int request = 0; request < 30; ++request) {
    std::vector<void*> blocks;
    for (Allocate* const allocate : kFunctions) {
      if (allocate != &grow_kv_cache) blocks.push_back(allocate(pool, (request % 4 + 1) * 64 * 1024));
    }
    void* const page = grow_kv_cache(pool, 128 * 1024);
    if (!leaks || request % 10 != 0) blocks.push_back(page);
    for (void* const block : blocks) pool.Free(block);
  }
}

#endif  // HBMPROF_TESTS_INJECT_FRAMEWORK_POOL_H_
