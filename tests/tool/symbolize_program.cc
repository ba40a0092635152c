// Allocates through inlined code of its own and of a library, and writes a profile to argv[1].
#include <algorithm>
#include <cstdint>
#include <vector>

#include "hbmprof/hbmprof.h"

extern "C" int engine_run(void (*record)(int id));

namespace app {
namespace {

void Record(int id) {
  hbmprof::Profiler::Default().RecordAlloc(reinterpret_cast<const void*>((static_cast<uintptr_t>(id) + 1) << 12), 256);
  asm volatile("" ::: "memory");
}

[[gnu::always_inline]] inline void Outer(int id) {
  Record(id);
  asm volatile("" ::: "memory");
}

}  // namespace

template <typename T>
[[gnu::noinline]] void Sorted(std::vector<T> values) {
  // Calls back out of the standard library's templates.
  std::for_each(values.begin(), values.end(), [](T value) { Outer(static_cast<int>(value)); });
  asm volatile("" ::: "memory");
}

}  // namespace app

static int RunAll() {
  app::Sorted<short>({2000, 2001});
  app::Sorted<long>({3000});
  const int result = engine_run(app::Record);
  asm volatile("" ::: "memory");
  return result;
}

int main(int argc, char** argv) {
  if (argc != 2 || RunAll() == 0) return 2;
  return hbmprof::save_device_memory_profile(argv[1]).ok() ? 0 : 1;
}
