// Tensor: a row-major matrix of float32 in device memory, freed with the object.
#ifndef HBMPROF_EXAMPLES_LLM_SERVER_TENSOR_H_
#define HBMPROF_EXAMPLES_LLM_SERVER_TENSOR_H_

#include <cstddef>

#include "hbmprof/device_allocator.h"

namespace llm {

class Tensor {
 public:
  // The memory is not initialized. Ends the program with a message if the device has no memory left: the weights and
  // activations of this server have a fixed size, so the chosen device is too small.
  Tensor(hbmprof::DeviceAllocator& device, int rows, int columns);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor();

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  size_t size() const { return static_cast<size_t>(rows_) * columns_; }
  float* data() { return data_; }
  const float* data() const { return data_; }
  float* row(int r) { return data_ + static_cast<size_t>(r) * columns_; }
  const float* row(int r) const { return data_ + static_cast<size_t>(r) * columns_; }

 private:
  hbmprof::DeviceAllocator* device_;
  int rows_;
  int columns_;
  float* data_;
};

}  // namespace llm

#endif  // HBMPROF_EXAMPLES_LLM_SERVER_TENSOR_H_
