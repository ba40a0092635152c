#include "src/core/tables/births.h"

#include <algorithm>

namespace hbmprof::internal {
namespace {

using Born = Snapshot::Sample::Born;

// Makes the values of the first `count` classes add up to `total`: the youngest takes the difference. If that makes it
// negative, older ones get the rest.
void MakeSum(Born* classes, size_t count, int64_t Born::*value, int64_t total) {
  int64_t difference = total;
  for (size_t i = 0; i < count; ++i) difference -= classes[i].*value;
  for (size_t i = count; i-- > 0 && difference != 0;) {
    int64_t& sum = classes[i].*value;
    sum += difference;
    difference = std::min<int64_t>(sum, 0);
    if (i != 0) sum -= difference;
  }
}

}  // namespace

Births::Births(const LiveTable& live, SiteId sites, int64_t uptime_seconds)
    : log2_(BirthClassLog2(uptime_seconds)),
      classes_(static_cast<uint32_t>(uptime_seconds >> log2_) + 1),
      born_(sites) {
  // No memory is allocated while VisitSome holds locks of the table. After each step other threads get these locks.
  constexpr int kPauses = 8;
  std::vector<LiveRecord> step(LiveTable::kMostVisited);
  uint64_t next = LiveTable::kFirstHash;
  for (bool more = true; more;) {
    size_t count = 0;
    more = live.VisitSome(&next, [&](uint64_t, const LiveRecord& record) {
      if (record.site < sites && count < step.size()) step[count++] = record;
    });
    for (size_t i = 0; i < count; ++i) Add(step[i]);
    for (int i = 0; i < kPauses; ++i) CpuRelax();
  }
}

void Births::Add(const LiveRecord& record) {
  const auto birth_class =
      static_cast<uint32_t>(std::min<int64_t>(StartOfGeneration(record.birth) >> log2_, classes_ - 1));
  std::vector<Born>& born = born_[record.site];
  auto found = std::find_if(born.begin(), born.end(), [&](const Born& one) { return one.birth_class == birth_class; });
  if (found == born.end()) found = born.insert(found, {birth_class, 0, 0});
  ++found->objects;
  found->bytes += record.bytes;
}

std::vector<Born> Births::Of(SiteId site, int64_t objects, int64_t bytes) const {
  if (objects == 0 && bytes == 0) return {};
  Born classes[64] = {};
  for (const Born& born : born_[site]) classes[born.birth_class] = born;
  MakeSum(classes, classes_, &Born::objects, objects);
  MakeSum(classes, classes_, &Born::bytes, bytes);
  const auto is_used = [](const Born& born) { return born.objects != 0 || born.bytes != 0; };
  std::vector<Born> used;
  used.reserve(static_cast<size_t>(std::count_if(classes, classes + classes_, is_used)));
  for (uint32_t i = 0; i < classes_; ++i) {
    classes[i].birth_class = i;
    if (is_used(classes[i])) used.push_back(classes[i]);
  }
  return used;
}

}  // namespace hbmprof::internal
