// A double of PyTorch's two libraries with the reports that a test needs: libc10.so, which receives the reports, and
// libc10_cuda.so, which allocates.
#ifndef HBMPROF_TESTS_INJECT_TORCH_DOUBLE_H_
#define HBMPROF_TESTS_INJECT_TORCH_DOUBLE_H_

#include <cstddef>
#include <cstdint>

namespace c10 {

struct Device {
  int8_t type;
  int8_t index;
};
void reportMemoryUsageToProfiler(void* ptr, int64_t size, size_t allocated, size_t reserved, Device device);
void reportOutOfMemoryToProfiler(int64_t size, size_t allocated, size_t reserved, Device device);

}  // namespace c10

extern "C" {
// Reports that the real functions have got, with the right arguments.
int torch_double_reports();
// Allocates a segment of 20 MiB, reports three blocks of 1 MiB in it, and then what `lie` says. Returns how many
// reports it has made.
int torch_double_allocate(const char* lie);
}

#endif  // HBMPROF_TESTS_INJECT_TORCH_DOUBLE_H_
