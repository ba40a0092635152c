// plugin_host FIRST SECOND: loads two plugins into one scope of names, as a program does that links both, and records
// in each. Prints what went wrong and exits 1, else exits 0.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  static char buffers[2][64];
  for (int i = 0; i < 2; ++i) {
    void* plugin = dlopen(argv[i + 1], RTLD_NOW | RTLD_GLOBAL);
    if (plugin == nullptr) {
      std::fprintf(stderr, "plugin_host: %s\n", dlerror());
      return 1;
    }
    const auto record = reinterpret_cast<int64_t (*)(void*, size_t)>(dlsym(plugin, "RecordInPlugin"));
    const auto bytes = static_cast<size_t>(1000 + i);
    const int64_t in_use = record == nullptr ? -1 : record(buffers[i], bytes);
    if (in_use != static_cast<int64_t>(bytes)) {
      std::fprintf(stderr, "plugin_host: %s has %lld bytes in use, not %zu\n", argv[i + 1],
                   static_cast<long long>(in_use), bytes);
      return 1;
    }
    if (dlsym(RTLD_DEFAULT, "hbmprof_record_alloc") != nullptr) {
      std::fprintf(stderr, "plugin_host: %s exports its copy of the library\n", argv[i + 1]);
      return 1;
    }
  }
  return 0;
}
