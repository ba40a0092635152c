// Sizes of pitched memory, arrays and mipmapped arrays; openings of shared memory.
#include "src/backends/cuda/shared/adapter.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace hbmprof::internal {
namespace {

size_t SaturatingMultiply(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

size_t SaturatingAdd(size_t a, size_t b) {
  size_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

// Returns the number of blocks of `block` texels that cover `texels` texels; 0 texels count as 1.
size_t Blocks(size_t texels, size_t block) {
  const size_t covered = std::max<size_t>(texels, 1);
  return covered / block + (covered % block != 0);
}

bool OwnsMemory(const CudaArrayShape& shape) {
  return (shape.flags & (kCudaArraySparse | kCudaArrayDeferredMapping)) == 0;
}

bool HasLayers(const CudaArrayShape& shape) { return (shape.flags & (kCudaArrayLayered | kCudaArrayCubemap)) != 0; }

}  // namespace

size_t CudaPitchedBytes(size_t pitch, size_t rows, size_t slices) {
  return SaturatingMultiply(SaturatingMultiply(pitch, rows), slices);
}

TexelBlock CudaTexelBlock(int x, int y, int z, int w, int format_kind) {
  if (format_kind >= kCudaFormatFirstBlockCompressed && format_kind <= kCudaFormatLastBlockCompressed) {
    const bool half =
        format_kind < kCudaFormatFirstBlockCompressed2 ||  // BC1 and BC4: 4 bits a texel, others 8
        (format_kind >= kCudaFormatFirstBlockCompressed4 && format_kind < kCudaFormatFirstBlockCompressed5);
    return {4, 4, half ? size_t{8} : size_t{16}};
  }
  const auto bytes = [](int bits) { return static_cast<size_t>(std::max(bits, 0) + 7) / 8; };
  // Four luma samples share one sample of each of the two chroma planes.
  if (format_kind == kCudaFormatNv12) return {2, 2, 4 * bytes(x) + bytes(y) + bytes(z)};
  return {1, 1, bytes(std::max(x, 0) + std::max(y, 0) + std::max(z, 0) + std::max(w, 0))};
}

TexelBlock CudaDriverTexelBlock(int format, unsigned channels) {
  struct Formats {
    std::string_view values;  // of CUarray_format
    TexelBlock block;
    bool is_per_channel = false;
  };
  static constexpr Formats kFormats[] = {
      {"\x01\x08", {1, 1, 1}, true},             // 8-bit integers
      {"\x02\x09\x10", {1, 1, 2}, true},         // 16-bit integers, half
      {"\x03\x0a\x20", {1, 1, 4}, true},         // 32-bit integers, float
      {"\xc0\xc6", {1, 1, 1}},                   // normalized, the channels in the format's name: 8X1
      {"\xc1\xc7\xc3\xc9", {1, 1, 2}},           // 8X2, 16X1
      {"\xc2\xc8\xc4\xca", {1, 1, 4}},           // 8X4, 16X2
      {"\xc5\xcb", {1, 1, 8}},                   // 16X4
      {"\x91\x92\x97\x98", {4, 4, 8}},           // BC1, BC4
      {"\x93\x94\x95\x96\x99\x9a", {4, 4, 16}},  // BC2, BC3, BC5
      {"\x9b\x9c\x9d\x9e", {4, 4, 16}},          // BC6, BC7
      {"\x50\xa8\xa9", {1, 1, 4}},               // 10:10:10:2, AYUV, Y410
      {"\xb1", {1, 1, 8}},                       // Y416
      {"\xb2\xb4", {1, 1, 3}},                   // 4:4:4 in 8 bits
      {"\xb3\xb5", {1, 1, 6}},                   // 4:4:4 in 10 and 16 bits
      {"\xb0", {2, 2, 6}},                       // NV12: 4:2:0
      {"\x9f\xa1", {2, 2, 12}},                  // P010, P016
      {"\xa2\xa5", {2, 1, 4}},                   // NV16, YUY2: 4:2:2
      {"\xa3\xa4\xa6\xa7", {2, 1, 8}},           // P210, P216, Y210, Y216
  };
  if (format <= 0 || format > 0xff) return {};
  for (const Formats& formats : kFormats) {
    if (formats.values.find(static_cast<char>(format)) == std::string_view::npos) continue;
    TexelBlock block = formats.block;
    if (formats.is_per_channel) block.bytes *= channels;
    return block;
  }
  return {};
}

size_t CudaArrayBytes(const TexelBlock& block, const CudaArrayShape& shape) {
  if (!OwnsMemory(shape) || shape.width == 0) return 0;
  const size_t plane = SaturatingMultiply(Blocks(shape.width, block.width), Blocks(shape.height, block.height));
  return SaturatingMultiply(SaturatingMultiply(plane, std::max<size_t>(shape.depth, 1)), block.bytes);
}

size_t CudaMipmappedArrayBytes(const TexelBlock& block, const CudaArrayShape& shape, unsigned levels) {
  const size_t shrinking_depth = HasLayers(shape) ? 0 : shape.depth;
  size_t largest = std::max({shape.width, shape.height, shrinking_depth});
  CudaArrayShape level = shape;
  size_t total = 0;
  for (unsigned i = 0; i == 0 || (i < levels && largest != 0); ++i) {
    total = SaturatingAdd(total, CudaArrayBytes(block, level));
    largest >>= 1;
    // A dimension that is not 0 does not shrink below one texel.
    const auto halve = [](size_t size) { return size > 1 ? size >> 1 : size; };
    level.width = halve(level.width);
    level.height = halve(level.height);
    if (!HasLayers(shape)) level.depth = halve(level.depth);
  }
  return total;
}

bool SharedOpenings::IsFirst(const void* address, DeviceId device, const void* context) {
  MutexLock lock(mutex_);
  Opening& opening = openings_[address];
  opening.device = device;
  opening.context = context;
  return ++opening.count == 1;
}

void SharedOpenings::OpenUnrecorded(const void* address, const void* context) {
  MutexLock lock(mutex_);
  Opening& opening = openings_[address];
  opening.context = context;
  ++opening.count;
}

bool SharedOpenings::Remove(Profiler& profiler, const void* address) {
  MutexLock lock(mutex_);
  const auto found = openings_.find(address);
  if (found != openings_.end()) {
    if (--found->second.count > 0) return false;
    openings_.erase(found);
  }
  return profiler.RecordFree(address).has_value();
}

void SharedOpenings::RemoveDevice(DeviceId device) {
  MutexLock lock(mutex_);
  for (auto one = openings_.begin(); one != openings_.end();) {
    const bool ends = one->second.device == device && one->second.context == nullptr;
    one = ends ? openings_.erase(one) : std::next(one);
  }
}

void SharedOpenings::RemoveContext(Profiler& profiler, const void* context) {
  MutexLock lock(mutex_);
  for (auto one = openings_.begin(); one != openings_.end();) {
    const bool ends = one->second.context == context;
    if (ends) profiler.RecordFree(one->first);
    one = ends ? openings_.erase(one) : std::next(one);
  }
}

std::vector<BufferId> SharedOpenings::OfContexts() const {
  std::vector<BufferId> ids;
  MutexLock lock(mutex_);
  for (const auto& [address, opening] : openings_) {
    if (opening.context != nullptr) ids.push_back(address);
  }
  return ids;
}

void SharedOpenings::Clear() {
  MutexLock lock(mutex_);
  openings_.clear();
}

}  // namespace hbmprof::internal
