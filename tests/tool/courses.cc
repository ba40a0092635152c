// See courses.h.
#include "tests/tool/courses.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

namespace hbmprof_test {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr size_t kGrid = 4000;

uint64_t Mixed(uint64_t z) {  // the output function of SplitMix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

// The seed is mixed twice: with a state that is linear in the seed, neighbouring seeds would give shifted sequences.
Random::Random(uint64_t seed) : state_(Mixed(Mixed(seed + 0x2545F4914F6CDD1Du))) {}

uint64_t Random::Bits() { return Mixed(state_ += 0x9E3779B97F4A7C15u); }

double Random::Uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(Bits() >> 11) / 9007199254740992.0);
}

double Random::LogUniform(double low, double high) { return std::exp(Uniform(std::log(low), std::log(high))); }

int Random::Int(int low, int high) { return low + static_cast<int>(Bits() % static_cast<uint64_t>(high - low + 1)); }

double Random::Normal() { return std::sqrt(-2 * std::log(1 - Uniform(0, 1))) * std::cos(2 * kPi * Uniform(0, 1)); }

double Random::Exponential(double mean) { return -mean * std::log(1 - Uniform(0, 1)); }

int64_t Random::Poisson(double mean) {
  if (mean > 50) return std::max<int64_t>(0, std::llround(mean + std::sqrt(mean) * Normal()));
  const double limit = std::exp(-mean);
  int64_t count = 0;
  for (double product = Uniform(0, 1); product > limit; product *= Uniform(0, 1)) ++count;
  return count;
}

ProgramRun ProgramRun::Make(Random& random, size_t dumps, Special special) {
  ProgramRun run;
  const double last = static_cast<double>(dumps - 1);
  const int spacing = random.Int(0, 3);
  const double stretch = random.Uniform(1.3, 2.5);
  for (size_t i = 0; i < dumps; ++i) {
    const double even = static_cast<double>(i) / last;
    double time = even;
    if (spacing == 1) time += random.Uniform(-0.4, 0.4) / last;
    if (spacing == 2) time = random.Uniform(0, 1);
    if (spacing == 3) time = std::pow(even, stretch);
    run.times.push_back(time);
  }
  std::sort(run.times.begin(), run.times.end());
  for (size_t i = 1; i < dumps; ++i) {  // two dumps are not at the same time
    run.times[i] = std::max(run.times[i], run.times[i - 1] + 0.02 / last);
  }
  const double begin = run.times.front();
  const double length = run.times.back() - begin;
  for (double& time : run.times) time = (time - begin) / length;

  run.load = special == Special::kStalling ? Load::kStalling : static_cast<Load>(random.Int(0, 3));
  const double days = random.Uniform(0.9, 4);
  const double phase = random.Uniform(0, 2 * kPi);
  const double slope = random.Uniform(-1.6, 1.6);
  std::vector<double> rate(kGrid, 1.0);
  double noisy = 1;
  for (size_t g = 0; g < kGrid; ++g) {
    const double t = static_cast<double>(g) / kGrid;
    if (run.load == Load::kNoisy) {
      if (g % (kGrid / 50) == 0) noisy = std::exp(0.5 * random.Normal());
      rate[g] = noisy;
    }
    if (run.load == Load::kDay) rate[g] = 1 + 0.8 * std::sin(2 * kPi * days * t + phase);
    if (run.load == Load::kRamp) rate[g] = 1 + slope * (t - 0.5);
  }
  if (run.load == Load::kStalling) {
    const int stalls = random.Int(1, 3);
    for (int s = 0; s < stalls; ++s) {
      const double from = random.Uniform(0.05, 0.9);
      const double to = from + random.Uniform(0.05, 0.25);
      for (size_t g = 0; g < kGrid; ++g) {
        const double t = static_cast<double>(g) / kGrid;
        if (t >= from && t < to) rate[g] = 0;
      }
    }
  }
  run.grid_.push_back(0);
  for (const double r : rate) run.grid_.push_back(run.grid_.back() + r);
  const double all = run.grid_.back();
  for (double& work : run.grid_) work /= all;

  const double requests = 1000 * last;
  for (size_t i = 0; i < dumps; ++i) {
    const double position = run.times[i] * kGrid;
    const auto cell = std::min(static_cast<size_t>(position), kGrid - 1);
    run.work.push_back(run.grid_[cell] +
                       (position - static_cast<double>(cell)) * (run.grid_[cell + 1] - run.grid_[cell]));
    run.requests.push_back(std::floor(run.work.back() * requests));
  }
  if (special == Special::kRestart) {
    run.restart = static_cast<size_t>(random.Int(static_cast<int>(dumps / 4), static_cast<int>(3 * dumps / 4)));
    run.restart = std::max<size_t>(run.restart, 1);
    const double before = run.requests[run.restart - 1] + 10;
    for (size_t i = run.restart; i < dumps; ++i) run.requests[i] = std::max(1.0, run.requests[i] - before);
  }
  return run;
}

const std::vector<CourseKind>& CourseKinds() {
  using Is = CourseKind::Is;
  using Use = CourseKind::Use;
  using Special = ProgramRun::Special;
  static const std::vector<CourseKind> kinds = {
      {"steady", Is::kLeak, Use::kPlain, Special::kNone},
      {"by_load", Is::kLeak, Use::kPlain, Special::kNone},
      {"rare", Is::kLeak, Use::kPlain, Special::kNone},
      {"bursty", Is::kLeak, Use::kPlain, Special::kNone},
      {"stairs", Is::kLeak, Use::kPlain, Special::kNone},
      {"late", Is::kLeak, Use::kPlain, Special::kNone},
      {"on_saw", Is::kLeak, Use::kPlain, Special::kNone},
      {"in_noise", Is::kLeak, Use::kPlain, Special::kNone},
      {"slow", Is::kLeak, Use::kPlain, Special::kNone},
      {"cleaned", Is::kLeak, Use::kPlain, Special::kNone},
      {"flat", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"noise", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"warm_up", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"cache", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"saw_in_step", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"saw", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"day", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"walk", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"lru", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"jumps", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"compaction", Is::kNoLeak, Use::kPlain, Special::kNone},
      {"jumps_4_to_8", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"leak_by_day", Is::kLeak, Use::kMixed, Special::kNone},
      {"jumps_equal", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"jumps_in_noise", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"leak_on_day", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_after_warm_up", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_with_jumps", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_beside_cache", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_in_walk", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_in_pages", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_at_two_rates", Is::kLeak, Use::kMixed, Special::kNone},
      {"leak_restarted", Is::kLeak, Use::kMixed, Special::kRestart},
      {"leak_stalling", Is::kLeak, Use::kMixed, Special::kStalling},
      {"loads_and_unloads", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"second_warm_up", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"doubling_pool", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"day_peaks", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"caches", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"stopped", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"warm_up_long", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"saw_long", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"walk_long", Is::kNoLeak, Use::kMixed, Special::kNone},
      {"warm_up_restarted", Is::kNoLeak, Use::kMixed, Special::kRestart},
      {"cache_stalling", Is::kNoLeak, Use::kMixed, Special::kStalling},
      {"cache_open", Is::kUndecidable, Use::kMixed, Special::kNone},
      {"every_key", Is::kUndecidable, Use::kMixed, Special::kNone},
      {"leak_faster_and_faster", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"leak_with_pauses", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"leak_heavy_tailed", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"leak_of_sessions", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"leak_in_blocks", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"leak_by_falling_load", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"sessions", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"cache_that_evicts", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"epochs", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"follows_a_ramp", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"reloads", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"high_water", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"lazily_made", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"grows_and_is_closed", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"leak_under_collections", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"leak_by_reconnects", Is::kLeak, Use::kHeldOut, Special::kNone},
      {"s_curve", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"pool_by_sizes", Is::kNoLeak, Use::kHeldOut, Special::kNone},
      {"schedule", Is::kNoLeak, Use::kHeldOut, Special::kNone},
  };
  return kinds;
}

// Objects in use are the sum of a curve (a function of the time), events, random births and noise.
class CourseMaker {
 public:
  CourseMaker(const ProgramRun& run, Random& random)
      : run_(run), random_(random), n_(run.times.size()), interval_(1.0 / static_cast<double>(n_ - 1)) {
    births_.resize(n_);
    noise_.resize(n_);
  }

  void Make(const std::string& kind) {
    base_ = random_.Chance(0.3) ? 0 : std::floor(random_.LogUniform(1, 10000));
    const double usual = random_.LogUniform(5, 300) * static_cast<double>(n_ - 1);  // the size of a leak at the end
    if (kind == "steady") {
      Leak(usual, false, 0, 1);
    } else if (kind == "by_load") {
      Leak(usual, true, 0, 1);
    } else if (kind == "rare") {
      const double objects = random_.Uniform(0.12, 0.7) * static_cast<double>(n_ - 1);
      for (int64_t total = 0; total < 3;) {
        births_.assign(n_, 0);
        Leak(objects, true, 0, 1);
        total = 0;
        for (const int64_t births : births_) total += births;
      }
    } else if (kind == "bursty") {
      const int bursts =
          std::max(3, static_cast<int>(std::lround(random_.Uniform(0.3, 1.5) * static_cast<double>(n_))));
      Jumps(bursts, 0, 1, random_.LogUniform(5, 300), 1.0);
    } else if (kind == "stairs") {
      const double longest = std::min(5.0, static_cast<double>(n_ - 1) / 2);
      const double period = random_.Uniform(std::min(2.0, longest / 2), longest) * interval_;
      for (double t = random_.Uniform(0, period); t < 1; t += period) events_.emplace_back(t, 1);
    } else if (kind == "late") {
      Leak(usual, false, random_.Uniform(0.2, 0.6), 1);
    } else if (kind == "on_saw") {
      const double height = random_.LogUniform(10, 10000);
      Saw(height, random_.Chance(0.5) ? random_.Uniform(2, 5) * interval_ : random_.Uniform(0.04, 0.45));
      Leak(height * random_.Uniform(0.7, 4), false, 0, 1);
    } else if (kind == "in_noise") {
      const double sigma = Noise(random_.LogUniform(0.01, 0.2));
      Leak(sigma * random_.Uniform(2, 10), false, 0, 1);
    } else if (kind == "slow") {
      base_ = random_.LogUniform(10000, 1000000);
      sigma_ = base_ * random_.Uniform(0, 0.001);
      WhiteNoise();
      Leak(0.01 * base_, false, 0, 1);
    } else if (kind == "cleaned") {
      Leak(usual, false, 0, 1);
      Clean(random_.Uniform(0.1, 0.35));
    } else if (kind == "flat") {
      base_ = std::max(base_, 1.0);
    } else if (kind == "noise") {
      Noise(random_.LogUniform(0.01, 0.2));
    } else if (kind == "warm_up") {
      WarmUp(random_.LogUniform(10, 10000), random_.Uniform(0.03, 0.25));
    } else if (kind == "warm_up_long") {
      WarmUp(random_.LogUniform(10, 10000), random_.Uniform(0.25, 0.6));
    } else if (kind == "cache" || kind == "cache_stalling") {
      Cache(random_.LogUniform(10, 10000), random_.Uniform(0.15, 0.8), kind != "cache" || random_.Chance(0.5));
    } else if (kind == "cache_open") {
      Cache(random_.LogUniform(100, 10000), random_.Uniform(1.05, 3), random_.Chance(0.5));
    } else if (kind == "caches") {
      const int caches = random_.Int(3, 5);
      for (int c = 0; c < caches; ++c) {
        Cache(random_.LogUniform(10, 10000), random_.Uniform(0.1, 0.8), random_.Chance(0.5));
      }
    } else if (kind == "saw_in_step") {
      Saw(random_.LogUniform(10, 10000), random_.Uniform(2, 5) * interval_);
    } else if (kind == "saw") {
      Saw(random_.LogUniform(10, 10000), random_.Uniform(0.04, 0.45));
    } else if (kind == "saw_long") {
      Saw(random_.LogUniform(10, 10000), random_.Uniform(0.45, 1));
    } else if (kind == "day") {
      Day(random_.LogUniform(10, 10000), 1);
    } else if (kind == "day_peaks") {
      Day(random_.LogUniform(10, 10000), 4);
    } else if (kind == "walk") {
      Walk(random_.Uniform(0.01, 0.15));
    } else if (kind == "walk_long") {
      Walk(random_.Uniform(0.15, 0.6));
    } else if (kind == "lru") {
      const double limit = random_.LogUniform(10, 10000);
      Cache(limit, random_.Uniform(0.02, 0.1), true);
      const double sigma = limit * random_.LogUniform(0.005, 0.1);
      for (size_t i = 0; i < n_; ++i) {
        if (curves_[0](run_.times[i]) >= limit) noise_[i] = -sigma * std::fabs(random_.Normal());
      }
      traffic_ = limit * random_.Uniform(0.5, 5);
    } else if (kind == "jumps") {
      Jumps(random_.Int(1, 3), 0, 0.9, random_.LogUniform(1, 10000), 1.0);
    } else if (kind == "jumps_4_to_8") {
      Jumps(random_.Int(4, 8), 0, 0.85, random_.LogUniform(10, 10000), 1.0);
    } else if (kind == "jumps_equal") {
      Jumps(random_.Int(2, 8), 0, 0.9, random_.LogUniform(1, 1000), 0);
    } else if (kind == "jumps_in_noise") {
      const double sigma = Noise(random_.LogUniform(0.005, 0.05));
      Jumps(random_.Int(1, 6), 0, 0.9, sigma * random_.Uniform(2, 20), 0.7);
    } else if (kind == "compaction") {
      const double height = random_.LogUniform(10, 10000);
      Saw(height, random_.Uniform(0.3, 0.8));
    } else if (kind == "leak_on_day") {
      const double height = random_.LogUniform(10, 10000);
      Day(height, 1);
      Leak(height * random_.Uniform(0.7, 4), false, 0, 1);
    } else if (kind == "leak_after_warm_up") {
      const double height = random_.LogUniform(100, 10000);
      WarmUp(height, random_.Uniform(0.03, 0.2));
      Leak(height * random_.Uniform(0.5, 3), false, 0, 1);
    } else if (kind == "leak_with_jumps") {
      const double total = std::max(usual, 100.0);
      const int jumps = random_.Int(1, 4);
      Leak(total, false, 0, 1);
      Jumps(jumps, 0, 0.9, total * random_.Uniform(0.2, 1) / jumps, 0.5);
    } else if (kind == "leak_beside_cache") {
      const double limit = random_.LogUniform(100, 10000);
      Cache(limit, random_.Uniform(0.1, 0.4), random_.Chance(0.5));
      Leak(limit * random_.Uniform(0.5, 3), false, 0, 1);
    } else if (kind == "leak_in_walk") {
      Walk(random_.Uniform(0.01, 0.1));
      Leak(sigma_ * random_.Uniform(3, 10), false, 0, 1);
    } else if (kind == "leak_in_pages") {  // a page whenever the requests have filled one
      const double pages = random_.Uniform(0.3, 0.8) * static_cast<double>(n_ - 1) + 3;
      const double filled = random_.Uniform(0, 1);
      curves_.push_back([this, pages, filled](double t) { return std::floor(WorkAt(t) * pages + filled); });
    } else if (kind == "loads_and_unloads") {
      const int loads = random_.Int(3, 8);
      for (int load = 0; load < loads; ++load) {
        const double size = std::round(random_.LogUniform(10, 1000));
        const double from = random_.Uniform(0, 0.85);
        events_.emplace_back(from, size);
        if (random_.Chance(0.6)) events_.emplace_back(from + random_.Uniform(0.05, 0.5), -size);
      }
    } else if (kind == "second_warm_up") {
      const double height = random_.LogUniform(10, 10000);
      WarmUp(height, random_.Uniform(0.02, 0.1));
      const double from = random_.Uniform(0.3, 0.6);
      const double length = random_.Uniform(0.02, 0.1);
      curves_.push_back([=](double t) { return t < from ? 0 : 0.7 * height * (1 - std::exp(-(t - from) / length)); });
    } else if (kind == "doubling_pool") {  // becomes twice as large when it is full, until all fits
      const double size = random_.LogUniform(4, 100);
      const int doublings = random_.Int(3, 8);
      const double full_at = random_.Uniform(0.2, 0.8);
      curves_.push_back([=](double t) {
        const double share = std::min(1.0, t / full_at);
        return size *
               std::exp2(std::floor(doublings * std::max(0.0, 1 + std::log2(std::max(share, 1e-6)) / doublings)));
      });
    } else if (kind == "leak_at_two_rates") {
      const double change = random_.Uniform(0.3, 0.7);
      const double factor = random_.Uniform(2, 5);
      const bool faster = random_.Chance(0.5);
      Leak(usual * change * (faster ? 1 : factor), false, 0, change);
      Leak(usual * (1 - change) * (faster ? factor : 1), false, change, 1);
    } else if (kind == "leak_by_day") {
      Days();
      double before = DayWork(0, 4);
      double all = DayWork(1, 4) - before;
      for (size_t i = 1; i < n_; ++i) {
        const double now = DayWork(run_.times[i], 4);
        births_[i] += random_.Poisson(usual * (now - before) / all);
        before = now;
      }
    } else if (kind == "leak_restarted" || kind == "leak_stalling") {
      Leak(usual, true, 0, 1);
    } else if (kind == "stopped") {
      Leak(usual, random_.Chance(0.5), 0, random_.Uniform(0.3, 0.8));
    } else if (kind == "warm_up_restarted") {
      const double height = random_.LogUniform(10, 10000);
      const double length = random_.Uniform(0.02, 0.08);
      const double second = run_.times[run_.restart] - 0.5 * interval_;
      curves_.push_back([=, restart = run_.times[run_.restart]](double t) {
        return height * (1 - std::exp(-(t < restart ? t : t - second) / length));
      });
    } else if (kind == "every_key") {
      const double power = random_.Uniform(0.3, 0.7);
      const double height = random_.LogUniform(1000, 100000);
      curves_.push_back([=](double t) { return height * std::pow(t, power); });
    } else if (kind == "leak_faster_and_faster") {  // each request walks a list and adds to it
      const double doublings = random_.Uniform(0.7, 3);
      for (size_t i = 1; i < n_; ++i) {
        const double from = std::exp2(doublings * run_.times[i - 1]);
        const double to = std::exp2(doublings * run_.times[i]);
        births_[i] += random_.Poisson(usual * (to - from) / (std::exp2(doublings) - 1));
      }
    } else if (kind == "leak_with_pauses") {  // of jobs that start and end
      std::vector<std::pair<double, double>> jobs;
      const double mean = random_.Uniform(0.03, 0.1);
      double all = 0;
      for (double t = random_.Exponential(mean) - mean; t < 1 || all == 0;) {
        if (t >= 1) t = random_.Exponential(mean) - mean;
        const double end = std::min(1.0, t + random_.Exponential(mean));
        if (end > 0) {
          jobs.emplace_back(std::max(0.0, t), end);
          all += end - std::max(0.0, t);
        }
        t = end + random_.Exponential(mean);
      }
      for (const auto& [from, to] : jobs) Leak(usual * (to - from) / all, false, from, to);
    } else if (kind == "leak_heavy_tailed") {  // sizes by Pareto's law
      const double count = random_.Uniform(2, 20) * static_cast<double>(n_ - 1);
      const double exponent = random_.Uniform(1.2, 2.5);
      for (double t = random_.Exponential(1 / count); t < 1; t += random_.Exponential(1 / count)) {
        events_.emplace_back(t, std::floor(10 * std::pow(1 - random_.Uniform(0, 1), -1 / exponent)));
      }
    } else if (kind == "leak_of_sessions") {  // some of the sessions that end are forgotten
      const double count = random_.LogUniform(20, 2000);
      Sessions(count, random_.Uniform(0.01, 0.1));
      Leak(count * random_.Uniform(0.5, 3), false, 0, 1);
    } else if (kind == "leak_in_blocks") {  // a list that takes memory by blocks, on a level with noise
      const double blocks = random_.Uniform(0.5, 3) * static_cast<double>(n_ - 1) + 3;
      const double block = std::round(random_.LogUniform(10, 1000));
      sigma_ = block * random_.Uniform(0, 0.5);
      base_ = std::max(base_, 10 * block);
      WhiteNoise();
      curves_.push_back([=](double t) { return block * std::floor(t * blocks); });
    } else if (kind == "leak_by_falling_load") {
      const double left = random_.Uniform(0.3, 0.7);  // of the rate, in the end
      const double from = random_.Uniform(0.2, 0.6);
      Leak(usual * from, false, 0, from);
      Leak(usual * (1 - from) * left, false, from, 1);
    } else if (kind == "sessions") {
      Sessions(random_.LogUniform(20, 2000), random_.Uniform(0.01, 0.2));
    } else if (kind == "cache_that_evicts") {  // a part of it at once, whenever it is full
      const double limit = random_.LogUniform(100, 10000);
      const double full_at = random_.Uniform(0.1, 0.6);
      const double evicted = random_.Uniform(0.05, 0.4);
      curves_.push_back([=](double t) {
        const double share = t / full_at;
        return limit * (share < 1 ? share : 1 - evicted + std::fmod(share - 1, evicted));
      });
    } else if (kind == "epochs") {  // of different heights, with the memory that the first one keeps
      const double period = random_.Uniform(0.08, 0.3);
      const double kept = random_.LogUniform(10, 1000);
      std::vector<double> heights;
      for (int e = 0; e < 14; ++e) heights.push_back(random_.LogUniform(100, 1000));
      curves_.push_back([=](double t) {
        const auto epoch = std::min<size_t>(static_cast<size_t>(t / period), 13);
        return (epoch > 0 ? kept : 0) + heights[epoch] * (t / period - static_cast<double>(epoch));
      });
    } else if (kind == "follows_a_ramp") {  // buffers of a load that rises, stays, and may fall
      const double height = random_.LogUniform(10, 10000);
      const double from = random_.Uniform(0, 0.4);
      const double to = from + random_.Uniform(0.05, 0.4);
      const double down = random_.Chance(0.5) ? random_.Uniform(0, 0.5) : 0;
      sigma_ = height * random_.Uniform(0, 0.05);
      WhiteNoise();
      curves_.push_back([=](double t) {
        return height * (std::min(std::max((t - from) / (to - from), 0.0), 1.0) - down * std::max(0.0, t - to));
      });
    } else if (kind == "reloads") {  // the new before the old is freed; sizes differ
      double size = std::round(random_.LogUniform(100, 10000));
      base_ += size;
      const int reloads = random_.Int(1, 6);
      std::vector<double> when;
      for (int r = 0; r < reloads; ++r) when.push_back(random_.Uniform(0, 1));
      std::sort(when.begin(), when.end());
      for (const double t : when) {
        const double next = std::round(size * random_.Uniform(0.9, 1.12));
        events_.emplace_back(t, next);
        events_.emplace_back(t + random_.Uniform(0.01, 0.1), -size);
        size = next;
      }
    } else if (kind == "high_water") {  // a pool keeps its maximum
      const double mean = random_.LogUniform(10, 10000);
      const double sigma = random_.Uniform(0.05, 0.5);
      double most = 0;
      for (int k = 0; k < 2000; ++k) {
        const double demand = std::round(mean * std::exp(sigma * random_.Normal()));
        if (demand > most) events_.emplace_back(k / 2000.0 - 1e-9, demand - most);
        most = std::max(most, demand);
      }
    } else if (kind == "lazily_made") {  // one of each kind, when it is first needed
      const int things = random_.Int(3, 30);
      const double mean = random_.Uniform(0.03, 0.2);
      for (int k = 0; k < things; ++k) {
        events_.emplace_back(random_.Exponential(mean), std::round(random_.LogUniform(10, 100)));
      }
    } else if (kind == "grows_and_is_closed") {  // a log or a session with history, from beginning to end
      const double from = random_.Uniform(0, 0.5);
      const double to = from + random_.Uniform(0.2, 0.45);
      const double height = random_.LogUniform(10, 10000);
      curves_.push_back([=](double t) { return t < from || t > to ? 0 : height * (t - from) / (to - from); });
    } else if (kind == "leak_under_collections") {  // garbage that is collected at random times
      const double height = random_.LogUniform(10, 1000);
      const double mean = random_.Uniform(0.03, 0.2);
      std::vector<double> when = {-random_.Uniform(0, mean)};
      while (when.back() < 1) when.push_back(when.back() + random_.Uniform(0.3, 1.7) * mean);
      curves_.push_back(
          [=](double t) { return height * (t - *std::prev(std::upper_bound(when.begin(), when.end(), t))) / mean; });
      Leak(height * random_.Uniform(0.7, 4), random_.Chance(0.5), 0, 1);
    } else if (kind == "leak_by_reconnects") {  // each loses a geometric number of buffers
      const double count = random_.Uniform(1, 6) * static_cast<double>(n_ - 1);
      const double mean = random_.LogUniform(2, 50);
      for (double t = random_.Exponential(1 / count); t < 1; t += random_.Exponential(1 / count)) {
        events_.emplace_back(t, 1 + std::floor(random_.Exponential(mean)));
      }
    } else if (kind == "s_curve") {  // clients that connect, most of them around one time
      const double height = random_.LogUniform(10, 10000);
      const double center = random_.Uniform(0.15, 0.6);
      const double width = random_.Uniform(0.02, 0.08);
      sigma_ = random_.Chance(0.5) ? height * random_.Uniform(0, 0.02) : 0;
      WhiteNoise();
      curves_.push_back([=](double t) { return height / (1 + std::exp((center - t) / width)); });
    } else if (kind == "pool_by_sizes") {  // each size class keeps its maximum
      const int classes = random_.Int(3, 12);
      for (int c = 0; c < classes; ++c) {
        const double block = std::round(random_.LogUniform(1, 100));
        const double mean = random_.LogUniform(2, 30);
        int64_t most = 0;
        for (int k = 0; k < 200; ++k) {
          const int64_t demand = random_.Poisson(mean);
          if (demand > most) events_.emplace_back(k / 200.0 - 1e-9, block * static_cast<double>(demand - most));
          most = std::max(most, demand);
        }
      }
    } else if (kind == "schedule") {  // a batch size that is raised by equal steps, until it is large enough
      const int steps = random_.Int(2, 8);
      const double last = random_.Uniform(0.3, 0.85);
      const double size = std::round(random_.LogUniform(10, 1000));
      for (int k = 1; k <= steps; ++k) events_.emplace_back(last * k / steps, size);
    }
  }

  SiteCourse Course() {
    const double size = std::floor(std::exp2(random_.Uniform(8, 24)));
    const double traffic = traffic_ > 0          ? traffic_
                           : random_.Chance(0.5) ? random_.LogUniform(1, 1000) * static_cast<double>(n_)
                                                 : 0;
    SiteCourse course;
    double held = 0;
    double allocated = 0;
    double born = 0;
    double before = 0;
    for (size_t i = 0; i < n_; ++i) {
      const double t = run_.times[i];
      const bool starts = i == 0 || (run_.restart != 0 && i == run_.restart);
      if (starts) {
        held = 0;
        allocated = 0;
        born = 0;
        before = i == 0 ? 0 : t - 0.5 * interval_;
      }
      born += static_cast<double>(births_[i]);
      double level = base_ + born;
      for (const auto& [time, objects] : events_) level += time <= t ? objects : 0;
      double ups = 0;
      for (const auto& curve : curves_) {
        level += curve(t);
        for (int k = 0; k < 16; ++k) {
          const double from = before + (t - before) * k / 16;
          const double to = before + (t - before) * (k + 1) / 16;
          ups += std::max(0.0, curve(to) - curve(from));
        }
      }
      level = std::max(0.0, std::floor(level + noise_[i]));
      const double seen = std::max(0.0, level - held);
      const double intervals = (t - before) / interval_;
      allocated += std::max(seen, std::floor(ups)) + std::floor(traffic * intervals / static_cast<double>(n_)) +
                   (sigma_ > 0 ? std::floor(sigma_ * intervals) : 0);
      held = level;
      before = t;
      course.objects.push_back(static_cast<int64_t>(level));
      course.bytes.push_back(static_cast<int64_t>(level * size));
      course.allocated_objects.push_back(static_cast<int64_t>(std::max(allocated, level)));
      course.allocated.push_back(static_cast<int64_t>(std::max(allocated, level) * size));
    }
    return course;
  }

 private:
  // `objects` in the whole run, as births between the times `from` and `to`; by the work done or evenly.
  void Leak(double objects, bool by_work, double from, double to) {
    for (size_t i = 1; i < n_; ++i) {
      const double now = std::min(std::max(run_.times[i], from), to);
      double share = now - std::min(std::max(run_.times[i - 1], from), to);
      if (by_work) share = WorkAt(now) - WorkAt(std::min(std::max(run_.times[i - 1], from), to));
      births_[i] += random_.Poisson(objects * share);
    }
  }
  double WorkAt(double time) const {
    const double position = time * kGrid;
    const auto cell = std::min(static_cast<size_t>(position), kGrid - 1);
    return run_.grid_[cell] + (position - static_cast<double>(cell)) * (run_.grid_[cell + 1] - run_.grid_[cell]);
  }
  void Jumps(int count, double from, double to, double size, double spread) {
    for (int j = 0; j < count; ++j) {
      events_.emplace_back(random_.Uniform(from, to),
                           std::max(1.0, std::round(size * std::exp(spread * random_.Normal()))));
    }
  }
  // At random times, frees a part of the memory that leaked since the last cleaning.
  void Clean(double mean_gap) {
    double next = random_.Exponential(mean_gap);
    int64_t since = 0;
    for (size_t i = 1; i < n_; ++i) {
      since += births_[i];
      while (next <= run_.times[i]) {
        const auto freed = static_cast<int64_t>(random_.Uniform(0.2, 0.7) * static_cast<double>(since));
        births_[i] -= freed;
        since = 0;
        next += std::max(0.02, random_.Exponential(mean_gap));
      }
    }
  }
  void Saw(double height, double period) {
    const double phase = random_.Uniform(0, period);
    curves_.push_back([=](double t) { return height * std::fmod(t + phase, period) / period; });
  }
  // Buffers that live for a time of this mean; `count` of them live at most times.
  void Sessions(double count, double mean) {
    for (double t = -5 * mean; t < 1; t += random_.Exponential(mean / count)) {
      const double end = t + random_.Exponential(mean);
      if (end < 0) continue;
      events_.emplace_back(std::max(0.0, t), 1);
      events_.emplace_back(end, -1);
    }
  }
  double Noise(double share) {
    base_ = std::max(base_, 100.0);
    sigma_ = base_ * share;
    WhiteNoise();
    return sigma_;
  }
  void WhiteNoise() {
    for (double& noise : noise_) noise = sigma_ * random_.Normal();
  }
  void WarmUp(double height, double length) {
    curves_.push_back([=](double t) { return height * (1 - std::exp(-t / length)); });
    sigma_ = random_.Chance(0.5) ? height * random_.Uniform(0, 0.02) : 0;
    WhiteNoise();
  }
  void Cache(double limit, double full_at, bool by_work) {
    curves_.push_back([this, limit, full_at, by_work](double t) {
      return limit * std::min(1.0, (by_work ? WorkAt(t) : t) / full_at);
    });
  }
  void Days() {
    days_ = random_.Uniform(0.9, 4);
    phase_ = random_.Uniform(0, 2 * kPi);
  }
  double DayHeight(double t, int power) const {
    return std::pow(0.5 + 0.5 * std::sin(2 * kPi * days_ * t + phase_), power);
  }
  double DayWork(double t, int power) const {
    double sum = 0;
    for (int k = 0; k < 400; ++k) sum += DayHeight(t * (k + 0.5) / 400, power) * t / 400;
    return sum;
  }
  void Day(double height, int power) {
    Days();
    std::vector<double> heights;
    for (int d = 0; d < 8; ++d) heights.push_back(power == 1 ? height : height * std::exp(0.15 * random_.Normal()));
    curves_.push_back([this, heights, power](double t) {
      const auto day = static_cast<size_t>(std::floor(days_ * t + (phase_ + kPi / 2) / (2 * kPi)));
      return heights[std::min<size_t>(day, 7)] * DayHeight(t, power);
    });
    if (power == 1 && random_.Chance(0.5)) {
      sigma_ = height * random_.Uniform(0, 0.05);
      WhiteNoise();
    }
  }
  void Walk(double length) {
    base_ = std::max(base_, 100.0);
    sigma_ = base_ * random_.Uniform(0.02, 0.3);
    double at = random_.Normal();
    for (size_t i = 0; i < n_; ++i) {
      if (i > 0) {
        const double rho = std::exp(-(run_.times[i] - run_.times[i - 1]) / length);
        at = rho * at + std::sqrt(1 - rho * rho) * random_.Normal();
      }
      noise_[i] = sigma_ * at;
    }
  }

  const ProgramRun& run_;
  Random& random_;
  const size_t n_;
  const double interval_;
  double base_ = 0;
  double sigma_ = 0;
  double traffic_ = 0;  // objects that come and go between dumps, in the whole run
  double days_ = 1;
  double phase_ = 0;
  std::vector<int64_t> births_;  // before each dump
  std::vector<double> noise_;
  std::vector<std::function<double(double)>> curves_;
  std::vector<std::pair<double, double>> events_;  // time, objects
};

SiteCourse MakeCourse(const CourseKind& kind, const ProgramRun& run, Random& random) {
  CourseMaker maker(run, random);
  maker.Make(kind.name);
  return maker.Course();
}

}  // namespace hbmprof_test
