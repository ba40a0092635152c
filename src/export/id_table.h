// IdTable: gives objects the ids 0, 1, 2, ... in the order of their first use. Equal objects have the same id. The user
// of the table stores the objects. Not thread-safe.
#ifndef HBMPROF_SRC_EXPORT_ID_TABLE_H_
#define HBMPROF_SRC_EXPORT_ID_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hbmprof::internal {

class IdTable {
 public:
  // Returns the id of the object with this hash for which `equal(id)` is true. If there is none, returns the next id,
  // which is the object's id from now on. REQUIRES: fewer than 2^32 - 1 objects.
  template <typename Equal>
  uint32_t IdOf(uint64_t hash, const Equal& equal) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    const auto tag = static_cast<uint32_t>(hash);
    const size_t mask = slots_.size() - 1;
    size_t i = tag & mask;
    for (; slots_[i].id != kNone; i = (i + 1) & mask) {
      if (slots_[i].tag == tag && equal(slots_[i].id)) return slots_[i].id;
    }
    slots_[i] = {tag, static_cast<uint32_t>(size_)};
    return static_cast<uint32_t>(size_++);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    uint32_t tag = 0;  // the low half of the hash
    uint32_t id = kNone;
  };

  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 1024 : 2 * slots_.size());
    old.swap(slots_);
    const size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.id == kNone) continue;
      size_t i = slot.tag & mask;
      while (slots_[i].id != kNone) i = (i + 1) & mask;
      slots_[i] = slot;
    }
  }

  std::vector<Slot> slots_;  // the size is a power of two; at most half of them are used
  size_t size_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_ID_TABLE_H_
