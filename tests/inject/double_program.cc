// usage: PROGRAM LIBRARY SCENARIO [twice]
// Allocates through a double of a framework's library (double.h), which makes the wrong report that SCENARIO names.
// With "twice", loads the library two times, the second time at another address. With LINKS_HBMPROF, the program has
// another allocator on device 0, which holds a block of 4 MiB from the start.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>

#include "tests/inject/double.h"

#if defined(LINKS_HBMPROF)
#include "hbmprof/c_api.h"
#endif

namespace {

#if defined(LINKS_HBMPROF)
bool HoldBlockOfOtherAllocator() {
  auto* const segment = reinterpret_cast<const void*>(static_cast<uintptr_t>(DoubleSegment(0)));
  const hbmprof_attributes attributes = {sizeof(attributes), 0, HBMPROF_KIND_DEVICE, hbmprof_allocator("other")};
  return hbmprof_record_segment(segment, 20 * kMiB, &attributes) == 1 &&
         hbmprof_record_block(segment, 4 * kMiB, &attributes) == 1;
}
#endif

bool Allocate(const char* path, const char* scenario, bool closes) {
  void* const library = dlopen(path, RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return false;
  }
  const auto allocate = reinterpret_cast<decltype(&double_allocate)>(dlsym(library, "double_allocate"));
  const auto reports = reinterpret_cast<decltype(&double_reports)>(dlsym(library, "double_reports"));
  const int made = allocate(scenario);
  const int got = reports();
  std::printf("made %d got %d\n", made, got);
  if (!closes) return made == got;
  Dl_info info = {};
  dladdr(reinterpret_cast<void*>(reports), &info);
  dlclose(library);
  // From now on, no library can be loaded at the old address.
  mmap(info.dli_fbase, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  return made == got;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
#if defined(LINKS_HBMPROF)
  if (!HoldBlockOfOtherAllocator()) return 3;
#endif
  if (argc == 4) return Allocate(argv[1], argv[2], true) && Allocate(argv[1], argv[2], true) ? 0 : 1;
  return Allocate(argv[1], argv[2], false) ? 0 : 1;
}
