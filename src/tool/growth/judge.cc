#include "src/tool/growth/judge.h"

#include <cmath>

namespace hbmprof::tool {
namespace {

// The weights of the features, with two dumps more than one and with very many. tests/tool/fit_judge.cc found them by
// logistic regression; benchmarks/LEAKS.md has its command and the precision of the verdicts.
struct Weight {
  double few;
  double many;
  double usual;  // the mean of the feature
};
constexpr Weight kBias = {-1.33, -1.53, 1.00};
constexpr Weight kWeights[kFeatures] = {
    {-0.52, -1.08, 0.57},  // kPause
    {-0.02, -1.21, 0.41},  // kLimit
    {1.88, 2.67, 0.24},    // kHighest
    {-1.00, -4.11, 0.16},  // kLate
    {2.44, 2.69, 0.23},    // kEvenEnd
    {1.26, 9.51, 0.40},    // kStraight
    {-1.29, -0.52, 0.72},  // kUneven
};

double Clamped(double value, double least, double most) { return std::min(std::max(value, least), most); }

// The dumps of a course that grew. Times are from 0 to 1, and values are multiples of the growth of `low`.
struct Part {
  explicit Part(const Course& course) : v(course.in_use), low(v), high(v) {
    for (const double at : course.at) t.push_back((at - course.at.front()) / (course.at.back() - course.at.front()));
    for (size_t i = v.size() - 1; i-- > 0;) low[i] = std::min(low[i], low[i + 1]);
    for (size_t i = 1; i < v.size(); ++i) high[i] = std::max(high[i], high[i - 1]);
    const double begin = low.front();
    const double growth = low.back() - begin;
    for (std::vector<double>* values : {&v, &low, &high}) {
      for (double& value : *values) value = (value - begin) / growth;
    }
  }
  size_t size() const { return t.size(); }
  // Returns the mean growth of `low` per time in the interval that ends with this dump.
  double Rate(size_t i) const { return (low[i] - low[i - 1]) / (t[i] - t[i - 1]); }

  std::vector<double> t;
  std::vector<double> v;
  std::vector<double> low;   // the lowest value from this dump on
  std::vector<double> high;  // the highest value until this dump
};

// Returns the value at `time` by linear interpolation between dumps.
double At(const std::vector<double>& times, const std::vector<double>& values, double time) {
  size_t i = 1;
  while (i + 1 < values.size() && times[i] < time) ++i;
  const double share = (time - times[i - 1]) / (times[i] - times[i - 1]);
  return values[i - 1] + Clamped(share, 0, 1) * (values[i] - values[i - 1]);
}

// Returns the mean of the squared residuals of the least-squares line of `v` over `x`.
double Residuals(const std::vector<double>& x, const std::vector<double>& v) {
  const auto n = static_cast<double>(v.size());
  double mean_x = 0;
  double mean_v = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    mean_x += x[i] / n;
    mean_v += v[i] / n;
  }
  double xx = 0;
  double xv = 0;
  double vv = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xv += (x[i] - mean_x) * (v[i] - mean_v);
    vv += (v[i] - mean_v) * (v[i] - mean_v);
  }
  return std::max(0.0, vv - xv * xv / xx) / n;
}

Features MeasurePart(const Part& part) {
  const std::vector<double>& t = part.t;
  const size_t n = part.size();
  size_t last = 1;  // dump of growth
  double slowest = part.Rate(n - 1);
  double fastest = slowest;
  for (size_t i = 1; i < n; ++i) {
    if (part.Rate(i) > 0) last = i;
    if (i + 3 < n) continue;
    slowest = std::min(slowest, part.Rate(i));
    fastest = std::max(fastest, part.Rate(i));
  }
  double uneven = 0;  // squared coefficient of variation of the rates until the last growth, times `last`
  for (size_t i = 1; i <= last; ++i) {
    const double off = part.Rate(i) * t[last] - 1;
    uneven += (t[i] - t[i - 1]) / t[last] * off * off * static_cast<double>(last);
  }
  const double line = Residuals(t, part.v);
  double curve = line;
  for (double length = 0.05; length <= 0.7; length *= 1.25) {
    std::vector<double> limited;
    for (const double time : t) limited.push_back(1 - std::exp(-time / length));
    curve = std::min(curve, Residuals(limited, part.v));
  }
  const double intervals = (1 - t[last]) / t[last] * static_cast<double>(last);  // of the mean length, since the growth
  const double rise = part.high.back() - part.high.front();
  const double late = 1 - At(t, part.low, 2 / 3.0);
  return {Clamped(std::log1p(intervals * static_cast<double>(last + 1) / (uneven + 0.5)), 0, 5),
          Clamped(std::log10((line + 1e-6) / (curve + 1e-6)), 0, 3),
          (part.high.back() - At(t, part.high, 2 / 3.0)) / rise,
          late * late,
          fastest > 0 ? slowest / fastest : 0,
          Clamped(-std::log10(line + 1e-5), 0, 5) / 5,
          Clamped(std::log1p(uneven / static_cast<double>(last)), 0, 4)};
}

// Returns the part of the dumps that have less information than very many: 1 for three dumps.
double Fewness(size_t dumps) { return 2 / static_cast<double>(dumps - 1); }

double Mixed(const Weight& weight, double fewness) { return weight.many + (weight.few - weight.many) * fewness; }

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

Features Measure(const Course& course) { return MeasurePart(Part(course)); }

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

  const Part part(course);
  const Features features = MeasurePart(part);
  const double fewness = Fewness(part.size());
  double score = Mixed(kBias, fewness);
  for (size_t f = 0; f < kFeatures; ++f) score += Mixed(kWeights[f], fewness) * features[f];
  // The thresholds come from the precision of the verdicts. With few dumps they are further apart.
  const bool is_leak = score >= 0.86 + (0.37 + 0.38 * fewness) * fewness;
  const double second = At(part.t, part.low, 2 / 3.0) - At(part.t, part.low, 1 / 3.0);
  const double third = 1 - At(part.t, part.low, 2 / 3.0);
  const bool is_young = judgement.returned == 0 && third > 0.9;  // it began to grow at the end
  if (!is_leak && score < -1 - 0.3 * fewness * fewness && !is_young) return judgement;
  judgement.verdict = is_leak ? Verdict::kLeak : Verdict::kPerhaps;
  if (is_leak && part.size() >= 6) {
    judgement.sure = part.size() >= 12 || (part.size() >= 8 && score >= 2.5) ? Sure::kHigh : Sure::kMedium;
  }

  double strongest = 0;
  for (size_t f = 0; f < kFeatures; ++f) {
    const double says = Mixed(kWeights[f], fewness) * (features[f] - kWeights[f].usual) * (is_leak ? 1 : -1);
    if (says <= strongest) continue;
    strongest = says;
    judgement.strongest = static_cast<Feature>(f);
  }
  judgement.late = second + third > 0 ? third / (second + third) : 0;
  const auto start = static_cast<size_t>(absl::c_lower_bound(part.t, 0.2) - part.t.begin());
  const double before = part.low[start];
  if (before < 1 && (1 - before) / (1 - part.t[start]) < before / part.t[start] / 4) judgement.first = start;
  const double relevant = std::min(0.01, 0.2 / static_cast<double>(part.size() - 1)) * (1 - part.low[judgement.first]);
  for (size_t i = judgement.first + 1; i < part.size(); ++i) {
    judgement.steps += part.low[i] - part.low[i - 1] > relevant ? 1 : 0;  // smaller steps do not count
  }
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
