// AdapterRecorder: the common code of the adapters in this folder. An adapter wraps an allocator of another library and
// records its memory. Include the adapter's header and not this one:
//
//   cuda_mr.h      resources of CCCL and RMM (cuda::mr)
//   cub.h          cub::CachingDeviceAllocator
//   onnxruntime.h  OrtAllocator
//   tensorrt.h     nvinfer1::IGpuAllocator, nvinfer1::IGpuAsyncAllocator
//   torch.h        PyTorch's CUDA caching allocator
//
// Each of them includes a header of the library that it is for, which the program must have. An adapter returns exactly
// what the wrapped allocator returns, also if recording fails. Stacks begin at the function that called the adapter.
#ifndef HBMPROF_ADAPTERS_RECORDER_H_
#define HBMPROF_ADAPTERS_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/profiler.h"

namespace hbmprof::adapters {

// How the memory of a wrapped allocator is recorded.
enum class RecordAs {
  kBuffers,   // the allocator is no pool, or a pool whose segments are not recorded (Profiler::RecordAlloc)
  kSegments,  // a pool takes its segments from the allocator (Profiler::RecordSegment)
  kBlocks,    // the allocator is the pool (Profiler::RecordBlock); its segments are recorded with the same labels
};

struct AdapterOptions {
  std::string_view device = "GPU:0";  // the label `device`
  std::string_view allocator = {};    // the label `allocator` and the name of the pool; empty: the adapter's own
  // Only device memory can be that of a pool. For memory of other kinds, kSegments records nothing, and kBlocks records
  // buffers.
  MemoryKind kind = MemoryKind::kDevice;
  RecordAs record_as = RecordAs::kBuffers;
  Profiler* profiler = nullptr;  // null: Profiler::Default()
};

// Thread-safe. No function but the constructor throws. Copies are equal.
class AdapterRecorder {
 public:
  // `default_allocator` is the label `allocator` if the options have none. Throws std::bad_alloc if the host has no
  // memory.
  AdapterRecorder(const AdapterOptions& options, std::string_view default_allocator)
      : profiler_(options.profiler != nullptr ? options.profiler : &Profiler::Default()),
        device_(options.device),
        record_as_(options.record_as) {
    attributes_.device = profiler_->Device(options.device);
    attributes_.kind = options.kind;
    attributes_.allocator = profiler_->Allocator(options.allocator.empty() ? default_allocator : options.allocator);
    if (record_as_ == RecordAs::kBlocks && !IsDeviceMemory()) record_as_ = RecordAs::kBuffers;
  }

  // Records memory after it was allocated, with a stack that begins at `caller`.
  void Allocated(const Caller& caller, void* memory, size_t bytes) const noexcept {
    switch (record_as_) {
      case RecordAs::kBuffers:
        profiler_->RecordAllocFrom(caller, memory, bytes, attributes_);
        break;
      case RecordAs::kSegments:
        if (IsDeviceMemory()) profiler_->RecordSegmentFrom(caller, OwnPool(), memory, bytes);
        break;
      case RecordAs::kBlocks:
        profiler_->RecordBlockFrom(caller, OwnPool(), memory, bytes);
        break;
    }
  }
  // Removes the record of memory before it is freed.
  std::optional<int64_t> BeforeFree(void* memory) const noexcept {
    if (record_as_ == RecordAs::kBuffers) return profiler_->RecordFree(memory);
    if (record_as_ == RecordAs::kBlocks) return profiler_->RecordBlockFree(OwnPool(), memory);
    return IsDeviceMemory() ? profiler_->RecordSegmentFree(OwnPool(), memory) : std::nullopt;
  }
  // Counts that the memory of a removed record could not be freed.
  void NotFreed() const noexcept { profiler_->RecordRefusedFree(); }
  // Reports that the call `call` found no memory (ReportOutOfMemory). A pool can continue without another segment, so
  // for RecordAs::kSegments this does nothing.
  void OutOfMemory(std::string_view call, size_t bytes) const noexcept {
    if (record_as_ == RecordAs::kSegments) return;
    ReportOutOfMemory({call, bytes, device_, SpaceOf(attributes_.kind)}, *profiler_);
  }

  // Calls `call` once, which returns memory of `bytes` bytes or null, and returns its result. Records the memory with a
  // stack that begins at `caller`. If it is null and `bytes` is not 0, reports that the call `name` found no memory.
  // Throws what `call` throws. Any thread may call it.
  template <typename Call>
  void* Allocate(const Caller& caller, const char* name, size_t bytes, const Call& call) const {
    const ScopedCaller scope(caller);
    void* const memory = call();
    if (memory != nullptr) {
      Allocated(caller, memory, bytes);
    } else if (bytes != 0) {
      OutOfMemory(name, bytes);
    }
    return memory;
  }

 private:
  bool IsDeviceMemory() const { return SpaceOf(attributes_.kind) == MemorySpace::kDevice; }
  Pool OwnPool() const { return {attributes_.device, attributes_.allocator}; }

  Profiler* profiler_;
  std::string device_;
  RecordAs record_as_;
  Attributes attributes_;
};

// Removes the record of memory that is about to be freed. If Done was not called, the destructor counts a refused free.
class FreeInProgress {
 public:
  FreeInProgress(const AdapterRecorder& recorder, void* memory)
      : recorder_(recorder), is_done_(!recorder.BeforeFree(memory).has_value()) {}
  ~FreeInProgress() {
    if (!is_done_) recorder_.NotFreed();
  }
  FreeInProgress(const FreeInProgress&) = delete;
  FreeInProgress& operator=(const FreeInProgress&) = delete;

  void Done() { is_done_ = true; }  // the memory is freed

 private:
  const AdapterRecorder& recorder_;
  bool is_done_;
};

}  // namespace hbmprof::adapters

#endif  // HBMPROF_ADAPTERS_RECORDER_H_
