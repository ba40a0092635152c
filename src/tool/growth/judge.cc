// See judge.h. benchmarks/LEAKS.md has the precision of the rules, from which the thresholds come.
#include "src/tool/growth/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace hbmprof::tool {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The last dumps of a course, with their times scaled to 0..1.
struct Part {
  std::vector<double> t;
  std::vector<double> v;
  size_t size() const { return v.size(); }
};

Part PartOf(const Course& course, size_t first) {
  Part part;
  const double begin = course.at[first];
  const double length = course.at.back() - begin;
  for (size_t i = first; i < course.at.size(); ++i) part.t.push_back((course.at[i] - begin) / length);
  part.v.assign(course.in_use.begin() + static_cast<std::ptrdiff_t>(first), course.in_use.end());
  return part;
}

double LargestFall(const std::vector<double>& v) {
  double most = v[0];
  double fall = 0;
  for (const double value : v) {
    most = std::max(most, value);
    fall = std::max(fall, most - value);
  }
  return fall;
}

// Returns the value at time `t` by linear interpolation between dumps.
double At(const std::vector<double>& times, const std::vector<double>& values, double t) {
  size_t i = 1;
  while (i + 1 < values.size() && times[i] < t) ++i;
  const double share = (t - times[i - 1]) / (times[i] - times[i - 1]);
  return values[i - 1] + std::min(std::max(share, 0.0), 1.0) * (values[i] - values[i - 1]);
}

// The least-squares line of the values from `first` on.
struct Line {
  double slope = 0;
  double mean_x = 0;
  double mean_v = 0;
  double spread = 0;   // sum of (x - mean_x)^2
  double squares = 0;  // sum of the squared residuals
};

Line LineOf(const std::vector<double>& x, const std::vector<double>& v, size_t first = 0) {
  Line line;
  const auto n = static_cast<double>(v.size() - first);
  for (size_t i = first; i < v.size(); ++i) {
    line.mean_x += x[i] / n;
    line.mean_v += v[i] / n;
  }
  double products = 0;
  for (size_t i = first; i < v.size(); ++i) {
    line.spread += (x[i] - line.mean_x) * (x[i] - line.mean_x);
    products += (x[i] - line.mean_x) * (v[i] - line.mean_v);
  }
  line.slope = products / line.spread;
  for (size_t i = first; i < v.size(); ++i) {
    const double residual = v[i] - line.mean_v - line.slope * (x[i] - line.mean_x);
    line.squares += residual * residual;
  }
  return line;
}

// Returns Judgement::late. It is computed from the lowest and from the highest values of the thirds, and the smaller
// result is returned.
double LateGrowth(const Part& part) {
  double least[3];
  double greatest[3];
  for (int k = 0; k < 3; ++k) {
    const double from = k / 3.0;
    const double to = (k + 1) / 3.0;
    std::vector<double> values = {At(part.t, part.v, from), At(part.t, part.v, to)};
    for (size_t i = 0; i < part.size(); ++i) {
      if (part.t[i] >= from && part.t[i] <= to) values.push_back(part.v[i]);
    }
    least[k] = *std::min_element(values.begin(), values.end());
    greatest[k] = *std::max_element(values.begin(), values.end());
  }
  const auto late = [](const double* level) {
    return level[2] > level[0] ? 2 * (level[2] - level[1]) / (level[2] - level[0]) : 0;
  };
  return std::min(late(least), late(greatest));
}

// Returns (slope of the last third + 2 * its standard error) / slope of the whole part. The last third has at least
// four dumps. The error includes the residuals, and the unevenness of the growth between dumps. A change that the next
// interval reverses does not count as unevenness.
double EndSlope(const Part& part) {
  const size_t n = part.size();
  if (n < 4) return 1;
  const auto third = static_cast<size_t>(std::lower_bound(part.t.begin(), part.t.end(), 2 / 3.0) - part.t.begin());
  const size_t first = std::min(third, n - 4);
  const Line end = LineOf(part.t, part.v, first);
  const double length = 1 - part.t[first];
  double growth = 0;
  double before = 0;
  for (size_t i = first + 1; i < n; ++i) {
    const double off = part.v[i] - part.v[i - 1] - end.slope * (part.t[i] - part.t[i - 1]);
    growth += off * off + 2 * off * before;
    before = off;
  }
  const double error = end.squares / static_cast<double>(n - first - 2) / end.spread;
  const double most = end.slope + 2 * std::sqrt(error + std::max(0.0, growth) / (length * length));
  return most / std::max(LineOf(part.t, part.v).slope, part.v.back() - part.v.front());
}

// Returns whether a curve that approaches a limit exponentially has less than a twentieth of the squared residuals of a
// line. Time constants above 0.7 are not tried, because such a curve is nearly a line.
bool WarmsUp(const Part& part) {
  const double line = LineOf(part.t, part.v).squares;
  for (double length = 0.05; length <= 0.7; length *= 1.25) {
    std::vector<double> curve;
    for (const double t : part.t) curve.push_back(1 - std::exp(-t / length));
    if (20 * LineOf(curve, part.v).squares < line) return true;
  }
  return false;
}

// Measures of lasting growth. `low` at a dump is the minimum of the values from that dump on, so `low` never falls.
struct Figures {
  double kept = 0;                // growth that remains if the largest fall happens again
  double share = 0;               // kept / (kept + fall)
  double kept_steps = 0;          // effective number of steps of kept growth
  size_t steps = 0;               // number of steps of kept growth
  bool always = false;            // `low` grew in each interval
  bool in_jumps = false;          // looks like one-time jumps: a few uneven steps, and then a pause
  double end_rate = 0;            // rate of `low` in the last interval / its mean rate
  double end_spread = kInfinity;  // fastest rate / slowest rate of the last three intervals
  double end_slope = 0;           // upper bound of the slope at the end / slope of the whole
  double late = 0;                // see Judgement
  bool slowing = false;           // in each third the growth is clearly less than in the one before
  bool warms_up = false;          // a curve that approaches a limit fits far better than a line
  double tail = 0;                // the time since the last growth
  double pause_chance = 1;        // the probability of such a tail if the growth has not ended
  double longest_pause = 0;       // the longest time without growth before the last growth

  bool goes_on() const { return !slowing && !warms_up && end_slope >= 0.5; }
};

// `fall`: the largest fall of the whole course.
Figures Measure(const Part& part, double fall) {
  const std::vector<double>& t = part.t;
  const size_t n = part.size();
  Figures f;
  std::vector<double> low(part.v);
  for (size_t i = n - 1; i-- > 0;) low[i] = std::min(part.v[i], low[i + 1]);
  const double gain = low.back() - low.front();
  if (gain <= 0) return f;

  const double most = std::max(low[0], part.v.back() - fall);
  f.kept = most - low[0];
  const double relevant = std::min(0.01, 0.2 / static_cast<double>(n - 1));  // smaller steps do not count
  double end_slowest = kInfinity;
  double end_fastest = 0;
  double squares = 0;
  double kept_squares = 0;
  size_t last = 0;           // dump of growth
  std::vector<double> when;  // the relevant steps
  for (size_t i = 1; i < n; ++i) {
    const double step = low[i] - low[i - 1];
    const double kept = std::min(low[i], most) - std::min(low[i - 1], most);
    const double rate = step / (t[i] - t[i - 1]);
    if (i + 3 >= n) {
      end_slowest = std::min(end_slowest, rate);
      end_fastest = std::max(end_fastest, rate);
    }
    f.end_rate = rate / gain;
    squares += step * step;
    kept_squares += kept * kept;
    f.steps += kept > relevant * f.kept ? 1 : 0;
    if (step > relevant * gain) when.push_back((t[i] + t[i - 1]) / 2);
    if (step <= 0) continue;
    f.longest_pause = std::max(f.longest_pause, t[i - 1] - t[last]);
    last = i;
  }
  const double equal_steps = gain * gain / squares;  // effective number of steps
  if (end_slowest > 0) f.end_spread = end_fastest / end_slowest;
  if (f.kept > 0) {
    f.kept_steps = f.kept * f.kept / kept_squares;
    f.share = f.kept / (f.kept + fall);
  }
  f.late = LateGrowth(part);
  f.end_slope = EndSlope(part);
  f.warms_up = WarmsUp(part);
  double thirds[3];
  for (int k = 0; k < 3; ++k) thirds[k] = At(t, low, (k + 1) / 3.0) - At(t, low, k / 3.0);
  const double slower = equal_steps >= 15 ? 0.75 : equal_steps >= 8 ? 0.6 : 0.5;
  f.slowing = thirds[1] < slower * thirds[0] && thirds[2] < std::max(slower, 0.6) * thirds[1];

  // The unevenness of the growth until the last one: the squared coefficient of variation of its rates.
  const double mean_interval = t[last] / static_cast<double>(last);
  double uneven = 0;
  for (size_t i = 1; i <= last; ++i) {
    const double interval = t[i] - t[i - 1];
    const double rate = (low[i] - low[i - 1]) / interval / (gain / t[last]);
    uneven += interval / mean_interval * (rate - 1) * (rate - 1);
  }
  f.tail = 1 - t[last];
  if (f.tail > 0) {
    f.pause_chance = last == 1 ? std::pow(1 - f.tail, equal_steps)
                               : std::exp(-(f.tail / mean_interval) * static_cast<double>(last + 1) / (uneven + 0.5));
  }
  f.always = when.size() + 1 == n;
  // With up to eight steps, a pause of about a tenth of the time that the steps took is enough for jumps. Each further
  // step requires a pause that is longer by the mean time between two steps.
  const auto steps = static_cast<double>(when.size());
  const double distance = steps < 2 ? 0 : (when.back() - when.front()) / (steps - 1);
  f.in_jumps = uneven / static_cast<double>(last) > 0.3 && !(f.always && when.size() >= 7) &&
               1 - when.back() > distance * (0.09 * (std::min(steps, 8.0) + 1) + std::max(steps - 8, 0.0));
  return f;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Returns whether a few steps up describe the course better than a line, by Schwarz's criterion, and with residuals no
// larger than the differences of neighbouring dumps. `squares` is the sum of the line's squared residuals. The steps
// are those of the best rising function (pool adjacent violators). They are then joined, those with the smallest cost
// first.
bool StepsFitBetter(const std::vector<double>& v, double squares) {
  struct Block {
    double sum;
    double count;
    double mean() const { return sum / count; }
  };
  std::vector<Block> blocks;
  double left = 0;
  for (const double value : v) {
    left += value * value;
    blocks.push_back({value, 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean() >= blocks.back().mean()) {
      const Block last = blocks.back();
      blocks.pop_back();
      blocks.back().sum += last.sum;
      blocks.back().count += last.count;
    }
  }
  for (const Block& block : blocks) left -= block.sum * block.mean();

  std::vector<double> changes;
  for (size_t i = 1; i < v.size(); ++i) changes.push_back((v[i] - v[i - 1]) * (v[i] - v[i - 1]) / 2);
  std::sort(changes.begin(), changes.end());
  changes.resize(changes.size() - std::min<size_t>(8, v.size() / 4));  // the largest may be the steps
  double noise = 0;
  for (const double change : changes) noise += change / static_cast<double>(changes.size());

  const auto n = static_cast<double>(v.size());
  const double line = n * std::log(squares / n) + 2 * std::log(n);
  while (blocks.size() > 1) {
    const auto steps = static_cast<double>(blocks.size() - 1);
    if (steps <= std::min(8.0, 1 + n / 4) && left <= 1.5 * noise * n &&
        n * std::log(std::max(left, 1e-9 * squares) / n) + (2 * steps + 1) * std::log(n) + 4 < line) {
      return true;
    }
    size_t join = 0;
    double least = kInfinity;
    for (size_t b = 0; b + 1 < blocks.size(); ++b) {
      const double difference = blocks[b + 1].mean() - blocks[b].mean();
      const double both = blocks[b].count + blocks[b + 1].count;
      const double cost = difference * difference * blocks[b].count * blocks[b + 1].count / both;
      if (cost < least) {
        least = cost;
        join = b;
      }
    }
    left += least;
    blocks[join].sum += blocks[join + 1].sum;
    blocks[join].count += blocks[join + 1].count;
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(join) + 1);
  }
  return false;
}

struct Trend {
  double t = 0;           // slope of the least-squares line / its standard error
  double dumps = 0;       // effective number of independent dumps
  bool in_noise = false;  // most neighbouring dumps differ
  bool in_steps = false;  // a few steps fit better than the line
  bool rising = false;    // the medians of the thirds rise
};

Trend MeasureTrend(const Part& part) {
  const auto n = static_cast<double>(part.size());
  Trend trend;
  const Line line = LineOf(part.t, part.v);
  double products = 0;
  double before = 0;
  double same = 0;
  std::vector<double> thirds[3];
  for (size_t i = 0; i < part.size(); ++i) {
    const double residual = part.v[i] - line.mean_v - line.slope * (part.t[i] - line.mean_x);
    products += residual * before;
    before = residual;
    if (i > 0 && part.v[i] == part.v[i - 1]) ++same;
    thirds[std::min<size_t>(2, static_cast<size_t>(part.t[i] * 3))].push_back(part.v[i]);
  }
  if (line.squares <= 0) return trend;
  trend.in_noise = same <= (n - 1) / 3;
  // Neighbouring dumps that are correlated contain less information (first-order autocorrelation). The correlation of
  // residuals underestimates that of the noise, by at least (1 + 2 correlation) / n.
  const double correlation = products / line.squares;
  const double alike = std::min(std::max(correlation + (1 + 2 * std::max(correlation, 0.0)) / n, 0.0), 0.99);
  trend.dumps = n * (1 - alike) / (1 + alike);
  if (trend.dumps > 2.5) trend.t = line.slope / std::sqrt(line.squares / (trend.dumps - 2) / line.spread);
  trend.in_steps = StepsFitBetter(part.v, line.squares);
  if (thirds[0].empty() || thirds[1].empty() || thirds[2].empty()) return trend;
  const double medians[3] = {Median(thirds[0]), Median(thirds[1]), Median(thirds[2])};
  trend.rising = medians[1] > medians[0] && medians[2] > medians[1];
  return trend;
}

// The data that the rules use.
struct Evidence {
  explicit Evidence(const Course& c)
      : course(c),
        part(PartOf(c, 0)),
        fall(LargestFall(part.v)),
        whole(Measure(part, fall)),
        noisy(n() >= 6 && fall > 0) {
    if (noisy) trend = MeasureTrend(part);
  }
  size_t n() const { return part.size(); }

  // Returns whether the last `dumps` dumps, which have these figures, kept memory in enough steps until the end.
  bool Kept(const Figures& f, size_t dumps) const {
    if (dumps < 5 || (dumps <= 6 && course.frees_in_batches)) return false;
    if (f.share < 0.4 || !f.goes_on() || f.late < 0.3 || f.pause_chance <= 0.05 || f.in_jumps) return false;
    return f.kept_steps >= (dumps <= 6 ? 2.6 : 3) || (f.kept_steps >= 2 && f.steps >= 5);
  }
  // Returns whether the growth had nearly the same rate in the last three intervals (in both intervals if there are
  // three dumps).
  bool Even() const {
    if (course.frees_in_batches || whole.end_spread > (n() == 3 ? 1.4 : 1.7)) return false;
    return n() <= 4 || (whole.share == 1 && whole.late >= 0.85 && whole.goes_on());
  }

  const Course& course;
  const Part part;    // all dumps
  const double fall;  // the largest
  const Figures whole;
  const bool noisy;
  Trend trend;  // if noisy
};

// The figures since the dump at which the judged part begins.
struct Finding {
  Figures figures;
  size_t first = 0;
};

// Returns the part that is a leak by one of the rules: kept, even, kept after a warm-up, or a trend. Sets `*fluctuates`
// for the last one.
std::optional<Finding> FindLeak(const Evidence& e, bool* fluctuates) {
  const Figures& whole = e.whole;
  const Trend& trend = e.trend;
  if ((!trend.in_steps && e.Kept(whole, e.n())) || e.Even()) return Finding{whole};
  if (whole.slowing || trend.in_steps) return std::nullopt;
  for (const double from : {0.2, 0.35, 0.5, 0.65}) {
    const auto first = static_cast<size_t>(std::lower_bound(e.part.t.begin(), e.part.t.end(), from) - e.part.t.begin());
    if (e.n() - first < 5 || e.part.v.back() <= e.part.v[first]) continue;
    const Figures later = Measure(PartOf(e.course, first), e.fall);
    if (later.end_slope >= 0.9 && later.late >= (whole.warms_up ? 0.9 : 0.6) && later.kept >= 0.05 * whole.kept &&
        e.Kept(later, e.n() - first)) {
      return Finding{later, first};
    }
  }
  *fluctuates = trend.in_noise && trend.dumps >= 6 && trend.t >= 2.8 + 5 / (trend.dumps - 2) && trend.rising &&
                whole.end_slope >= 0.5;
  return *fluctuates ? std::optional(Finding{whole}) : std::nullopt;
}

// Returns the part that may be a leak, if the course is none.
std::optional<Finding> FindPossibleLeak(const Evidence& e) {
  const Figures& whole = e.whole;
  const bool stopped = (whole.slowing && whole.late < 0.45) ||
                       (whole.pause_chance <= 0.02 && whole.tail > whole.longest_pause) ||
                       (whole.late < 0.2 && (whole.end_rate < 1 || e.noisy)) || (e.n() >= 4 && whole.tail >= 0.5);
  if (e.n() >= 4 && e.n() <= 8 && stopped && whole.end_spread <= 1.7) {
    const size_t first = e.n() - 4;
    return Finding{Measure(PartOf(e.course, first), e.fall), first};
  }
  const bool may_grow = (whole.share >= 0.25 && !stopped) || (e.trend.t >= 2 && e.trend.rising);
  return may_grow ? std::optional(Finding{whole}) : std::nullopt;
}

Judgement JudgeAll(const Course& course) {
  const std::vector<double>& v = course.in_use;
  Judgement judgement;
  for (size_t i = 1; i < v.size(); ++i) {
    const double change = v[i] - v[i - 1];
    (change > 0 ? judgement.taken : judgement.returned) += std::fabs(change);
    if (change > 0) judgement.last_growth = i;
  }
  if (judgement.taken == 0) return judgement;
  judgement.verdict = judgement.returned > 0.25 * judgement.taken ? Verdict::kUpAndDown : Verdict::kStopped;
  if (v.back() <= v.front()) return judgement;

  const Evidence evidence(course);
  judgement.fall = evidence.fall;
  judgement.in_jumps = evidence.trend.in_steps || evidence.whole.in_jumps;
  std::optional<Finding> finding = FindLeak(evidence, &judgement.fluctuates);
  const bool is_leak = finding.has_value();
  if (!is_leak) finding = FindPossibleLeak(evidence);
  if (!finding.has_value()) return judgement;
  const Figures& figures = finding->figures;
  judgement.verdict = is_leak ? Verdict::kLeak : Verdict::kPerhaps;
  if (is_leak) {
    // The thresholds come from the precision of the verdicts.
    judgement.sure = v.size() >= 12 || (v.size() >= 8 && figures.always && figures.share == 1) ? Sure::kHigh
                     : v.size() >= 6                                                           ? Sure::kMedium
                                                                                               : Sure::kLow;
  }
  judgement.first = finding->first;
  judgement.steps = figures.steps;
  judgement.late = figures.late;
  judgement.slowing = figures.slowing || figures.warms_up;
  return judgement;
}

}  // namespace

// With more dumps the thresholds are stricter. But a leak that fewer dumps show must not disappear with additional
// dumps. So a course of many dumps is judged a second time with 16 evenly spaced dumps.
Judgement Judge(const Course& course) {
  const Judgement all = JudgeAll(course);
  const size_t n = course.in_use.size();
  constexpr size_t kThin = 16;
  if (n < 2 * kThin || all.verdict != Verdict::kPerhaps || all.in_jumps) return all;
  Course thin;
  thin.frees_in_batches = course.frees_in_batches;
  std::vector<size_t> dumps;
  for (size_t k = 0, i = 0; k < kThin; ++k) {
    const double at = course.at.front() + (course.at.back() - course.at.front()) * static_cast<double>(k) / (kThin - 1);
    while (i + 1 < n && std::fabs(course.at[i + 1] - at) <= std::fabs(course.at[i] - at)) ++i;
    if (!dumps.empty() && dumps.back() == i) continue;
    dumps.push_back(i);
    thin.at.push_back(course.at[i]);
    thin.in_use.push_back(course.in_use[i]);
  }
  Judgement judgement = JudgeAll(thin);
  if (judgement.verdict != Verdict::kLeak) return all;
  judgement.first = dumps[judgement.first];
  judgement.last_growth = all.last_growth;
  return judgement;
}

}  // namespace hbmprof::tool
