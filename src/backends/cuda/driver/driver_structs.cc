#include "src/backends/cuda/driver/driver_structs.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace hbmprof::internal {
namespace {

using cuda_driver::Array3dDescriptor;

// The smallest independent unit of an array's format: `width` x `height` texels in `bytes` bytes. It is 1 x 1 for plain
// formats, 4 x 4 for block-compressed ones, and 2 x 2 for planar 4:2:0.
struct TexelBlock {
  size_t width = 1;
  size_t height = 1;
  size_t bytes = 0;
};

// Returns the block of the array's format. That of an unknown format has 0 bytes.
TexelBlock BlockOf(const Array3dDescriptor& array) {
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
  if (array.format <= 0 || array.format > 0xff) return {};
  for (const Formats& formats : kFormats) {
    if (formats.values.find(static_cast<char>(array.format)) == std::string_view::npos) continue;
    TexelBlock block = formats.block;
    if (formats.is_per_channel) block.bytes *= array.channels;
    return block;
  }
  return {};
}

size_t SaturatingMultiply(size_t a, size_t b) {
  size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

// Returns the number of blocks of `block` texels that cover `texels` texels; 0 texels count as 1.
size_t Blocks(size_t texels, size_t block) {
  const size_t covered = std::max<size_t>(texels, 1);
  return covered / block + (covered % block != 0);
}

}  // namespace

DriverPool PoolOf(const cuda_driver::MemPoolProps& properties) {
  const Place place = PlaceOf(properties.location);
  // The location of managed memory is only where it is preferred.
  const bool is_managed = properties.type == cuda_driver::kAllocationManaged;
  return {is_managed ? -1 : place.device, is_managed ? MemorySpace::kManaged : SpaceOf(place.kind),
          properties.max_size};
}

GraphNode NodeOf(const cuda_driver::MemAllocNodeParams& params) {
  return {BufferId(params.address), params.bytes, PlaceOf(params.pool.location)};
}

GraphNode NodeOf(const cuda_driver::GraphNodeParams& params, bool has_ownership) {
  GraphNode node;
  if (params.type == cuda_driver::kGraphNodeMemAlloc) node = NodeOf(params.alloc);
  if (params.type == cuda_driver::kGraphNodeMemFree) node.freed = BufferId(uint64_t{params.freed});
  const bool is_graph = has_ownership && params.type == cuda_driver::kGraphNodeGraph;
  if (is_graph && params.child.ownership == cuda_driver::kOwnershipMove) node.moved = params.child.graph;
  return node;
}

size_t CudaArrayBytes(const cuda_driver::ArrayDescriptor& array) {
  return CudaArrayBytes(Array3dDescriptor{array.width, array.height, 0, array.format, array.channels, 0});
}

size_t CudaArrayBytes(const Array3dDescriptor& array) {
  constexpr unsigned kOwnsNoMemory = cuda_driver::kArraySparse | cuda_driver::kArrayDeferredMapping;
  if ((array.flags & kOwnsNoMemory) != 0 || array.width == 0) return 0;
  const TexelBlock block = BlockOf(array);
  const size_t plane = SaturatingMultiply(Blocks(array.width, block.width), Blocks(array.height, block.height));
  return SaturatingMultiply(SaturatingMultiply(plane, std::max<size_t>(array.depth, 1)), block.bytes);
}

size_t CudaMipmappedArrayBytes(const Array3dDescriptor& array, unsigned levels) {
  const bool has_layers = (array.flags & (cuda_driver::kArrayLayered | cuda_driver::kArrayCubemap)) != 0;
  size_t largest = std::max({array.width, array.height, has_layers ? 0 : array.depth});
  Array3dDescriptor level = array;
  size_t total = 0;
  for (unsigned i = 0; i == 0 || (i < levels && largest != 0); ++i) {
    if (__builtin_add_overflow(total, CudaArrayBytes(level), &total)) return SIZE_MAX;
    largest >>= 1;
    // A dimension that is not 0 does not shrink below one texel.
    const auto halve = [](size_t size) { return size > 1 ? size >> 1 : size; };
    level.width = halve(level.width);
    level.height = halve(level.height);
    if (!has_layers) level.depth = halve(level.depth);
  }
  return total;
}

}  // namespace hbmprof::internal
