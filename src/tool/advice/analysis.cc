#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

int64_t PercentOf(int64_t percent, int64_t value) { return value / 100 * percent + value % 100 * percent / 100; }

std::string Nanos(int64_t nanos) {
  const auto value = static_cast<double>(nanos);
  if (nanos < 1000) return Cat(nanos, " ns");
  if (nanos < 1000000) return absl::StrFormat("%.1f us", value / 1e3);
  return nanos < 1000000000 ? absl::StrFormat("%.1f ms", value / 1e6) : absl::StrFormat("%.1f s", value / 1e9);
}

size_t PowerOf(int64_t value) {
  if (value <= 1) return 0;
  return std::min<size_t>(62, 64 - static_cast<size_t>(__builtin_clzll(static_cast<uint64_t>(value - 1))));
}

Analysis::Analysis(RecordingReader& recording, const RecordedStacks& stacks, Progress& progress)
    : Findings(recording.tables(), stacks), recording_(recording), cursor_(recording, &progress) {
  accounts.resize(tables.names.devices.size() * kMemorySpaceCount);
  fragmentation.resize(tables.names.devices.size());
  for (size_t d = 0; d < fragmentation.size(); ++d) fragmentation[d].device = d;
  start = tables.start_time;
  duration = std::max<int64_t>(recording.end_time() - start, 1);
  FindGroups();
}

void Analysis::Run(AdviceReport& report) {
  ReadDriverSamples();
  Survey();
  PlanReplays();
  Replay();
  report.seconds = static_cast<double>(duration) / 1e9;
  for (const Fragmentation& device : fragmentation) AdviseFragmentation(*this, device, report);
  AdvisePeaks(*this, recording_, report);
  for (size_t a = 0; a < accounts.size(); ++a) {
    const Account& account = accounts[a];
    if (account.peak == 0 && account.calls == 0) continue;
    report.accounts.push_back(
        {AccountName(tables, a), account.peak, static_cast<double>(account.peak_time - start) / 1e9, account.calls});
    AdviseReuse(*this, a, report);
    AdviseChurn(*this, a, report);
    AdviseReallocated(*this, a, report);
    AdvisePool(*this, a, report);
  }
  absl::c_stable_sort(report.advice, [](const Advice& a, const Advice& b) { return a.kind < b.kind; });
}

void Analysis::FindGroups() {
  std::map<std::pair<std::string, size_t>, uint32_t> numbers;
  group_of.resize(tables.sites.size());
  for (uint32_t site = 0; site < tables.sites.size(); ++site) {
    const Snapshot::Sample& sample = tables.sites[site];
    const size_t account = tool::AccountOf(sample);
    const auto [entry, is_new] = numbers.try_emplace({stacks.own_frame(sample.stack).name, account}, groups.size());
    if (is_new) groups.push_back({site, account});
    group_of[site] = entry->second;
  }
}

Advice::Site Findings::SiteOf(uint32_t group, int64_t bytes, int64_t count) const {
  const RecordedStacks::Frame& frame = stacks.own_frame(tables.sites[groups[group].site].stack);
  return {frame.name, frame.Position(), bytes, count};
}

Advice::Site Findings::SiteOfPair(const GroupPair& pair, int64_t bytes, int64_t count) const {
  Advice::Site site = SiteOf(pair.first, bytes, count);
  const std::string next = SiteOf(pair.second, 0, 0).function;
  if (next != site.function) site.function += Cat(", then ", next);
  return site;
}

Advice Findings::AdviceOn(AdviceKind kind, size_t account) const { return {kind, AccountName(tables, account)}; }

std::string Shorten(std::vector<Advice::Site>& sites, const char* what, bool by_count) {
  absl::c_stable_sort(sites, [by_count](const Advice::Site& a, const Advice::Site& b) {
    return by_count || a.bytes == b.bytes ? a.count > b.count : a.bytes > b.bytes;
  });
  std::string text = sites.empty() ? "" : sites[0].function;
  if (sites.size() > 1) text += Cat(" and ", sites.size() - 1, " other ", what, sites.size() == 2 ? "" : "s");
  if (sites.size() > kShownSites) sites.resize(kShownSites);
  return text;
}

}  // namespace hbmprof::tool::advise

namespace hbmprof::tool {

const char* AdviceKindName(AdviceKind kind) {
  constexpr const char* kNames[] = {"never_freed", "fragmentation", "peak", "reuse", "churn", "reallocated", "pool"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<AdviceReport> Advise(RecordingReader& recording, const RecordedStacks& stacks, const ProfileSet& states,
                                    Progress& progress) {
  AdviceReport report;
  RETURN_IF_ERROR(advise::AdviseNeverFreed(states, report));
  advise::Analysis(recording, stacks, progress).Run(report);
  return report;
}

}  // namespace hbmprof::tool
