#include "src/core/ledger/freed_ages.h"

#include <algorithm>

#include "src/base/pages.h"

namespace hbmprof::internal {

FreedAges::~FreedAges() {
  if (all_ != nullptr) UnmapRetiredPages(all_, BytesOfAll());
  CountHostBytes(-int64_t{sizeof(Counters)} * count_.load(std::memory_order_relaxed));
}

FreedAges::Counters* FreedAges::Find(SiteId site) const {
  // A site without counters has the number 0.
  const uint32_t number = sites_.At(site).freed_ages.load(std::memory_order_relaxed);
  if (number >= count_.load(std::memory_order_acquire)) return nullptr;
  return all_[number].site == site ? &all_[number] : nullptr;
}

FreedAges::Counters* FreedAges::Make(SiteId site) {
  SpinLockHolder hold(lock_);
  if (Counters* const known = Find(site); known != nullptr) return known;
  const uint32_t number = count_.load(std::memory_order_relaxed);
  if (all_ == nullptr) all_ = static_cast<Counters*>(ReservePages(BytesOfAll()));
  if (all_ == nullptr || !TakeHostBytes(sizeof(Counters))) return nullptr;
  Counters* const counters = &all_[number];
  counters->site = site;
  sites_.At(site).freed_ages.store(number, std::memory_order_relaxed);
  count_.store(number + 1, std::memory_order_release);
  return counters;
}

void FreedAges::Add(SiteId site, int octave) {
  Counters* counters = Find(site);
  if (counters == nullptr) counters = Make(site);
  if (counters == nullptr) return;
  std::atomic<uint32_t>& freed = counters->freed[octave];
  if (freed.load(std::memory_order_relaxed) < UINT32_MAX - 1024) freed.fetch_add(1, std::memory_order_relaxed);
}

std::vector<int64_t> FreedAges::Of(SiteId site, int64_t freed) const {
  std::vector<int64_t> counts;
  const Counters* const counters = Find(site);
  if (counters == nullptr) return counts;
  // The oldest are taken first, because they tell the most.
  int64_t rest = std::max<int64_t>(freed, 0);
  for (int octave = kAgeOctaves - 1; octave >= 0; --octave) {
    const int64_t count = std::min<int64_t>(counters->freed[octave].load(std::memory_order_relaxed), rest);
    rest -= count;
    if (count != 0 && counts.empty()) counts.resize(static_cast<size_t>(octave) + 1);
    if (count != 0) counts[static_cast<size_t>(octave)] = count;
  }
  return counts;
}

}  // namespace hbmprof::internal
