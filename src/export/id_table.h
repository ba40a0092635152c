// IdTable: numbers things 0, 1, 2, ... in the order in which they are met, equal ones alike. The things themselves are
// kept by its user.
#ifndef HBMPROF_SRC_EXPORT_ID_TABLE_H_
#define HBMPROF_SRC_EXPORT_ID_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hbmprof::internal {

class IdTable {
 public:
  // The id of the thing with this hash for which `equal(id)` holds. If there is none, the next id: the thing has it
  // from now on. Fewer than 2^32 things.
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

  std::vector<Slot> slots_;  // a power of two of them, at most half full
  size_t size_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_ID_TABLE_H_
