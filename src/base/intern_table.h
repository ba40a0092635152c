// InternTable: a hash set that only grows and is read without a lock, used for stacks, sites, tags and paths.
//
// Thread safety: Find from any thread at any time. Reserve, Insert and the lock as annotated.
//
// Invariants:
// 1. The payloads are in hash arrays. Each array has twice the size of the one before it, and payloads are inserted
//    into the newest array. A slot changes once, from empty to full, and then not again while the array is searched.
// 2. A full slot holds a 48-bit payload that is not 0, and above it the highest 16 bits of the hash. The object that
//    the payload refers to is complete before the slot is filled, and lives as long as the table.
// 3. After a new array is added, each Reserve copies a few slots of the array before it. The old array is searched,
//    too, until all its slots are copied. So no event waits for a rehash.
// 4. When an array is no longer searched, its slots become zeros, and its addresses stay mapped for the life of the
//    table. So a Find that still reads it can miss a payload, but never returns a wrong one. After a miss the caller
//    searches again under lock().
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
    const uint32_t state = state_.load(std::memory_order_relaxed);
    for (uint32_t level = 0; level < LevelsOf(state); ++level) {
      const bool is_searched = level + 1 == LevelsOf(state) || (level + 2 == LevelsOf(state) && IsCopying(state));
      if (is_searched) {
        UnmapPages(arrays_[level], BytesOf(level));
      } else {
        UnmapRetiredPages(arrays_[level], BytesOf(level));
      }
    }
  }
  InternTable(const InternTable&) = delete;
  InternTable& operator=(const InternTable&) = delete;

  // Returns the payload with this hash for which `equal(payload)` holds, or 0 if there is none.
  template <typename Equal>
  uint64_t Find(uint64_t hash, const Equal& equal) const {
    const uint32_t state = state_.load(std::memory_order_acquire);
    if (state == 0) return 0;
    const uint64_t found = FindIn(LevelsOf(state) - 1, hash, equal);
    return found != 0 || !IsCopying(state) ? found : FindIn(LevelsOf(state) - 2, hash, equal);
  }

  // Returns the payload with this hash for which `equal(payload)` holds. If there is none, calls `make()` under lock(),
  // adds the payload that it returns, and returns it. Returns 0 if make() returns 0 or if there is no memory.
  // `hash_of`: see Reserve.
  template <typename Equal, typename HashOf, typename Make>
  uint64_t Intern(uint64_t hash, const Equal& equal, const HashOf& hash_of, const Make& make)
      ABSL_LOCKS_EXCLUDED(lock_) {
    if (const uint64_t found = Find(hash, equal); found != 0) return found;
    SpinLockHolder hold(lock_);
    if (const uint64_t found = Find(hash, equal); found != 0) return found;
    const uint64_t made = Reserve(hash_of) ? make() : 0;
    if (made != 0) Insert(hash, made);
    return made;
  }

  // Must be held for Reserve and Insert, and for the search before them.
  SpinLock& lock() ABSL_LOCK_RETURNED(lock_) { return lock_; }

  // Makes space for one more payload. `hash_of(payload)` must return the hash of any payload in the table. Returns
  // false if there is no memory.
  template <typename HashOf>
  bool Reserve(const HashOf& hash_of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    const uint32_t state = state_.load(std::memory_order_relaxed);
    if (IsCopying(state)) CopySome(hash_of);
    const size_t slots = state == 0 ? 0 : SlotsOf(LevelsOf(state) - 1);
    if (4 * (size_ + 1) <= 3 * slots || Grow()) return true;
    // If there is no memory for a larger array, this one is filled up to 7/8, so that searches still end soon.
    return 8 * (size_ + 1) <= 7 * slots;
  }
  // Adds a payload that is not in the table. REQUIRES: Reserve has returned true for this payload.
  void Insert(uint64_t hash, uint64_t payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    Put(LevelsOf(state_.load(std::memory_order_relaxed)) - 1, hash, payload);
    ++size_;
  }

 private:
  using Slot = std::atomic<uint64_t>;
  static constexpr size_t kFirstSlots = 1024;
  static constexpr uint32_t kMaxLevels = 30;
  // Copying ends long before the next array is needed. If the old array has N slots, copying takes N/16 insertions, and
  // the next array is needed after 3N/4 insertions.
  static constexpr size_t kSlotsAtOnce = 16;

  // A state consists of the number of arrays and one bit. The bit is set while the last but one array is being copied.
  static constexpr uint32_t StateOf(uint32_t levels, bool is_copying) { return levels * 2 + is_copying; }
  static constexpr uint32_t LevelsOf(uint32_t state) { return state / 2; }
  static constexpr bool IsCopying(uint32_t state) { return state % 2 != 0; }
  static constexpr size_t SlotsOf(uint32_t level) { return kFirstSlots << level; }
  static constexpr size_t BytesOf(uint32_t level) { return SlotsOf(level) * sizeof(Slot); }

  template <typename Equal>
  uint64_t FindIn(uint32_t level, uint64_t hash, const Equal& equal) const {
    const Slot* slots = arrays_[level];
    const size_t mask = SlotsOf(level) - 1;
    const uint64_t tag = hash & ~kPayloadMask;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      const uint64_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == 0) return 0;
      if ((slot & ~kPayloadMask) == tag && equal(slot & kPayloadMask)) return slot & kPayloadMask;
    }
  }

  void Put(uint32_t level, uint64_t hash, uint64_t payload) {
    Slot* slots = arrays_[level];
    const size_t mask = SlotsOf(level) - 1;
    size_t i = hash & mask;
    while (slots[i].load(std::memory_order_relaxed) != 0) i = (i + 1) & mask;
    slots[i].store((hash & ~kPayloadMask) | payload, std::memory_order_release);
  }

  // Begins a larger array. Returns false if there is no memory.
  bool Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    const uint32_t level = LevelsOf(state_.load(std::memory_order_relaxed));
    if (level == kMaxLevels) return false;
    arrays_[level] = static_cast<Slot*>(MapPages(BytesOf(level)));
    if (arrays_[level] == nullptr) return false;
    copied_ = 0;
    state_.store(StateOf(level + 1, level != 0), std::memory_order_release);
    return true;
  }

  template <typename HashOf>
  void CopySome(const HashOf& hash_of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    const uint32_t levels = LevelsOf(state_.load(std::memory_order_relaxed));
    const Slot* const old = arrays_[levels - 2];
    for (const size_t end = copied_ + kSlotsAtOnce; copied_ < end; ++copied_) {
      const uint64_t payload = old[copied_].load(std::memory_order_relaxed) & kPayloadMask;
      if (payload != 0) Put(levels - 1, hash_of(payload), payload);
    }
    if (copied_ < SlotsOf(levels - 2)) return;
    state_.store(StateOf(levels, false), std::memory_order_release);
    RetirePages(arrays_[levels - 2], BytesOf(levels - 2));
  }

  SpinLock lock_;
  std::atomic<uint32_t> state_{0};
  Slot* arrays_[kMaxLevels] = {};  // each is set once, before the state that counts it
  size_t size_ ABSL_GUARDED_BY(lock_) = 0;
  size_t copied_ ABSL_GUARDED_BY(lock_) = 0;  // slots of the array that is being copied
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_INTERN_TABLE_H_
