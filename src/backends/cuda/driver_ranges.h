// Which memory the driver has given out, by address: so that what the program itself records of it can be told from
// memory of its own (src/inject/injected_profiler.cc).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_RANGES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// Of the process. Thread-safe, and safe in signal handlers: what interrupts one of these functions finds nothing. It may
// hold memory whose record has ended, as that of a context that was destroyed: whoever finds some must look.
class CudaDriverRanges {
 public:
  struct Range {
    BufferId record;  // that counts it
    uint64_t start = 0;
    bool is_mapped = false;    // the record is of physical memory, and not of these addresses
    bool is_declared = false;  // see Declare
  };

  // The memory of the record `id` has been given out, or `bytes` bytes of physical memory were mapped. They take the
  // place of what was known at these addresses. Without host memory they stay unknown.
  void Add(BufferId id, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddMapped(uint64_t address, size_t bytes, BufferId physical) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t start) ABSL_LOCKS_EXCLUDED(mutex_);
  // The range that `id` lies in. A handle lies in its own only.
  std::optional<Range> Find(BufferId id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The program has declared the range a segment.
  void Declare(uint64_t start) ABSL_LOCKS_EXCLUDED(mutex_);

  static CudaDriverRanges& Instance();

 private:
  struct Entry {
    uint64_t bytes;
    BufferId record;
    bool is_mapped;
    bool is_declared;
  };
  void Insert(uint64_t start, const Entry& entry) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by start; they do not overlap
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_RANGES_H_
