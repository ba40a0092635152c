// The first pass: lifetimes, sizes and the peak of each account.
#include <cmath>

#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

bool Analysis::IsReallocation(const ThreadState& thread, const Buffer& buffer) const {
  return thread.is_free && thread.freed.bytes == buffer.bytes &&
         groups[group_of[thread.freed.site]].account == groups[group_of[buffer.site]].account;
}

std::optional<ThreadState::Recent> Analysis::PairAtEnd(uint64_t id, const Buffer& old, int64_t time,
                                                       ThreadState& thread) {
  std::optional<ThreadState::Recent> pair;
  auto& recent = thread.recent;
  while (!recent.empty() && thread.events - recent.front().event > kReuseWindow) recent.pop_front();
  for (auto entry = recent.begin(); entry != recent.end(); ++entry) {
    if (entry->id == id) {
      recent.erase(entry);
      break;
    }
  }
  for (auto entry = recent.begin(); entry != recent.end(); ++entry) {
    const Buffer& buffer = entry->buffer;
    const bool is_similar = old.bytes >= buffer.bytes && old.bytes / 2 <= buffer.bytes;
    if (!is_similar || old.ordinal >= buffer.ordinal || time - buffer.time > duration / kShortLivedPart ||
        groups[group_of[old.site]].account != groups[group_of[buffer.site]].account) {
      continue;
    }
    pair = *entry;
    recent.erase(entry);
    break;
  }
  return pair;
}

void Analysis::SurveyBegin(const Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  Group& group = GroupOf(buffer.site);
  Account& account = accounts[group.account];
  SizeClass& size = account.sizes[static_cast<size_t>(PowerOf(buffer.bytes))];
  size.live_bytes = Plus(size.live_bytes, buffer.bytes);
  size.max_live_bytes = std::max(size.max_live_bytes, size.live_bytes);
  if (event.kind != RecordedKind::kAlloc) return;
  ++group.calls;
  ++account.calls;
  AddAddresses(event.id, buffer.bytes, buffer.site);
  ThreadState& thread = threads_[event.thread];
  ++thread.events;
  if (IsReallocation(thread, buffer)) {
    held_[static_cast<size_t>(thread.freed_ordinal)] = true;
    ++account.reallocated;
    ++reallocated[{group_of[thread.freed.site], group_of[buffer.site]}];
  }
  thread.is_free = false;
  thread.recent.push_back({event.id, buffer, thread.events});
}

void Analysis::SurveyEnd(const Buffer& buffer, const RecordedEvent& event) {
  if (event.kind == RecordedKind::kFree) CountLife(buffer, event.time, true);
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  Group& group = GroupOf(buffer.site);
  Account& account = accounts[group.account];
  if (buffer.ordinal >= 0) {
    SizeClass& size = account.sizes[static_cast<size_t>(PowerOf(buffer.bytes))];
    size.live_bytes = Minus(size.live_bytes, buffer.bytes);
  }
  if (event.kind != RecordedKind::kFree) return;
  ++account.calls;
  ThreadState& thread = threads_[event.thread];
  ++thread.events;
  if (const auto pair = PairAtEnd(event.id, buffer, event.time, thread); pair.has_value()) {
    overlaps_[static_cast<size_t>(pair->buffer.ordinal)] = true;
    ++account.overlaps;
  }
  thread.is_free = true;
  thread.freed = buffer;
  thread.freed_ordinal = ordinal_;
  if (buffer.ordinal >= 0) CountLifetime(group, buffer.bytes, event.time - buffer.time);
}

void Analysis::CountLifetime(Group& group, int64_t bytes, int64_t nanos) {
  ++group.lifetimes[static_cast<size_t>(PowerOf(nanos))];
  if (nanos > duration / kShortLivedPart) return;
  ++group.short_lived;
  group.short_bytes = Plus(group.short_bytes, bytes);
  Account& account = accounts[group.account];
  ++account.short_lived;
  ++account.sizes[static_cast<size_t>(PowerOf(bytes))].short_lived;
  constexpr size_t kMaxSizes = 4096;
  if (account.size_counts.size() < kMaxSizes || account.size_counts.count(bytes) > 0) ++account.size_counts[bytes];
}

void Analysis::CountLife(const Buffer& buffer, int64_t end, bool is_freed) {
  if (tables.site_kinds[buffer.site] == RecordingTables::SiteKind::kSegment) return;
  LifeTable& table = life_tables[group_of[buffer.site]];
  const auto parts = [this](int64_t nanos) {
    return static_cast<double>(nanos) * kLifeTimeParts / static_cast<double>(std::max<int64_t>(duration, 1));
  };
  if (is_freed) {
    const double age = parts(end - buffer.time);
    const size_t octave = age < 1 ? 0 : static_cast<size_t>(std::log2(age)) + 1;
    table.freed.resize(std::max(table.freed.size(), octave + 1));
    ++table.freed[octave];
    return;
  }
  table.now = kLifeTimeParts;
  table.class_seconds = kLifeTimeParts / kLifeClasses;
  table.live.resize(kLifeClasses);
  table.live_bytes.resize(kLifeClasses);
  const auto birth = static_cast<size_t>(std::max(0.0, parts(buffer.time - start) / table.class_seconds));
  ++table.live[std::min(birth, kLifeClasses - 1)];
  table.live_bytes[std::min(birth, kLifeClasses - 1)] += static_cast<double>(buffer.bytes);
}

void Analysis::Survey() {
  held_.assign(static_cast<size_t>(recording_.event_count()), false);
  overlaps_.assign(static_cast<size_t>(recording_.event_count()), false);
  threads_.assign(std::max<size_t>(tables.threads.size(), 1), {});
  life_tables.assign(groups.size(), {});
  SiteTotals totals(tables);
  for (const RecordingTables::Live& buffer : tables.live) AddAddresses(buffer.id, buffer.bytes, buffer.site);
  Live live;
  ReadEvents(
      live, [this](const Buffer& buffer, const RecordedEvent& event) { SurveyBegin(buffer, event); },
      [this](const Buffer& buffer, const RecordedEvent& event) { SurveyEnd(buffer, event); },
      [this, &totals](const RecordedEvent& event) {
        if (event.kind == RecordedKind::kAllocAndFree)
          CountLife({event.site, event.bytes, event.time}, event.time, true);
        if (event.kind == RecordedKind::kAllocAndFree && !IsBlock(event.site) && event.bytes > 0) {
          GroupOf(event.site).calls += 1;
          AccountOf(event.site).calls += 2;
          CountLifetime(GroupOf(event.site), event.bytes, 0);
        }
        ReadFreeBytes(event.time, totals);
        if (event.kind == RecordedKind::kFailed) CountFailure(event, totals);
        totals.Apply(event);
      });
  for (size_t a = 0; a < accounts.size(); ++a) {
    accounts[a].peak = totals.account(a).peak;
    accounts[a].peak_time = totals.account(a).peak_time;
    accounts[a].peak_ordinal = totals.account(a).peak_event;
  }
  for (const auto& [key, buffer] : live) {
    CountLife(buffer, 0, false);
    if (buffer.ordinal < 0 || tables.site_kinds[buffer.site] == RecordingTables::SiteKind::kSegment) continue;
    ++GroupOf(buffer.site).kept_count;
    GroupOf(buffer.site).kept_bytes = Plus(GroupOf(buffer.site).kept_bytes, buffer.bytes);
  }
}

}  // namespace hbmprof::tool::advise
