#include "examples/llm_server/tensor.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace llm {

Tensor::Tensor(hbmprof::DeviceAllocator& device, int rows, int columns)
    : device_(&device), rows_(rows), columns_(columns) {
  const absl::StatusOr<void*> memory = device.Allocate(size() * sizeof(float));
  if (!memory.ok()) {
    std::fprintf(stderr, "llm_server: no memory for a tensor of %d x %d: %s\n", rows, columns,
                 memory.status().ToString().c_str());
    std::exit(1);
  }
  data_ = static_cast<float*>(*memory);
}

Tensor::Tensor(Tensor&& other) noexcept
    : device_(other.device_),
      rows_(other.rows_),
      columns_(other.columns_),
      data_(std::exchange(other.data_, nullptr)) {}

Tensor::~Tensor() { device_->Free(data_).IgnoreError(); }

}  // namespace llm
