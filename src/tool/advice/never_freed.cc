// kNeverFreed: the leaks that `hbmprof leaks` finds in the recording, in its words.
#include "src/tool/advice/analysis.h"
#include "src/tool/growth/growth.h"

namespace hbmprof::tool::advise {

absl::Status AdviseNeverFreed(const ProfileSet& states, AdviceReport& report) {
  ASSIGN_OR_RETURN(const size_t type, states.TypeNamed(""));
  ASSIGN_OR_RETURN(const size_t objects, states.TypeNamed("inuse_objects"));
  ASSIGN_OR_RETURN(const DumpSeries series, OrderDumps(states, ""));
  const ProfileSet::File& now = states.files()[series.files.back()];
  std::map<std::string, std::vector<SiteGrowth>> leaks;  // by device
  for (SiteGrowth& site : RankGrowth(states, series, type)) {
    if (site.verdict == Verdict::kLeak) leaks[DeviceOf(states, now, type, site.stack)].push_back(std::move(site));
  }
  for (const auto& [device, sites] : leaks) {
    Advice advice = {AdviceKind::kNeverFreed, device};
    advice.text = LeakSentence(states, now, type, sites);
    advice.how = "It is judged as in hbmprof leaks. Bytes are the growth; counts are the live buffers at the end.";
    std::map<std::pair<std::string, std::string>, Advice::Site> functions;
    for (const SiteGrowth& site : sites) {
      const std::vector<ProfileSet::ShownFrame> stack = states.ShownStack(site.stack);
      Advice::Site& function = functions[{NameOf(states, site), stack.empty() ? "" : stack[0].Position()}];
      AddTo(function.bytes, site.growth);
      AddTo(function.count, SumOf(states, now, objects, site.stack));
      AddTo(advice.bytes, site.growth);
    }
    for (const auto& [key, sum] : functions) advice.sites.push_back({key.first, key.second, sum.bytes, sum.count});
    Shorten(advice.sites);
    report.advice.push_back(std::move(advice));
  }
  return absl::OkStatus();
}

}  // namespace hbmprof::tool::advise
