// See lives.h.
#include "tests/tool/lives.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace hbmprof_test {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr size_t kGrid = 4000;

uint64_t Mixed(uint64_t z) {  // the output function of SplitMix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Makes the buffers of one site. Each function adds buffers of one pattern.
class Maker {
 public:
  Maker(const Run& run, Random& random)
      : run_(run), random_(random), bytes_(std::exp2(random.Uniform(8, 24))), uneven_(random.Chance(0.3)) {
    // Any site may also have buffers that are made at the start, and buffers that live shortly.
    if (Chance(0.35)) Start(LogUniform(1, 300));
    if (Chance(0.5)) Traffic();
  }

  std::vector<Buffer> buffers() && { return std::move(buffers_); }

  double Uniform(double low, double high) { return random_.Uniform(low, high); }
  double LogUniform(double low, double high) { return random_.LogUniform(low, high); }
  int Int(int low, int high) { return random_.Int(low, high); }
  bool Chance(double p) { return random_.Chance(p); }
  double Exponential(double mean) { return random_.Exponential(mean); }
  int64_t Poisson(double mean) { return random_.Poisson(mean); }
  Random& random() { return random_; }

  void Add(double birth, double death = kNever) {
    if (birth < 0) birth = 0;
    if (birth > 1 || death <= birth) return;
    const double size = bytes_ * (uneven_ ? std::exp(0.7 * random_.Normal()) : 1);
    buffers_.push_back({birth, death, std::max<int64_t>(1, std::llround(size))});
  }
  void AddMany(double count, double birth, double death = kNever) {
    for (int64_t i = 0; i < std::llround(count); ++i) Add(birth, death);
  }
  void AddSized(double birth, double death, double units) {
    buffers_.push_back({birth, death, std::max<int64_t>(1, std::llround(bytes_ * units))});
  }

  // Random times between `from` and `to`, in order. Their number is random too, with this mean. They follow the load or
  // are even.
  std::vector<double> Times(double mean, double from = 0, double to = 1, bool by_load = false) {
    std::vector<double> times;
    const int64_t count = Poisson(mean);
    for (int64_t i = 0; i < count; ++i) {
      times.push_back(by_load ? run_.TimeOf(Uniform(run_.WorkAt(from), run_.WorkAt(to))) : Uniform(from, to));
    }
    std::sort(times.begin(), times.end());
    return times;
  }
  // Times with this density, which is at most 1; `mean` of them if it were 1.
  std::vector<double> TimesOf(double mean, const std::function<double(double)>& density) {
    std::vector<double> times;
    for (const double t : Times(mean)) {
      if (Chance(density(t))) times.push_back(t);
    }
    return times;
  }

  void Start(double count) { AddMany(count, Uniform(0, 0.01)); }
  void Traffic() {
    const double life = LogUniform(1e-6, 3e-3);
    for (const double t : Times(LogUniform(20, 3000), 0, 1, true)) Add(t, t + Exponential(life));
  }
  void Leak(double mean, bool by_load = false, double from = 0, double to = 1) {
    for (const double t : Times(mean, from, to, by_load)) Add(t);
  }
  double LeakCount() { return LogUniform(20, 2000); }
  // Buffers that are freed together after each period.
  void Batches(double height, double period) {
    const double phase = Uniform(0, period);
    for (const double t : Times(height / period)) Add(t, (std::floor((t + phase) / period) + 1) * period - phase);
  }
  // `live` buffers at most times, which live for times of this mean. `density`: of the births.
  void Sessions(
      double live, double mean, const std::function<double(double)>& density = [](double) { return 1; }) {
    for (const double t : TimesOf(live / mean, density)) Add(t, t + Exponential(mean));
  }
  // A day's curve, from 0 to 1.
  std::function<double(double)> Day(double days) {
    const double phase = Uniform(0, 2 * kPi);
    return [=](double t) { return 0.5 + 0.5 * std::sin(2 * kPi * days * t + phase); };
  }
  void WarmUp(double count, double length, double from = 0) {
    for (int64_t i = 0; i < std::llround(count); ++i) Add(from + Exponential(length));
  }
  // Tables whose buffers are replaced by ones that are twice as large, until all fits: `last` is the latest time.
  void DoublingTables(int tables, double last) {
    for (int k = 0; k < tables; ++k) {
      const double full = last * Uniform(0.3, 1);
      double from = 0;
      double units = 1;
      for (double t = full * LogUniform(0.01, 0.1); from < full; from = t, t *= 2, units *= 2) {
        AddSized(from, t < full ? t : kNever, units);
      }
    }
  }
  void Fill(double limit, double full_at) { Leak(limit, Chance(0.5), 0, full_at); }
  // A cache that is full at this time, and then frees its oldest entry for each new one. Returns the freed ones.
  std::vector<size_t> Lru(double limit, double full_at) {
    const std::vector<double> times = Times(limit / full_at, 0, 1, Chance(0.5));
    const auto length = static_cast<size_t>(limit);
    std::vector<size_t> freed;
    for (size_t i = 0; i < times.size(); ++i) {
      if (i + length < times.size()) freed.push_back(buffers_.size());
      Add(times[i], i + length < times.size() ? times[i + length] : kNever);
    }
    return freed;
  }
  // A table whose older half is freed when it is full: `period` is the time between two such times.
  void HalvedWhenFull(double limit, double period) {
    const std::vector<double> times = Times(limit / 2 / period);
    const auto half = std::max<size_t>(1, static_cast<size_t>(limit / 2));
    for (size_t i = 0; i < times.size(); ++i) {
      const size_t freed = (i / half + 2) * half;
      Add(times[i], freed < times.size() ? times[freed] : kNever);
    }
  }
  void Keep(size_t buffer) { buffers_[buffer].death = kNever; }
  // Jumps of uneven size within this time.
  void Jumps(int count, double last, double size, double spread) {
    for (int j = 0; j < count; ++j) {
      AddMany(std::max(1.0, size * std::exp(spread * random_.Normal())), Uniform(0, last));
    }
  }
  // A slow random walk around 0 with variance 1, at `points` times.
  std::vector<double> Walk(size_t points, double length) {
    std::vector<double> walk = {random_.Normal()};
    const double rho = std::exp(-1 / (static_cast<double>(points) * length));
    while (walk.size() < points) walk.push_back(rho * walk.back() + std::sqrt(1 - rho * rho) * random_.Normal());
    return walk;
  }
  // Random times in order from 0 to 1, with distances of `mean` or more regular ones; 0 and a time above 1 included.
  std::vector<double> Renewals(double mean) {
    std::vector<double> times = {0};
    const bool regular = Chance(0.5);
    while (times.back() <= 1) times.push_back(times.back() + (regular ? mean * Uniform(0.7, 1.3) : Exponential(mean)));
    return times;
  }

 private:
  const Run& run_;
  Random& random_;
  const double bytes_;
  const bool uneven_;
  std::vector<Buffer> buffers_;
};

struct MadeKind {
  Kind kind;
  std::function<void(Maker&)> make;
};

const std::vector<MadeKind>& MadeKinds() {
  using Is = Kind::Is;
  using Use = Kind::Use;
  static const std::vector<MadeKind> kinds = {
      {{"steady", Is::kLeak, Use::kTuned}, [](Maker& m) { m.Leak(m.LeakCount()); }},
      {{"by_load", Is::kLeak, Use::kTuned}, [](Maker& m) { m.Leak(m.LeakCount(), true); }},
      {{"rare", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const int count = m.Int(3, 12);
         for (int i = 0; i < count; ++i) m.Add(m.Uniform(0, 1));
       }},
      {{"bursty", Is::kLeak, Use::kTuned}, [](Maker& m) { m.Jumps(m.Int(6, 60), 1, m.LogUniform(2, 40), 1); }},
      {{"stairs", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double period = m.Uniform(1 / 30.0, 1 / 6.0);
         const int size = m.Int(1, 20);
         for (double t = m.Uniform(0, period); t < 1; t += period) m.AddMany(size, t);
       }},
      {{"regular", Is::kLeak, Use::kTuned},  // a small page for every so many objects
       [](Maker& m) {
         const double period = 1 / m.LogUniform(10, 100);
         for (double t = m.Uniform(0, period); t < 1; t += period) m.Add(t + m.Uniform(-0.2, 0.2) * period);
       }},
      {{"late", Is::kLeak, Use::kTuned}, [](Maker& m) { m.Leak(m.LeakCount(), false, m.Uniform(0.2, 0.6)); }},
      {{"slow", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         m.Start(m.LogUniform(1000, 5000));
         m.Leak(m.LogUniform(10, 50));
       }},
      {{"cleaned", Is::kLeak, Use::kTuned},  // now and then a part of the last leaked buffers is freed
       [](Maker& m) {
         const std::vector<double> cleanings = m.Renewals(m.Uniform(0.1, 0.35));
         const double share = m.Uniform(0.2, 0.7);
         for (const double t : m.Times(m.LeakCount())) {
           m.Add(t, m.Chance(share) ? *std::upper_bound(cleanings.begin(), cleanings.end(), t) : kNever);
         }
       }},
      {{"leak_on_batches", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double height = m.LogUniform(10, 300);
         m.Batches(height, m.Uniform(0.02, 0.3));
         m.Leak(height * m.Uniform(0.5, 4));
       }},
      {{"leak_on_sessions", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double live = m.LogUniform(5, 60);
         m.Sessions(live, m.LogUniform(0.005, 0.1));
         m.Leak(live * m.Uniform(0.5, 4), m.Chance(0.5));
       }},
      {{"leak_on_day", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double live = m.LogUniform(10, 100);
         m.Sessions(live, m.LogUniform(0.005, 0.05), m.Day(m.Uniform(0.9, 6)));
         m.Leak(live * m.Uniform(0.5, 4));
       }},
      {{"leak_by_day", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         for (const double t : m.TimesOf(m.LeakCount() * 2, m.Day(m.Uniform(0.9, 6)))) m.Add(t);
       }},
      {{"leak_after_warm_up", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double count = m.LogUniform(20, 500);
         m.WarmUp(count, m.Uniform(0.03, 0.2));
         m.Leak(count * m.Uniform(0.5, 3));
       }},
      {{"leak_beside_cache", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double limit = m.LogUniform(20, 500);
         m.Fill(limit, m.Uniform(0.1, 0.4));
         m.Leak(limit * m.Uniform(0.5, 3));
       }},
      {{"leak_beside_lru", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double limit = m.LogUniform(20, 200);
         m.Lru(limit, m.LogUniform(0.03, 0.3));
         m.Leak(limit * m.Uniform(0.5, 3));
       }},
      {{"leak_in_incidents", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const int incidents = m.Int(5, 25);
         for (int i = 0; i < incidents; ++i) {
           const double from = m.Uniform(0, 1);
           m.Leak(m.Int(5, 50), false, from, std::min(1.0, from + m.Uniform(0.005, 0.02)));
         }
       }},
      {{"leak_at_two_rates", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double change = m.Uniform(0.2, 0.8);
         const double count = m.LeakCount();
         const double factor = m.LogUniform(0.25, 4);
         m.Leak(count * change, false, 0, change);
         m.Leak(count * factor * (1 - change), false, change, 1);
       }},
      {{"leak_with_jumps", Is::kLeak, Use::kTuned},
       [](Maker& m) {
         const double count = m.LeakCount();
         const int jumps = m.Int(1, 4);
         m.Leak(count);
         m.Jumps(jumps, 0.9, count * m.Uniform(0.2, 1) / jumps, 0.5);
       }},

      {{"leak_faster_and_faster", Is::kLeak, Use::kSeen},
       [](Maker& m) {
         const double power = m.Uniform(1.3, 2.5);
         for (const double t : m.Times(m.LeakCount())) m.Add(std::pow(t, 1 / power));
       }},
      {{"leak_with_pauses", Is::kLeak, Use::kSeen},  // works for some time, pauses, works
       [](Maker& m) {
         const double cycle = m.Uniform(0.05, 0.3);
         const double active = m.Uniform(0.3, 0.8);
         const double phase = m.Uniform(0, 1);
         for (const double t :
              m.TimesOf(m.LeakCount() * 2, [=](double t) { return std::fmod(t / cycle + phase, 1) < active; })) {
           m.Add(t);
         }
       }},
      {{"leak_heavy_tailed", Is::kLeak, Use::kSeen},  // few events lose most of the buffers
       [](Maker& m) {
         for (const double t : m.Times(m.LogUniform(20, 100))) m.AddMany(std::pow(m.Uniform(0.005, 1), -1 / 1.5), t);
       }},
      {{"leak_of_sessions", Is::kLeak, Use::kSeen},  // each session frees most of its buffers when it ends
       [](Maker& m) {
         const double mean = m.LogUniform(0.005, 0.1);
         const int held = m.Int(2, 10);
         for (const double t : m.Times(m.LogUniform(20, 300))) {
           const double end = t + m.Exponential(mean);
           for (int i = 0; i < held; ++i) m.Add(m.Uniform(t, end), end);
           m.Add(m.Uniform(t, end));
         }
       }},
      {{"leak_in_blocks", Is::kLeak, Use::kSeen},
       [](Maker& m) {
         const int block = m.Int(8, 128);
         for (const double t : m.Times(m.LogUniform(10, 60), 0, 1, true)) m.AddMany(block, t);
       }},
      {{"leak_by_falling_load", Is::kLeak, Use::kSeen},
       [](Maker& m) {
         const double end = m.Uniform(0.3, 0.8);
         for (const double t : m.TimesOf(m.LeakCount(), [=](double t) { return 1 - (1 - end) * t; })) m.Add(t);
       }},
      {{"leak_under_collections", Is::kLeak, Use::kSeen},  // garbage that is collected at random times
       [](Maker& m) {
         const std::vector<double> collections = m.Renewals(m.Uniform(0.03, 0.2));
         const double count = m.LogUniform(50, 1000);
         for (const double t : m.Times(count)) {
           m.Add(t, *std::upper_bound(collections.begin(), collections.end(), t));
         }
         m.Leak(count * m.Uniform(0.05, 0.5), m.Chance(0.5));
       }},
      {{"leak_by_reconnects", Is::kLeak, Use::kSeen},
       [](Maker& m) {
         const double mean = m.LogUniform(2, 30);
         for (const double t : m.Times(m.LogUniform(15, 100))) m.AddMany(1 + std::floor(m.Exponential(mean)), t);
       }},
      {{"leak_of_a_cache", Is::kLeak, Use::kSeen},  // some evicted entries stay
       [](Maker& m) {
         const double share = m.LogUniform(0.02, 0.3);
         for (const size_t freed : m.Lru(m.LogUniform(20, 200), m.LogUniform(0.02, 0.2))) {
           if (m.Chance(share)) m.Keep(freed);
         }
       }},
      {{"connections_not_closed", Is::kLeak, Use::kSeen},  // some of those that live long are never closed
       [](Maker& m) {
         const double mean = m.Uniform(0.02, 0.12);
         const double lost = m.Uniform(0.1, 0.4);
         for (const double t : m.Times(m.LogUniform(50, 1000), 0, 1, true)) {
           m.Add(t, m.Chance(lost) ? kNever : t + m.Exponential(mean));
         }
       }},
      {{"leak_by_reloads", Is::kLeak, Use::kSeen},  // each reload frees the last model but for a few buffers
       [](Maker& m) {
         const std::vector<double> reloads = m.Renewals(1 / m.LogUniform(10, 40));
         const int size = m.Int(10, 60);
         const int lost = m.Int(1, 5);
         for (size_t i = 0; i + 1 < reloads.size(); ++i) {
           m.AddMany(size, reloads[i], reloads[i + 1]);
           m.AddMany(lost, reloads[i]);
         }
       }},

      {{"replaced_by_larger", Is::kReplaced, Use::kTuned},  // x = cat(x, new)
       [](Maker& m) {
         const std::vector<double> times = m.Times(m.LogUniform(20, 500), 0, 1, m.Chance(0.5));
         for (size_t i = 0; i < times.size(); ++i) {
           m.AddSized(times[i], i + 1 < times.size() ? times[i + 1] : kNever, static_cast<double>(i + 1));
         }
       }},
      {{"doubled", Is::kReplaced, Use::kTuned},  // a list whose buffer is doubled when it is full
       [](Maker& m) {
         const double first = m.LogUniform(0.001, 0.02);
         for (double t = 0, at = first; t < 1; t = at, at *= 2) m.AddSized(t, at <= 1 ? at : kNever, at / first);
       }},
      {{"index_made_again", Is::kReplaced, Use::kSeen},  // an index of growing data, made again now and then
       [](Maker& m) {
         const std::vector<double> times = m.Renewals(m.LogUniform(0.01, 0.1));
         const double entries = m.LogUniform(50, 500);
         for (size_t i = 0; i + 1 < times.size(); ++i) m.AddMany(entries * times[i], times[i], times[i + 1]);
       }},

      {{"weights", Is::kNoLeak, Use::kTuned}, [](Maker& m) { m.Start(m.LogUniform(1, 1000)); }},
      {{"traffic", Is::kNoLeak, Use::kTuned}, [](Maker& m) { m.Traffic(); }},
      {{"warm_up", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.WarmUp(m.LogUniform(20, 1000), m.Uniform(0.03, 0.15)); }},
      {{"second_warm_up", Is::kNoLeak, Use::kTuned},
       [](Maker& m) {
         m.WarmUp(m.LogUniform(20, 500), m.Uniform(0.02, 0.08));
         m.WarmUp(m.LogUniform(20, 500), m.Uniform(0.02, 0.08), m.Uniform(0.3, 0.6));
       }},
      {{"made_when_needed", Is::kNoLeak, Use::kTuned},  // one of each shape, when it is first needed
       [](Maker& m) {
         const int shapes = m.Int(5, 40);
         const double mean = m.Uniform(0.03, 0.2);
         for (int i = 0; i < shapes; ++i) m.Add(m.Exponential(mean));
       }},
      {{"cache", Is::kNoLeak, Use::kTuned}, [](Maker& m) { m.Fill(m.LogUniform(20, 1000), m.Uniform(0.15, 0.8)); }},
      {{"caches", Is::kNoLeak, Use::kTuned},
       [](Maker& m) {
         const int caches = m.Int(3, 5);
         for (int i = 0; i < caches; ++i) m.Fill(m.LogUniform(20, 500), m.Uniform(0.1, 0.8));
       }},
      {{"lru", Is::kNoLeak, Use::kTuned}, [](Maker& m) { m.Lru(m.LogUniform(20, 200), m.LogUniform(0.02, 0.5)); }},
      {{"batches", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.Batches(m.LogUniform(10, 200), m.LogUniform(0.02, 0.3)); }},
      {{"batches_by_night", Is::kNoLeak, Use::kTuned},
       [](Maker& m) {
         const double days = m.Uniform(2, 10);
         m.Batches(m.LogUniform(20, 500), 1 / days);
       }},
      {{"compaction", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.Batches(m.LogUniform(20, 500), m.Uniform(0.3, 0.45)); }},
      {{"sessions", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.Sessions(m.LogUniform(5, 100), m.LogUniform(0.005, 0.15)); }},
      {{"sessions_by_day", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.Sessions(m.LogUniform(10, 100), m.LogUniform(0.005, 0.1), m.Day(m.Uniform(0.9, 6))); }},
      {{"more_sessions", Is::kNoLeak, Use::kTuned},  // more and more clients
       [](Maker& m) {
         const double start = m.Uniform(0, 0.5);
         m.Sessions(m.LogUniform(20, 200), m.LogUniform(0.005, 0.05),
                    [=](double t) { return start + (1 - start) * t; });
       }},
      {{"walk", Is::kNoLeak, Use::kTuned},  // the number of sessions is a random walk
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(200, m.Uniform(0.05, 0.4));
         m.Sessions(m.LogUniform(50, 300), m.LogUniform(0.005, 0.05), [&](double t) {
           return std::min(1.0, std::max(0.0, 0.5 + 0.2 * walk[std::min<size_t>(199, static_cast<size_t>(t * 200))]));
         });
       }},
      {{"queue", Is::kNoLeak, Use::kTuned},
       [](Maker& m) {
         const double life = m.LogUniform(0.01, 0.3);
         for (const double t : m.Times(m.LogUniform(10, 200) / life, 0, 1, true)) m.Add(t, t + life);
       }},
      {{"two_buffers", Is::kNoLeak, Use::kTuned},  // in turn
       [](Maker& m) {
         const double period = m.LogUniform(0.002, 0.1);
         for (double t = 0; t < 1; t += period) m.Add(t, t + 1.5 * period);
       }},
      {{"replaced", Is::kNoLeak, Use::kTuned},
       [](Maker& m) {
         const std::vector<double> times = m.Times(m.LogUniform(20, 500), 0, 1, m.Chance(0.5));
         for (size_t i = 0; i < times.size(); ++i) m.Add(times[i], i + 1 < times.size() ? times[i + 1] : kNever);
       }},
      {{"reloads", Is::kNoLeak, Use::kTuned},  // everything is made again at random times
       [](Maker& m) {
         const std::vector<double> times = m.Renewals(m.LogUniform(0.02, 0.3));
         const double size = m.LogUniform(5, 200);
         for (size_t i = 0; i + 1 < times.size(); ++i) m.AddMany(size * m.Uniform(0.7, 1.4), times[i], times[i + 1]);
       }},
      {{"epochs", Is::kNoLeak, Use::kTuned},  // each fills a cache that is freed at its end
       [](Maker& m) {
         const int epochs = m.Int(3, 30);
         const double full = m.Uniform(0.2, 1);
         for (const double t : m.Times(m.LogUniform(10, 100) * epochs)) {
           const double epoch = std::floor(t * epochs);
           m.Add((epoch + (t * epochs - epoch) * full) / epochs, (epoch + 1) / epochs);
         }
       }},
      {{"loads_and_unloads", Is::kNoLeak, Use::kTuned},
       [](Maker& m) {
         const double mean = m.Uniform(0.05, 0.3);
         for (const double t : m.Times(m.Int(3, 30))) m.AddMany(m.LogUniform(2, 60), t, t + m.Exponential(mean));
       }},
      {{"jumps", Is::kNoLeak, Use::kTuned}, [](Maker& m) { m.Jumps(m.Int(1, 3), 0.9, m.LogUniform(1, 300), 1); }},
      {{"jumps_4_to_8", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.Jumps(m.Int(4, 8), 0.85, m.LogUniform(2, 300), 1); }},
      {{"jumps_equal", Is::kNoLeak, Use::kTuned}, [](Maker& m) { m.Jumps(m.Int(2, 8), 0.9, m.LogUniform(1, 100), 0); }},
      {{"stopped", Is::kNoLeak, Use::kTuned},
       [](Maker& m) { m.Leak(m.LeakCount(), m.Chance(0.5), 0, m.Uniform(0.3, 0.8)); }},
      {{"high_water", Is::kNoLeak, Use::kTuned},  // a pool that keeps the most that was ever needed
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(400, m.LogUniform(0.005, 0.1));
         const double unit = m.LogUniform(5, 50);
         double most = -3;
         for (size_t i = 0; i < walk.size(); ++i) {
           if (walk[i] > most) m.AddMany(unit * (walk[i] - most), static_cast<double>(i) / 400);
           most = std::max(most, walk[i]);
         }
       }},

      {{"cache_with_expiry", Is::kNoLeak, Use::kSeen},
       [](Maker& m) {
         const double life = m.Uniform(0.05, 0.3);
         for (const double t : m.TimesOf(m.LogUniform(50, 1000), m.Day(m.Uniform(0.9, 6)))) {
           m.Add(t, t + life * m.Uniform(0.9, 1.1));
         }
       }},
      {{"cache_that_evicts_any", Is::kNoLeak, Use::kSeen},  // a random entry for each new one
       [](Maker& m) {
         const double limit = std::floor(m.LogUniform(10, 150));
         const double full = m.LogUniform(0.02, 0.2);
         std::vector<double> births;
         for (const double t : m.Times(limit / full, 0, 1, true)) {
           if (births.size() == static_cast<size_t>(limit)) {
             const auto out = static_cast<size_t>(m.Int(0, static_cast<int>(limit) - 1));
             m.Add(births[out], t);
             births[out] = t;
           } else {
             births.push_back(t);
           }
         }
         for (const double t : births) m.Add(t);
       }},
      {{"cache_with_hot_entries", Is::kNoLeak, Use::kSeen},  // they stay; the others come and go
       [](Maker& m) {
         const double limit = m.LogUniform(20, 200);
         const double full = m.LogUniform(0.02, 0.2);
         m.Fill(limit * m.Uniform(0.2, 0.6), full);
         m.Lru(limit, full);
       }},
      {{"s_curve", Is::kNoLeak, Use::kSeen},  // clients that connect, most of them around one time
       [](Maker& m) {
         const double center = m.Uniform(0.15, 0.6);
         const double width = m.Uniform(0.02, 0.08);
         for (const double t : m.Times(m.LogUniform(20, 1000))) m.Add(center + width * std::log(t / (1 - t)));
       }},
      {{"pool_by_sizes", Is::kNoLeak, Use::kSeen},  // each size class keeps its maximum
       [](Maker& m) {
         const int classes = m.Int(3, 12);
         for (int c = 0; c < classes; ++c) {
           const double mean = m.LogUniform(2, 30);
           int64_t most = 0;
           for (int k = 0; k < 200; ++k) {
             const int64_t demand = m.Poisson(mean);
             if (demand > most) m.AddMany(static_cast<double>(demand - most), k / 200.0);
             most = std::max(most, demand);
           }
         }
       }},
      {{"schedule", Is::kNoLeak, Use::kSeen},  // a size that is raised by equal steps, until it is large enough
       [](Maker& m) {
         const int steps = m.Int(2, 8);
         const double last = m.Uniform(0.3, 0.85);
         const double size = m.LogUniform(1, 100);
         for (int k = 1; k <= steps; ++k) m.AddMany(size, last * k / steps);
       }},
      {{"grows_and_is_closed", Is::kNoLeak, Use::kSeen},
       [](Maker& m) {
         const double from = m.Uniform(0, 0.5);
         const double to = from + m.Uniform(0.2, 0.45);
         for (const double t : m.Times(m.LogUniform(20, 1000), from, to)) m.Add(t, to);
       }},
      {{"sessions_of_any_length", Is::kNoLeak, Use::kSeen},
       [](Maker& m) {
         const double median = m.LogUniform(0.001, 0.02);
         for (const double t : m.Times(m.LogUniform(100, 2000), 0, 1, true)) {
           m.Add(t, t + median * std::exp(1.5 * m.random().Normal()));
         }
       }},
      {{"last_checkpoints", Is::kNoLeak, Use::kSeen},  // the last few are kept
       [](Maker& m) {
         const double period = m.LogUniform(0.01, 0.1);
         const int kept = m.Int(2, 5);
         const int size = m.Int(1, 30);
         for (double t = m.Uniform(0, period); t < 1; t += period) m.AddMany(size, t, t + kept * period);
       }},
      {{"warm_up_long", Is::kNoLeak, Use::kSeen},
       [](Maker& m) { m.WarmUp(m.LogUniform(20, 1000), m.Uniform(0.2, 0.5)); }},
      {{"batches_long", Is::kNoLeak, Use::kSeen},  // at least one was freed
       [](Maker& m) {
         const double period = m.Uniform(0.45, 0.9);
         const double reset = m.Uniform(0.1, period);
         for (const double t : m.Times(m.LogUniform(20, 500))) m.Add(t, t < reset ? reset : reset + period);
       }},
      {{"collected", Is::kNoLeak, Use::kSeen},
       [](Maker& m) {
         const std::vector<double> collections = m.Renewals(m.Uniform(0.03, 0.2));
         for (const double t : m.Times(m.LogUniform(50, 1000))) {
           m.Add(t, *std::upper_bound(collections.begin(), collections.end(), t));
         }
       }},
      {{"stragglers", Is::kNoLeak, Use::kSeen},  // a few of many requests live long
       [](Maker& m) {
         const double share = m.LogUniform(0.01, 0.2);
         const double length = m.Uniform(0.03, 0.3);
         for (const double t : m.Times(m.LogUniform(300, 3000), 0, 1, true)) {
           m.Add(t, t + (m.Chance(share) ? m.Uniform(0, length) : m.Exponential(1e-4)));
         }
       }},
      {{"jumps_in_sessions", Is::kNoLeak, Use::kSeen},
       [](Maker& m) {
         const double live = m.LogUniform(5, 60);
         m.Sessions(live, m.LogUniform(0.005, 0.1));
         m.Jumps(m.Int(1, 6), 0.9, live * m.Uniform(0.3, 3), 0.7);
       }},

      {{"leak_by_epoch", Is::kLeak, Use::kLast},  // each epoch frees its cache but for a few buffers
       [](Maker& m) {
         const int epochs = m.Int(10, 40);
         const int lost = m.Int(1, 10);
         for (const double t : m.Times(m.LogUniform(10, 60) * epochs)) m.Add(t, (std::floor(t * epochs) + 1) / epochs);
         for (int e = 0; e < epochs; ++e) m.AddMany(lost, (e + m.Uniform(0, 1)) / epochs);
       }},
      {{"leak_at_night", Is::kLeak, Use::kLast},  // a job that runs once a day
       [](Maker& m) {
         const double days = m.Uniform(5, 15);
         const double phase = m.Uniform(0, 1);
         const double count = m.LogUniform(5, 100);
         for (int d = 0; d < 15; ++d) {
           const double from = (d + phase) / days;
           if (from < 1) m.Leak(count, false, from, std::min(1.0, from + 0.2 / days));
         }
       }},
      {{"leak_of_clients", Is::kLeak, Use::kLast},  // some never say that they leave
       [](Maker& m) {
         const double lost = m.Uniform(0.03, 0.3);
         const double median = m.LogUniform(0.002, 0.05);
         for (const double t : m.Times(m.LogUniform(100, 1000), 0, 1, true)) {
           m.Add(t, m.Chance(lost) ? kNever : t + median * std::exp(m.random().Normal()));
         }
       }},
      {{"leak_if_busy", Is::kLeak, Use::kLast},  // only under a high load, which comes and goes
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(200, m.LogUniform(0.01, 0.1));
         for (const double t : m.TimesOf(m.LeakCount() * 3, [&](double t) {
                return walk[std::min<size_t>(199, static_cast<size_t>(t * 200))] > 0.4;
              })) {
           m.Add(t);
         }
       }},
      {{"leak_after_update", Is::kLeak, Use::kLast},  // it was small before
       [](Maker& m) {
         const double update = m.Uniform(0.3, 0.7);
         const double count = m.LeakCount();
         m.Leak(count * m.Uniform(0, 0.1), false, 0, update);
         m.Leak(count, false, update, 1);
       }},
      {{"leak_of_workers", Is::kLeak, Use::kLast},  // a worker that is replaced frees most of its buffers
       [](Maker& m) {
         const std::vector<double> starts = m.Renewals(1 / m.LogUniform(8, 40));
         const double lost = m.Uniform(0.03, 0.4);
         const int size = m.Int(10, 50);
         for (size_t i = 0; i + 1 < starts.size(); ++i) {
           for (int k = 0; k < size; ++k) {
             m.Add(m.Uniform(starts[i], starts[i + 1]), m.Chance(lost) ? kNever : starts[i + 1]);
           }
         }
       }},
      {{"leak_beside_queue", Is::kLeak, Use::kLast},
       [](Maker& m) {
         const double live = m.LogUniform(10, 100);
         const double life = m.LogUniform(0.02, 0.2);
         for (const double t : m.Times(live / life)) m.Add(t, t + life * m.Uniform(0.5, 1.5));
         m.Leak(live * m.Uniform(0.5, 4), true);
       }},
      {{"leak_of_cleared_cache", Is::kLeak, Use::kLast},  // it is cleared now and then; some entries stay
       [](Maker& m) {
         const std::vector<double> clears = m.Renewals(m.Uniform(0.03, 0.15));
         const double stays = m.Uniform(0.03, 0.2);
         for (const double t : m.Times(m.LogUniform(200, 2000))) {
           m.Add(t, m.Chance(stays) ? kNever : *std::upper_bound(clears.begin(), clears.end(), t));
         }
       }},
      {{"joined_in_parts", Is::kReplaced, Use::kLast},  // parts are collected, and joined to one larger buffer
       [](Maker& m) {
         const double joins = m.Int(5, 40);
         const int parts = m.Int(2, 20);
         for (int j = 0; j < static_cast<int>(joins); ++j) {
           for (int k = 0; k < parts; ++k) m.Add((j + m.Uniform(0, 1)) / joins, (j + 1) / joins);
           m.AddSized((j + 1) / joins - 1e-9, (j + 2) / joins, static_cast<double>((j + 1) * parts));
         }
       }},
      {{"workers", Is::kNoLeak, Use::kLast},  // each fills a cache, and is replaced after some time
       [](Maker& m) {
         const int workers = m.Int(2, 8);
         const double mean = m.Uniform(0.05, 0.3);
         const double size = m.LogUniform(5, 60);
         for (int w = 0; w < workers; ++w) {
           const std::vector<double> starts = m.Renewals(mean);
           for (size_t i = 0; i + 1 < starts.size(); ++i) {
             for (const double t : m.Times(size)) {
               m.Add(starts[i] + t * 0.2 * mean, starts[i + 1]);
             }
           }
         }
       }},
      {{"cache_made_larger", Is::kNoLeak, Use::kLast},
       [](Maker& m) {
         const double limit = m.LogUniform(20, 500);
         const double change = m.Uniform(0.4, 0.7);
         m.Fill(limit, m.Uniform(0.1, 0.35));
         m.Leak(limit * m.Uniform(0.5, 2), false, change, change + m.Uniform(0.05, 0.2));
       }},
      {{"tenants", Is::kNoLeak, Use::kLast},  // they come with a model, and stay for long
       [](Maker& m) {
         const double median = m.LogUniform(0.05, 0.3);
         for (const double t : m.Times(m.LogUniform(10, 60), 0, m.Uniform(0.5, 1))) {
           m.AddMany(m.LogUniform(3, 50), t, t + median * std::exp(m.random().Normal()));
         }
       }},
      {{"evaluations", Is::kNoLeak, Use::kLast},  // take memory now and then
       [](Maker& m) {
         const double period = m.Uniform(0.04, 0.2);
         const double share = m.Uniform(0.1, 0.4);
         const int size = m.Int(5, 100);
         for (double t = m.Uniform(0, period); t < 1; t += period) {
           for (int k = 0; k < size; ++k) m.Add(t + m.Uniform(0, 0.5) * share * period, t + share * period);
         }
       }},
      {{"history_of_fixed_length", Is::kNoLeak, Use::kLast},  // full late
       [](Maker& m) { m.Lru(m.LogUniform(30, 300), m.Uniform(0.3, 0.85)); }},
      {{"phases", Is::kNoLeak, Use::kLast},  // each phase of a program makes what it needs
       [](Maker& m) {
         const int phases = m.Int(2, 4);
         for (int p = 0; p < phases; ++p) m.WarmUp(m.LogUniform(10, 200), m.Uniform(0.01, 0.04), 0.2 * p);
       }},
      {{"pool_that_is_trimmed", Is::kNoLeak, Use::kLast},  // it keeps the most that was needed since it was trimmed
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(400, m.LogUniform(0.01, 0.1));
         const std::vector<double> trims = m.Renewals(m.Uniform(0.1, 0.4));
         const double unit = m.LogUniform(5, 50);
         double most = -3;
         double trim = 0;
         for (size_t i = 0; i < walk.size(); ++i) {
           const double t = static_cast<double>(i) / 400;
           const double next = *std::upper_bound(trims.begin(), trims.end(), t);
           if (next != trim) most = -3;
           trim = next;
           if (walk[i] > most) m.AddMany(unit * (walk[i] - most), t, next);
           most = std::max(most, walk[i]);
         }
       }},
      {{"graphs_by_popularity", Is::kNoLeak, Use::kLast},  // one for each size; rare sizes come late
       [](Maker& m) {
         const int sizes = m.Int(8, 60);
         const double requests = m.LogUniform(200, 5000);
         for (int k = 1; k <= sizes; ++k) m.Add(m.Exponential(k / requests * 5));
       }},
      {{"backups_thinned", Is::kNoLeak, Use::kLast},  // the older, the fewer are kept
       [](Maker& m) {
         const int count = m.Int(60, 400);
         for (int k = 1; k <= count; ++k) {
           int twos = 0;
           while (k % (2 << twos) == 0) ++twos;
           const double birth = static_cast<double>(k) / (count + 1);
           m.Add(birth, birth + 3.0 * (1 << twos) / (count + 1));
         }
       }},
      {{"tuned_at_the_start", Is::kNoLeak, Use::kLast},  // many variants are tried, a few are kept
       [](Maker& m) {
         const double length = m.Uniform(0.02, 0.25);
         for (const double t : m.Times(m.LogUniform(50, 500), 0, length)) {
           m.Add(t, m.Chance(0.1) ? kNever : t + m.Exponential(0.05 * length));
         }
       }},
      {{"clients_that_reconnect", Is::kNoLeak, Use::kLast},  // each holds one buffer at any time
       [](Maker& m) {
         const int clients = m.Int(5, 60);
         const double mean = m.LogUniform(0.02, 0.4);
         for (int c = 0; c < clients; ++c) {
           const std::vector<double> starts = m.Renewals(mean);
           for (size_t i = 0; i + 1 < starts.size(); ++i) m.Add(starts[i], starts[i + 1]);
         }
       }},
      {{"idle_at_the_end", Is::kNoLeak, Use::kLast},  // sessions, until there is no more work
       [](Maker& m) {
         const double end = m.Uniform(0.4, 0.95);
         const double mean = m.LogUniform(0.005, 0.05);
         const double held = m.Uniform(0.02, 0.2);  // by clients that have not left
         for (const double t : m.Times(m.LogUniform(5, 60) / mean, 0, end)) {
           const double death = t + m.Exponential(mean);
           m.Add(t, death > end - 0.01 && m.Chance(held) ? kNever : death);
         }
       }},

      {{"cache_open", Is::kUndecidable, Use::kTuned}, [](Maker& m) { m.Leak(m.LogUniform(20, 1000), m.Chance(0.5)); }},
      {{"every_key", Is::kUndecidable, Use::kTuned},  // new keys become rarer, but they never end
       [](Maker& m) {
         const double power = m.Uniform(0.3, 0.7);
         for (const double t : m.Times(m.LogUniform(50, 1000))) m.Add(std::pow(t, 1 / power));
       }},
      {{"grows_and_is_open", Is::kUndecidable, Use::kTuned},  // a log or a session that has not ended yet
       [](Maker& m) { m.Leak(m.LogUniform(20, 1000), m.Chance(0.5), m.Uniform(0, 0.5)); }},

      {{"leak_in_small_jumps", Is::kLeak, Use::kFresh},
       [](Maker& m) {
         const int jumps = m.Int(6, 20);
         for (int j = 0; j < jumps; ++j) m.AddMany(m.Int(1, 4), m.Uniform(0, 1));
       }},
      {{"leak_in_short_bursts", Is::kLeak, Use::kFresh},
       [](Maker& m) {
         const double mean = m.LogUniform(3, 30);
         for (const double from : m.Times(m.LogUniform(10, 50))) {
           const double length = m.Exponential(0.01);
           const int64_t count = 1 + m.Poisson(m.Exponential(mean));
           for (int64_t i = 0; i < count; ++i) m.Add(from + m.Uniform(0, length));
         }
       }},
      {{"leak_beside_growing_table", Is::kLeak, Use::kFresh},  // its tables double until all fits
       [](Maker& m) {
         m.DoublingTables(m.Int(1, 10), m.Uniform(0.2, 0.6));
         m.Leak(m.LogUniform(20, 300), m.Chance(0.5));
       }},
      {{"leak_by_errors", Is::kLeak, Use::kFresh},  // errors come in groups
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(300, m.LogUniform(0.01, 0.06));
         for (const double t : m.TimesOf(m.LeakCount() * 4, [&](double t) {
                return std::min(1.0, 0.2 * std::exp(walk[std::min<size_t>(299, static_cast<size_t>(t * 300))]));
              })) {
           m.Add(t);
         }
       }},
      {{"leak_of_slow_requests", Is::kLeak, Use::kFresh},  // requests of any length; some of the buffers are lost
       [](Maker& m) {
         const double lost = m.LogUniform(0.02, 0.2);
         const double median = m.LogUniform(0.001, 0.01);
         for (const double t : m.Times(m.LogUniform(200, 2000), 0, 1, true)) {
           m.Add(t, m.Chance(lost) ? kNever : t + median * std::exp(1.5 * m.random().Normal()));
         }
       }},
      {{"leak_of_hourly_job", Is::kLeak, Use::kFresh},
       [](Maker& m) {
         const double period = 1 / m.LogUniform(8, 60);
         const int size = m.Int(1, 30);
         for (double t = m.Uniform(0, period); t < 1; t += period) m.AddMany(size, t + m.Uniform(0, 0.3) * period);
       }},
      {{"leak_at_checkpoints", Is::kLeak, Use::kFresh},  // each frees the one before but for some buffers
       [](Maker& m) {
         const double period = 1 / m.LogUniform(10, 50);
         const int size = m.Int(10, 100);
         const double lost = m.LogUniform(0.02, 0.2);
         for (double t = m.Uniform(0, period); t < 1; t += period) {
           for (int k = 0; k < size; ++k) m.Add(t, m.Chance(lost) ? kNever : t + period);
         }
       }},
      {{"tables_that_double", Is::kNoLeak, Use::kFresh},  // until all fits
       [](Maker& m) { m.DoublingTables(m.Int(3, 60), m.Uniform(0.1, 0.6)); }},
      {{"table_in_parts", Is::kNoLeak, Use::kFresh},  // each part is twice as large, none is freed; all fits at the end
       [](Maker& m) {
         const int tables = m.Int(1, 20);
         for (int k = 0; k < tables; ++k) {
           const double full = m.Uniform(0.1, 0.6);
           double units = 1;
           for (double t = full * m.LogUniform(0.001, 0.05); t < full; t *= 2, units *= 2) m.AddSized(t, kNever, units);
         }
       }},
      {{"table_made_again", Is::kNoLeak, Use::kFresh},  // all entries are copied when it doubles, until all fits
       [](Maker& m) {
         const double full = m.Uniform(0.15, 0.6);
         double from = 0;
         double count = m.LogUniform(2, 20);
         for (double t = full * m.LogUniform(0.002, 0.1); from < full; from = t, t *= 2, count *= 2) {
           m.AddMany(count, from, t < full ? t : kNever);
         }
       }},
      {{"small_jumps", Is::kNoLeak, Use::kFresh},
       [](Maker& m) {
         const int jumps = m.Int(3, 10);
         const double last = m.Uniform(0.2, 0.7);
         for (int j = 0; j < jumps; ++j) m.AddMany(m.Int(1, 4), m.Uniform(0, last));
       }},
      {{"bursts_that_end", Is::kNoLeak, Use::kFresh},
       [](Maker& m) {
         const double mean = m.LogUniform(3, 30);
         for (const double from : m.Times(m.LogUniform(5, 30), 0, m.Uniform(0.2, 0.7))) {
           const int64_t count = 1 + m.Poisson(m.Exponential(mean));
           for (int64_t i = 0; i < count; ++i) m.Add(from + m.Uniform(0, 0.01));
         }
       }},
      {{"blocks_until_full", Is::kNoLeak, Use::kFresh},  // while others come and go
       [](Maker& m) {
         const double full = m.Uniform(0.2, 0.6);
         const int blocks = m.Int(5, 40);
         const int size = m.Int(1, 20);
         for (int b = 1; b <= blocks; ++b) m.AddMany(size, full * b / blocks);
         m.Sessions(m.LogUniform(5, 60), m.LogUniform(0.005, 0.1));
       }},
      {{"cache_in_generations", Is::kNoLeak, Use::kFresh},  // what is used again moves to a part that is cleared rarely
       [](Maker& m) {
         const std::vector<double> young = m.Renewals(m.Uniform(0.01, 0.05));
         const std::vector<double> old = m.Renewals(m.Uniform(0.1, 0.3));
         const double again = m.Uniform(0.05, 0.3);
         for (const double t : m.Times(m.LogUniform(100, 1000), 0, 1, true)) {
           const std::vector<double>& clears = m.Chance(again) ? old : young;
           m.Add(t, *std::upper_bound(clears.begin(), clears.end(), t));
         }
       }},
      {{"tail_of_sessions", Is::kNoLeak, Use::kFresh},  // few live very long
       [](Maker& m) {
         const double scale = m.LogUniform(0.001, 0.03);
         for (const double t : m.Times(m.LogUniform(100, 2000), 0, 1, true)) {
           m.Add(t, t + scale * std::pow(m.Exponential(1), 2));
         }
       }},

      {{"leak_of_retries", Is::kLeak, Use::kHeldOut},  // the longer an outage, the more retries are lost
       [](Maker& m) {
         const double per_outage = m.LogUniform(5, 50);
         const int outages = m.Int(8, 40);
         for (int i = 0; i < outages; ++i) {
           const double from = m.Uniform(0, 1);
           const double length = m.Exponential(0.008);
           m.Leak(per_outage * length / 0.008, false, from, std::min(1.0, from + length));
         }
       }},
      {{"leak_of_callbacks", Is::kLeak, Use::kHeldOut},  // each reload registers them once more
       [](Maker& m) {
         const std::vector<double> reloads = m.Renewals(1 / m.LogUniform(8, 60));
         const int callbacks = m.Int(1, 12);
         for (const double t : reloads) m.AddMany(callbacks, t);
       }},
      {{"leak_by_two_waves", Is::kLeak, Use::kHeldOut},  // a day's and a week's
       [](Maker& m) {
         const double days = m.Uniform(4, 21);
         const auto day = m.Day(days);
         const auto week = m.Day(days / 7);
         for (const double t : m.TimesOf(m.LeakCount() * 2, [&](double t) { return 0.6 * day(t) + 0.4 * week(t); })) {
           m.Add(t);
         }
       }},
      {{"leak_in_pairs", Is::kLeak, Use::kHeldOut},  // small jumps
       [](Maker& m) {
         for (const double t : m.Times(m.LogUniform(10, 60), 0, 1, m.Chance(0.5))) m.AddMany(m.Int(2, 3), t);
       }},
      {{"leak_on_rare_path", Is::kLeak, Use::kHeldOut},  // among many requests
       [](Maker& m) {
         const double median = m.LogUniform(1e-4, 0.01);
         for (const double t : m.Times(m.LogUniform(100, 3000), 0, 1, true)) {
           m.Add(t, t + median * std::exp(m.random().Normal()));
         }
         m.Leak(m.LogUniform(12, 40), true);
       }},
      {{"leak_of_idle_connections", Is::kLeak, Use::kHeldOut},  // a time limit closes some of them
       [](Maker& m) {
         const double limit = m.Uniform(0.05, 0.3);
         const double idle = m.Uniform(0.1, 0.6);
         const double closed = m.Uniform(0.2, 0.7);
         for (const double t : m.Times(m.LogUniform(100, 1500), 0, 1, true)) {
           m.Add(t, !m.Chance(idle) ? t + m.Exponential(0.2 * limit) : m.Chance(closed) ? t + limit : kNever);
         }
       }},
      {{"leak_after_tables", Is::kLeak, Use::kHeldOut},  // that doubled until all fitted
       [](Maker& m) {
         const double full = m.Uniform(0.05, 0.4);
         const int lists = m.Int(1, 30);
         for (int k = 0; k < lists; ++k) {
           const double end = full * m.Uniform(0.3, 1);
           double t = 0;
           for (double next = end * m.Uniform(0.02, 0.1); t < end; t = next, next *= 2) {
             m.Add(t, next < end ? next : kNever);
           }
         }
         m.Leak(m.LogUniform(20, 400), false, m.Uniform(0, 0.3));
       }},
      {{"leak_in_storms", Is::kLeak, Use::kHeldOut},  // bursts of bursts
       [](Maker& m) {
         const int storms = m.Int(6, 30);
         const double width = m.Uniform(0.01, 0.05);
         for (int s = 0; s < storms; ++s) {
           const double from = m.Uniform(0, 1);
           const int bursts = m.Int(3, 15);
           for (int b = 0; b < bursts; ++b) m.AddMany(m.Int(1, 20), from + m.Uniform(0, width));
         }
       }},
      {{"leak_beside_expiry", Is::kLeak, Use::kHeldOut},  // entries of a cache expire; others are forgotten
       [](Maker& m) {
         const double life = m.Uniform(0.05, 0.3);
         const double live = m.LogUniform(10, 200);
         for (const double t : m.Times(live / life, 0, 1, true)) m.Add(t, t + life);
         m.Leak(live * m.Uniform(0.5, 3), true);
       }},
      {{"leak_of_each_batch", Is::kLeak, Use::kHeldOut},  // one or two buffers stay
       [](Maker& m) {
         const int batches = m.Int(10, 80);
         const int size = m.Int(5, 50);
         for (int b = 0; b < batches; ++b) {
           for (int k = 0; k < size; ++k) m.Add((b + m.Uniform(0, 1)) / batches, (b + 1.0) / batches);
           m.AddMany(m.Int(1, 2), (b + m.Uniform(0, 1)) / batches);
         }
       }},
      {{"leak_on_weekdays", Is::kLeak, Use::kHeldOut},
       [](Maker& m) {
         const double weeks = m.Uniform(1.5, 5);
         const double phase = m.Uniform(0, 1);
         for (const double t : m.TimesOf(m.LeakCount() * 1.5, [=](double t) {
                return std::fmod(t * weeks + phase, 1) < 5 / 7.0;
              })) {
           m.Add(t);
         }
       }},
      {{"leak_that_begins_slowly", Is::kLeak, Use::kHeldOut},
       [](Maker& m) {
         for (const double t : m.Times(m.LeakCount())) m.Add(std::sqrt(t));
       }},
      {{"leak_of_each_version", Is::kLeak, Use::kHeldOut},  // most of it when the version is new
       [](Maker& m) {
         const std::vector<double> versions = m.Renewals(1 / m.LogUniform(8, 30));
         const double mean = m.LogUniform(2, 40);
         for (size_t i = 0; i + 1 < versions.size(); ++i) {
           const int64_t count = 1 + m.Poisson(mean);
           for (int64_t k = 0; k < count; ++k) m.Add(versions[i] + m.Exponential(0.3 * (versions[i + 1] - versions[i])));
         }
       }},
      {{"hash_tables", Is::kNoLeak, Use::kHeldOut},  // keys arrive until all are there; a table is copied to a larger one
       [](Maker& m) {
         const int tables = m.Int(2, 40);
         const double growth = m.Chance(0.5) ? 2 : 1.5;
         const double last = m.Uniform(0.1, 0.6);
         for (int k = 0; k < tables; ++k) {
           const double begin = m.Uniform(0, 0.3) * last;
           const double end = m.Uniform(begin + 0.3 * (last - begin), last);
           double share = m.LogUniform(0.005, 0.05);
           double t = begin;
           for (double units = 1; t < end; units *= growth, share *= growth) {
             const double next = begin + (end - begin) * share;
             m.AddSized(t, share < 1 ? next : kNever, units);
             t = next;
           }
         }
       }},
      {{"arena_that_doubles", Is::kNoLeak, Use::kHeldOut},  // its blocks stay; demand ends
       [](Maker& m) {
         const int arenas = m.Int(1, 8);
         for (int a = 0; a < arenas; ++a) {
           const double begin = m.Uniform(0, 0.2);
           const double end = m.Uniform(0.25, 0.65);
           double filled = m.LogUniform(0.002, 0.03);
           for (double units = 1; filled < 1; units *= 2, filled *= 2) {
             m.AddSized(begin + (end - begin) * filled, kNever, units);
           }
         }
       }},
      {{"pool_for_peaks", Is::kNoLeak, Use::kHeldOut},  // what is idle for long is freed
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(300, m.LogUniform(0.01, 0.1));
         const double unit = m.LogUniform(3, 30);
         const double idle = m.Uniform(0.03, 0.2);
         std::vector<double> births;
         std::vector<double> used;
         for (size_t i = 0; i < walk.size(); ++i) {
           const double t = static_cast<double>(i) / 300;
           const auto needed = static_cast<size_t>(std::max(0.0, unit * (2 + walk[i])));
           while (!births.empty() && t - used.back() > idle) {
             m.Add(births.back(), t);
             births.pop_back();
             used.pop_back();
           }
           while (births.size() < needed) {
             births.push_back(t);
             used.push_back(t);
           }
           for (size_t k = 0; k < needed; ++k) used[k] = t;
         }
         for (const double t : births) m.Add(t);
       }},
      {{"models_on_demand", Is::kNoLeak, Use::kHeldOut},  // each is loaded at its first request and stays
       [](Maker& m) {
         const int models = m.Int(5, 40);
         const double mean = m.Uniform(0.03, 0.2);
         const int size = m.Int(3, 30);
         for (int k = 1; k <= models; ++k) m.AddMany(size, m.Exponential(mean));
       }},
      {{"models_on_rare_demand", Is::kUndecidable, Use::kHeldOut},  // most of them come after the dump
       [](Maker& m) {
         const int models = m.Int(5, 40);
         const double mean = 10 / m.LogUniform(20, 50);
         const int size = m.Int(3, 30);
         for (int k = 1; k <= models; ++k) m.AddMany(size, m.Exponential(mean));
       }},
      {{"few_buffers_early", Is::kNoLeak, Use::kHeldOut},  // small jumps in the first half
       [](Maker& m) {
         for (const double t : m.Times(m.LogUniform(4, 12), 0, m.Uniform(0.1, 0.55))) m.AddMany(m.Int(1, 4), t);
       }},
      {{"imports_that_end", Is::kNoLeak, Use::kHeldOut},  // bursts until all data is there
       [](Maker& m) {
         const int imports = m.Int(3, 20);
         const double end = m.Uniform(0.15, 0.65);
         const double mean = m.LogUniform(5, 80);
         for (int i = 0; i < imports; ++i) {
           const double from = m.Uniform(0, end);
           m.Leak(m.Exponential(mean), false, from, from + m.Uniform(0.002, 0.03));
         }
       }},
      {{"entries_with_time_limit", Is::kNoLeak, Use::kHeldOut},
       [](Maker& m) {
         const double life = m.Uniform(0.1, 0.4);
         for (const double t : m.Times(m.LogUniform(30, 1000), 0, 1, true)) m.Add(t, t + life);
       }},
      {{"sticky_sessions", Is::kNoLeak, Use::kHeldOut},  // most end soon, some much later
       [](Maker& m) {
         const double scale = m.LogUniform(0.005, 0.05);
         const double shape = m.Uniform(0.5, 0.8);
         for (const double t : m.Times(m.LogUniform(100, 1500), 0, 1, m.Chance(0.5))) {
           m.Add(t, t + scale * std::pow(m.Exponential(1), 1 / shape));
         }
       }},
      {{"swapped_buffers", Is::kNoLeak, Use::kHeldOut},
       [](Maker& m) {
         const int buffers = m.Int(2, 8);
         const double period = m.LogUniform(0.005, 0.15);
         for (int b = 0; b < buffers; ++b) {
           for (double t = -m.Uniform(0, period); t < 1; t += period) m.Add(t, t + period);
         }
       }},
      {{"rollout", Is::kNoLeak, Use::kHeldOut},  // parts of the fleet get a new version, which takes more memory
       [](Maker& m) {
         const int steps = m.Int(3, 8);
         const double from = m.Uniform(0.05, 0.2);
         const double to = m.Uniform(0.3, 0.65);
         const double all = m.LogUniform(10, 300);
         for (int k = 0; k < steps; ++k) {
           m.AddMany(std::max(1.0, all * std::exp2(k - steps)), from + (to - from) * k / (steps - 1));
         }
       }},
      {{"two_generations", Is::kNoLeak, Use::kHeldOut},  // a collector frees the old objects rarely
       [](Maker& m) {
         const std::vector<double> minor = m.Renewals(m.Uniform(0.005, 0.03));
         const std::vector<double> major = m.Renewals(m.Uniform(0.1, 0.35));
         const double survives = m.Uniform(0.02, 0.2);
         for (const double t : m.Times(m.LogUniform(300, 3000))) {
           double death = *std::upper_bound(minor.begin(), minor.end(), t);
           if (m.Chance(survives)) {  // the last minor collection can be after the last major one
             const auto next = std::upper_bound(major.begin(), major.end(), death);
             if (next != major.end()) death = *next;
           }
           m.Add(t, death);
         }
       }},
      {{"two_caches", Is::kNoLeak, Use::kHeldOut},  // a small one and a large one, both full in time
       [](Maker& m) {
         m.Lru(m.LogUniform(5, 30), m.LogUniform(0.01, 0.1));
         m.Lru(m.LogUniform(50, 300), m.Uniform(0.15, 0.5));
       }},
      {{"experiments", Is::kNoLeak, Use::kHeldOut},  // each has its data, and fills a cache
       [](Maker& m) {
         const std::vector<double> starts = m.Renewals(m.Uniform(0.05, 0.25));
         const double data = m.LogUniform(3, 60);
         for (size_t i = 0; i + 1 < starts.size(); ++i) {
           m.AddMany(data * m.Uniform(0.5, 2), starts[i], starts[i + 1]);
           const double full = m.Uniform(0.2, 1);
           for (const double t : m.Times(data)) m.Add(starts[i] + t * full * (starts[i + 1] - starts[i]), starts[i + 1]);
         }
       }},
      {{"shards_warm_up", Is::kNoLeak, Use::kHeldOut},  // one after the other
       [](Maker& m) {
         const int shards = m.Int(4, 16);
         const double last = m.Uniform(0.1, 0.4);
         const double size = m.LogUniform(5, 60);
         for (int k = 0; k < shards; ++k) m.WarmUp(size, m.Uniform(0.01, 0.04), last * k / shards);
       }},
      {{"rotated_logs", Is::kNoLeak, Use::kHeldOut},  // the oldest segment goes when a new one comes
       [](Maker& m) {
         const int kept = m.Int(4, 30);
         const double period = m.Uniform(0.05, 0.5) / kept;
         const int size = m.Int(1, 5);
         for (double t = m.Uniform(0, period); t < 1; t += period) m.AddMany(size, t, t + kept * period);
       }},

      // Written when the judge was complete.
      {{"leak_at_each_training", Is::kLeak, Use::kHeldOut},  // of any size
       [](Maker& m) {
         const double mean = m.LogUniform(3, 50);
         for (const double t : m.Renewals(1 / m.LogUniform(8, 25))) {
           m.AddMany(std::max(1.0, mean * std::exp(0.7 * m.random().Normal())), t);
         }
       }},
      {{"leak_in_small_steps", Is::kLeak, Use::kHeldOut},
       [](Maker& m) {
         const int steps = m.Int(8, 25);
         for (int k = 0; k < steps; ++k) m.AddMany(m.Int(1, 2), (k + m.Uniform(0, 1)) / steps);
         m.Sessions(m.LogUniform(3, 30), m.LogUniform(0.002, 0.03));
       }},
      {{"leak_in_rare_bursts", Is::kLeak, Use::kHeldOut},
       [](Maker& m) {
         for (const double t : m.Times(m.LogUniform(9, 25))) {
           const int size = m.Int(5, 60);
           for (int k = 0; k < size; ++k) m.Add(t + m.Uniform(0, 0.005));
         }
       }},
      {{"leak_of_busy_users", Is::kLeak, Use::kHeldOut},  // few users cause most of it, each in some sessions
       [](Maker& m) {
         const int users = m.Int(5, 30);
         for (int u = 1; u <= users; ++u) {
           for (const double t : m.Times(m.LogUniform(10, 40) / u)) {
             for (const double at : m.Times(m.Uniform(2, 10), t, t + 0.01)) m.Add(at);
           }
         }
       }},
      {{"leak_behind_tables", Is::kLeak, Use::kHeldOut},
       [](Maker& m) {
         m.DoublingTables(m.Int(2, 30), m.Uniform(0.2, 0.6));
         m.Leak(m.LogUniform(15, 200), m.Chance(0.5), m.Uniform(0, 0.4));
       }},
      {{"lists_that_double", Is::kNoLeak, Use::kHeldOut},  // all begin at once, and grow until their data is complete
       [](Maker& m) {
         const int lists = m.Int(10, 100);
         const double last = m.Uniform(0.05, 0.6);
         const double growth = m.Uniform(1.3, 2);
         for (int k = 0; k < lists; ++k) {
           const double end = last * m.Uniform(0.5, 1);
           double t = 0;
           for (double next = end * m.LogUniform(0.003, 0.2); t < end; t = next, next *= growth) {
             m.Add(t, next < end ? next : kNever);
           }
         }
       }},
      {{"plugins_on_demand", Is::kNoLeak, Use::kHeldOut},  // small jumps, more of them at the start
       [](Maker& m) {
         const int plugins = m.Int(3, 9);
         const double last = m.Uniform(0.3, 0.8);
         for (int k = 0; k < plugins; ++k) m.AddMany(m.Int(1, 3), last * std::pow(m.Uniform(0, 1), 2));
       }},
      {{"scaled_with_load", Is::kNoLeak, Use::kHeldOut},  // instances come and go with a day's curve
       [](Maker& m) {
         const auto day = m.Day(m.Uniform(1.5, 6));
         const double most = m.LogUniform(5, 60);
         const int size = m.Int(1, 8);
         std::vector<double> births;
         for (double t = 0; t < 1; t += 0.005) {
           const auto wanted = static_cast<size_t>(most * day(t));
           for (; births.size() > wanted; births.pop_back()) m.AddMany(size, births.back(), t);
           births.resize(std::max(births.size(), wanted), t);
         }
         for (const double t : births) m.AddMany(size, t);
       }},
      {{"uploads_kept_for_a_time", Is::kNoLeak, Use::kHeldOut},  // they come in bursts
       [](Maker& m) {
         const double kept = m.Uniform(0.05, 0.35);
         for (const double t : m.Times(m.LogUniform(15, 150))) m.AddMany(m.Int(2, 30), t, t + kept);
       }},
      {{"rings_made_larger", Is::kNoLeak, Use::kHeldOut},  // a few times, when they were too small
       [](Maker& m) {
         const int rings = m.Int(1, 10);
         for (int r = 0; r < rings; ++r) {
           double size = m.LogUniform(2, 20);
           double t = m.Uniform(0, 0.02);
           for (int k = m.Int(1, 4); k > 0; --k, size *= 2) {
             const double next = t + m.Uniform(0.02, 0.2);
             m.AddMany(size, t, next);
             t = next;
           }
           m.AddMany(size, t);
         }
       }},
      {{"data_loaded_in_bursts", Is::kNoLeak, Use::kHeldOut},  // until all is there
       [](Maker& m) {
         const double last = m.Uniform(0.2, 0.75);
         for (const double t : m.Times(m.LogUniform(5, 60), 0, last)) m.AddMany(m.LogUniform(2, 60), t);
       }},

      // Written when no rule of the judge was changed any more, without a look at its code.
      {{"leak_of_failed_jobs", Is::kLeak, Use::kBlind},  // a job frees all at its end, unless it fails
       [](Maker& m) {
         const std::vector<double> starts = m.Renewals(1 / m.LogUniform(40, 150));
         const double fails = m.Uniform(0.15, 0.5);
         const double size = m.LogUniform(3, 40);
         for (size_t i = 0; i + 1 < starts.size(); ++i) {
           const double end = m.Chance(fails) ? kNever : starts[i + 1];
           for (const double t : m.Times(size)) m.Add(starts[i] + t * (starts[i + 1] - starts[i]), end);
         }
       }},
      {{"leak_of_tenants", Is::kLeak, Use::kBlind},  // each replaces its buffers now and then; one stays when it leaves
       [](Maker& m) {
         const double stay = m.LogUniform(0.02, 0.2);
         const int buffers = m.Int(2, 8);
         for (const double t : m.Times(m.LogUniform(20, 150), 0, 1, m.Chance(0.5))) {
           const double end = t + stay * m.Uniform(0.3, 2);
           const double period = stay * m.LogUniform(0.05, 0.5);
           for (int b = 0; b < buffers; ++b) {
             for (double at = t; at < end; at += period) m.Add(at, std::min(end, at + period));
           }
           m.Add(end);
         }
       }},
      {{"leak_on_overload", Is::kLeak, Use::kBlind},  // requests that time out at the peaks of a day
       [](Maker& m) {
         const auto day = m.Day(m.Uniform(2.5, 9));
         const double live = m.LogUniform(3, 30);
         m.Sessions(live, m.LogUniform(0.001, 0.01), day);
         for (const double t : m.TimesOf(m.LeakCount() * 3, [&](double t) { return std::pow(day(t), 4); })) m.Add(t);
       }},
      {{"leak_after_failover", Is::kLeak, Use::kBlind},  // much of it at first, then at an even rate
       [](Maker& m) {
         const double from = m.Uniform(0, 0.5);
         const double floor = m.Uniform(0.15, 0.6);
         const double length = m.Uniform(0.02, 0.15);
         for (const double t : m.TimesOf(m.LeakCount() * 2, [=](double t) {
                return t < from ? 0 : floor + (1 - floor) * std::exp((from - t) / length);
              })) {
           m.Add(t);
         }
       }},
      {{"leak_of_long_prompts", Is::kLeak, Use::kBlind},  // a prompt above a length loses its buffer
       [](Maker& m) {
         const double limit = m.Uniform(1.5, 6);
         for (const double t : m.Times(m.LogUniform(200, 3000), 0, 1, true)) {
           const double length = std::exp(m.random().Normal());
           m.AddSized(t, length > limit ? kNever : t + 1e-3 * length, length);
         }
       }},
      {{"leak_beside_walk", Is::kLeak, Use::kBlind},  // the number of sessions is a random walk
       [](Maker& m) {
         const std::vector<double> walk = m.Walk(200, m.Uniform(0.05, 0.4));
         const double live = m.LogUniform(20, 150);
         m.Sessions(live, m.LogUniform(0.005, 0.05), [&](double t) {
           return std::min(1.0, std::max(0.0, 0.5 + 0.2 * walk[std::min<size_t>(199, static_cast<size_t>(t * 200))]));
         });
         m.Leak(live * m.Uniform(0.5, 4), m.Chance(0.5));
       }},
      {{"leak_beside_pressure", Is::kLeak, Use::kBlind},  // at a limit the older half is freed; some are forgotten
       [](Maker& m) {
         const double limit = m.LogUniform(20, 200);
         m.HalvedWhenFull(limit, m.LogUniform(0.03, 0.25));
         m.Leak(limit * m.Uniform(0.5, 3));
       }},
      {{"leak_by_deploys", Is::kLeak, Use::kBlind},  // each version of the program has a rate of its own
       [](Maker& m) {
         const std::vector<double> versions = m.Renewals(1 / m.LogUniform(4, 15));
         const double count = m.LogUniform(50, 1000);
         for (size_t i = 0; i + 1 < versions.size(); ++i) {
           const double to = std::min(1.0, versions[i + 1]);
           m.Leak(count * (to - versions[i]) * std::exp(0.8 * m.random().Normal()), false, versions[i], to);
         }
       }},
      {{"leak_of_replicas", Is::kLeak, Use::kBlind},  // the handover between two sets of buffers loses some
       [](Maker& m) {
         const std::vector<double> starts = m.Renewals(1 / m.LogUniform(10, 60));
         const int size = m.Int(10, 100);
         const double lost = m.Uniform(0.02, 0.2);
         for (size_t i = 0; i + 1 < starts.size(); ++i) {
           for (int k = 0; k < size; ++k) {
             const double end = starts[i + 1] + 0.1 * (starts[i + 1] - starts[i]);
             m.Add(starts[i] + m.Exponential(0.002), m.Chance(lost) ? kNever : end);
           }
         }
       }},
      {{"leak_beside_late_start", Is::kLeak, Use::kBlind},  // a second model is loaded later
       [](Maker& m) {
         const double count = m.LeakCount();
         m.AddMany(count * m.Uniform(0.2, 2), m.Uniform(0.3, 0.7));
         m.Leak(count, m.Chance(0.5));
       }},
      {{"leak_of_watchers", Is::kLeak, Use::kBlind},  // few, one for each event of a regular poll that found something
       [](Maker& m) {
         const double found = m.Uniform(0.1, 0.5);
         const double period = found / m.LogUniform(15, 80);
         for (double t = m.Uniform(0, period); t < 1; t += period) {
           m.Add(t, m.Chance(found) ? kNever : t + 0.5 * period);
         }
       }},

      {{"halved_when_full", Is::kNoLeak, Use::kBlind},  // at a limit the older half is freed
       [](Maker& m) { m.HalvedWhenFull(m.LogUniform(20, 300), m.LogUniform(0.03, 0.25)); }},
      {{"any_half_freed", Is::kNoLeak, Use::kBlind},  // at a limit each entry is freed with even chance
       [](Maker& m) {
         const double limit = m.LogUniform(20, 300);
         const double period = m.LogUniform(0.01, 0.06);
         std::vector<double> births;
         for (const double t : m.Times(limit / 2 / period)) {
           births.push_back(t);
           if (static_cast<double>(births.size()) < limit) continue;
           std::vector<double> kept;
           for (const double birth : births) {
             if (m.Chance(0.5)) {
               m.Add(birth, t);
             } else {
               kept.push_back(birth);
             }
           }
           births = kept;
         }
         for (const double birth : births) m.Add(birth);
       }},
      {{"jobs_beside_each_other", Is::kNoLeak, Use::kBlind},  // of any length; each frees all at its end
       [](Maker& m) {
         const double median = m.LogUniform(0.005, 0.06);
         const double size = m.LogUniform(3, 40);
         for (const double t : m.Times(m.LogUniform(0.5, 4) / median)) {
           const double length = std::min(0.3, median * std::exp(0.8 * m.random().Normal()));
           for (const double at : m.Times(size)) m.Add(t + at * length, t + length);
         }
       }},
      {{"cache_of_bytes", Is::kNoLeak, Use::kBlind},  // the oldest entries go until a new one fits
       [](Maker& m) {
         const double limit = m.LogUniform(20, 200);
         const std::vector<double> times = m.Times(limit / m.LogUniform(0.02, 0.4), 0, 1, m.Chance(0.5));
         std::vector<double> sizes;
         for (size_t i = 0; i < times.size(); ++i) sizes.push_back(std::exp(m.random().Normal()));
         std::vector<double> deaths(times.size(), kNever);
         double held = 0;
         for (size_t i = 0, oldest = 0; i < times.size(); ++i) {
           held += sizes[i];
           for (; held > limit * 1.6 && oldest < i; ++oldest) {
             held -= sizes[oldest];
             deaths[oldest] = times[i];
           }
         }
         for (size_t i = 0; i < times.size(); ++i) m.AddSized(times[i], deaths[i], sizes[i]);
       }},
      {{"entries_that_are_refreshed", Is::kNoLeak, Use::kBlind},  // each use lets an entry live on for a time
       [](Maker& m) {
         const double life = m.LogUniform(0.01, 0.08);
         const double again = m.Uniform(0.2, 0.7);
         for (const double t : m.TimesOf(m.LogUniform(100, 1500), m.Day(m.Uniform(0.9, 6)))) {
           double death = t + life;
           while (m.Chance(again)) death += m.Uniform(0, life);
           m.Add(t, death);
         }
       }},
      {{"leases_of_three_lengths", Is::kNoLeak, Use::kBlind},
       [](Maker& m) {
         const double longest = m.Uniform(0.1, 0.35);
         for (const double t : m.Times(m.LogUniform(100, 1500), 0, 1, true)) {
           m.Add(t, t + longest * std::pow(0.2, m.Int(0, 2)));
         }
       }},
      {{"queue_in_an_outage", Is::kNoLeak, Use::kBlind},  // it fills while nothing is taken, and is worked off
       [](Maker& m) {
         const double from = m.Uniform(0.1, 0.4);
         const double length = m.Uniform(0.05, 0.2);
         const double speed = m.Uniform(2, 4);
         for (const double t : m.Times(m.LogUniform(100, 2000))) {
           const double waits = (t - from) / speed + from + length;  // for those that came before it
           m.Add(t, std::max(t + m.Exponential(0.002), t < from ? 0 : waits));
         }
       }},
      {{"sessions_until_full", Is::kNoLeak, Use::kBlind},  // more and more clients, up to a number
       [](Maker& m) {
         const double full = m.Uniform(0.2, 0.6);
         m.Sessions(m.LogUniform(20, 200), m.LogUniform(0.005, 0.08), [=](double t) { return std::min(1.0, t / full); });
       }},
      {{"index_until_complete", Is::kNoLeak, Use::kBlind},  // made again now and then, of data that grow until complete
       [](Maker& m) {
         const std::vector<double> times = m.Renewals(m.LogUniform(0.01, 0.1));
         const double complete = m.Uniform(0.2, 0.6);
         const double entries = m.LogUniform(50, 500);
         for (size_t i = 0; i + 1 < times.size(); ++i) {
           m.AddMany(entries * std::min(times[i], complete), times[i], times[i + 1]);
         }
       }},
      {{"handover", Is::kNoLeak, Use::kBlind},  // a new set of buffers is filled before the old one is freed
       [](Maker& m) {
         const std::vector<double> starts = m.Renewals(m.LogUniform(0.02, 0.3));
         const double overlap = m.Uniform(0.02, 0.3);
         const double size = m.LogUniform(5, 200);
         for (size_t i = 0; i + 1 < starts.size(); ++i) {
           const double length = starts[i + 1] - starts[i];
           for (const double t : m.Times(size)) {
             m.Add(starts[i] + t * overlap * length, starts[i + 1] + overlap * length);
           }
         }
       }},
      {{"second_model", Is::kNoLeak, Use::kBlind},  // loaded later, with a warm-up, beside traffic
       [](Maker& m) {
         const double from = m.Uniform(0.2, 0.6);
         m.AddMany(m.LogUniform(10, 500), from);
         m.WarmUp(m.LogUniform(5, 100), m.Uniform(0.005, 0.05), from);
         m.Traffic();
       }},
      {{"flushed_when_full", Is::kNoLeak, Use::kBlind},  // all at once, after a number of births that follow the load
       [](Maker& m) {
         const double limit = std::floor(m.LogUniform(10, 300));
         const std::vector<double> times = m.Times(limit / m.LogUniform(0.02, 0.3), 0, 1, true);
         const auto length = static_cast<size_t>(limit);
         for (size_t i = 0; i < times.size(); ++i) {
           const size_t last = (i / length + 1) * length;
           m.Add(times[i], last < times.size() ? times[last] : kNever);
         }
       }},
  };
  return kinds;
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

Run Run::Make(Random& random) {
  Run run;
  run.seconds = random.LogUniform(120, 2.6e6);
  const auto load = static_cast<Load>(random.Int(0, 3));
  const double days = random.Uniform(0.9, 6);
  const double phase = random.Uniform(0, 2 * kPi);
  const double slope = random.Uniform(-1.6, 1.6);
  double noisy = 1;
  run.work.push_back(0);
  for (size_t g = 0; g < kGrid; ++g) {
    const double t = static_cast<double>(g) / kGrid;
    if (g % (kGrid / 50) == 0) noisy = std::exp(0.5 * random.Normal());
    const double rate = load == Load::kNoisy  ? noisy
                        : load == Load::kDay  ? 1 + 0.8 * std::sin(2 * kPi * days * t + phase)
                        : load == Load::kRamp ? 1 + slope * (t - 0.5)
                                              : 1;
    run.work.push_back(run.work.back() + rate);
  }
  const double all = run.work.back();
  for (double& work : run.work) work /= all;
  return run;
}

double Run::WorkAt(double time) const {
  const double position = time * kGrid;
  const auto cell = std::min(static_cast<size_t>(position), kGrid - 1);
  return work[cell] + (position - static_cast<double>(cell)) * (work[cell + 1] - work[cell]);
}

double Run::TimeOf(double work_done) const {
  const auto next = std::upper_bound(work.begin() + 1, work.end() - 1, work_done);
  const double before = *(next - 1);
  return (static_cast<double>(next - work.begin() - 1) + (work_done - before) / (*next - before)) / kGrid;
}

std::vector<double> MakeDumpTimes(Random& random, size_t dumps, DumpTimes when) {
  const double from = when == DumpTimes::kLate ? 0.9 : random.Uniform(0, 1) / static_cast<double>(dumps);
  const int spacing = random.Int(0, 3);
  const double stretch = random.Uniform(1.3, 2.5);
  if (dumps == 1) return {1};
  const double last = static_cast<double>(dumps - 1);
  std::vector<double> times;
  for (size_t i = 0; i < dumps; ++i) {
    const double even = static_cast<double>(i) / last;
    times.push_back(spacing == 1   ? even + random.Uniform(-0.4, 0.4) / last
                    : spacing == 2 ? random.Uniform(0, 1)
                    : spacing == 3 ? std::pow(even, stretch)
                                   : even);
  }
  std::sort(times.begin(), times.end());
  for (size_t i = 1; i < dumps; ++i) times[i] = std::max(times[i], times[i - 1] + 0.02 / last);
  const double begin = times.front();
  const double length = times.back() - begin;
  for (double& time : times) time = from + (1 - from) * (time - begin) / length;
  return times;
}

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = [] {
    std::vector<Kind> all;
    for (const MadeKind& made : MadeKinds()) all.push_back(made.kind);
    return all;
  }();
  return kinds;
}

std::vector<Buffer> MakeSite(const Kind& kind, const Run& run, Random& random) {
  Maker maker(run, random);
  MadeKinds()[static_cast<size_t>(&kind - Kinds().data())].make(maker);
  return std::move(maker).buffers();
}

namespace {

// Returns the beginning of the generation that contains `seconds`. A generation lasts for a second, or for a thousandth
// of the uptime if this is longer.
double GenerationOf(double seconds) {
  if (seconds < 1000) return std::floor(seconds);
  const double number = std::floor(std::log(seconds / 1000) / std::log(1.001));
  return 1000 * std::pow(1.001, number);
}

}  // namespace

SiteState StateAt(const std::vector<Buffer>& buffers, const Run& run, double time) {
  SiteState state;
  const double now = time * run.seconds;
  state.class_seconds = 1;
  while (now >= 64 * static_cast<double>(state.class_seconds)) state.class_seconds *= 2;
  const auto width = static_cast<double>(state.class_seconds);
  state.live_bytes.resize(static_cast<size_t>(now / width) + 1);
  state.live_objects.resize(state.live_bytes.size());
  for (const Buffer& buffer : buffers) {
    if (buffer.birth > time) continue;
    state.allocated += buffer.bytes;
    ++state.allocated_objects;
    const double birth = GenerationOf(buffer.birth * run.seconds);
    if (buffer.death > time) {
      state.bytes += buffer.bytes;
      ++state.objects;
      const auto number = static_cast<size_t>(birth / width);
      state.live_bytes[number] += buffer.bytes;
      ++state.live_objects[number];
    } else {
      const double age = GenerationOf(buffer.death * run.seconds) - birth;
      size_t octave = 0;
      while (age >= std::exp2(octave)) ++octave;
      if (age < 1) octave = 0;
      if (state.freed.size() <= octave) state.freed.resize(octave + 1);
      ++state.freed[octave];
    }
  }
  return state;
}

}  // namespace hbmprof_test
