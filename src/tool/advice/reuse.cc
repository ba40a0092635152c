// kReuse: buffers that overlap with the ones that they replace, and idle bytes of pools.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {
namespace {

void AdviseIdlePools(const Findings& found, size_t a, AdviceReport& report) {
  const Account& account = found.accounts[a];
  const int64_t saved = Minus(account.peak, account.no_idle.peak);
  if (saved <= 0 || saved < PercentOf(kMinFallPercent, account.peak)) return;
  Advice advice = found.AdviceOn(AdviceKind::kReuse, a);
  advice.bytes = saved;
  for (const uint32_t group : found.pool_groups[a]) {
    if (found.groups[group].idle_at_peak > 0) {
      advice.sites.push_back(found.SiteOf(group, found.groups[group].idle_at_peak, found.groups[group].live_at_peak));
    }
  }
  if (advice.sites.empty()) return;
  int64_t idle = 0;
  for (const Advice::Site& site : advice.sites) AddTo(idle, site.bytes);
  advice.text =
      Cat("Make the pools smaller, or let other buffers use them: the segments of ", Shorten(advice.sites), " have ",
          Bytes(idle), " without a block when most other memory is in use. The peak falls by ", Bytes(saved), ".");
  advice.how = "The recording is replayed without the bytes of segments that no block covers.";
  advice.replay = {{"peak_before", account.peak}, {"peak_after", account.no_idle.peak}};
  report.advice.push_back(std::move(advice));
}

}  // namespace

void AdviseReuse(const Findings& found, size_t a, AdviceReport& report) {
  const Account& account = found.accounts[a];
  const int64_t saved = Minus(account.peak, account.in_place.peak);
  if (account.in_place.is_used && saved > 0 && saved >= PercentOf(kMinPeakPercent, account.peak)) {
    Advice advice = found.AdviceOn(AdviceKind::kReuse, a);
    for (const auto& [pair, sums] : found.reused) {
      if (found.groups[pair.first].account != a) continue;
      advice.sites.push_back(found.SiteOfPair(pair, sums.first, sums.second));
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
  AdviseIdlePools(found, a, report);
}

}  // namespace hbmprof::tool::advise
