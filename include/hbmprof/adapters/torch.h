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
        profiler_.RecordBlockFrom(caller, PoolOf(entry.device_), BufferId(address), bytes);
        break;
      case Entry::FREE_COMPLETED:
        profiler_.RecordBlockFree(PoolOf(entry.device_), BufferId(address));
        break;
      case Entry::SEGMENT_ALLOC:
        profiler_.RecordSegmentFrom(caller, PoolOf(entry.device_), BufferId(address), bytes);
        break;
      case Entry::SEGMENT_FREE:
        profiler_.RecordSegmentFree(PoolOf(entry.device_), BufferId(address));
        break;
      case Entry::SEGMENT_MAP:
        Mapped(caller, PoolOf(entry.device_), address, bytes);
        break;
      case Entry::SEGMENT_UNMAP:
        Unmapped(PoolOf(entry.device_), address, bytes);
        break;
      default:
        break;
    }
  }

  // Records the segments and the blocks in use that the allocator has already, with a stack that begins at `caller`.
  void RecordExisting(const Caller& caller, const c10::cuda::CUDACachingAllocator::SnapshotInfo& existing) noexcept {
    for (const auto& segment : existing.segments) {
      const Pool pool = PoolOf(segment.device);
      auto address = static_cast<uintptr_t>(segment.address);
      if (segment.is_expandable) {
        Mapped(caller, pool, address, segment.total_size);
      } else {
        profiler_.RecordSegmentFrom(caller, pool, BufferId(address), segment.total_size);
      }
      for (const auto& block : segment.blocks) {
        if (block.active) profiler_.RecordBlockFrom(caller, pool, BufferId(address), block.requested_size);
        address += block.size;
      }
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

  Pool PoolOf(int64_t device) const {
    const auto index = static_cast<size_t>(device);
    return {index < devices_.size() ? devices_[index] : kDefaultDevice, allocator_};
  }

  // The pieces in which an expandable segment is unmapped are not those in which it was mapped. So the record of mapped
  // memory has a handle as its id, because its size is not always that of the addresses after its first one.
  static BufferId IdOf(uintptr_t record) { return BufferId::Handle(internal::NameSpace::kTorchMapped, record); }

  void Mapped(const Caller& caller, const Pool& pool, uintptr_t address, size_t bytes) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto piece = pieces_.insert_or_assign(address, Piece{bytes, address}).first;
      // If there is a record already, its first piece was unmapped and the others were not.
      const auto [record, is_new] = records_.try_emplace(address, 0);
      record->second += bytes;
      const bool is_recorded = is_new ? profiler_.RecordSegmentFrom(caller, pool, IdOf(address), bytes)
                                      : profiler_.RecordResize(IdOf(address), record->second);
      if (is_recorded) return;
      if ((record->second -= bytes) == 0) records_.erase(record);
      pieces_.erase(piece);
    } catch (const std::bad_alloc&) {
      profiler_.RecordDropped(bytes);
    }
  }

  void Unmapped(const Pool& pool, uintptr_t begin, size_t bytes) noexcept {
    const uintptr_t end = begin + bytes;
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      SplitAt(begin);
      SplitAt(end);
    } catch (const std::bad_alloc&) {
      // A piece that could not be split stays recorded until the rest of it is unmapped.
    }
    auto piece = pieces_.lower_bound(begin);
    while (piece != pieces_.end() && piece->first + piece->second.bytes <= end) {
      const auto record = records_.find(piece->second.record);
      record->second -= piece->second.bytes;
      if (record->second == 0) {
        profiler_.RecordSegmentFree(pool, IdOf(record->first));
        records_.erase(record);
      } else {
        profiler_.RecordResize(IdOf(record->first), record->second);
      }
      piece = pieces_.erase(piece);
    }
  }
  void SplitAt(uintptr_t address) {
    const auto after = pieces_.lower_bound(address);
    if (after == pieces_.begin()) return;
    auto& [start, piece] = *std::prev(after);
    if (address >= start + piece.bytes) return;
    pieces_.emplace_hint(after, address, Piece{start + piece.bytes - address, piece.record});
    piece.bytes = address - start;
  }

  // Mapped memory that is counted in one record.
  struct Piece {
    size_t bytes;
    uintptr_t record;  // where the memory of the record began when it was mapped
  };

  Profiler& profiler_;
  const AllocatorId allocator_;
  std::vector<DeviceId> devices_;
  std::mutex mutex_;
  std::map<uintptr_t, Piece> pieces_;    // by address
  std::map<uintptr_t, size_t> records_;  // the bytes of each record, by Piece::record
};

// Records, from this call on, what PyTorch's CUDA caching allocator does on all devices:
// - Each block that it hands out, with the requested size and the stack of the caller. A block counts until it can be
//   used again. If a tensor is used by several streams (record_stream), this is when the last of them has finished. So
//   for each device, the sum of the blocks is the allocator's counter `requested_bytes`.
// - The rest of its segments, as the idle memory of the pool. The sum of both is the counter `reserved_bytes`. Each
//   mapped piece of an expandable segment is a segment.
// - An allocation that PyTorch gives up, which is reported (out_of_memory.h). If PyTorch frees its cache and then
//   succeeds, there is no report.
// The label `device` is "GPU:<ordinal>", the label `allocator` is "pytorch". Stacks begin in libc10_cuda.so, or, if
// the program is compiled without optimization, at functions of std::function.
//
// If `profiler` uses the injected library (Profiler::Default under `hbmprof run`), this library
// records PyTorch's blocks. Then this function does nothing and returns OK, so no memory counts twice.
//
// Call it once, after CUDA is initialized, and before other threads allocate. Blocks and segments that exist already
// are recorded with the stack of this call. PyTorch cannot detach a tracker, so `profiler` must live until the process
// ends.
//
// Errors: kFailedPrecondition if the allocator is not initialized; kAlreadyExists if it is recorded already;
// kUnimplemented if the allocator has no trace (the backend cudaMallocAsync, a pluggable allocator);
// kResourceExhausted if the host has no memory. After an error nothing is recorded.
//
// Not recorded: memory that PyTorch does not cache (PYTORCH_NO_CUDA_MEMORY_CACHING), and memory of CUDA libraries.
inline absl::Status TrackTorchAllocator(Profiler& profiler = Profiler::Default()) {
  if (profiler.uses_injected()) return absl::OkStatus();
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
    const c10::cuda::CUDACachingAllocator::SnapshotInfo existing = allocator->snapshot();
    // The allocator keeps it until the process ends.
    static TorchTracker& tracker = *new TorchTracker(profiler);
    allocator->attachAllocatorTraceTracker(TorchTracker::Events{&tracker});
    tracker.RecordExisting(Caller::OfThisFunction(), existing);
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
