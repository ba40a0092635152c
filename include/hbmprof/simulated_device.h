// SimulatedDevice: a device whose memory is host memory, with the behaviour of a real one: capacity, alignment, best
// fit with coalescing, stream-ordered frees, out of memory, fragmentation. Examples and tests run on it; a program can
// use it where there is no accelerator.
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

// All functions are thread-safe. Pointers are ordinary host pointers, readable and writable while allocated; the arena
// is reserved at construction and only touched pages take host memory. Several devices have disjoint addresses.
//
// A freed buffer is either free (any allocation may take it) or, after FreeAsync, pending: still in use for everybody
// but its own stream. Neighbouring free blocks are always one block; so are neighbours pending on the same stream.
class SimulatedDevice : public DeviceAllocator {
 public:
  struct Options {
    std::string name = "sim:0";
    size_t capacity = size_t{1} << 30;  // bytes, rounded up to a multiple of alignment
    size_t alignment = 256;             // of every address and every size; a power of two
  };
  // Bytes count each buffer rounded up to the alignment. bytes_in_use + free_bytes is always bytes_limit.
  struct Stats {
    int64_t bytes_in_use = 0;  // allocated, and freed but still pending
    int64_t peak_bytes_in_use = 0;
    int64_t pending_free_bytes = 0;  // freed in stream order, not yet reached by their stream; part of bytes_in_use
    int64_t num_allocs = 0;          // successful allocations ever
    int64_t num_live = 0;            // buffers allocated and not freed; a pending one is freed
    int64_t bytes_limit = 0;
    int64_t free_bytes = 0;
    int64_t largest_free_block_bytes = 0;  // pending blocks left out
    // 1 - largest_free_block_bytes / free_bytes; 0 when nothing is free.
    double fragmentation = 0;
  };

  // Errors: kInvalidArgument for a capacity of 0 or an alignment that is no power of two; kResourceExhausted when the
  // host cannot reserve the arena.
  static absl::StatusOr<std::unique_ptr<SimulatedDevice>> Create(const Options& options);
  // Gives the arena back to the host: every pointer into it is invalid then, also of buffers never freed.
  ~SimulatedDevice() override;

  // Best fit: the smallest free block that is large enough, the lowest address among equals; what is left of it stays
  // free. Freed addresses are reused at once. Where no free block is large enough, every pending free of every stream
  // is completed first, as a real device synchronises before it gives up; not for a request above the capacity. Errors:
  // kResourceExhausted; the message names device, request, free bytes and largest free block.
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  // Errors: kInvalidArgument for a pointer that is not the start of a live buffer (foreign, interior, freed already);
  // the message names device and pointer, and nothing changes.
  absl::Status Free(void* ptr) override;
  // Like Allocate, but the best fit among the blocks pending on `stream` is taken first.
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override;
  // Makes the buffer pending on `stream`. Errors as of Free.
  absl::Status FreeAsync(void* ptr, StreamId stream) override;
  // Completes everything pending on `stream` / on every stream.
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
