#include "src/tool/growth/growth.h"

#include <cmath>
#include <tuple>

#include "src/core/pool_samples.h"
#include "src/tool/growth/judge.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

std::string Percent(double share) { return Cat(std::llround(100 * share), " %"); }

class SiteJudge {
 public:
  SiteJudge(const ProfileSet& profiles, const DumpSeries& series, size_t type)
      : series_(series), unit_(profiles.types()[type].unit), at_(series.Exposure()) {
    // If several dumps have the same exposure (no time passed, no request was served), only the last of them counts.
    for (size_t d = series.begin; d < series.end; ++d) {
      if (d + 1 == series.end || at_[d] < at_[d + 1]) dumps_.push_back(d);
    }
    if (!series.has_ages) return;
    // The time is known to the second.
    now_ = static_cast<double>(*profiles.files()[series.files[series.end - 1]].info.UptimeSeconds()) + 1;
  }

  void Fill(SiteGrowth& site) const {
    const size_t last = series_.end - 1;
    const bool has_course = last - series_.begin >= 2;
    // Not those of samples that were added to the profile.
    const bool has_ages = now_ > 0 && (!site.ages.empty() || site.values[last] == 0);
    Judgement judgement;
    if (has_course) {
      Course course;
      for (const size_t d : dumps_) {
        course.at.push_back(at_[d]);
        course.in_use.push_back(static_cast<double>(site.values[d]));
      }
      judgement = Judge(course);
      site.verdict = judgement.verdict;
      site.sure = judgement.sure;
      site.why = WhyOf(judgement);
    }
    SetGrowth(Minus(site.values[last], site.values[series_.begin]), site);
    if (has_ages) {
      JudgeAges(has_course, judgement.is_steady, site);
    } else if (!has_course) {
      site.why = "the ages of its buffers are not known";
    }
  }

 private:
  // Sets the growth from the first judged dump to the last one, and its rates.
  void SetGrowth(int64_t growth, SiteGrowth& site) const {
    const auto rate = [&](const std::vector<double>& units) {
      const double length = units.empty() ? 0 : units[series_.end - 1] - units[series_.begin];
      return length > 0 ? std::optional(static_cast<double>(growth) / length) : std::nullopt;
    };
    site.growth = growth;
    site.per_second = rate(series_.seconds);
    site.per_count = rate(series_.counts);
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

  // Replaces the verdict on the totals by that on the ages. If only the totals grow steadily, it is "perhaps".
  void JudgeAges(bool has_course, bool is_steady, SiteGrowth& site) const {
    using Finding = LifeJudgement::Finding;
    const LifeTable table = TableOf(site);
    const LifeJudgement life = JudgeLives(table);
    const double age = UsualAge(table);
    const std::string freed = age == 0 ? "this call stack freed none"
                                       : Cat("buffers of this call stack that are freed live ",
                                             age > 1 ? "up to " : "less than ", FormatDuration(age));
    if (!has_course) {
      site.growth = static_cast<int64_t>(life.kept_bytes);
      // A counter counts from the start until now, but the youngest buffers are not among those that were kept.
      const double count = series_.counts.empty() ? 0 : series_.counts[series_.end - 1];
      if (count > 0) site.per_count = (life.kept_bytes + life.per_second * life.settled) / count;
    }
    const bool is_leak = life.finding == Finding::kLeak;
    if (is_leak && has_course && site.growth <= 0) {
      // It also frees much: less is in use at the last dump than at the first one, although it keeps more and more.
      const double seconds =
          series_.seconds.empty() ? 0 : series_.seconds[series_.end - 1] - series_.seconds[series_.begin];
      SetGrowth(std::llround(seconds > 0 ? life.per_second * seconds : life.kept_bytes), site);
    }
    if (life.finding < Finding::kStopped) {
      site.per_second = life.per_second;
      site.verdict = is_leak ? Verdict::kLeak : Verdict::kPerhaps;
      site.sure = !is_leak ? Sure::kLow : is_steady ? Sure::kHigh : life.times >= 9 ? Sure::kMedium : Sure::kLow;
      const double newest = now_ - life.newest;
      const bool until_now = newest <= life.settled + 2 * table.class_seconds;
      const std::string kept = Cat(FormatValue(static_cast<int64_t>(life.kept), "count"), " buffers from ",
                                   FormatDuration(now_ - life.oldest), " ago until ",
                                   until_now ? "now" : FormatDuration(newest) + " ago", " were never freed");
      site.why = is_leak                             ? Cat(kept, "; ", freed)
                 : life.finding == Finding::kSlowing ? Cat("is slowing down: ", kept, ", fewer and fewer")
                 : life.finding == Finding::kBatch
                     ? Cat("may be a batch: ", kept, ", but all from the time before were")
                     : Cat(kept, ", but they were born at few times, or not lately");
      return;
    }
    if (is_steady) {
      site.verdict = Verdict::kPerhaps;
      site.sure = Sure::kLow;
      site.why = Cat("grows, but no buffer is old, as if a buffer is replaced by larger ones: ", site.why);
      return;
    }
    if (has_course && site.verdict != Verdict::kPerhaps) return;
    if (life.finding == Finding::kStopped) {
      site.verdict = Verdict::kStopped;
      site.why = Cat("last kept a buffer ", FormatDuration(now_ - life.newest), " ago");
    } else if (life.kept > 0 || age > 0) {
      site.verdict = Verdict::kUpAndDown;
      site.why = Cat("its buffers are freed; ", freed);
    } else {
      site.verdict = Verdict::kFlat;
      site.why = "no buffer was allocated after the start";
    }
  }

  // Returns the reason of a verdict on totals.
  std::string WhyOf(const Judgement& j) const {
    switch (j.verdict) {
      case Verdict::kFlat:
        return j.returned > 0 ? "shrank" : "did not change";
      case Verdict::kUpAndDown:
        return Cat("freed ", Percent(j.returned / j.taken), " of the bytes that it added");
      case Verdict::kStopped:
        return Cat("last grew at dump ", dumps_[j.last_growth] + 1, " of ", dumps_.back() + 1);
      default:
        break;
    }
    const std::string grew = Cat(
        "grew permanently in ", j.steps, " of ", dumps_.size() - 1, " intervals; ",
        j.fall > 0 ? Cat("freed at most ", FormatValue(std::llround(j.fall), unit_), " at a time") : "freed nothing");
    if (j.verdict == Verdict::kLeak) return grew;
    if (j.late < 0.4) {
      return Cat("is slowing down: the last third of the time added ", Percent(j.late / (1 - j.late)),
                 " of what the second third added");
    }
    return dumps_.size() < kEnoughDumps
               ? Cat(grew, "; ", dumps_.size(), " dumps cannot distinguish a leak from a cache that fills, ",
                     kEnoughDumps, " can")
               : grew + "; the growth is uneven";
  }

  const DumpSeries& series_;
  const std::string& unit_;
  const std::vector<double> at_;
  std::vector<size_t> dumps_;  // those that count
  double now_ = 0;             // the uptime at the last judged dump; 0 if ages are not judged
};

// Returns whether each stack cannot be judged. That is the memory from before the program was attached to
// (src/inject/attach.cc): it is not known when that memory was allocated, and its bytes get other records over time.
// The same holds for idle memory of pools.
std::vector<bool> StacksWithoutVerdict(const ProfileSet& profiles) {
  std::vector<bool> stacks(profiles.stacks().size());
  for (uint32_t i = 0; i < stacks.size(); ++i) {
    if (profiles.stacks()[i].empty()) continue;
    const auto& frames = profiles.locations()[profiles.stacks()[i][0]].frames;
    if (frames.empty()) continue;
    const std::string& name = profiles.text(profiles.functions()[frames[0].function].name);
    stacks[i] = name == "[before attach]" || internal::IsIdleMemoryFrame(name);
  }
  return stacks;
}

}  // namespace

std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                                   const std::vector<std::string>& by) {
  const std::vector<bool> has_no_verdict = StacksWithoutVerdict(profiles);
  std::vector<std::string> keys = by;
  keys.emplace_back(kMemoryKey);
  const ProfileSet::LabelGroups groups = profiles.GroupLabels(keys);
  const ProfileSet::LabelGroups kinds = profiles.GroupLabels({"kind"});
  const std::optional<size_t> born = profiles.FindType("alloc_objects");
  const std::optional<size_t> live = profiles.FindType("inuse_objects");
  const SiteJudge judge(profiles, series, type);
  std::vector<SiteGrowth> sites;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  for (size_t d = 0; d < series.files.size(); ++d) {
    const ProfileSet::File& file = profiles.files()[series.files[d]];
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const ProfileSet::Sample& sample = file.samples[s];
      if (has_no_verdict[sample.stack]) continue;
      // Kernels that the driver has loaded stay until the end.
      if (kinds.values[kinds.of_set[sample.labels]][0] == "executable") continue;
      const uint32_t group = groups.of_set[sample.labels];
      const auto [entry, is_new] = numbers.try_emplace({sample.stack, group}, sites.size());
      if (is_new) {
        SiteGrowth& site = sites.emplace_back();
        site.stack = sample.stack;
        site.memory = groups.values[group].back();
        for (size_t l = 0; l < by.size(); ++l) {
          const std::string& value = groups.values[group][l];
          if (!value.empty()) site.labels.emplace_back(by[l], value);
        }
        site.values.resize(series.files.size());
      }
      SiteGrowth& site = sites[entry->second];
      AddTo(site.values[d], profiles.Value(file, s, type));
      if (d + 1 != series.end || !series.has_ages) continue;
      site.ages.Add(profiles.ages(sample));
      if (!born.has_value() || !live.has_value()) continue;
      AddTo(site.freed, Minus(profiles.Value(file, s, *born), profiles.Value(file, s, *live)));
    }
  }
  Progress progress(sites.size(), "call stacks judged");
  for (SiteGrowth& site : sites) {
    judge.Fill(site);
    progress.Advance(1);
  }
  absl::c_sort(sites, [](const SiteGrowth& a, const SiteGrowth& b) {
    return std::make_tuple(a.verdict, -a.growth, a.stack, a.memory, a.labels) <
           std::make_tuple(b.verdict, -b.growth, b.stack, b.memory, b.labels);
  });
  return sites;
}

SiteGrowth RestOf(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  const std::vector<SiteGrowth>& sites) {
  SiteGrowth rest;
  rest.values.resize(series.files.size());
  for (const SiteGrowth& site : sites) {
    if (site.verdict == Verdict::kLeak) continue;
    for (size_t d = 0; d < rest.values.size(); ++d) AddTo(rest.values[d], site.values[d]);
    rest.ages.Add(site.ages);
    AddTo(rest.freed, site.freed);
  }
  SiteJudge(profiles, series, type).Fill(rest);
  return rest;
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
