// What the program gives names to: devices and allocators, its own counters, and the tags of the process.
#ifndef HBMPROF_SRC_CORE_NAMES_H_
#define HBMPROF_SRC_CORE_NAMES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/spin_lock.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

// Gives names small numbers, in the order of their first use. When it is full, every new name gets the number of the
// last one, "other". Any thread may call any function, and NumberOf also in a signal handler that interrupted malloc.
class NameTable {
 public:
  // `first` gets number 0.
  NameTable(std::string_view first, int capacity);
  // Finding a known name takes no lock. A new name gets 0 if the thread is inside the tracker.
  int NumberOf(std::string_view name) ABSL_LOCKS_EXCLUDED(lock_);
  std::vector<std::string> All() const;
  // Returns whether NumberOf was called with `first`.
  bool first_is_requested() const { return first_is_requested_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMaxNameBytes = 64;
  struct Name {
    std::string_view text() const { return {bytes, size}; }
    size_t size;
    char bytes[kMaxNameBytes];
  };

  // Returns -1 if the name is not in the table.
  int Find(std::string_view name) const;
  void Add(std::string_view name);

  const int capacity_;
  std::atomic<bool> first_is_requested_{false};
  SpinLock lock_;  // for new names
  const std::unique_ptr<Name[]> names_;
  std::atomic<int> count_{0};  // names up to here are complete and never change
};

// The program's own counters. Set has no effect if the thread is inside the tracker.
class CounterTable {
 public:
  void Set(std::string_view name, int64_t value) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::pair<std::string, int64_t>> All() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr size_t kMaxCounters = 64;
  static constexpr size_t kMaxNameBytes = 64;

  mutable Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
};

// The tags of the process: labels of all samples.
class ProcessTags {
 public:
  explicit ProcessTags(const Labels& tags);
  // Sets a tag. An empty value removes it. A new key beyond the limits of tag.h has no effect. No call has an effect if
  // the thread is inside the tracker.
  void Set(std::string_view key, std::string_view value) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sorted by key.
  Labels All() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::string> tags_ ABSL_GUARDED_BY(mutex_);
};

struct Names {
  explicit Names(const Labels& process_tags) : tags(process_tags) {}

  NameTable devices{"GPU:0", kMaxDevices};
  NameTable allocators{"", kMaxAllocators};
  CounterTable counters;
  ProcessTags tags;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_NAMES_H_
