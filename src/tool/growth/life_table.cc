// docs/leaks.md explains the rules.
#include "src/tool/growth/life_table.h"

#include <cmath>

namespace hbmprof::tool {
namespace {

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
    const bool tested = FindSettled(&result.settled);
    const double end = table_.now - result.settled;
    Births all = BirthsIn(start_, end);
    // If buffers are still freed at a large part of the uptime, those that are left may be too.
    if (result.settled > 0.6 * table_.now || all.sum <= 0) return result;
    result.kept = all.sum;
    result.times = all.times;
    result.oldest = all.first;
    result.newest = all.last;
    for (size_t i = 0; i < table_.live.size(); ++i) {
      if (!IsIn(i, start_, end)) continue;
      result.kept_bytes += table_.live_bytes[i];
      result.per_second += table_.live_bytes[i] * Overlap(Begin(i), End(i), all.third_from, end);
    }
    if (result.kept_bytes <= 0) return {};  // such as handles without memory
    result.per_second /= end - all.third_from;

    using Finding = LifeJudgement::Finding;
    result.finding = Finding::kStopped;
    if (all.times < 2 || all.thirds[2] < 0.2 * all.thirds[1]) return result;
    result.finding = WasBatch(all) ? Finding::kBatch : Finding::kFewTimes;
    if (!tested || result.finding == Finding::kBatch) return result;
    // What was kept mostly in the first third may be a warm-up. Then the other two thirds are judged alone, and few
    // births are not enough.
    double from = start_;
    for (int part = 0; part < 3; ++part) {
      const Births births = BirthsIn(from, end);
      if (IsSlowing(births)) result.finding = Finding::kSlowing;
      if (IsSlowing(births) || !GoesOn(births, end, part > 0)) return result;
      if (births.thirds[0] <= 0.5 * births.sum) break;
      from += (end - from) / 3;
    }
    result.finding = Finding::kLeak;
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
    double last_usual = 0;  // likewise, without the last quarter of the mean of the effective classes
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

  // Finds the age from which on at least three quarters of the buffers get twice as old, from the oldest octave down.
  // Returns whether there were enough buffers to see it.
  bool FindSettled(double* settled) const {
    bool tested = false;
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
      if (freed / observed > 0.25 * at_risk) {
        *settled = high;
        break;
      }
      tested = true;
    }
    return tested;
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
    double rest = births.sum / births.times / 4;
    for (size_t i = table_.live.size(); i-- > 0 && rest >= 0;) {
      if (!IsIn(i, from, to)) continue;
      rest -= table_.live[i];
      births.last_usual = std::min(End(i), to);
    }
    return births;
  }

  static bool IsSlowing(const Births& births) {
    return births.thirds[1] < 0.67 * births.thirds[0] && births.thirds[2] < 0.67 * births.thirds[1];
  }

  // Returns whether buffers were kept at many times and still are.
  bool GoesOn(const Births& births, double end, bool needs_many) const {
    if (births.thirds[2] < 0.4 * births.thirds[1]) return false;
    if (births.times < 9) return !needs_many && births.times >= 4 && end - births.last_usual <= 0.09 * table_.now;
    return end - births.last <= table_.now * 1.5 / births.times + table_.class_seconds;
  }

  // Returns whether buffers were freed that were as old as the first kept one, and nothing from before it is left.
  bool WasBatch(const Births& births) const {
    if (births.first < 0.15 * table_.now) return false;
    double freed = 0;
    for (size_t c = 1; c < table_.freed.size(); ++c) {
      if (1.5 * std::ldexp(1, static_cast<int>(c)) >= births.first) freed += table_.freed[c];
    }
    return freed >= std::max(1.0, 0.02 * births.sum);
  }

  const LifeTable& table_;
  const double start_;
};

}  // namespace

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
