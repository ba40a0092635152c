// See growth.h.
#include "src/tool/growth/growth.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "src/tool/growth/life_table.h"
#include "src/tool/util/arithmetic.h"
#include "src/tool/util/progress.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f %%", 100 * share);
  return text;
}

// Returns the alloc_ type that belongs to an inuse_ type; nullopt for other types.
std::optional<size_t> AllocatedType(const ProfileSet& profiles, size_t type) {
  const std::string in_use = "inuse_";
  const std::string& name = profiles.types()[type].type;
  if (name.rfind(in_use, 0) != 0) return std::nullopt;
  return profiles.FindType("alloc_" + name.substr(in_use.size()));
}

// Returns whether the file has the ages of buffers, all of one process. The ages have whole seconds, so those of a
// young process say little.
bool HasAges(const ProfileSet::File& file) {
  constexpr int64_t kYoungSeconds = 16;
  const auto processes = std::count_if(file.info.processes.begin(), file.info.processes.end(),
                                       [](const Comment& process) { return process.values.count("pid") > 0; });
  return file.info.UptimeSeconds().value_or(0) >= kYoungSeconds && processes <= 1;
}

// Sets the range of dumps to be judged.
void FindRestarts(const ProfileSet& profiles, DumpSeries& series) {
  const size_t dumps = series.files.size();
  series.end = dumps;
  const std::optional<size_t> total_type = profiles.FindType("alloc_space");
  std::vector<size_t> starts = {0};
  int64_t total_before = 0;
  std::string process_before;
  for (size_t d = 0; d < dumps; ++d) {
    const ProfileSet::File& file = profiles.files()[series.files[d]];
    const std::string process = ProcessIn(file);
    int64_t total = 0;
    for (size_t s = 0; total_type.has_value() && s < file.samples.size(); ++s) {
      total = Plus(total, profiles.Value(file, s, *total_type));
    }
    const bool other_process = !process.empty() && !process_before.empty() && process != process_before;
    const bool counter_fell = !series.counts.empty() && d > 0 && series.counts[d] < series.counts[d - 1];
    if (d > 0 && (other_process || total < total_before || counter_fell)) starts.push_back(d);
    total_before = total;
    process_before = process;
  }
  if (starts.size() == 1) return;
  size_t begin = 0;
  size_t end = 0;
  for (size_t s = 0; s < starts.size(); ++s) {
    const size_t next = s + 1 < starts.size() ? starts[s + 1] : dumps;
    if (next - starts[s] >= end - begin) {
      begin = starts[s];
      end = next;
    }
  }
  if (end - begin < 3) {
    series.restart =
        Cat("the dumps are of ", starts.size(),
            " processes, and none of these wrote three dumps in a row: all dumps are judged as those of one process");
    return;
  }
  series.begin = begin;
  series.end = end;
  series.restart = Cat("the program was restarted ", starts.size() == 2 ? "once" : Cat(starts.size() - 1, " times"),
                       ": only dumps ", begin + 1, " to ", end, " are judged, the longest series of one process");
}

// Judges sites over one series of dumps and one sample type.
class SiteJudge {
 public:
  SiteJudge(const ProfileSet& profiles, const DumpSeries& series, size_t type)
      : series_(series), unit_(profiles.types()[type].unit), at_(series.Exposure()) {
    if (!series.has_ages) return;
    // The time is known to the second.
    now_ = static_cast<double>(*profiles.files()[series.files[series.end - 1]].info.UptimeSeconds()) + 1;
  }

  // Fills in the verdict and what follows from it. `allocated` is by dump; empty if unknown.
  void Fill(SiteGrowth& site, const std::vector<int64_t>& allocated) const {
    size_t first = series_.begin;
    const size_t last = series_.end - 1;
    const bool is_alone = last - first < 2;
    Judgement course;
    if (!is_alone) {
      std::vector<size_t> dumps;
      course = JudgeCourse(site, allocated, dumps);
      site.verdict = course.verdict;
      site.sure = course.sure;
      if (now_ == 0) first = dumps[course.first];
      Explain(course, dumps, site);
    }
    site.growth = Minus(site.values[last], site.values[first]);
    const auto growth = static_cast<double>(site.growth);
    if (last > first) site.per_interval = growth / static_cast<double>(last - first);
    const auto rate = [&](const std::vector<double>& units) {
      const double length = units.empty() ? 0 : units[last] - units[first];
      return length > 0 ? growth / length : 0;
    };
    site.per_second = rate(series_.seconds);
    site.per_count = rate(series_.counts);
    if (now_ > 0) JudgeAges(course.verdict, is_alone, site);
  }

 private:
  // `dumps[i]` becomes the number of the dump that point i of the course belongs to.
  Judgement JudgeCourse(const SiteGrowth& site, const std::vector<int64_t>& allocated,
                        std::vector<size_t>& dumps) const {
    // If several dumps have the same exposure (no time passed, no request was served), only the last of them counts.
    Course course;
    for (size_t d = series_.begin; d < series_.end; ++d) {
      if (!dumps.empty() && at_[d] <= course.at.back()) {
        dumps.pop_back();
        course.at.pop_back();
        course.in_use.pop_back();
        if (!allocated.empty()) course.allocated.pop_back();
      }
      dumps.push_back(d);
      course.at.push_back(at_[d]);
      course.in_use.push_back(static_cast<double>(site.values[d]));
      if (!allocated.empty()) course.allocated.push_back(static_cast<double>(allocated[d]));
    }
    return Judge(course);
  }

  LifeTable TableOf(const SiteGrowth& site) const {
    const auto first = static_cast<size_t>(site.ages.first_class);
    LifeTable table;
    table.now = now_;
    table.class_seconds = std::ldexp(1, site.ages.class_width_log2);
    table.live.resize(first);
    table.live_bytes.resize(first);
    table.live.insert(table.live.end(), site.ages.born_counts.begin(), site.ages.born_counts.end());
    const std::vector<int64_t>& values = unit_ == "count" ? site.ages.born_counts : site.ages.born_bytes;
    table.live_bytes.insert(table.live_bytes.end(), values.begin(), values.end());
    int64_t young = site.freed;
    for (const int64_t count : site.ages.freed_by_octave) young = Minus(young, count);
    table.freed.push_back(static_cast<double>(std::max<int64_t>(young, 0)));
    table.freed.insert(table.freed.end(), site.ages.freed_by_octave.begin(), site.ages.freed_by_octave.end());
    return table;
  }

  // Replaces the verdict on the course, which is the second witness, by that on the ages.
  void JudgeAges(Verdict course, bool is_alone, SiteGrowth& site) const {
    using Finding = LifeJudgement::Finding;
    const LifeTable table = TableOf(site);
    const LifeJudgement life = JudgeLives(table);
    if (is_alone) site.growth = static_cast<int64_t>(life.kept_bytes);
    if (life.finding == Finding::kLeak || life.is_perhaps) {
      site.verdict = life.finding == Finding::kLeak ? Verdict::kLeak : Verdict::kPerhaps;
      site.sure = course == Verdict::kLeak                            ? Sure::kHigh
                  : life.finding == Finding::kLeak && life.times >= 9 ? Sure::kMedium
                                                                      : Sure::kLow;
      site.per_second = life.per_second;
      site.oldest = now_ - life.oldest;
      site.newest = now_ - life.newest;
      ExplainAges(table, life, site);
    } else if (course == Verdict::kLeak) {
      site.verdict = Verdict::kPerhaps;
      site.sure = Sure::kLow;
      site.why = "grows, but no buffer is old: " + site.why;
      site.more_dumps = "a buffer that is always replaced by a larger one looks like this; so do more and more clients";
    } else if (is_alone || course == Verdict::kPerhaps) {
      const bool stopped = life.finding == Finding::kStopped;
      site.verdict = stopped                                ? Verdict::kStopped
                     : life.kept > 0 || UsualAge(table) > 0 ? Verdict::kUpAndDown
                                                            : Verdict::kFlat;
      site.why = stopped                               ? Cat("last kept a buffer ", FormatDuration(site.newest), " ago")
                 : site.verdict == Verdict::kUpAndDown ? Cat("its buffers are freed; ", FreedText(table))
                                                       : "no buffer was allocated after the start";
      site.more_dumps = "it is a leak only if it keeps more buffers";
    }
  }

  static std::string FreedText(const LifeTable& table) {
    const double age = UsualAge(table);
    return age == 0 ? "this call stack freed none"
                    : Cat("buffers of this call stack that are freed live ", age > 1 ? "up to " : "less than ",
                          FormatDuration(age));
  }

  void ExplainAges(const LifeTable& table, const LifeJudgement& life, SiteGrowth& site) const {
    const bool until_now = site.newest <= life.settled + 2 * table.class_seconds;
    const std::string kept =
        Cat(FormatValue(static_cast<int64_t>(life.kept), "count"), " buffers from ", FormatDuration(site.oldest),
            " ago until ", until_now ? "now" : FormatDuration(site.newest) + " ago", " were never freed");
    site.more_dumps = "a dump after twice the time shows whether it goes on";
    switch (life.finding) {
      case LifeJudgement::Finding::kLeak:
        site.why = Cat(kept, "; ", FreedText(table));
        site.more_dumps = "a cache that is not yet full looks the same: dump again when it must be full";
        break;
      case LifeJudgement::Finding::kSlowing:
        site.why = Cat("is slowing down: ", kept, ", fewer and fewer");
        break;
      case LifeJudgement::Finding::kBatch:
        site.why = Cat("may be a batch: ", kept, ", but all from the time before were");
        break;
      case LifeJudgement::Finding::kUntested:
      case LifeJudgement::Finding::kFewTimes:
      case LifeJudgement::Finding::kStopped:
      case LifeJudgement::Finding::kNoneIsOld:
        site.why = Cat(kept, ", but they were born at few times, or not lately");
        break;
    }
  }

  // Sets `why` and `more_dumps`. `dumps` is that of JudgeCourse.
  void Explain(const Judgement& j, const std::vector<size_t>& dumps, SiteGrowth& site) const {
    switch (site.verdict) {
      case Verdict::kFlat:
        site.why = j.returned > 0 ? "shrank" : "did not change";
        site.more_dumps = "it is a leak only if it begins to grow";
        return;
      case Verdict::kUpAndDown:
        site.why = Cat("freed ", Percent(j.returned / j.taken), " of the bytes that it added");
        site.more_dumps = "it is a leak only if its lowest values continue to rise";
        return;
      case Verdict::kStopped:
        site.why = Cat("last grew at dump ", dumps[j.last_growth] + 1, " of ", dumps.back() + 1,
                       j.slowing ? ", and its growth slowed down before" : "");
        site.more_dumps = "it is a leak only if it grows again";
        return;
      case Verdict::kPerhaps:
        ExplainPerhaps(j, dumps, site);
        return;
      case Verdict::kLeak:
        ExplainLeak(j, dumps, site);
        return;
    }
  }

  // The parts of the explanation of growth.
  struct Growth {
    size_t intervals;
    std::string grew;
    std::string returned;
    std::string last_third;  // against the second
    std::string late;
  };
  Growth Describe(const Judgement& j, const std::vector<size_t>& dumps) const {
    const size_t intervals = dumps.size() - 1 - j.first;
    const std::string since = j.first == 0 ? "" : Cat(" since dump ", dumps[j.first] + 1);
    const double share = std::max(0.0, j.late / 2);  // of the last third in the growth of the last two
    const std::string last_third =
        share > 0.99
            ? "nearly all growth after the first third of the time is in the last third"
            : Cat("the last third of the time added ", Percent(share / (1 - share)), " of what the second third added");
    const char* const change = share < 0.45 ? "slower: " : share > 0.55 ? "faster: " : nullptr;
    return {
        intervals, Cat("grew permanently in ", j.steps, " of ", intervals, " intervals", since),
        j.fall > 0 ? Cat("freed at most ", FormatValue(std::llround(j.fall), unit_), " at a time") : "freed nothing",
        last_third,
        change == nullptr ? "the growth is even until the end" : Cat("the growth became ", change, last_third)};
  }

  void ExplainPerhaps(const Judgement& j, const std::vector<size_t>& dumps, SiteGrowth& site) const {
    const Growth growth = Describe(j, dumps);
    if (dumps.size() < 6) {
      site.why = Cat(growth.grew, ", ", growth.returned, "; ", dumps.size(),
                     " dumps cannot distinguish a leak from a cache that fills");
      site.more_dumps = "six dumps are enough if it grows evenly, twelve if it grows in bursts";
    } else if (j.slowing) {
      site.why = Cat("is slowing down: ", growth.last_third);
      site.more_dumps = "dumps over twice the time show whether it stops";
    } else if (j.in_jumps) {
      site.why = Cat("grew in a few jumps (", j.steps, " of ", growth.intervals, " intervals), the last one ",
                     Percent(j.tail), " of the time before the end: one-time jumps look the same");
      site.more_dumps = "if there are more jumps in the same time again, it is a leak; otherwise not";
    } else {
      site.why = Cat(growth.grew, ", unevenly; ", growth.returned, "; ", growth.late);
      site.more_dumps = "dumps over twice the time show whether the growth continues";
    }
  }

  void ExplainLeak(const Judgement& j, const std::vector<size_t>& dumps, SiteGrowth& site) const {
    const Growth growth = Describe(j, dumps);
    switch (j.reason) {
      case Judgement::Reason::kTrend: {
        char trend[32];
        std::snprintf(trend, sizeof(trend), "%.1f", j.trend);
        site.why = Cat("fluctuates and rises: the trend is ", trend, " times its standard error; ", growth.late);
        break;
      }
      case Judgement::Reason::kEven:
        site.why = Cat("grew at nearly the same rate in ",
                       growth.intervals > 3 ? std::string("the last three") : Cat("each of ", growth.intervals),
                       " intervals; ", growth.returned);
        break;
      case Judgement::Reason::kKept:
      case Judgement::Reason::kKeptAfterStart:
      case Judgement::Reason::kNone:
        site.why = Cat(growth.grew, "; ", growth.returned, "; ", growth.late);
        break;
    }
    if (site.sure == Sure::kHigh) {
      site.more_dumps = "a cache that is not yet full looks the same: dump again when it must be full";
    } else {
      site.more_dumps =
          Cat(dumps.size() < 6 ? "six" : "twelve",
              " dumps give a more reliable verdict; a cache that is not yet full looks the same until it is full");
    }
  }

  const DumpSeries& series_;
  const std::string& unit_;
  const std::vector<double> at_;
  double now_ = 0;  // the uptime at the last judged dump; 0 if ages are not judged
};

size_t CountDifferent(const std::vector<double>& values, size_t begin, size_t end) {
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) count += i == begin || values[i] != values[i - 1] ? 1 : 0;
  return count;
}

}  // namespace

std::vector<double> DumpSeries::Exposure() const {
  if (!counts.empty()) return counts;
  const auto intervals = static_cast<double>(std::max<size_t>(files.size(), 2) - 1);
  if (!seconds.empty() && seconds.back() >= 0.1 * intervals) return seconds;
  std::vector<double> index(files.size());
  std::iota(index.begin(), index.end(), 0.0);
  return index;
}

absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter, size_t first) {
  const std::vector<ProfileSet::File>& files = profiles.files();
  DumpSeries series;
  series.files.resize(files.size() - first);
  std::iota(series.files.begin(), series.files.end(), first);
  const bool timed =
      std::all_of(series.files.begin(), series.files.end(), [&](size_t f) { return files[f].time_nanos > 0; });
  if (timed) {
    std::stable_sort(series.files.begin(), series.files.end(),
                     [&](size_t a, size_t b) { return files[a].time_nanos < files[b].time_nanos; });
    const int64_t start = files[series.files.front()].time_nanos;
    for (const size_t f : series.files) {
      series.seconds.push_back(static_cast<double>(files[f].time_nanos - start) / 1e9);
    }
  }
  for (size_t d = 0; !counter.empty() && d < series.files.size(); ++d) {
    const ProfileSet::File& file = files[series.files[d]];
    std::string known;
    std::optional<int64_t> count;
    for (const Comment& comment : file.info.counters) {
      known += (known.empty() ? "" : ", ") + comment.name;
      if (comment.name == counter) count = comment.Number("value");
    }
    if (!count.has_value()) {
      return absl::InvalidArgumentError(Cat(file.path, ": has no counter '", counter, "' (it has ",
                                            known.empty() ? "none" : known,
                                            "); the program sets it with hbmprof::SetCounter(\"", counter, "\", n)"));
    }
    series.counts.push_back(static_cast<double>(*count));
  }
  FindRestarts(profiles, series);
  series.has_ages = HasAges(files[series.files[series.end - 1]]);
  const size_t judged = series.end - series.begin;
  if (judged < 3) return series;  // not enough to judge growth
  if (!counter.empty()) {
    const size_t different = CountDifferent(series.counts, series.begin, series.end);
    if (different < 3) {
      return absl::InvalidArgumentError(
          Cat("counter '", counter, "' has only ", different, " values in ", judged,
              " dumps: these are too few to compute growth per unit of it; leave out --per"));
    }
  }
  // If two dumps have the same time, the clock was too coarse for this series.
  if (timed && CountDifferent(series.seconds, series.begin, series.end) < judged) series.seconds.clear();
  return series;
}

namespace {

// Returns whether each stack is the memory from before the program was attached to (src/inject/attach.cc). It is not
// known when that memory was allocated, and its bytes get other records over time.
std::vector<bool> StacksFromBefore(const ProfileSet& profiles) {
  std::vector<bool> stacks(profiles.stacks().size());
  for (uint32_t i = 0; i < stacks.size(); ++i) {
    if (profiles.stacks().length(i) == 0) continue;
    const auto& frames = profiles.locations()[*profiles.stacks().begin(i)].frames;
    stacks[i] = !frames.empty() && profiles.text(profiles.functions()[frames[0].function].name) == "[before attach]";
  }
  return stacks;
}

}  // namespace

std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                                   const std::vector<std::string>& by) {
  const std::vector<bool> from_before = StacksFromBefore(profiles);
  const ProfileSet::LabelGroups groups = profiles.GroupLabels(by);
  const std::optional<size_t> born = profiles.FindType("alloc_objects");
  const std::optional<size_t> live = profiles.FindType("inuse_objects");
  const std::optional<size_t> allocated_type = AllocatedType(profiles, type);
  const size_t dumps = series.files.size();
  std::vector<SiteGrowth> sites;
  std::vector<std::vector<int64_t>> allocated;  // by site
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  for (size_t d = 0; d < dumps; ++d) {
    const ProfileSet::File& file = profiles.files()[series.files[d]];
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const ProfileSet::Sample& sample = file.samples[s];
      if (from_before[sample.stack]) continue;
      const uint32_t group = groups.of_set[sample.labels];
      const auto [entry, is_new] = numbers.try_emplace({sample.stack, group}, sites.size());
      if (is_new) {
        SiteGrowth& site = sites.emplace_back();
        site.stack = sample.stack;
        for (size_t l = 0; l < by.size(); ++l) {
          const std::string& value = groups.values[group][l];
          if (!value.empty()) site.labels.emplace_back(by[l], value);
        }
        site.values.resize(dumps);
        allocated.emplace_back(allocated_type.has_value() ? dumps : 0);
      }
      SiteGrowth& site = sites[entry->second];
      site.values[d] = Plus(site.values[d], profiles.Value(file, s, type));
      if (allocated_type.has_value()) {
        int64_t& total = allocated[entry->second][d];
        total = Plus(total, profiles.Value(file, s, *allocated_type));
      }
      if (d + 1 != series.end || !series.has_ages) continue;
      site.ages.Add(profiles.ages(sample));
      if (!born.has_value() || !live.has_value()) continue;
      site.freed = Plus(site.freed, Minus(profiles.Value(file, s, *born), profiles.Value(file, s, *live)));
    }
  }
  const SiteJudge judge(profiles, series, type);
  Progress progress(sites.size(), "call stacks judged");
  for (size_t s = 0; s < sites.size(); ++s) {
    judge.Fill(sites[s], allocated[s]);
    progress.Advance(1);
  }
  std::sort(sites.begin(), sites.end(), [](const SiteGrowth& a, const SiteGrowth& b) {
    return std::make_tuple(a.verdict, -a.per_interval, a.stack, a.labels) <
           std::make_tuple(b.verdict, -b.per_interval, b.stack, b.labels);
  });
  return sites;
}

SiteGrowth RestOf(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  const std::vector<SiteGrowth>& sites, Verdict explained) {
  SiteGrowth rest;
  rest.values.resize(series.files.size());
  for (const SiteGrowth& site : sites) {
    if (site.verdict <= explained) continue;
    for (size_t d = 0; d < rest.values.size(); ++d) rest.values[d] = Plus(rest.values[d], site.values[d]);
    rest.ages.Add(site.ages);
    rest.freed = Plus(rest.freed, site.freed);
  }
  SiteJudge(profiles, series, type).Fill(rest, {});
  return rest;
}

std::string FormatDuration(double seconds) {
  char text[32];
  const bool is_short = seconds < 120;
  const bool is_hours = seconds >= 7200;
  std::snprintf(text, sizeof(text), "%.1f %s",
                is_short   ? seconds
                : is_hours ? seconds / 3600
                           : seconds / 60,
                is_short   ? "s"
                : is_hours ? "h"
                           : "min");
  return text;
}

std::string OneOf(const std::string& counter) {
  return counter.size() > 1 && counter.back() == 's' ? counter.substr(0, counter.size() - 1) : counter;
}

const char* VerdictName(Verdict verdict) {
  constexpr const char* kNames[] = {"leak", "perhaps", "stopped", "up and down", "flat"};
  return kNames[static_cast<size_t>(verdict)];
}

const char* SureName(Sure sure) {
  constexpr const char* kNames[] = {"high", "medium", "low"};
  return kNames[static_cast<size_t>(sure)];
}

}  // namespace hbmprof::tool
