// SimulatedDevice: a device that is made of host memory. It behaves like a real one: it has a capacity, an alignment,
// streams and fragmentation, and it can run out of memory. Use it where there is no accelerator, and in tests. It is a
// library of its own, hbmprof::simulated, which a program links beside hbmprof::hbmprof.
//
//   absl::StatusOr<std::unique_ptr<hbmprof::SimulatedDevice>> device = hbmprof::SimulatedDevice::Create({});
//   if (!device.ok()) return device.status();
//   hbmprof::TrackingAllocator allocator(**device);   // device_allocator.h
//   absl::StatusOr<void*> buffer = allocator.Allocate(1 << 20);
#ifndef HBMPROF_SIMULATED_DEVICE_H_
#define HBMPROF_SIMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/device_allocator.h"

namespace hbmprof {

// All functions are thread-safe. Pointers are host pointers: the memory can be read and written while it is allocated.
// Create reserves the whole address range; only pages that are touched take host memory. Two devices that exist at the
// same time have no address in common.
//
// After Free, any allocation may take the memory of the buffer. After FreeAsync the buffer is pending until its stream
// is synchronized: until then only allocations on that stream may take its memory. Adjacent free blocks are merged, and
// so are adjacent blocks that are pending on the same stream.
class SimulatedDevice : public DeviceAllocator {
 public:
  struct Options {
    std::string name = "sim:0";
    size_t capacity = size_t{1} << 30;  // bytes, rounded up to a multiple of alignment
    size_t alignment = 256;             // bytes, of each address and each size; a power of two
  };
  // Sizes in bytes; each buffer counts with its size rounded up to the alignment. bytes_in_use + free_bytes is always
  // bytes_limit.
  struct Stats {
    int64_t bytes_in_use = 0;  // allocated, or freed but pending
    int64_t peak_bytes_in_use = 0;
    int64_t pending_free_bytes = 0;  // pending; part of bytes_in_use
    int64_t num_allocs = 0;          // count: successful allocations since the start
    int64_t num_live = 0;            // count: buffers allocated and not freed (a pending buffer is freed)
    int64_t bytes_limit = 0;
    int64_t free_bytes = 0;
    int64_t largest_free_block_bytes = 0;  // pending blocks do not count
    // 1 - largest_free_block_bytes / free_bytes; 0 if nothing is free.
    double fragmentation = 0;
  };

  // Returns a new device. Errors: kInvalidArgument if the capacity is 0 or the alignment is not a power of two;
  // kResourceExhausted if the host cannot reserve the addresses.
  static absl::StatusOr<std::unique_ptr<SimulatedDevice>> Create(const Options& options);
  // Returns the memory to the host. Pointers to buffers that were not freed become invalid too.
  ~SimulatedDevice() override;

  // Best fit: takes the smallest free block that is large enough. Among blocks of the same size it takes the one with
  // the lowest address. The rest of the block stays free. If no free block is large enough, all streams are
  // synchronized first, as a real device does (not for a request above the capacity). Errors: kResourceExhausted; the
  // message has the device, the request, the free bytes and the largest free block.
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  // Errors: kInvalidArgument if `ptr` is not the start of a live buffer; the message has the device and the pointer,
  // and nothing is changed.
  absl::Status Free(void* ptr) override;
  // Like Allocate, but takes the best fit among the blocks that are pending on `stream`, if there is one.
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override;
  // Makes the buffer pending on `stream`. Errors: those of Free.
  absl::Status FreeAsync(void* ptr, StreamId stream) override;
  // Free the buffers that are pending on `stream`, or on all streams.
  void Synchronize(StreamId stream);
  void SynchronizeAll();

  std::string device_name() const override;
  DeviceProbe Probe() const override;
  Stats GetStats() const;

 private:
  class Arena;
  explicit SimulatedDevice(std::unique_ptr<Arena> arena);
  const std::unique_ptr<Arena> arena_;
};

}  // namespace hbmprof

#endif  // HBMPROF_SIMULATED_DEVICE_H_
