#include "src/tool/growth/growth.h"

#include <cmath>
#include <set>
#include <tuple>

#include "src/core/pool_samples.h"
#include "src/tool/growth/judge.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

std::string Percent(double share) { return Cat(std::llround(100 * share), " %"); }

constexpr char kMayBeCache[] = "a cache that is not yet full looks the same: dump again when it must be full";
constexpr char kMore[] = "dumps over twice the time show whether the growth continues";
constexpr char kJumps[] = "one-time jumps look the same";
constexpr char kMoreJumps[] = "if there are more jumps in the same time again, it is a leak; otherwise not";
constexpr size_t kFewDumps = 6;  // fewer do not tell a leak from a cache that fills

// What each feature of a course says, as a part of a sentence, and the effect of more dumps.
struct Says {
  const char* for_leak;
  const char* against;
  const char* more_dumps;
};
constexpr Says kSays[kFeatures] = {{"it grew without long pauses", kJumps, kMoreJumps},
                                   {"it does not approach a limit", "it may approach a limit", kMore},
                                   {"the highest values rise until the end", "the highest values hardly rise", kMore},
                                   {"it grew all the time", "nearly all growth is at the end", kMore},
                                   {"the growth is even until the end", kJumps, kMoreJumps},
                                   {"the growth is even until the end", "it fluctuates", kMore},
                                   {"it grew in even steps", kJumps, kMoreJumps}};

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
    size_t first = series_.begin;
    const size_t last = series_.end - 1;
    const bool has_course = last - first >= 2;
    // Not those of samples that were added to the profile.
    const bool has_ages = now_ > 0 && (!site.ages.empty() || site.values[last] == 0);
    if (has_course) {
      Course course;
      for (const size_t d : dumps_) {
        course.at.push_back(at_[d]);
        course.in_use.push_back(static_cast<double>(site.values[d]));
      }
      const Judgement judgement = Judge(course);
      if (!has_ages) first = dumps_[judgement.first];
      site.verdict = judgement.verdict;
      site.sure = judgement.sure;
      Explain(judgement, site);
    }
    SetGrowth(first, Minus(site.values[last], site.values[first]), site);
    if (has_ages) {
      JudgeAges(has_course, site);
    } else if (!has_course) {
      site.why = "the ages of its buffers are not known";
      site.more_dumps = "three dumps or more show whether it grows";
    }
  }

 private:
  // Sets the growth from the dump `first` to the last judged one, and its rates.
  void SetGrowth(size_t first, int64_t growth, SiteGrowth& site) const {
    const size_t last = series_.end - 1;
    const auto rate = [&](double length) { return length > 0 ? static_cast<double>(growth) / length : 0; };
    const auto length = [&](const std::vector<double>& units) {
      return units.empty() ? 0 : units[last] - units[first];
    };
    site.growth = growth;
    site.per_interval = rate(static_cast<double>(last - first));
    site.per_second = rate(length(series_.seconds));
    site.per_count = rate(length(series_.counts));
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
  void JudgeAges(bool has_course, SiteGrowth& site) const {
    using Finding = LifeJudgement::Finding;
    const LifeTable table = TableOf(site);
    const LifeJudgement life = JudgeLives(table);
    const double age = UsualAge(table);
    const std::string freed = age == 0 ? "this call stack freed none"
                                       : Cat("buffers of this call stack that are freed live ",
                                             age > 1 ? "up to " : "less than ", FormatDuration(age));
    const bool course_leaks = has_course && site.verdict == Verdict::kLeak;
    if (!has_course) site.growth = static_cast<int64_t>(life.kept_bytes);
    const bool is_leak = life.finding == Finding::kLeak;
    if (is_leak && has_course && site.growth <= 0) {
      // It also frees much: less is in use at the last dump than at the first one, although it keeps more and more.
      const double seconds =
          series_.seconds.empty() ? 0 : series_.seconds[series_.end - 1] - series_.seconds[series_.begin];
      SetGrowth(series_.begin, std::llround(seconds > 0 ? life.per_second * seconds : life.kept_bytes), site);
    }
    if (life.finding < Finding::kStopped) {
      site.per_second = life.per_second;
      site.oldest = now_ - life.oldest;
      site.newest = now_ - life.newest;
      site.verdict = is_leak ? Verdict::kLeak : Verdict::kPerhaps;
      site.sure = course_leaks ? Sure::kHigh : is_leak && life.times >= 9 ? Sure::kMedium : Sure::kLow;
      const bool until_now = site.newest <= life.settled + 2 * table.class_seconds;
      const std::string kept =
          Cat(FormatValue(static_cast<int64_t>(life.kept), "count"), " buffers from ", FormatDuration(site.oldest),
              " ago until ", until_now ? "now" : FormatDuration(site.newest) + " ago", " were never freed");
      site.why = is_leak                             ? Cat(kept, "; ", freed)
                 : life.finding == Finding::kSlowing ? Cat("is slowing down: ", kept, ", fewer and fewer")
                 : life.finding == Finding::kBatch
                     ? Cat("may be a batch: ", kept, ", but all from the time before were")
                     : Cat(kept, ", but they were born at few times, or not lately");
      site.more_dumps = is_leak ? kMayBeCache : "a dump after twice the time shows whether it goes on";
      return;
    }
    if (course_leaks) {
      site.verdict = Verdict::kPerhaps;
      site.sure = Sure::kLow;
      site.why = "grows, but no buffer is old: " + site.why;
      site.more_dumps = "a buffer that is always replaced by a larger one looks like this; so do more and more clients";
      return;
    }
    if (has_course && site.verdict != Verdict::kPerhaps) return;
    site.more_dumps = "it is a leak only if it keeps more buffers";
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

  // Sets the reason of a verdict, and the effect of more dumps, each a sentence.
  void Explain(const Judgement& j, SiteGrowth& site) const {
    const auto set = [&site](std::string why, std::string more_dumps) {
      site.why = std::move(why);
      site.more_dumps = std::move(more_dumps);
    };
    if (j.verdict == Verdict::kFlat) {
      return set(j.returned > 0 ? "shrank" : "did not change", "it is a leak only if it begins to grow");
    }
    if (j.verdict == Verdict::kUpAndDown) {
      return set(Cat("freed ", Percent(j.returned / j.taken), " of the bytes that it added"),
                 "it is a leak only if its lowest values continue to rise");
    }
    if (j.verdict == Verdict::kStopped) {
      return set(Cat("last grew at dump ", dumps_[j.last_growth] + 1, " of ", dumps_.back() + 1),
                 "it is a leak only if it grows again");
    }
    const std::string grew = Cat(
        "grew permanently in ", j.steps, " of ", dumps_.size() - 1 - j.first, " intervals",
        j.first == 0 ? "" : Cat(" since dump ", dumps_[j.first] + 1), "; ",
        j.fall > 0 ? Cat("freed at most ", FormatValue(std::llround(j.fall), unit_), " at a time") : "freed nothing",
        "; ");
    const Says& says = kSays[static_cast<size_t>(j.strongest)];
    if (j.verdict == Verdict::kLeak) {
      const char kOften[] =
          " dumps give a more reliable verdict; a cache that is not yet full looks the same until it is full";
      set(grew + says.for_leak,
          j.sure == Sure::kHigh ? kMayBeCache : Cat(dumps_.size() < kFewDumps ? "six" : "twelve", kOften));
    } else if (dumps_.size() < kFewDumps) {
      set(Cat(grew, dumps_.size(), " dumps cannot distinguish a leak from a cache that fills"),
          "six dumps are enough if it grows evenly, twelve if it grows in bursts");
    } else if (j.strongest == Feature::kLimit && j.late < 0.5) {
      set(Cat("is slowing down: the last third of the time added ", Percent(j.late / (1 - j.late)),
              " of what the second third added"),
          "dumps over twice the time show whether it stops");
    } else {
      set(grew + says.against, says.more_dumps);
    }
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
    if (profiles.stacks().length(i) == 0) continue;
    const auto& frames = profiles.locations()[*profiles.stacks().begin(i)].frames;
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
  const ProfileSet::LabelGroups groups = profiles.GroupLabels(by);
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
      const uint32_t group = groups.of_set[sample.labels];
      const auto [entry, is_new] = numbers.try_emplace({sample.stack, group}, sites.size());
      if (is_new) {
        SiteGrowth& site = sites.emplace_back();
        site.stack = sample.stack;
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
    for (size_t d = 0; d < rest.values.size(); ++d) AddTo(rest.values[d], site.values[d]);
    rest.ages.Add(site.ages);
    AddTo(rest.freed, site.freed);
  }
  SiteJudge(profiles, series, type).Fill(rest);
  return rest;
}

Sites SitesWith(Verdict verdict, const ProfileSet& profiles, const std::vector<SiteGrowth>& sites) {
  Sites found;
  std::set<std::string> functions;
  for (const SiteGrowth& site : sites) {
    if (site.verdict != verdict) continue;
    AddTo(found.growth, site.growth);
    const std::string name = NameOf(profiles, site);
    if (!functions.insert(name).second) continue;
    if (functions.size() <= 2) found.names += (found.names.empty() ? "" : " and ") + name;
  }
  found.function_count = functions.size();
  if (functions.size() > 2) {
    found.names += Cat(" and ", functions.size() - 2, functions.size() == 3 ? " other function" : " other functions");
  }
  return found;
}

std::string NameOf(const ProfileSet& profiles, const SiteGrowth& site) {
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(site.stack);
  return stack.empty() ? "[no stack]" : stack[0].name;
}

std::string DeviceOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type, uint32_t stack) {
  std::map<std::string, int64_t> sums;
  for (size_t s = 0; s < file.samples.size(); ++s) {
    if (file.samples[s].stack != stack) continue;
    AddTo(sums[profiles.LabelText(file.samples[s].labels, "device")], profiles.Value(file, s, type));
  }
  const auto most = absl::c_max_element(sums, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == sums.end() ? "" : most->first;
}

std::string LeakSentence(const ProfileSet& profiles, const ProfileSet::File& now, size_t type,
                         const std::vector<SiteGrowth>& sites) {
  const Sites leaks = SitesWith(Verdict::kLeak, profiles, sites);
  if (leaks.function_count == 0) return "";
  double per_second = 0;
  std::map<std::string, double> rates;  // by device
  for (const SiteGrowth& site : sites) {
    if (site.verdict != Verdict::kLeak) continue;
    per_second += site.per_second;
    rates[DeviceOf(profiles, now, type, site.stack)] += site.per_second;
  }
  const std::string unit = profiles.types()[type].unit;
  std::string text = Cat(leaks.names, leaks.function_count == 1 ? " leaks " : " leak ");
  if (per_second > 0) {
    text += Cat(FormatValue(static_cast<int64_t>(per_second), unit), " each second (", FormatChange(leaks.growth, unit),
                ")");
  } else {
    text += FormatValue(leaks.growth, unit);
  }
  double least = -1;
  std::string first;
  for (const ProfileInfo::Device& device : now.info.devices) {
    const auto rate = rates.find(device.name);
    const std::optional<int64_t> limit = device.Number("limit");
    if (!device.is_device_memory() || unit != "bytes" || rate == rates.end() || rate->second <= 0 ||
        !limit.has_value()) {
      continue;
    }
    const double left = static_cast<double>(Minus(*limit, device.Number("in_use").value_or(0))) / rate->second;
    if (left < 0 || (least >= 0 && left >= least)) continue;
    least = left;
    first = device.name;
  }
  if (least >= 0) text += Cat("; ", first, " reaches its limit in ", FormatDuration(least));
  return text + ".";
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
