// InternTable: a hash set that only grows and is read without a lock, used for stacks, sites, tags and paths.
//
// Thread safety: any thread may call Find at any time. The other functions need the lock, as annotated.
//
// Invariants:
// 1. Within one array, a slot changes once, from empty to full.
// 2. A full slot holds 16 bits of the hash above a 48-bit payload that is not 0. The object of the payload was complete
//    before the slot was filled, and lives as long as the table.
// 3. When the array is replaced by a larger one, the old one stays readable for the life of the table. A Find
//    that still reads the old array can only miss; the caller then searches again under the lock.
#ifndef HBMPROF_SRC_BASE_INTERN_TABLE_H_
#define HBMPROF_SRC_BASE_INTERN_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"

namespace hbmprof::internal {

class InternTable {
 public:
  static constexpr uint64_t kPayloadMask = (uint64_t{1} << 48) - 1;

  InternTable() = default;
  ~InternTable() {
    Slots* slots = slots_.load(std::memory_order_relaxed);
    while (slots != nullptr) {
      Slots* older = slots->older;
      UnmapPages(slots, slots->mapped_bytes);
      slots = older;
    }
  }
  InternTable(const InternTable&) = delete;
  InternTable& operator=(const InternTable&) = delete;

  // Returns the payload with this hash for which `equal(payload)` is true; 0 if there is none.
  template <typename Equal>
  uint64_t Find(uint64_t hash, const Equal& equal) const {
    const Slots* slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr) return 0;
    const uint64_t tag = hash & ~kPayloadMask;
    for (size_t i = hash & slots->mask;; i = (i + 1) & slots->mask) {
      const uint64_t slot = slots->slot(i).load(std::memory_order_acquire);
      if (slot == 0) return 0;
      if ((slot & ~kPayloadMask) == tag && equal(slot & kPayloadMask)) return slot & kPayloadMask;
    }
  }

  // Must be held for Reserve and Insert, and for the search before them.
  SpinLock& lock() ABSL_LOCK_RETURNED(lock_) { return lock_; }

  // Ensures capacity for one more payload. `hash_of(payload)` must return the hash of any payload in the table. Returns
  // false if there is no memory.
  template <typename HashOf>
  bool Reserve(const HashOf& hash_of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    Slots* slots = slots_.load(std::memory_order_relaxed);
    if (slots != nullptr && 2 * (size_ + 1) <= slots->mask + 1) return true;
    if (Grow(slots, hash_of)) return true;
    // Without memory for a larger array, this one is filled to 7/8, which keeps searches short.
    return slots != nullptr && 8 * (size_ + 1) <= 7 * (slots->mask + 1);
  }
  // Adds a payload that is not in the table. REQUIRES: Reserve has returned true for it.
  void Insert(uint64_t hash, uint64_t payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    FillSlot(slots_.load(std::memory_order_relaxed), hash, payload);
    ++size_;
  }

 private:
  struct Slots {
    size_t mask;
    size_t mapped_bytes;
    Slots* older;
    std::atomic<uint64_t>& slot(size_t i) { return reinterpret_cast<std::atomic<uint64_t>*>(this + 1)[i]; }
    const std::atomic<uint64_t>& slot(size_t i) const {
      return reinterpret_cast<const std::atomic<uint64_t>*>(this + 1)[i];
    }
  };
  static constexpr size_t kFirstSlots = 1024;

  static void FillSlot(Slots* slots, uint64_t hash, uint64_t payload) {
    size_t i = hash & slots->mask;
    while (slots->slot(i).load(std::memory_order_relaxed) != 0) i = (i + 1) & slots->mask;
    slots->slot(i).store((hash & ~kPayloadMask) | payload, std::memory_order_release);
  }

  // Returns false if there is no memory.
  template <typename HashOf>
  bool Grow(Slots* old, const HashOf& hash_of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    const size_t count = old == nullptr ? kFirstSlots : 2 * (old->mask + 1);
    const size_t bytes = sizeof(Slots) + count * sizeof(uint64_t);
    auto* slots = static_cast<Slots*>(MapPages(bytes));
    if (slots == nullptr) return false;
    slots->mask = count - 1;
    slots->mapped_bytes = bytes;
    slots->older = old;
    if (old != nullptr) {
      for (size_t i = 0; i <= old->mask; ++i) {
        const uint64_t payload = old->slot(i).load(std::memory_order_relaxed) & kPayloadMask;
        if (payload != 0) FillSlot(slots, hash_of(payload), payload);
      }
    }
    slots_.store(slots, std::memory_order_release);
    return true;
  }

  SpinLock lock_;
  std::atomic<Slots*> slots_{nullptr};
  size_t size_ ABSL_GUARDED_BY(lock_) = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_INTERN_TABLE_H_
