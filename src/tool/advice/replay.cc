// The second pass: the recording is replayed with each change that the survey suggests.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

bool Analysis::IsMuch(int64_t pairs, const Account& account) const {
  return pairs >= kMinCalls && 2 * pairs >= PercentOf(kMinCallPercent, account.calls) &&
         static_cast<double>(pairs) >= kMinPerSecond * static_cast<double>(nanos_) / 1e9;
}

void Analysis::PlanReplays() {
  churns_.assign(groups_.size(), false);
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    Account& account = accounts_[groups_[g].account];
    if (!IsMuch(groups_[g].short_lived, account)) continue;
    churns_[g] = true;
    account.kept.is_used = true;
  }
  for (Account& account : accounts_) {
    account.held.is_used = IsMuch(account.reallocated, account);
    account.in_place.is_used = account.overlaps > 0;
    if (!IsMuch(account.short_lived, account)) continue;
    // The first pool serves the sizes of 95 % of the short-lived buffers, the second pool those of all of them.
    for (const int64_t percent : {95, 100}) {
      int64_t sum = 0;
      int64_t live = 0;
      size_t power = 0;
      for (; power < account.sizes.size(); ++power) {
        sum += account.sizes[power].short_lived;
        live = Plus(live, account.sizes[power].max_live_bytes);
        if (sum >= account.short_lived - PercentOf(100 - percent, account.short_lived)) break;
      }
      const int64_t limit = int64_t{1} << power;
      if (!account.pools.empty() && account.pools.back().limit == limit) continue;
      account.pools.emplace_back();
      account.pools.back().limit = limit;
      constexpr int64_t kSegments = 8;
      account.pools.back().pool.emplace(live / kSegments);
    }
  }
}

void Analysis::ReplayBegin(Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  const uint32_t group = group_of_[buffer.site];
  Account& account = accounts_[groups_[group].account];
  const bool is_segment = tables_.site_kinds[buffer.site] == RecordingTables::SiteKind::kSegment;
  ++groups_[group].live;
  for (PoolSimulation& pool : account.pools) {
    // This limits a pool to less than 2^62 bytes, even if the sizes in the file are wrong.
    if (is_segment || buffer.bytes > pool.limit || pool.pool->reserved_bytes() >> 60 != 0) continue;
    pool.live = Plus(pool.live, buffer.bytes);
    if (&pool == &account.pools[0]) {
      buffer.extra = pool.pool->Allocate(buffer.bytes);
    } else {
      second_addresses_[event.id] = pool.pool->Allocate(buffer.bytes);
    }
    if (event.kind == RecordedKind::kAlloc) ++pool.calls_saved;
    pool.extra = Minus(pool.pool->reserved_bytes(), pool.live);
  }
  if (event.kind != RecordedKind::kAlloc) return;
  if (churns_[group]) {
    int64_t& free = kept_[{group, buffer.bytes}];
    if (free > 0) {
      --free;
      account.kept.extra = Minus(account.kept.extra, buffer.bytes);
      ++account.kept.calls_saved;
    }
  }
  ThreadState& thread = threads_[event.thread];
  ++thread.events;
  if (IsReallocation(thread, buffer) && held_[static_cast<size_t>(thread.freed_ordinal)]) {
    account.held.extra = Minus(account.held.extra, buffer.bytes);
    account.held.calls_saved += 2;
  }
  thread.is_free = false;
  thread.recent.push_back({event.id, buffer, thread.events});
  if (overlaps_[static_cast<size_t>(ordinal_)]) account.in_place.extra = Minus(account.in_place.extra, buffer.bytes);
}

void Analysis::ReplayEnd(const Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  const uint32_t group = group_of_[buffer.site];
  Account& account = accounts_[groups_[group].account];
  --groups_[group].live;
  for (PoolSimulation& pool : account.pools) {
    int64_t address = buffer.extra;
    if (&pool != &account.pools[0]) {
      const auto found = second_addresses_.find(event.id);
      address = found == second_addresses_.end() ? -1 : found->second;
      if (found != second_addresses_.end()) second_addresses_.erase(found);
    }
    if (address < 0) continue;
    pool.pool->Free(address);
    pool.live = Minus(pool.live, buffer.bytes);
    if (event.kind == RecordedKind::kFree) ++pool.calls_saved;
    pool.extra = Minus(pool.pool->reserved_bytes(), pool.live);
  }
  if (account.peak_seen) {
    const auto early = account.early.find(event.id);
    if (early != account.early.end() && early->second.ordinal == buffer.ordinal) {
      Account::Freed& freed = account.freed_early[group];
      freed.bytes = Plus(freed.bytes, buffer.bytes);
      ++freed.count;
      freed.last_time = event.time;
      freed_keys_[{groups_[group].account, event.id}] = event.time;
      account.early.erase(early);
    }
  }
  if (event.kind != RecordedKind::kFree) return;
  if (churns_[group]) {
    ++kept_[{group, buffer.bytes}];
    account.kept.extra = Plus(account.kept.extra, buffer.bytes);
    ++account.kept.calls_saved;
  }
  ThreadState& thread = threads_[event.thread];
  ++thread.events;
  if (const auto pair = PairAtEnd(event.id, buffer, event.time, thread); pair.has_value()) {
    account.in_place.extra = Plus(account.in_place.extra, pair->buffer.bytes);
    if (account.peak_seen && pair->buffer.ordinal <= account.peak_ordinal) {
      auto& [bytes, count] = reused_[{group, group_of_[pair->buffer.site]}];
      bytes = Plus(bytes, pair->buffer.bytes);
      ++count;
    }
  }
  thread.is_free = true;
  thread.freed = buffer;
  thread.freed_ordinal = ordinal_;
  if (held_[static_cast<size_t>(ordinal_)]) account.held.extra = Plus(account.held.extra, buffer.bytes);
}

void Analysis::AddIdle(uint32_t segment_site, int64_t bytes) {
  GroupOf(segment_site).idle = Plus(GroupOf(segment_site).idle, bytes);
  AccountOf(segment_site).no_idle.extra = Minus(AccountOf(segment_site).no_idle.extra, bytes);
}

void Analysis::SetIdleAtPeak(size_t account) {
  for (const uint32_t group : pool_groups_[account]) {
    groups_[group].idle_at_peak = groups_[group].idle;
    groups_[group].live_at_peak = groups_[group].live;
  }
}

void Analysis::CheckInstant(size_t number, const RecordedEvent& event, const Live& live) {
  Account& account = accounts_[number];
  for (Simulation* simulation : {&account.kept, &account.held, &account.in_place}) simulation->Check(account.in_use);
  for (PoolSimulation& pool : account.pools) pool.Check(account.in_use);
  if (Plus(account.in_use, account.no_idle.extra) > account.no_idle.peak) {
    account.no_idle.Check(account.in_use);
    SetIdleAtPeak(number);
  }
  const bool is_high = account.in_use > PercentOf(kHighPercent, account.peak);
  if (is_high && account.high_since < 0) account.high_since = event.time;
  if (ordinal_ == account.peak_ordinal) {
    account.peak_seen = true;
    account.peak_begin = account.high_since;
    for (const auto& [id, buffer] : live) {
      if (groups_[group_of_[buffer.site]].account != number || IsBlock(buffer.site)) continue;
      if (buffer.time < account.peak_begin || buffer.ordinal < 0) account.early[id] = buffer;
    }
  }
  if (!is_high && account.high_since >= 0) {
    account.high_nanos += event.time - account.high_since;
    account.high_since = -1;
  }
}

void Analysis::Replay() {
  threads_.assign(threads_.size(), {});
  const SiteTotals totals(tables_);
  pool_groups_.resize(accounts_.size());
  for (uint32_t site = 0; site < tables_.sites.size(); ++site) {
    if (tables_.site_kinds[site] != RecordingTables::SiteKind::kSegment) continue;
    std::vector<uint32_t>& groups = pool_groups_[groups_[group_of_[site]].account];
    if (std::find(groups.begin(), groups.end(), group_of_[site]) == groups.end()) groups.push_back(group_of_[site]);
    AddIdle(site, totals.site(site).bytes);
  }
  for (const RecordingTables::Live& buffer : tables_.live) ++GroupOf(buffer.site).live;
  for (size_t a = 0; a < accounts_.size(); ++a) {
    Account& account = accounts_[a];
    account.in_use = totals.account(a).in_use;
    SetIdleAtPeak(a);
    for (Simulation* simulation : {&account.kept, &account.held, &account.in_place, &account.no_idle}) {
      simulation->Check(account.in_use);
    }
    if (account.in_use > PercentOf(kHighPercent, account.peak)) account.high_since = start_;
  }
  Live live;
  std::vector<size_t> changed;
  ReadEvents(
      live, [this](Buffer& buffer, const RecordedEvent& event) { ReplayBegin(buffer, event); },
      [this](const Buffer& buffer, const RecordedEvent& event) { ReplayEnd(buffer, event); },
      [&](const RecordedEvent& event) {
        if (event.site < tables_.sites.size()) {
          const size_t account = groups_[group_of_[event.site]].account;
          accounts_[account].in_use = Plus(accounts_[account].in_use, SiteTotals::ChangeOf(event));
          if (tables_.site_kinds[event.site] == RecordingTables::SiteKind::kSegment) {
            AddIdle(event.site, SiteTotals::ChangeOf(event));
          }
          if (std::find(changed.begin(), changed.end(), account) == changed.end()) changed.push_back(account);
        }
        if (event.is_continued) return;
        for (const size_t account : changed) CheckInstant(account, event, live);
        changed.clear();
      });
  const bool is_fragmented = std::any_of(fragmentation_.begin(), fragmentation_.end(),
                                         [](const Fragmentation& device) { return device.worst_sample != nullptr; });
  if (is_fragmented) ReadFragments();
  for (Account& account : accounts_) {
    if (account.high_since >= 0) account.high_nanos += start_ + nanos_ - account.high_since;
  }
}

}  // namespace hbmprof::tool::advise
