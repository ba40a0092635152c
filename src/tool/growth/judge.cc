// See judge.h. docs/leaks.md explains the rules and the choice of the thresholds.
#include "src/tool/growth/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hbmprof::tool {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A course with its times scaled to 0..1.
struct Part {
  std::vector<double> t;
  std::vector<double> v;
  size_t size() const { return v.size(); }
};

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

// Measures of lasting growth. `low` at a dump is the minimum of the values from that dump on, so `low` never falls.
struct Figures {
  double kept = 0;                       // growth that remains if the largest fall happens again
  double share = 0;                      // kept / (kept + fall)
  double kept_steps = 0;                 // effective number of steps of kept growth
  size_t steps = 0;                      // number of steps of kept growth
  double equal_steps = 0;                // effective number of steps of the growth of `low`
  double growths = 0;                    // number of intervals in which `low` grew
  bool always = false;                   // `low` grew in each interval
  double end_rate = 0;                   // rate of `low` in the last interval / its mean rate
  double end_spread = kInfinity;         // fastest rate / slowest rate of the last three intervals
  bool warms_up = false;                 // a curve that approaches a limit fits far better than a line
  double unevenness = 0;                 // squared coefficient of variation of the rates until the last growth
  double pause_by_distance = kInfinity;  // time since the last growth / mean time between two growths
  double late = 0;                       // see Judgement
  bool slowing = false;                  // in each third the growth is clearly less than in the one before
  double tail = 0;                       // the time since the last growth
  double pause_chance = 1;               // the probability of such a tail if the growth has not ended
};

// Returns Judgement::late. It is computed from the lowest and from the highest values of the thirds, and the smaller
// result is returned.
double LateGrowth(const Part& part) {
  double least[3];
  double greatest[3];
  for (int k = 0; k < 3; ++k) {
    const double from = k / 3.0;
    const double to = (k + 1) / 3.0;
    const double begin = At(part.t, part.v, from);
    const double end = At(part.t, part.v, to);
    least[k] = std::min(begin, end);
    greatest[k] = std::max(begin, end);
    for (size_t i = 0; i < part.size(); ++i) {
      if (part.t[i] < from || part.t[i] > to) continue;
      least[k] = std::min(least[k], part.v[i]);
      greatest[k] = std::max(greatest[k], part.v[i]);
    }
  }
  const auto late = [](const double* level) {
    return level[2] > level[0] ? 2 * (level[2] - level[1]) / (level[2] - level[0]) : 0;
  };
  return std::min(late(least), late(greatest));
}

// Returns the sum of the squared residuals of the least-squares line of `v` over `x`.
double SquaresOfLine(const std::vector<double>& x, const std::vector<double>& v) {
  const auto n = static_cast<double>(v.size());
  double sums[5] = {};
  for (size_t i = 0; i < v.size(); ++i) {
    sums[0] += x[i] / n;
    sums[1] += v[i] / n;
  }
  for (size_t i = 0; i < v.size(); ++i) {
    sums[2] += (x[i] - sums[0]) * (x[i] - sums[0]);
    sums[3] += (x[i] - sums[0]) * (v[i] - sums[1]);
    sums[4] += (v[i] - sums[1]) * (v[i] - sums[1]);
  }
  return std::max(0.0, sums[4] - sums[3] * sums[3] / sums[2]);
}

// Returns whether a curve that approaches a limit exponentially has less than a twentieth of the squared residuals of a
// line. Time constants above 0.7 are not tried, because such a curve is nearly a line.
bool WarmsUp(const Part& part) {
  const double line = SquaresOfLine(part.t, part.v);
  for (double length = 0.05; length <= 0.7; length *= 1.25) {
    std::vector<double> curve;
    for (const double t : part.t) curve.push_back(1 - std::exp(-t / length));
    if (20 * SquaresOfLine(curve, part.v) < line) return true;
  }
  return false;
}

// Measures the times at which `low` grew by more than `least_step`, and the pause after the last growth.
void MeasurePauses(const Part& part, const std::vector<double>& low, double least_step, Figures* f) {
  double first = 0;
  double last = 0;  // in the middle of their intervals
  size_t end = 0;   // the last growth of any size
  for (size_t i = 1; i < part.size(); ++i) {
    const double step = low[i] - low[i - 1];
    if (step > 0) end = i;
    if (step <= least_step) continue;
    last = (part.t[i] + part.t[i - 1]) / 2;
    if (f->growths++ == 0) first = last;
  }
  f->always = static_cast<size_t>(f->growths) + 1 == part.size();
  if (f->growths >= 2) f->pause_by_distance = (1 - last) * (f->growths - 1) / (last - first);

  const auto intervals = static_cast<double>(end);
  const double mean_interval = part.t[end] / intervals;
  const double mean_rate = (low.back() - low.front()) / part.t[end];
  double squares = 0;
  for (size_t i = 1; i <= end; ++i) {
    const double interval = part.t[i] - part.t[i - 1];
    const double rate = (low[i] - low[i - 1]) / interval / mean_rate;
    squares += interval / mean_interval * (rate - 1) * (rate - 1);
  }
  f->unevenness = squares / intervals;
  f->tail = 1 - part.t[end];
  if (f->tail <= 0) return;
  f->pause_chance = end == 1 ? std::pow(1 - f->tail, f->equal_steps)
                             : std::exp(-(f->tail / mean_interval) * (intervals + 1) / (squares + 0.5));
}

Figures Measure(const Part& part, double fall) {
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
  for (size_t i = 1; i < n; ++i) {
    const double step = low[i] - low[i - 1];
    const double kept = std::min(low[i], most) - std::min(low[i - 1], most);
    const double rate = step / (part.t[i] - part.t[i - 1]);
    f.end_rate = rate / gain;
    if (i + 3 >= n) {
      end_slowest = std::min(end_slowest, rate);
      end_fastest = std::max(end_fastest, rate);
    }
    squares += step * step;
    kept_squares += kept * kept;
    f.steps += kept > relevant * f.kept ? 1 : 0;
  }
  f.equal_steps = gain * gain / squares;
  if (end_slowest > 0) f.end_spread = end_fastest / end_slowest;
  if (f.kept > 0) {
    f.kept_steps = f.kept * f.kept / kept_squares;
    f.share = f.kept / (f.kept + fall);
  }
  f.late = LateGrowth(part);
  f.warms_up = WarmsUp(part);
  double thirds[3];
  for (int k = 0; k < 3; ++k) thirds[k] = At(part.t, low, (k + 1) / 3.0) - At(part.t, low, k / 3.0);
  f.slowing = thirds[1] < 0.6 * thirds[0] && thirds[2] < 0.6 * thirds[1];
  MeasurePauses(part, low, relevant * gain, &f);
  return f;
}

// Returns whether the growth looks like one-time jumps: a few uneven steps, and then a pause. With up to eight steps, a
// pause of about a tenth of the time that the steps took is enough. Each further step requires a pause that is longer
// by the mean time between two steps.
bool LikeJumps(const Figures& f) {
  if (f.unevenness <= 0.3 || (f.always && f.growths >= 7)) return false;
  return f.pause_by_distance > 0.09 * (std::min(f.growths, 8.0) + 1) + std::max(f.growths - 8, 0.0);
}

bool Kept(const Figures& f, size_t n) {
  // With three or four dumps, growth at nearly the same rate is enough.
  if (n <= 4) return f.end_spread <= (n == 3 ? 1.4 : 1.7);
  if (f.share < 0.4 || f.slowing || f.warms_up || f.late < 0.3 || f.pause_chance <= 0.05 || LikeJumps(f)) return false;
  return f.kept_steps >= (n <= 6 ? 2.6 : 3) || (f.kept_steps >= 2 && f.steps >= 5);
}

// Sets the verdicts kLeak and kPerhaps.
void JudgeGrowth(const Course& course, Judgement* judgement) {
  const size_t n = course.in_use.size();
  Part part;
  for (const double at : course.at) part.t.push_back((at - course.at.front()) / (course.at.back() - course.at.front()));
  part.v = course.in_use;
  judgement->fall = LargestFall(part.v);
  const Figures f = Measure(part, judgement->fall);
  judgement->steps = f.steps;
  judgement->late = f.late;
  judgement->tail = f.tail;
  judgement->slowing = f.slowing || f.warms_up;
  judgement->in_jumps = LikeJumps(f);
  if (Kept(f, n)) {
    judgement->verdict = Verdict::kLeak;
    judgement->sure = n >= 12 || (n >= 8 && f.always && f.share == 1) ? Sure::kHigh
                      : n >= 6                                        ? Sure::kMedium
                                                                      : Sure::kLow;
  } else if ((n >= 4 && n <= 8 && f.end_spread <= 1.7) ||  // the last three intervals are even
             (f.share >= 0.25 && f.pause_chance > 0.02 && (n < 4 || f.tail < 0.5) &&
              (f.end_rate >= 1 || f.late >= (f.slowing ? 0.45 : 0.2)))) {
    judgement->verdict = Verdict::kPerhaps;
  }
}

}  // namespace

Judgement Judge(const Course& course) {
  const std::vector<double>& v = course.in_use;
  Judgement judgement;
  for (size_t i = 1; i < v.size(); ++i) {
    const double change = v[i] - v[i - 1];
    (change > 0 ? judgement.taken : judgement.returned) += std::fabs(change);
    if (change > 0) judgement.last_growth = i;
  }
  if (judgement.taken == 0) return judgement;
  judgement.verdict = judgement.returned > 0.25 * judgement.taken ? Verdict::kUpAndDown : Verdict::kStopped;
  if (v.back() > v.front()) JudgeGrowth(course, &judgement);
  return judgement;
}

}  // namespace hbmprof::tool
