// Array: a matrix of float32 in device memory, freed with the object. The two small examples use it.
#ifndef HBMPROF_EXAMPLES_ARRAY_H_
#define HBMPROF_EXAMPLES_ARRAY_H_

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "hbmprof/device_allocator.h"

class Array {
 public:
  // The memory is not initialized. Ends the program if the device has no memory left.
  Array(hbmprof::DeviceAllocator& device, size_t rows, size_t columns)
      : device_(&device), rows_(rows), columns_(columns) {
    const absl::StatusOr<void*> memory = device.Allocate(size() * sizeof(float));
    if (!memory.ok()) {
      std::fprintf(stderr, "%s\n", memory.status().ToString().c_str());
      std::exit(1);
    }
    data_ = static_cast<float*>(*memory);
  }
  Array(Array&& other) noexcept
      : device_(other.device_),
        rows_(other.rows_),
        columns_(other.columns_),
        data_(std::exchange(other.data_, nullptr)) {}
  Array& operator=(Array&&) = delete;
  ~Array() { device_->Free(data_).IgnoreError(); }

  hbmprof::DeviceAllocator& device() const { return *device_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t size() const { return rows_ * columns_; }
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  hbmprof::DeviceAllocator* device_;
  size_t rows_;
  size_t columns_;
  float* data_ = nullptr;
};

inline Array RandomNormal(hbmprof::DeviceAllocator& device, unsigned seed, size_t rows, size_t columns) {
  Array result(device, rows, columns);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < result.size(); ++i) result.data()[i] = normal(generator);
  return result;
}

// Returns a matrix in which each row is repeated `times` times, side by side.
inline Array Tile(const Array& x, size_t times) {
  Array result(x.device(), x.rows(), x.columns() * times);
  for (size_t row = 0; row < x.rows(); ++row) {
    for (size_t column = 0; column < result.columns(); ++column) {
      result.data()[row * result.columns() + column] = x.data()[row * x.columns() + column % x.columns()];
    }
  }
  return result;
}

inline Array operator*(const Array& x, float factor) {
  Array result(x.device(), x.rows(), x.columns());
  for (size_t i = 0; i < x.size(); ++i) result.data()[i] = x.data()[i] * factor;
  return result;
}

inline Array operator+(const Array& x, float term) {
  Array result(x.device(), x.rows(), x.columns());
  for (size_t i = 0; i < x.size(); ++i) result.data()[i] = x.data()[i] + term;
  return result;
}

#endif  // HBMPROF_EXAMPLES_ARRAY_H_
