// Represents an injected library of another version, loaded before the real one. No function of its table may be
// called.
#include <cstddef>
#include <cstdint>

namespace {

struct Table {
  size_t struct_size = 2 * sizeof(void*);
  uint32_t version = 999;
} table;

}  // namespace

extern "C" const void* hbmprof_cuda_profiler() { return &table; }
