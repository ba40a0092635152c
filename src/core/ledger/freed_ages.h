// FreedAges: how old the freed buffers of each site became, as counters per octave of age (core/generations.h).
//
// Only a site that has freed a buffer in a later generation than that of its birth has counters, which take 100 bytes.
// The site holds their number.
//
// Thread safety: all methods may be called from any thread at any time. Find and counting take no lock, except when a
// site gets its counters.
#ifndef HBMPROF_SRC_CORE_LEDGER_FREED_AGES_H_
#define HBMPROF_SRC_CORE_LEDGER_FREED_AGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/spin_lock.h"
#include "src/core/generations.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

class FreedAges {
 public:
  explicit FreedAges(const SiteTable& sites) : sites_(sites) {}
  ~FreedAges();

  // Counts a freed buffer whose age is in this octave. A counter stays at its largest value. If the
  // host has no memory for the counters, the buffer counts as a young one.
  void Add(SiteId site, int octave);
  // Returns the counters, by octave, without zeros at the end. `freed`: the number of the site's freed buffers; the sum
  // of the counters is at most that. (Buffers may be freed meanwhile.)
  std::vector<int64_t> Of(SiteId site, int64_t freed) const;

 private:
  struct Counters {
    SiteId site;
    std::atomic<uint32_t> freed[kAgeOctaves];
  };
  static_assert(sizeof(Counters) == 100);

  // A page more than the counters need, so that they are in small pages (see MapPages).
  size_t BytesOfAll() const { return sites_.capacity() * sizeof(Counters) + 4096; }
  // Returns null if the site has no counters.
  Counters* Find(SiteId site) const;
  // Returns null if the host has no memory.
  [[gnu::cold]] Counters* Make(SiteId site);

  const SiteTable& sites_;
  SpinLock lock_;            // for new counters
  Counters* all_ = nullptr;  // the space for those of every site; set before the first ones are counted
  std::atomic<uint32_t> count_{0};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_FREED_AGES_H_
