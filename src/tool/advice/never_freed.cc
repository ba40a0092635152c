// kNeverFreed: functions whose memory grows until the end.
#include <cmath>

#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

void AdviseNeverFreed(const Findings& found, AdviceReport& report) {
  if (found.duration < kMinCourseNanos) return;
  for (size_t a = 0; a < found.accounts.size(); ++a) {
    Advice advice = found.AdviceOn(AdviceKind::kNeverFreed, a);
    double per_second = 0;
    for (uint32_t g = 0; g < found.groups.size(); ++g) {
      const Group& group = found.groups[g];
      if (group.account != a || group.kept_bytes < PercentOf(kMinLeakPercent, found.accounts[a].peak)) continue;
      const LifeJudgement judgement = JudgeLives(found.life_tables[g]);
      if (judgement.finding != LifeJudgement::Finding::kLeak) continue;
      per_second += judgement.per_second * kLifeTimeParts * 1e9 / static_cast<double>(found.duration);
      advice.bytes = Plus(advice.bytes, group.kept_bytes);
      advice.sites.push_back(found.SiteOf(g, group.kept_bytes, group.kept_count));
    }
    if (advice.sites.empty()) continue;
    advice.text = Cat("Memory of ", Shorten(advice.sites), " grows until the end: +", Bytes(advice.bytes), ", ",
                      Bytes(static_cast<int64_t>(per_second)), " each second.");
    const std::optional<int64_t> limit = found.LimitOf(a / kMemorySpaceCount);
    if (a % kMemorySpaceCount == static_cast<size_t>(MemorySpace::kDevice) && limit.has_value() && *limit > 0) {
      const double left = static_cast<double>(Minus(*limit, found.accounts[a].in_use)) / per_second;
      if (left > 0 && left < 1e9)
        advice.text += Cat(" At this rate the limit is reached in ", Nanos(std::llround(left * 1e9)), ".");
    }
    advice.how =
        "The ages of the buffers of each function are judged as hbmprof leaks does. Counts are buffers that were "
        "allocated in the recording and are live at its end.";
    report.advice.push_back(std::move(advice));
  }
}

}  // namespace hbmprof::tool::advise
