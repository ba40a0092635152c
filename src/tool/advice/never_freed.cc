// kNeverFreed: functions whose memory grows until the end.
#include <cmath>

#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

// Times of life tables, which have whole seconds, are in parts of the recording.
constexpr double kLifeTimeParts = 4096;
constexpr size_t kLifeClasses = 64;

void Analysis::CountLife(const Buffer& buffer, int64_t end, bool is_freed) {
  if (tables_.site_kinds[buffer.site] == RecordingTables::SiteKind::kSegment) return;
  LifeTable& lives = lives_[group_of_[buffer.site]];
  const auto parts = [this](int64_t nanos) {
    return static_cast<double>(nanos) * kLifeTimeParts / static_cast<double>(std::max<int64_t>(nanos_, 1));
  };
  if (is_freed) {
    const double age = parts(end - buffer.time);
    const size_t octave = age < 1 ? 0 : static_cast<size_t>(std::log2(age)) + 1;
    lives.freed.resize(std::max(lives.freed.size(), octave + 1));
    ++lives.freed[octave];
    return;
  }
  lives.now = kLifeTimeParts;
  lives.class_seconds = kLifeTimeParts / kLifeClasses;
  lives.live.resize(kLifeClasses);
  lives.live_bytes.resize(kLifeClasses);
  const auto birth = static_cast<size_t>(std::max(0.0, parts(buffer.time - start_) / lives.class_seconds));
  ++lives.live[std::min(birth, kLifeClasses - 1)];
  lives.live_bytes[std::min(birth, kLifeClasses - 1)] += static_cast<double>(buffer.bytes);
}

void Analysis::AdviseNeverFreed(AdviceReport& report) {
  if (nanos_ < kMinCourseNanos) return;
  for (size_t a = 0; a < accounts_.size(); ++a) {
    Advice advice;
    advice.kind = AdviceKind::kNeverFreed;
    advice.account = AccountName(tables_, a);
    double per_second = 0;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      if (group.account != a || group.kept_bytes < PercentOf(kMinLeakPercent, accounts_[a].peak)) continue;
      const LifeJudgement judgement = JudgeLives(lives_[g]);
      if (judgement.finding != LifeJudgement::Finding::kLeak) continue;
      per_second += judgement.per_second * kLifeTimeParts * 1e9 / static_cast<double>(nanos_);
      advice.bytes = Plus(advice.bytes, group.kept_bytes);
      advice.sites.push_back(SiteOf(g, group.kept_bytes, group.kept_count));
    }
    if (advice.sites.empty()) continue;
    advice.text = Cat("Memory of ", Shorten(advice.sites), " grows until the end: +", Bytes(advice.bytes), ", ",
                      Bytes(static_cast<int64_t>(per_second)), " each second.");
    const std::optional<int64_t> limit = LimitOf(a / kMemorySpaceCount);
    if (a % kMemorySpaceCount == static_cast<size_t>(MemorySpace::kDevice) && limit.has_value() && *limit > 0) {
      const double left = static_cast<double>(Minus(*limit, accounts_[a].in_use)) / per_second;
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
