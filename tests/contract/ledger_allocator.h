// LedgerAllocator: passes every call to an upstream, keeps its own totals of what upstream did, and lets a test fail or
// hold a free. Put between a TrackingAllocator and the real allocator, its totals are the oracle of the profiler's.
#ifndef HBMPROF_TESTS_CONTRACT_LEDGER_ALLOCATOR_H_
#define HBMPROF_TESTS_CONTRACT_LEDGER_ALLOCATOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "hbmprof/device_allocator.h"
#include "src/base/mutex.h"

namespace hbmprof {

// Thread-safe, except the setters: no call may be in progress.
class LedgerAllocator : public DeviceAllocator {
 public:
  // Requested bytes; successful calls only, zero-byte allocations left out.
  struct Totals {
    int64_t bytes_in_use = 0;
    int64_t peak_bytes_in_use = 0;
    int64_t num_allocs = 0;
    int64_t num_live = 0;
    int64_t largest_alloc_size = 0;
  };

  explicit LedgerAllocator(DeviceAllocator& upstream) : upstream_(upstream) {}

  // If `status` is not OK, every free fails with it, and upstream is not called.
  void FailFrees(absl::Status status) { free_failure_ = std::move(status); }
  // Called after upstream has freed and before the free returns.
  void OnFreed(std::function<void()> hook) { on_freed_ = std::move(hook); }

  Totals totals() const {
    internal::MutexLock lock(mutex_);
    return totals_;
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override { return Enter(upstream_.Allocate(bytes), bytes); }
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override {
    return Enter(upstream_.AllocateAsync(bytes, stream), bytes);
  }
  absl::Status Free(void* ptr) override {
    return Leave(ptr, [&] { return upstream_.Free(ptr); });
  }
  absl::Status FreeAsync(void* ptr, StreamId stream) override {
    return Leave(ptr, [&] { return upstream_.FreeAsync(ptr, stream); });
  }
  std::string device_name() const override { return upstream_.device_name(); }
  MemoryKind kind() const override { return upstream_.kind(); }
  DeviceProbe Probe() const override { return upstream_.Probe(); }

 private:
  absl::StatusOr<void*> Enter(absl::StatusOr<void*> ptr, size_t bytes) {
    if (!ptr.ok() || *ptr == nullptr) return ptr;
    internal::MutexLock lock(mutex_);
    sizes_[*ptr] = static_cast<int64_t>(bytes);
    totals_.bytes_in_use += bytes;
    totals_.peak_bytes_in_use = std::max(totals_.peak_bytes_in_use, totals_.bytes_in_use);
    totals_.largest_alloc_size = std::max(totals_.largest_alloc_size, static_cast<int64_t>(bytes));
    ++totals_.num_allocs;
    ++totals_.num_live;
    return ptr;
  }

  // The totals are reduced before the real free, because upstream may reuse the address at once; if the free fails,
  // they are restored.
  template <typename RealFree>
  absl::Status Leave(void* ptr, RealFree real_free) {
    if (!free_failure_.ok()) return free_failure_;
    int64_t bytes = -1;
    {
      internal::MutexLock lock(mutex_);
      if (const auto it = sizes_.find(ptr); it != sizes_.end()) {
        bytes = it->second;
        sizes_.erase(it);
        totals_.bytes_in_use -= bytes;
        --totals_.num_live;
      }
    }
    const absl::Status status = real_free();
    if (!status.ok() && bytes >= 0) {
      internal::MutexLock lock(mutex_);
      sizes_[ptr] = bytes;
      totals_.bytes_in_use += bytes;
      ++totals_.num_live;
    }
    if (status.ok() && on_freed_) on_freed_();
    return status;
  }

  DeviceAllocator& upstream_;
  absl::Status free_failure_;
  std::function<void()> on_freed_;
  mutable internal::Mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_ ABSL_GUARDED_BY(mutex_);
  Totals totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_CONTRACT_LEDGER_ALLOCATOR_H_
