#include "src/core/tables/births.h"

#include <algorithm>

namespace hbmprof::internal {
namespace {

using Born = Snapshot::Sample::Born;

// Adds `difference` to the youngest class. If that makes it negative, older ones get the rest.
void AddToYoungest(std::vector<Born>* classes, int64_t Born::*value, int64_t difference) {
  for (size_t i = classes->size(); i-- > 0 && difference != 0;) {
    int64_t& sum = (*classes)[i].*value;
    sum += difference;
    difference = std::min<int64_t>(sum, 0);
    if (i != 0) sum -= difference;
  }
}

}  // namespace

Births::Births(const LiveTable& live, int64_t expected, SiteId sites) {
  // No memory is allocated while VisitSome holds locks of the table. After each step other threads get these locks.
  constexpr int kPauses = 8;
  std::vector<LiveRecord> all;
  all.reserve(static_cast<size_t>(std::max<int64_t>(expected, 0)) + LiveTable::kMostVisited);
  std::vector<LiveRecord> step(LiveTable::kMostVisited);
  ends_.assign(size_t{sites} + 1, 0);
  uint64_t next = LiveTable::kFirstHash;
  for (bool more = true; more;) {
    size_t count = 0;
    more = live.VisitSome(&next, [&](const LiveRecord& record) {
      if (record.site < sites && count < step.size()) step[count++] = record;
    });
    for (size_t i = 0; i < count; ++i) ++ends_[step[i].site + 1];
    all.insert(all.end(), step.begin(), step.begin() + static_cast<std::ptrdiff_t>(count));
    for (int i = 0; i < kPauses; ++i) CpuRelax();
  }
  for (SiteId site = 0; site < sites; ++site) ends_[site + 1] += ends_[site];
  records_.resize(all.size());
  for (const LiveRecord& record : all) records_[ends_[record.site]++] = record;
}

std::vector<Born> Births::Of(SiteId site, int64_t uptime_seconds, int64_t objects, int64_t bytes, bool is_pool) const {
  if (objects == 0 && bytes == 0) return {};
  const int log2 = BirthClassLog2(uptime_seconds);
  std::vector<Born> classes(static_cast<size_t>(uptime_seconds >> log2) + 1);
  for (uint32_t i = 0; i < classes.size(); ++i) classes[i].birth_class = i;
  Born sum;
  const auto add = [](const LiveRecord& record, Born* born) {
    ++born->objects;
    born->bytes += record.bytes;
  };
  for (size_t i = site == 0 ? 0 : ends_[site - 1]; i < ends_[site]; ++i) {
    const auto born = static_cast<size_t>(StartOfGeneration(records_[i].birth) >> log2);
    add(records_[i], &classes[std::min(born, classes.size() - 1)]);
    add(records_[i], &sum);
  }
  if (is_pool && sum.bytes > 0) {
    const double share = static_cast<double>(bytes) / static_cast<double>(sum.bytes);
    sum.bytes = 0;
    for (Born& born : classes) {
      born.bytes = static_cast<int64_t>(static_cast<double>(born.bytes) * share);
      sum.bytes += born.bytes;
    }
  }
  AddToYoungest(&classes, &Born::objects, objects - sum.objects);
  AddToYoungest(&classes, &Born::bytes, bytes - sum.bytes);
  const auto is_empty = [](const Born& born) { return born.objects == 0 && born.bytes == 0; };
  classes.erase(std::remove_if(classes.begin(), classes.end(), is_empty), classes.end());
  return classes;
}

}  // namespace hbmprof::internal
