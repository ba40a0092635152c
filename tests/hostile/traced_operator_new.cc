// The program's own operator new and delete record their allocations, beginning before main. The profiler is created by
// these records.
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/hostile/hostile.h"
#if defined(HOSTILE_LINKED)
#include "hbmprof/hbmprof.h"
#include "hbmprof/tag.h"
#endif

namespace {

std::atomic<long> news{0};

[[gnu::noinline]] void* Traced(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  news.fetch_add(1, std::memory_order_relaxed);
#if defined(HOSTILE_LINKED)
  const hbmprof::ScopedTag tag("from", "operator_new");
  if (news.load(std::memory_order_relaxed) % 2 == 0) {
    hbmprof::Profiler::Default().RecordAlloc(memory, bytes);
  } else {
    hbmprof_record_alloc(memory, bytes, 5);
  }
#endif
  return memory;
}

void Untraced(void* memory) {
#if defined(HOSTILE_LINKED)
  if (memory != nullptr) hbmprof_record_free(memory);
#endif
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return Traced(bytes); }
void* operator new[](size_t bytes) { return Traced(bytes); }
void operator delete(void* memory) noexcept { Untraced(memory); }
void operator delete[](void* memory) noexcept { Untraced(memory); }
void operator delete(void* memory, size_t) noexcept { Untraced(memory); }
void operator delete[](void* memory, size_t) noexcept { Untraced(memory); }

namespace {

// Before main, in an unspecified order.
const std::map<std::string, std::string> kBeforeMain = {
    {"a key that is longer than a small string", "a value that is longer than a small string"}};

void Work(int number) {
  std::map<int, std::string> map;
  for (int i = 0; i < 300; ++i) {
#if defined(HOSTILE_LINKED)
    const hbmprof::ScopedTag tag("round", std::to_string(i % 60) + " of a rather long list of rounds");
#endif
    map[i] = std::string(static_cast<size_t>(1 + i * number % 100), 'x');
    if (i % 3 == 0) map.erase(i / 2);
  }
}

}  // namespace

int main() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(&Work, i + 1);
  Work(1);
#if defined(HOSTILE_LINKED)
  hbmprof::SetCounter("a counter with a name that is longer than a small string", 1);
  hbmprof::Profiler::Default().Device("a device with a name that is longer than a small string");
  REQUIRE(hbmprof::device_memory_profile().ok());
  REQUIRE(hbmprof::Profiler::Default().Stats(hbmprof::kDefaultDevice).num_allocs > 0);
  {
    hbmprof::Profiler another;
    another.RecordAlloc(&another, 1);
    REQUIRE(another.TakeSnapshot().samples.size() == 1);
  }
#endif
  for (std::thread& thread : threads) thread.join();
  REQUIRE(news > 100 && kBeforeMain.size() == 1);
  std::puts("done");
}
