// The second pass: the recording is replayed with each change that the survey suggests.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

bool Analysis::IsMuch(int64_t pairs, const Account& account) const {
  return pairs >= kMinCalls && 2 * pairs >= PercentOf(kMinCallPercent, account.calls) &&
         static_cast<double>(pairs) >= kMinPerSecond * static_cast<double>(duration) / 1e9;
}

void Analysis::PlanReplays() {
  churns.assign(groups.size(), false);
  for (uint32_t g = 0; g < groups.size(); ++g) {
    Account& account = accounts[groups[g].account];
    if (!IsMuch(groups[g].short_lived, account)) continue;
    churns[g] = true;
    account.kept.is_used = true;
  }
  for (Account& account : accounts) {
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
        AddTo(live, account.sizes[power].max_live_bytes);
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

void Analysis::ReplayBegin(const Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  const uint32_t group = group_of[buffer.site];
  Account& account = accounts[groups[group].account];
  const bool is_segment = tables.IsSegment(buffer.site);
  for (PoolSimulation& pool : account.pools) {
    // This limits a pool to less than 2^62 bytes, even if the sizes in the file are wrong.
    if (is_segment || buffer.bytes > pool.limit || pool.pool->reserved_bytes() >> 60 != 0) continue;
    AddTo(pool.live, buffer.bytes);
    pool.blocks[event.id] = pool.pool->Allocate(buffer.bytes);
    if (event.kind == RecordedKind::kAlloc) ++pool.calls_saved;
    pool.extra = Minus(pool.pool->reserved_bytes(), pool.live);
  }
  if (event.kind != RecordedKind::kAlloc) return;
  if (churns[group]) {
    int64_t& free = kept_[{group, buffer.bytes}];
    if (free > 0) {
      --free;
      account.kept.extra = Minus(account.kept.extra, buffer.bytes);
      ++account.kept.calls_saved;
    }
  }
  ThreadState& thread = threads_[event.thread];
  if (ReallocatesAtBegin(event.id, buffer, thread) && held_[static_cast<size_t>(thread.freed_ordinal)]) {
    account.held.extra = Minus(account.held.extra, buffer.bytes);
    account.held.calls_saved += 2;
  }
  if (overlaps_[static_cast<size_t>(ordinal_)]) account.in_place.extra = Minus(account.in_place.extra, buffer.bytes);
}

void Analysis::ReplayEnd(const Buffer& buffer, const RecordedEvent& event) {
  if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
  const uint32_t group = group_of[buffer.site];
  Account& account = accounts[groups[group].account];
  for (PoolSimulation& pool : account.pools) {
    const auto found = pool.blocks.find(event.id);
    if (found == pool.blocks.end()) continue;
    pool.pool->Free(found->second);
    pool.blocks.erase(found);
    pool.live = Minus(pool.live, buffer.bytes);
    if (event.kind == RecordedKind::kFree) ++pool.calls_saved;
    pool.extra = Minus(pool.pool->reserved_bytes(), pool.live);
  }
  if (account.peak_seen) {
    const auto early = account.early.find(event.id);
    if (early != account.early.end() && early->second.ordinal == buffer.ordinal) {
      Account::Freed& freed = account.freed_early[group];
      AddTo(freed.bytes, buffer.bytes);
      ++freed.count;
      freed.last_time = event.time;
      freed_keys[{groups[group].account, event.id}] = event.time;
      account.early.erase(early);
    }
  }
  if (event.kind != RecordedKind::kFree) return;
  if (churns[group]) {
    ++kept_[{group, buffer.bytes}];
    AddTo(account.kept.extra, buffer.bytes);
    ++account.kept.calls_saved;
  }
  if (const auto pair = PairAtEnd(event.id, buffer, event.time, threads_[event.thread]); pair.has_value()) {
    AddTo(account.in_place.extra, pair->buffer.bytes);
    if (account.peak_seen && pair->buffer.ordinal <= account.peak_ordinal) {
      auto& [bytes, count] = reused[{group, group_of[pair->buffer.site]}];
      AddTo(bytes, pair->buffer.bytes);
      ++count;
    }
  }
  if (held_[static_cast<size_t>(ordinal_)]) AddTo(account.held.extra, buffer.bytes);
}

void Analysis::CheckIdle(size_t number, const SiteTotals& totals) {
  Account& account = accounts[number];
  account.no_idle.extra = Minus(0, totals.account(number).idle);
  if (Plus(account.in_use, account.no_idle.extra) <= account.no_idle.peak) return;
  account.no_idle.Check(account.in_use);
  account.idle_at_peak.clear();
  for (auto row = static_cast<uint32_t>(tables.sites.size()); row < totals.row_count(); ++row) {
    if (totals.account_of(row) != number || totals.row(row).bytes <= 0) continue;
    account.idle_at_peak.push_back(
        {stacks.own_frame(totals.stack_of(row)).name, "", totals.row(row).bytes, totals.row(row).objects});
  }
}

void Analysis::CheckInstant(size_t number, const RecordedEvent& event, const SiteTotals& totals, const Live& live) {
  Account& account = accounts[number];
  account.in_use = totals.account(number).in_use;
  CheckIdle(number, totals);
  for (Simulation* simulation : {&account.kept, &account.held, &account.in_place}) simulation->Check(account.in_use);
  for (PoolSimulation& pool : account.pools) pool.Check(account.in_use);
  const bool is_high = account.in_use > PercentOf(kHighPercent, account.peak);
  if (is_high && account.high_since < 0) account.high_since = event.time;
  if (ordinal_ == account.peak_ordinal) {
    account.peak_seen = true;
    account.peak_begin = account.high_since;
    for (const auto& [id, buffer] : live) {
      if (groups[group_of[buffer.site]].account != number || IsBlock(buffer.site)) continue;
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
  SiteTotals totals(tables);
  for (size_t a = 0; a < accounts.size(); ++a) {
    Account& account = accounts[a];
    account.in_use = totals.account(a).in_use;
    CheckIdle(a, totals);
    for (Simulation* simulation : {&account.kept, &account.held, &account.in_place}) simulation->Check(account.in_use);
    if (account.in_use > PercentOf(kHighPercent, account.peak)) account.high_since = start;
  }
  Live live;
  ReadEvents(
      live, [this](const Buffer& buffer, const RecordedEvent& event) { ReplayBegin(buffer, event); },
      [this](const Buffer& buffer, const RecordedEvent& event) { ReplayEnd(buffer, event); },
      [&](const RecordedEvent& event) {
        if (!totals.Apply(event)) return;
        for (const size_t account : totals.changed_accounts()) CheckInstant(account, event, totals, live);
      });
  for (Account& account : accounts) {
    if (account.high_since >= 0) account.high_nanos += start + duration - account.high_since;
  }
}

}  // namespace hbmprof::tool::advise
