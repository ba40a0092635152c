// The first pass: lifetimes, sizes and the peak of each account.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

bool Analysis::ReallocatesAtBegin(uint64_t id, const Buffer& buffer, ThreadState& thread) {
  thread.recent.push_back({id, buffer, ++thread.events});
  return std::exchange(thread.is_free, false) && thread.freed.bytes == buffer.bytes &&
         groups[group_of[thread.freed.site]].account == groups[group_of[buffer.site]].account;
}

std::optional<ThreadState::Recent> Analysis::PairAtEnd(uint64_t id, const Buffer& old, int64_t time,
                                                       ThreadState& thread) {
  std::optional<ThreadState::Recent> pair;
  auto& recent = thread.recent;
  ++thread.events;
  while (!recent.empty() && thread.events - recent.front().event > kReuseWindow) recent.pop_front();
  const auto itself = absl::c_find_if(recent, [id](const ThreadState::Recent& entry) { return entry.id == id; });
  if (itself != recent.end()) recent.erase(itself);
  const auto replaces = [&](const ThreadState::Recent& entry) {
    const Buffer& buffer = entry.buffer;
    return old.bytes >= buffer.bytes && old.bytes / 2 <= buffer.bytes && old.ordinal < buffer.ordinal &&
           time - buffer.time <= duration / kShortLivedPart &&
           groups[group_of[old.site]].account == groups[group_of[buffer.site]].account;
  };
  if (const auto entry = absl::c_find_if(recent, replaces); entry != recent.end()) {
    pair = *entry;
    recent.erase(entry);
  }
  thread.is_free = true;
  thread.freed = old;
  thread.freed_ordinal = ordinal_;
  return pair;
}

void Analysis::SurveyBegin(const Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  Group& group = GroupOf(buffer.site);
  Account& account = accounts[group.account];
  SizeClass& size = account.sizes[PowerOf(buffer.bytes)];
  AddTo(size.live_bytes, buffer.bytes);
  size.max_live_bytes = std::max(size.max_live_bytes, size.live_bytes);
  if (event.kind != RecordedKind::kAlloc) return;
  ++group.calls;
  ++account.calls;
  AddAddresses(event.id, buffer.bytes, buffer.site);
  ThreadState& thread = threads_[event.thread];
  if (ReallocatesAtBegin(event.id, buffer, thread)) {
    held_[static_cast<size_t>(thread.freed_ordinal)] = true;
    ++account.reallocated;
    ++reallocated[{group_of[thread.freed.site], group_of[buffer.site]}];
  }
}

void Analysis::SurveyEnd(const Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  Group& group = GroupOf(buffer.site);
  Account& account = accounts[group.account];
  if (buffer.ordinal >= 0) {
    SizeClass& size = account.sizes[PowerOf(buffer.bytes)];
    size.live_bytes = Minus(size.live_bytes, buffer.bytes);
  }
  if (event.kind != RecordedKind::kFree) return;
  ++account.calls;
  if (const auto pair = PairAtEnd(event.id, buffer, event.time, threads_[event.thread]); pair.has_value()) {
    overlaps_[static_cast<size_t>(pair->buffer.ordinal)] = true;
    ++account.overlaps;
  }
  if (buffer.ordinal >= 0) CountLifetime(group, buffer.bytes, event.time - buffer.time);
}

void Analysis::CountLifetime(Group& group, int64_t bytes, int64_t nanos) {
  ++group.lifetimes[PowerOf(nanos)];
  if (nanos > duration / kShortLivedPart) return;
  ++group.short_lived;
  AddTo(group.short_bytes, bytes);
  Account& account = accounts[group.account];
  ++account.short_lived;
  ++account.sizes[PowerOf(bytes)].short_lived;
  constexpr size_t kMaxSizes = 4096;
  if (account.size_counts.size() < kMaxSizes || account.size_counts.count(bytes) > 0) ++account.size_counts[bytes];
}

void Analysis::Survey() {
  held_.assign(static_cast<size_t>(recording_.event_count()), false);
  overlaps_.assign(static_cast<size_t>(recording_.event_count()), false);
  threads_.assign(std::max<size_t>(tables.threads.size(), 1), {});
  SiteTotals totals(tables);
  for (const RecordingTables::Live& buffer : tables.live) AddAddresses(buffer.id, buffer.bytes, buffer.site);
  Live live;
  ReadEvents(
      live, [this](const Buffer& buffer, const RecordedEvent& event) { SurveyBegin(buffer, event); },
      [this](const Buffer& buffer, const RecordedEvent& event) { SurveyEnd(buffer, event); },
      [this, &totals](const RecordedEvent& event) {
        ReadFreeBytes(event.time, totals);
        if (event.kind == RecordedKind::kFailed) CountFailure(event, totals);
        totals.Apply(event);
      });
  for (size_t a = 0; a < accounts.size(); ++a) {
    accounts[a].peak = totals.account(a).peak;
    accounts[a].peak_time = totals.account(a).peak_time;
    accounts[a].peak_ordinal = totals.account(a).peak_event;
  }
}

}  // namespace hbmprof::tool::advise
