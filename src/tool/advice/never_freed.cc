// kNeverFreed: functions whose memory grows until the end.
#include <cmath>

#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

void Analysis::AddCourse(const SiteTotals& totals, int64_t time) {
  while (course_times_.size() < kCoursePoints) {
    const int64_t at = start_ + static_cast<int64_t>(static_cast<double>(nanos_) *
                                                     static_cast<double>(course_times_.size()) / (kCoursePoints - 1));
    if (at > time) return;
    course_times_.push_back(static_cast<double>(at - start_) / 1e9);
    for (uint32_t site = 0; site < tables_.sites.size(); ++site) {
      if (tables_.site_kinds[site] == RecordingTables::SiteKind::kSegment) continue;
      Course& course = courses_[group_of_[site]];
      course.in_use.resize(course_times_.size());
      course.allocated.resize(course_times_.size());
      course.in_use.back() += static_cast<double>(totals.site(site).bytes);
      course.allocated.back() += static_cast<double>(totals.site(site).allocated_bytes);
    }
  }
}

void Analysis::AdviseNeverFreed(AdviceReport& report) {
  if (nanos_ < kMinCourseNanos) return;
  for (size_t a = 0; a < accounts_.size(); ++a) {
    Advice advice;
    advice.kind = AdviceKind::kNeverFreed;
    advice.account = AccountName(tables_, a);
    double per_second = 0;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      Course& course = courses_[g];
      if (groups_[g].account != a || course.in_use.size() < 3) continue;
      course.at.assign(course_times_.begin(), course_times_.end());
      const Judgement judgement = Judge(course);
      const double growth = course.in_use.back() - course.in_use[judgement.first];
      if (judgement.verdict != Verdict::kLeak || groups_[g].kept_count == 0 ||
          growth < static_cast<double>(PercentOf(kMinLeakPercent, accounts_[a].peak))) {
        continue;
      }
      per_second += growth / std::max(course.at.back() - course.at[judgement.first], 1e-9);
      advice.bytes = Plus(advice.bytes, static_cast<int64_t>(growth));
      advice.sites.push_back(SiteOf(g, static_cast<int64_t>(growth), groups_[g].kept_count));
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
    advice.how = Cat("The bytes in use of each function at ", kCoursePoints,
                     " instants are judged as hbmprof leaks does. Counts are buffers that were allocated in the "
                     "recording and are live at its end.");
    report.advice.push_back(std::move(advice));
  }
}

}  // namespace hbmprof::tool::advise
