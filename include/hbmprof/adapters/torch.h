// TrackTorchAllocator: records the memory of PyTorch's CUDA caching allocator, for programs that link libtorch.
//
//   torch::Tensor weights = torch::zeros({1024}, torch::kCUDA);      // or any other call that initializes CUDA
//   absl::Status tracked = hbmprof::adapters::TrackTorchAllocator();
//
// A program that runs under `hbmprof run` does not need it.
//
// Needs libtorch's headers, PyTorch 2.2 or later, and the libraries libc10.so and libc10_cuda.so.
#ifndef HBMPROF_ADAPTERS_TORCH_H_
#define HBMPROF_ADAPTERS_TORCH_H_

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/profiler.h"

namespace hbmprof::adapters {

// Receives the allocator's trace. Thread-safe. The allocator holds the lock of its device while it calls Trace.
class TorchTracker {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;

 public:
  // The function that the allocator calls. Always inlined, so that a stack begins in the allocator.
  struct Events {
    [[gnu::always_inline]] void operator()(const Entry& entry) const {
      tracker->Trace(Caller::OfThisFunction(), entry);
    }
    TorchTracker* tracker;
  };

  explicit TorchTracker(Profiler& profiler) : profiler_(profiler), allocator_(profiler.Allocator("pytorch")) {
    for (int device = 0; device < c10::cuda::device_count(); ++device) {
      devices_.push_back(profiler.Device(NameOf(device)));
    }
  }

  // Records one event, with a stack that begins at `caller`.
  void Trace(const Caller& caller, const Entry& entry) noexcept {
    // The types of these two differ between releases.
    const auto address = static_cast<uintptr_t>(entry.addr_);
    const auto bytes = static_cast<size_t>(entry.size_);
    switch (entry.action_) {
      case Entry::ALLOC:
        profiler_.RecordBlockFrom(caller, BufferId(address), bytes, AttributesOf(entry));
        break;
      case Entry::FREE_COMPLETED:
        profiler_.RecordBlockFree(BufferId(address));
        break;
      case Entry::SEGMENT_ALLOC:
      case Entry::SEGMENT_MAP:
        AddSegment(caller, address, bytes, AttributesOf(entry));
        break;
      case Entry::SEGMENT_FREE:
      case Entry::SEGMENT_UNMAP:
        RemoveSegments(address, bytes);
        break;
      default:
        break;
    }
  }

  // Reports that the allocator gives up an allocation on the device with this number.
  void OutOfMemory(int64_t device, size_t bytes) noexcept {
    try {
      ReportOutOfMemory({"CUDACachingAllocator", bytes, NameOf(device)}, profiler_);
    } catch (const std::bad_alloc&) {
    }
  }

 private:
  static std::string NameOf(int64_t device) { return "GPU:" + std::to_string(device); }

  Attributes AttributesOf(const Entry& entry) const {
    const auto index = static_cast<size_t>(entry.device_);
    return {index < devices_.size() ? devices_[index] : kDefaultDevice, MemoryKind::kDevice, allocator_};
  }

  void AddSegment(const Caller& caller, uintptr_t address, size_t bytes, const Attributes& attributes) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto segment = segments_.insert_or_assign(address, bytes).first;
      if (!profiler_.RecordSegmentFrom(caller, BufferId(address), bytes, attributes)) segments_.erase(segment);
    } catch (const std::bad_alloc&) {
      profiler_.RecordDropped(bytes);
    }
  }

  // Removes the segments in [begin, begin+bytes). The pieces in which an expandable segment is unmapped are not those
  // in which it was mapped.
  void RemoveSegments(uintptr_t begin, size_t bytes) noexcept {
    const uintptr_t end = begin + bytes;
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      SplitAt(begin);
      SplitAt(end);
    } catch (const std::bad_alloc&) {
      // A segment that could not be split stays recorded until the rest of it is unmapped.
    }
    auto segment = segments_.lower_bound(begin);
    while (segment != segments_.end() && segment->first + segment->second <= end) {
      profiler_.RecordFree(BufferId(segment->first));
      segment = segments_.erase(segment);
    }
  }
  void SplitAt(uintptr_t address) {
    const auto after = segments_.lower_bound(address);
    if (after == segments_.begin()) return;
    auto& [start, bytes] = *std::prev(after);
    if (address >= start + bytes) return;
    const auto rest = segments_.emplace_hint(after, address, start + bytes - address);
    if (profiler_.SplitSegment(BufferId(start), address - start)) {
      bytes = address - start;
    } else {
      segments_.erase(rest);
    }
  }

  Profiler& profiler_;
  const AllocatorId allocator_;
  std::vector<DeviceId> devices_;
  std::mutex mutex_;
  std::map<uintptr_t, size_t> segments_;  // address and bytes of the recorded ones
};

// Records, from this call on, what PyTorch's CUDA caching allocator does on all devices:
// - Each block that it hands out, with the requested size and the stack of the caller. A block counts until it can be
//   used again. If a tensor is used by several streams (record_stream), this is when the last of them has finished. So
//   for each device, the sum of the blocks is the allocator's counter `requested_bytes`.
// - The rest of its segments, as kind `pool`, with the stack of the call that took the segment from CUDA. The sum of
//   both is the counter `reserved_bytes`. Each mapped piece of an expandable segment is a segment.
// - An allocation that PyTorch gives up, which is reported (out_of_memory.h). If PyTorch frees its cache and then
//   succeeds, there is no report.
// The label `device` is "GPU:<ordinal>", the label `allocator` is "pytorch". Stacks begin in libc10_cuda.so, or, if
// the program is compiled without optimization, at functions of std::function.
//
// If `profiler` has joined the injected library's profiler (Profiler::Default under `hbmprof run`), this library
// records PyTorch's blocks. Then this function does nothing and returns OK, so no memory counts twice.
//
// Call it once, after CUDA is initialized, and before other threads allocate. Blocks and segments that exist already
// are not recorded. PyTorch cannot detach a tracker, so `profiler` must live until the process ends.
//
// Errors: kFailedPrecondition if the allocator is not initialized; kAlreadyExists if it is recorded already;
// kUnimplemented if the allocator has no trace (the backend cudaMallocAsync, a pluggable allocator);
// kResourceExhausted if the host has no memory. After an error nothing is recorded.
//
// Not recorded: memory that PyTorch does not cache (PYTORCH_NO_CUDA_MEMORY_CACHING), and memory of CUDA libraries.
inline absl::Status TrackTorchAllocator(Profiler& profiler = Profiler::Default()) {
  if (profiler.joined()) return absl::OkStatus();
  static std::atomic<bool> is_tracked{false};
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const allocator = c10::cuda::CUDACachingAllocator::get();
  if (allocator == nullptr || !allocator->initialized()) {
    return absl::FailedPreconditionError(
        "PyTorch's CUDA allocator is not initialized: call TrackTorchAllocator after CUDA is initialized, for example "
        "after the first CUDA tensor was made");
  }
  if (is_tracked.exchange(true)) {
    return absl::AlreadyExistsError("TrackTorchAllocator was called before: PyTorch's CUDA allocator is recorded");
  }
  try {
    // The allocator keeps it until the process ends.
    static TorchTracker& tracker = *new TorchTracker(profiler);
    allocator->attachAllocatorTraceTracker(TorchTracker::Events{&tracker});
    allocator->attachOutOfMemoryObserver(
        [](int64_t device, size_t bytes, size_t, size_t) { tracker.OutOfMemory(device, bytes); });
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    is_tracked = false;
    return absl::ResourceExhaustedError("no host memory to record PyTorch's CUDA allocator");
  } catch (const std::exception& error) {
    is_tracked = false;
    return absl::UnimplementedError("PyTorch's CUDA allocator (" + allocator->name() +
                                    ") has no trace: " + error.what());
  }
}

}  // namespace hbmprof::adapters

#endif  // HBMPROF_ADAPTERS_TORCH_H_
