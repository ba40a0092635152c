// AMD's HIP library: its types, as far as they are not CUDA's, and queries to it. Not yet tried on a device.
#ifndef HBMPROF_SRC_BACKENDS_HIP_HIP_DRIVER_H_
#define HBMPROF_SRC_BACKENDS_HIP_HIP_DRIVER_H_

#include "src/backends/calls/driver.h"
#include "src/backends/cuda/driver/driver_structs.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {
namespace hip_driver {

// HIP's structs, constants and errors have the layouts and values of CUDA's.
using namespace cuda_driver;  // NOLINT

struct Extent {
  size_t width, height, depth;
};
struct PitchedPtr {
  void* ptr;
  size_t pitch, x_size, y_size;
};
struct ChannelFormat {
  int bits[4];
  int kind;
};

inline size_t BytesOf(size_t pitch, const Extent& extent) { return PitchedBytes(pitch, extent.height, extent.depth); }
inline Array3dDescriptor ArrayOf(const ChannelFormat& format, const Extent& extent, unsigned flags) {
  constexpr int kBytes = 1;  // HIP_AD_FORMAT_UNSIGNED_INT8
  const int bits = format.bits[0] + format.bits[1] + format.bits[2] + format.bits[3];
  return {extent.width, extent.height, extent.depth, kBytes, static_cast<unsigned>(bits) / 8, flags};
}

// Whether memory of this kind stays when its device is reset: that of the context of all devices, if there are several.
bool StaysAtReset(MemoryKind kind);

#define CALLS "src/backends/hip/hip_calls.inc"
#include "src/backends/calls/entries.inc"
#undef CALLS

}  // namespace hip_driver

class HipDriverInProcess : public DriverQueries {
 public:
  HipDriverInProcess() : DriverQueries(&hip_driver::driver) {}
  int CurrentDevice() override;
  Pointer DescribePointer(const void* address) override;
  Range AddressRange(const void* address) override;
  Capture CaptureOf(const DriverStream& stream) override;
  std::optional<int64_t> FreeBytes() override { return Probe(CurrentDevice(), {}).bytes_free; }
  void RestoreLastError() override;
  DeviceProbe Probe(int ordinal, DeviceId id) override;
  std::optional<size_t> PoolBytes(void* pool) override;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_HIP_HIP_DRIVER_H_
