// The functions of PyTorch's libc10.so that libc10_cuda.so calls.
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

#endif  // HBMPROF_TESTS_INJECT_TORCH_DOUBLE_H_
