#include "src/tool/growth/judge.h"

#include <boost/math/statistics/bivariate_statistics.hpp>
#include <cmath>

namespace hbmprof::tool {
namespace {

double Clamped(double value, double least, double most) { return std::min(std::max(value, least), most); }

// Returns the value at `time` by linear interpolation between dumps.
double At(const std::vector<double>& times, const std::vector<double>& values, double time) {
  size_t i = 1;
  while (i + 1 < values.size() && times[i] < time) ++i;
  const double share = (time - times[i - 1]) / (times[i] - times[i - 1]);
  return values[i - 1] + Clamped(share, 0, 1) * (values[i] - values[i - 1]);
}

// Thresholds of the totals. benchmarks/LEAKS.md has the precision of the verdicts.
constexpr double kLateRise = 0.06;      // of the rise of the highest value: in the last third of the time, at least
constexpr double kLeakLateRise = 0.2;   // likewise, of a leak
constexpr double kStraight = 0.75;      // coefficient of determination of a leak, at least
constexpr double kVeryStraight = 0.95;  // likewise, if it is sure

constexpr double kStart = 0.04;  // of the uptime: what is born before belongs to the start of the program

// Returns the part of [from, to] that lies in [begin, end], as a share of it.
double Overlap(double from, double to, double begin, double end) {
  return to > from ? std::max(0.0, std::min(to, end) - std::max(from, begin)) / (to - from) : 0;
}

class LifeJudge {
 public:
  explicit LifeJudge(const LifeTable& table) : table_(table), start_(kStart * table.now) {}

  LifeJudgement Judge() {
    LifeJudgement result;
    result.settled = Settled();
    const double end = table_.now - result.settled;
    const Births all = BirthsIn(start_, end);
    // If buffers are still freed at a large part of the uptime, those that are left may be too.
    if (result.settled > 0.6 * table_.now || all.sum <= 0) return result;
    result.kept = all.sum;
    result.times = all.times;
    result.oldest = all.first;
    result.newest = all.last;
    double newest = 0;  // of all live buffers
    for (size_t i = 0; i < table_.live.size(); ++i) {
      if (table_.live[i] > 0) newest = End(i);
      if (!IsIn(i, start_, end)) continue;
      result.kept_bytes += table_.live_bytes[i];
      result.per_second += table_.live_bytes[i] * Overlap(Begin(i), End(i), all.third_from, end);
    }
    if (result.kept_bytes <= 0) return {};  // such as handles without memory
    result.per_second /= end - all.third_from;

    using Finding = LifeJudgement::Finding;
    // A leak that goes on has young live buffers too.
    const double pause = std::max(end - all.last, table_.now - newest);
    result.finding = Finding::kStopped;
    if (all.times < 2 || pause > 0.4 * table_.now || all.thirds[2] < 0.2 * all.thirds[1]) return result;
    result.finding = Finding::kBatch;
    if (WasBatch(all, result.settled)) return result;
    // What was kept mostly in the first third may be a warm-up. Then the other two thirds are judged, and few births
    // are not enough.
    const bool is_early = all.thirds[0] > 0.5 * all.sum;
    const Births late = is_early ? BirthsIn(start_ + (end - start_) / 3, end) : all;
    const bool goes_on = late.times >= (is_early ? 9 : 5) && pause <= LongestPause(late.times);
    result.finding = IsSlowing(all) || IsSlowing(late) ? Finding::kSlowing
                     : goes_on                         ? Finding::kLeak
                                                       : Finding::kFewTimes;
    return result;
  }

 private:
  struct Births {
    double sum = 0;
    double times = 0;       // effective number of classes
    double thirds[3] = {};  // births in each third of the interval
    double third_from = 0;  // where the last third begins
    double first = 0;       // the beginning of the first class with births
    double last = 0;        // the end of the last class with births
  };

  double Begin(size_t number) const { return static_cast<double>(number) * table_.class_seconds; }
  double End(size_t number) const { return std::min(table_.now, Begin(number + 1)); }
  bool IsIn(size_t number, double from, double to) const {
    const double middle = (Begin(number) + End(number)) / 2;
    return middle >= from && middle <= to;
  }

  // Returns the number of live buffers that reached this age, without those of the start.
  double Older(double age) const {
    double sum = 0;
    for (size_t i = 0; i < table_.live.size(); ++i) {
      if (IsIn(i, start_, table_.now)) sum += table_.live[i] * Overlap(Begin(i), End(i), 0, table_.now - age);
    }
    return sum;
  }

  // Returns the age from which on at least three quarters of the buffers get twice as old, from the oldest octave down.
  double Settled() const {
    double reached = 0;  // freed buffers that reached the octave
    const auto octaves = std::max(table_.freed.size(), static_cast<size_t>(std::log2(std::max(table_.now, 1.0))) + 2);
    for (size_t c = octaves; c-- > 0;) {
      const double low = c == 0 ? 0 : std::ldexp(1, static_cast<int>(c) - 1);
      const double high = std::ldexp(1, static_cast<int>(c));
      const double freed = c < table_.freed.size() ? table_.freed[c] : 0;
      reached += freed;
      const double observed = (std::min(high, table_.now) - low) / (high - low);
      // Live buffers inside the octave count half.
      const double at_risk = reached + (Older(low) + Older(std::min(high, table_.now))) / 2;
      if (observed < 0.25 || at_risk < 4) continue;
      if (freed / observed > 0.25 * at_risk) return high;
    }
    return 0;
  }

  Births BirthsIn(double from, double to) const {
    Births births;
    births.third_from = from + (to - from) * 2 / 3;
    double squares = 0;
    for (size_t i = 0; i < table_.live.size(); ++i) {
      const double count = table_.live[i];
      if (count <= 0 || !IsIn(i, from, to)) continue;
      if (births.sum <= 0) births.first = Begin(i);
      births.last = std::min(End(i), to);
      births.sum += count;
      squares += count * count;
      for (int k = 0; k < 3; ++k) {
        births.thirds[k] += count * Overlap(std::max(Begin(i), from), births.last, from + (to - from) * k / 3,
                                            from + (to - from) * (k + 1) / 3);
      }
    }
    if (births.sum <= 0) return births;
    births.times = births.sum * births.sum / squares;
    return births;
  }

  static bool IsSlowing(const Births& births) {
    return births.thirds[1] < 0.67 * births.thirds[0] && births.thirds[2] < 0.67 * births.thirds[1];
  }

  // Returns the longest pause at the end after which `times` births mean a leak. With the uptime as unit, the pause p
  // of a leak has the density n exp(-n p), and that of a site that has stopped at any time has the density 1. The leak
  // must be four times as likely.
  double LongestPause(double times) const { return table_.now * std::log(times / 4) / times + table_.class_seconds; }

  // Returns whether nothing from the time before the kept buffers is left, although buffers were freed at great ages:
  // at least three tenths of those that were born then if as many were born in the same time as later.
  bool WasBatch(const Births& births, double settled) const {
    if (births.first < 0.2 * table_.now) return false;
    const double great_age = std::max(settled / 2, 0.03 * table_.now);
    double freed = 0;
    for (size_t c = 1; c < table_.freed.size(); ++c) {
      if (std::ldexp(1, static_cast<int>(c) - 1) >= great_age) freed += table_.freed[c];
    }
    const double born_before = births.sum * births.first / (table_.now - settled - births.first);
    return freed >= std::max(1.0, 0.3 * born_before);
  }

  const LifeTable& table_;
  const double start_;
};

}  // namespace

Judgement Judge(const Course& course) {
  const std::vector<double>& v = course.in_use;
  Judgement judgement;
  double most = v[0];
  for (size_t i = 1; i < v.size(); ++i) {
    const double change = v[i] - v[i - 1];
    (change > 0 ? judgement.taken : judgement.returned) += std::fabs(change);
    if (change > 0) judgement.last_growth = i;
    most = std::max(most, v[i]);
    judgement.fall = std::max(judgement.fall, most - v[i]);
  }
  if (judgement.taken == 0) return judgement;
  judgement.verdict = judgement.returned > 0.25 * judgement.taken ? Verdict::kUpAndDown : Verdict::kStopped;
  if (v.back() <= v.front()) return judgement;

  std::vector<double> low(v);   // the lowest value from this dump on: kept memory
  std::vector<double> high(v);  // the highest value until this dump
  for (size_t i = v.size() - 1; i-- > 0;) low[i] = std::min(low[i], low[i + 1]);
  for (size_t i = 1; i < v.size(); ++i) high[i] = std::max(high[i], high[i - 1]);
  const double begin = course.at.front();
  const double length = course.at.back() - begin;
  const auto last_third = [&](const std::vector<double>& values) {
    return values.back() - At(course.at, values, begin + length * 2 / 3);
  };
  const double late_rise = last_third(high) / (high.back() - high.front());
  if (late_rise < kLateRise) return judgement;
  // The coefficient of determination of the least-squares line: 1 if the values are on a line.
  const double straightness = std::pow(boost::math::statistics::correlation_coefficient(course.at, v), 2);
  judgement.is_steady = straightness >= kStraight && late_rise >= kLeakLateRise;
  const bool is_leak = judgement.is_steady && v.size() >= kEnoughDumps;
  judgement.verdict = is_leak ? Verdict::kLeak : Verdict::kPerhaps;
  if (is_leak) judgement.sure = straightness >= kVeryStraight ? Sure::kHigh : Sure::kMedium;
  const double third = last_third(low);
  const double second = At(course.at, low, begin + length * 2 / 3) - At(course.at, low, begin + length / 3);
  judgement.late = second + third > 0 ? third / (second + third) : 0;
  const double relevant = std::min(0.01, 0.2 / static_cast<double>(v.size() - 1)) * (low.back() - low.front());
  for (size_t i = 1; i < v.size(); ++i) judgement.steps += low[i] - low[i - 1] > relevant ? 1 : 0;
  return judgement;
}

LifeJudgement JudgeLives(const LifeTable& table) { return LifeJudge(table).Judge(); }

double UsualAge(const LifeTable& table) {
  double all = 0;
  for (const double count : table.freed) all += count;
  double sum = 0;
  for (size_t c = 0; c < table.freed.size(); ++c) {
    sum += table.freed[c];
    if (all > 0 && sum >= all / 2) return std::ldexp(1, static_cast<int>(c));
  }
  return 0;
}

}  // namespace hbmprof::tool
