// Represents an injected library of another version, which is loaded before the real one. The functions of its table
// must not be called.
#include <cstddef>
#include <cstdint>

namespace {

struct Table {
  size_t struct_size = 2 * sizeof(void*);
  uint32_t version = 999;
} table;

}  // namespace

extern "C" const void* hbmprof_cuda_profiler() { return &table; }
