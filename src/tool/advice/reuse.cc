// kReuse: buffers that overlap with the ones that they replace, and idle memory of pools.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {
namespace {

void AdviseIdlePools(const Findings& found, size_t a, AdviceReport& report) {
  const Account& account = found.accounts[a];
  const int64_t saved = Minus(account.peak, account.no_idle.peak);
  if (saved <= 0 || saved < PercentOf(kMinFallPercent, account.peak)) return;
  Advice advice = found.AdviceOn(AdviceKind::kReuse, a);
  advice.bytes = saved;
  advice.sites = account.idle_at_peak;
  if (advice.sites.empty()) return;
  int64_t idle = 0;
  for (const Advice::Site& site : advice.sites) AddTo(idle, site.bytes);
  Shorten(advice.sites);
  advice.text = Cat("Make the pools smaller, or let other buffers use them: they have ", Bytes(idle),
                    " of idle memory when most other memory is in use. The peak falls by ", Bytes(saved), ".");
  advice.how = "The recording is replayed without the idle memory of pools.";
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
