// TrackingGpuAllocator, TrackingGpuAsyncAllocator: record the memory that TensorRT takes from an allocator of the
// program.
//
//   hbmprof::adapters::TrackingGpuAsyncAllocator tracker(my_allocator, {"GPU:0"});
//   runtime->setGpuAllocator(&tracker);
//
// The tracker must live longer than the runtime, the builder and all that they have created.
//
// Needs <NvInferRuntime.h> of TensorRT 10 or later.
#ifndef HBMPROF_ADAPTERS_TENSORRT_H_
#define HBMPROF_ADAPTERS_TENSORRT_H_

#include <NvInferRuntime.h>

#include <cstddef>
#include <cstdint>

#include "hbmprof/adapters/recorder.h"

namespace hbmprof::adapters {

// An allocator of the type `Interface` that calls `upstream` and records the memory, with the requested size. A block
// that is reallocated gets the stack of that call if it moves, and keeps its stack if it does not. If an allocation of
// more than 0 bytes returns null, this is reported (out_of_memory.h). Thread-safe if upstream is.
//
// Not recorded: memory that TensorRT takes with CUDA calls of its own, such as its code and its context (`hbmprof run`
// records it).
template <typename Interface>
class TrackingGpuAllocatorOf : public Interface {
 public:
  // `upstream` must live longer than this object. The label `allocator` is "tensorrt" unless the options have another
  // one.
  explicit TrackingGpuAllocatorOf(Interface& upstream, const AdapterOptions& options = {})
      : upstream_(upstream), recorder_(options, "tensorrt") {}
  TrackingGpuAllocatorOf(const TrackingGpuAllocatorOf&) = delete;
  TrackingGpuAllocatorOf& operator=(const TrackingGpuAllocatorOf&) = delete;

  [[gnu::noinline]] void* allocateAsync(uint64_t bytes, uint64_t alignment, nvinfer1::AllocatorFlags flags,
                                        cudaStream_t stream) noexcept override {
    return recorder_.Allocate(Caller::OfThisFunction(), "IGpuAllocator::allocateAsync", bytes,
                              [&] { return upstream_.allocateAsync(bytes, alignment, flags, stream); });
  }
  bool deallocateAsync(void* memory, cudaStream_t stream) noexcept override {
    return Free(memory, [&] { return upstream_.deallocateAsync(memory, stream); });
  }

  [[gnu::noinline]] void* reallocate(void* memory, uint64_t alignment, uint64_t bytes) noexcept override {
    const Caller caller = Caller::OfThisFunction();
    const ScopedCaller scope(caller);
    const std::optional<int64_t> old_bytes = recorder_.BeforeFree(memory);
    void* const moved = upstream_.reallocate(memory, alignment, bytes);
    if (moved != nullptr) {
      recorder_.Allocated(caller, moved, bytes);
    } else if (old_bytes.has_value()) {  // the memory stays as it is
      recorder_.Allocated(caller, memory, static_cast<size_t>(*old_bytes));
    }
    return moved;
  }

  // TensorRT has deprecated these two. Programs and older plugins still call them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  [[gnu::noinline]] void* allocate(uint64_t bytes, uint64_t alignment,
                                   nvinfer1::AllocatorFlags flags) noexcept override {
    return recorder_.Allocate(Caller::OfThisFunction(), "IGpuAllocator::allocate", bytes,
                              [&] { return upstream_.allocate(bytes, alignment, flags); });
  }
  bool deallocate(void* memory) noexcept override {
    return Free(memory, [&] { return upstream_.deallocate(memory); });
  }
#pragma GCC diagnostic pop

  nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override { return upstream_.getInterfaceInfo(); }

 private:
  template <typename Call>
  bool Free(void* memory, const Call& call) noexcept {
    FreeInProgress free(recorder_, memory);
    const bool is_freed = call();
    if (is_freed) free.Done();
    return is_freed;
  }

  Interface& upstream_;
  AdapterRecorder recorder_;
};

using TrackingGpuAllocator = TrackingGpuAllocatorOf<nvinfer1::IGpuAllocator>;
using TrackingGpuAsyncAllocator = TrackingGpuAllocatorOf<nvinfer1::IGpuAsyncAllocator>;

}  // namespace hbmprof::adapters

#endif  // HBMPROF_ADAPTERS_TENSORRT_H_
