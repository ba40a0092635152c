// kReuse: buffers that overlap with the ones that they replace, and idle bytes of pools.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

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
    if (!is_similar || old.ordinal >= buffer.ordinal || time - buffer.time > nanos_ / kShortLivedPart ||
        groups_[group_of_[old.site]].account != groups_[group_of_[buffer.site]].account) {
      continue;
    }
    pair = *entry;
    recent.erase(entry);
    break;
  }
  return pair;
}

void Analysis::AdviseReuse(size_t a, AdviceReport& report) {
  const Account& account = accounts_[a];
  const int64_t saved = Minus(account.peak, account.in_place.peak);
  if (account.in_place.is_used && saved > 0 && saved >= PercentOf(kMinPeakPercent, account.peak)) {
    Advice advice;
    advice.kind = AdviceKind::kReuse;
    advice.account = AccountName(tables_, a);
    for (const auto& [pair, sums] : reused_) {
      if (groups_[pair.first].account != a) continue;
      Advice::Site site = SiteOf(pair.first, sums.first, sums.second);
      const std::string next = SiteOf(pair.second, 0, 0).function;
      if (next != site.function) site.function += Cat(", then ", next);
      advice.sites.push_back(std::move(site));
    }
    const std::string names = Shorten(advice.sites, "pair");
    if (!advice.sites.empty()) {
      advice.bytes = saved;
      advice.text = Cat("Free the old buffer of ", names,
                        " before the new one is allocated: now it is freed right after the allocation of a new buffer "
                        "of about the same size. The peak falls by ",
                        Bytes(saved), ".");
      advice.how = Cat("Pairs: the old buffer is freed at most ", kReuseWindow,
                       " events of the thread and 1/100 of the recording's length after the allocation of the new one, "
                       "which is not larger, and not "
                       "smaller than half of it. The recording is replayed with the old buffers freed first.");
      advice.replay = {{"peak_before", account.peak}, {"peak_after", account.in_place.peak}};
      report.advice.push_back(std::move(advice));
    }
  }
  AdviseIdlePools(a, report);
}

void Analysis::AdviseIdlePools(size_t a, AdviceReport& report) {
  const Account& account = accounts_[a];
  const int64_t saved = Minus(account.peak, account.no_idle.peak);
  if (saved <= 0 || saved < PercentOf(kMinFallPercent, account.peak)) return;
  Advice advice;
  advice.kind = AdviceKind::kReuse;
  advice.account = AccountName(tables_, a);
  advice.bytes = saved;
  for (const uint32_t group : pool_groups_[a]) {
    if (groups_[group].idle_at_peak > 0) {
      advice.sites.push_back(SiteOf(group, groups_[group].idle_at_peak, groups_[group].live_at_peak));
    }
  }
  if (advice.sites.empty()) return;
  int64_t idle = 0;
  for (const Advice::Site& site : advice.sites) idle = Plus(idle, site.bytes);
  advice.text =
      Cat("Make the pools smaller, or let other buffers use them: the segments of ", Shorten(advice.sites), " have ",
          Bytes(idle), " without a block when most other memory is in use. The peak falls by ", Bytes(saved), ".");
  advice.how = "The recording is replayed without the bytes of segments that no block covers.";
  advice.replay = {{"peak_before", account.peak}, {"peak_after", account.no_idle.peak}};
  report.advice.push_back(std::move(advice));
}

}  // namespace hbmprof::tool::advise
