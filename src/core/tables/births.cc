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
      first_part_(sites, kNone) {
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
  const int64_t birth_class = std::min<int64_t>(StartOfGeneration(record.birth) >> log2_, classes_ - 1);
  const auto place = static_cast<uint32_t>(birth_class) % kClassesPerPart;
  const uint32_t first_class = static_cast<uint32_t>(birth_class) - place;
  uint32_t part = first_part_[record.site];
  while (part != kNone && parts_[part].first_class != first_class) part = parts_[part].next;
  if (part == kNone) {
    part = static_cast<uint32_t>(parts_.size());
    parts_.push_back({first_class, first_part_[record.site], {}, {}});
    first_part_[record.site] = part;
  }
  ++parts_[part].objects[place];
  parts_[part].bytes[place] += record.bytes;
}

std::vector<Born> Births::Of(SiteId site, int64_t objects, int64_t bytes, bool is_pool) const {
  if (objects == 0 && bytes == 0) return {};
  Born classes[64 + kClassesPerPart] = {};
  int64_t read_bytes = 0;
  for (uint32_t part = first_part_[site]; part != kNone; part = parts_[part].next) {
    for (uint32_t i = 0; i < kClassesPerPart; ++i) {
      Born& born = classes[parts_[part].first_class + i];
      born.objects = parts_[part].objects[i];
      born.bytes = parts_[part].bytes[i];
      read_bytes += born.bytes;
    }
  }
  if (is_pool && read_bytes > 0) {
    const double share = static_cast<double>(bytes) / static_cast<double>(read_bytes);
    for (Born& born : classes) born.bytes = static_cast<int64_t>(static_cast<double>(born.bytes) * share);
  }
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
