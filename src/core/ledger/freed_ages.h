// FreedAges: how old the freed buffers of each site became, as counters per octave of age (core/generations.h).
//
// Thread safety: all methods may be called from any thread at any time. No lock is taken.
#ifndef HBMPROF_SRC_CORE_LEDGER_FREED_AGES_H_
#define HBMPROF_SRC_CORE_LEDGER_FREED_AGES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "src/core/generations.h"
#include "src/core/tables/reserved_array.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

class FreedAges {
 public:
  using Counters = std::atomic<uint32_t>[kAgeOctaves];

  explicit FreedAges(const SiteTable& sites) : all_(sites.capacity()) {}

  // Counts a freed buffer whose age is in this octave. A counter stays at its largest value.
  void Add(SiteId site, int octave) {
    std::atomic<uint32_t>& freed = all_[site][octave];
    if (freed.load(std::memory_order_relaxed) < UINT32_MAX - 1024) freed.fetch_add(1, std::memory_order_relaxed);
  }
  // Returns the counters, by octave, without zeros at the end. `freed`: the number of the site's freed buffers; the sum
  // of the counters is at most that. (Buffers may be freed meanwhile. The oldest count first: they tell the most.)
  std::vector<int64_t> Of(SiteId site, int64_t freed) const {
    std::vector<int64_t> counts;
    for (size_t octave = kAgeOctaves; octave-- > 0;) {
      const int64_t count = std::min<int64_t>(all_[site][octave].load(std::memory_order_relaxed), freed);
      if (count <= 0) continue;
      if (counts.empty()) counts.resize(octave + 1);
      counts[octave] = count;
      freed -= count;
    }
    return counts;
  }

 private:
  const ReservedArray<Counters> all_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_FREED_AGES_H_
