// kPeak: buffers that are live at a short peak and are freed after it.
#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

void AdvisePeaks(const Findings& found, RecordingReader& recording, AdviceReport& report) {
  struct Candidate {
    uint32_t group;
    Simulation without;
  };
  std::vector<std::vector<Candidate>> candidates(found.accounts.size());
  bool any = false;
  for (size_t a = 0; a < found.accounts.size(); ++a) {
    const Account& account = found.accounts[a];
    if (!account.peak_seen || account.high_nanos > PercentOf(kShortPeakPercent, found.duration)) continue;
    for (const auto& [group, freed] : account.freed_early) {
      if (freed.bytes < PercentOf(kMinFallPercent, account.peak)) continue;
      candidates[a].push_back({group, {}});
      any = true;
    }
    if (candidates[a].size() > kMaxCandidates) {
      absl::c_sort(candidates[a], [&account](const Candidate& x, const Candidate& y) {
        return account.freed_early.at(x.group).bytes > account.freed_early.at(y.group).bytes;
      });
      candidates[a].resize(kMaxCandidates);
    }
  }
  if (!any) return;
  // By account: the high use around the peak has begun, so the buffers of the candidates are not counted.
  std::vector<bool> is_freed(found.accounts.size());
  SiteTotals totals(found.tables);
  RecordingCursor cursor(recording);
  RecordedEvent event;
  while (cursor.Next(&event)) {
    totals.Apply(event);
    if (event.site >= found.tables.sites.size()) continue;
    const uint32_t group = found.group_of[event.site];
    const size_t a = found.groups[group].account;
    if (candidates[a].empty()) continue;
    const bool begins = !is_freed[a] && event.time >= found.accounts[a].peak_begin;
    if (begins) is_freed[a] = true;
    int64_t ended = 0;
    if (internal::Ends(event.kind)) {
      const auto freed = found.freed_keys.find({a, event.id});
      if (freed != found.freed_keys.end() && freed->second == event.time) ended = event.bytes;
    }
    for (Candidate& candidate : candidates[a]) {
      if (begins)
        candidate.without.extra =
            Minus(candidate.without.extra, found.accounts[a].freed_early.at(candidate.group).bytes);
      if (candidate.group == group) AddTo(candidate.without.extra, ended);
      if (!event.is_continued) candidate.without.Check(totals.account(a).in_use);
    }
  }
  for (size_t a = 0; a < found.accounts.size(); ++a) {
    const Account& account = found.accounts[a];
    Advice advice = found.AdviceOn(AdviceKind::kPeak, a);
    absl::c_sort(candidates[a], [](const Candidate& x, const Candidate& y) { return x.without.peak < y.without.peak; });
    for (const Candidate& candidate : candidates[a]) {
      const int64_t fall = Minus(account.peak, candidate.without.peak);
      if (fall < PercentOf(kMinFallPercent, account.peak) || advice.sites.size() == kShownSites) break;
      advice.sites.push_back(found.SiteOf(candidate.group, fall, account.freed_early.at(candidate.group).count));
    }
    if (advice.sites.empty()) continue;
    const Candidate& best = candidates[a][0];
    const Account::Freed& freed = account.freed_early.at(best.group);
    advice.bytes = advice.sites[0].bytes;
    advice.text =
        Cat("Free buffers of ", advice.sites[0].function, " before ", found.At(account.peak_begin), ": ", freed.count,
            " buffers (", Bytes(freed.bytes), ") are live at the peak and are freed ",
            Nanos(freed.last_time - account.peak_time), " after it. The peak falls by ", Bytes(advice.bytes), ".");
    advice.how = Cat("More than ", kHighPercent, " % of the peak is in use for ", Nanos(account.high_nanos),
                     " only. The recording is replayed without the buffers of one function that were allocated before "
                     "this time and are freed after the peak. Bytes are the fall of the peak.");
    advice.replay = {{"peak_before", account.peak}, {"peak_after", best.without.peak}};
    report.advice.push_back(std::move(advice));
  }
}

}  // namespace hbmprof::tool::advise
