// See growth.h.
//
// A site is judged by its rates: what it grew by in each interval, by the unit that the growth is told in (requests,
// seconds, or intervals). A leak's rates are all positive and much alike. What warms up has large rates first and then
// none; what breathes has negative ones. First intervals of a leak may show warming up as well: they are left out as
// long as their rate stands far above the others.
#include "src/tool/growth.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "src/tool/arithmetic.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

using Verdict = SiteGrowth::Verdict;
using Sure = SiteGrowth::Sure;

constexpr double kWarmUpFactor = 3;    // a first rate this much above the others is warming up
constexpr double kSteadyShare = 0.5;   // a leak's slowest interval has at least this share of its usual rate
constexpr double kStoppedShare = 0.1;  // what grows this much slower at the end than before has stopped
constexpr double kReturnShare = 0.25;  // what gives back this share of what it took goes up and down

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), share < 0.1 ? "%.1f %%" : "%.0f %%", 100 * share);
  return text;
}

void Judge(SiteGrowth& site, const std::vector<double>& at) {
  const std::vector<int64_t>& values = site.values;
  const size_t dumps = values.size();
  std::vector<double> rates;
  for (size_t i = 1; i < dumps; ++i) {
    rates.push_back(static_cast<double>(Minus(values[i], values[i - 1])) / (at[i] - at[i - 1]));
  }
  while (rates.size() > 2) {
    const double others = Median({rates.begin() + 1, rates.end()});
    if (!(rates[0] > kWarmUpFactor * std::max(others, 0.0)) || others <= 0) break;
    rates.erase(rates.begin());
    ++site.first;
  }
  site.growth = Minus(values.back(), values[site.first]);

  const size_t intervals = rates.size();
  const auto grew = static_cast<size_t>(std::count_if(rates.begin(), rates.end(), [](double r) { return r > 0; }));
  double taken = 0;
  double returned = 0;
  for (size_t i = site.first + 1; i < dumps; ++i) {
    const auto change = static_cast<double>(Minus(values[i], values[i - 1]));
    (change > 0 ? taken : returned) += std::fabs(change);
  }
  const double usual = Median(rates);
  const double slowest = *std::min_element(rates.begin(), rates.end());
  const double fastest = *std::max_element(rates.begin(), rates.end());
  // Of the second half, and of the first.
  const double late = Median({rates.begin() + static_cast<std::ptrdiff_t>(intervals / 2), rates.end()});
  const double early =
      *std::max_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>((intervals + 1) / 2));
  const bool slowing = std::is_sorted(rates.rbegin(), rates.rend()) && rates.back() < kSteadyShare * rates.front();
  const std::string warm_up = site.first == 0 ? "" : Cat(", after warming up until dump ", site.first + 1);

  if (taken == 0) {
    site.verdict = Verdict::kFlat;
    site.why = returned > 0 ? "shrank" : "did not change";
  } else if (grew == intervals && slowest >= kSteadyShare * usual && !slowing) {
    site.verdict = Verdict::kLeak;
    const double spread = (fastest - slowest) / usual;
    site.sure = intervals >= 3 && spread <= 1 ? Sure::kHigh : Sure::kMedium;
    site.why =
        Cat("grew in each of ", intervals, " intervals, ",
            spread < 0.0005 ? "at the same rate" : Cat("rates within ", Percent(spread), " of each other"), warm_up);
  } else if (returned > kReturnShare * taken) {
    site.verdict = Verdict::kUpAndDown;
    site.why = Cat("gave back ", Percent(returned / taken), " of what it took");
  } else if (rates.back() <= kStoppedShare * early && late <= kSteadyShare * early) {
    site.verdict = Verdict::kStopped;
    size_t last = dumps - 1;
    while (last > 0 && static_cast<double>(Minus(values[last], values[last - 1])) <=
                           kStoppedShare * early * (at[last] - at[last - 1])) {
      --last;
    }
    site.why = Cat("stopped growing by dump ", last + 1, " of ", dumps);
  } else if (grew * 4 >= intervals * 3 && late >= kSteadyShare * usual && usual > 0) {
    site.verdict = Verdict::kPerhaps;
    site.sure = Sure::kMedium;
    site.why = Cat("grew in ", grew, " of ", intervals, " intervals, unevenly", warm_up, "; more dumps will tell");
  } else {
    site.verdict = Verdict::kPerhaps;
    site.sure = Sure::kLow;
    site.why = rates.back() < early
                   ? Cat("is slowing down: grew in ", grew, " of ", intervals, " intervals; a later dump will tell")
                   : Cat("grew in only ", grew, " of ", intervals, " intervals; more dumps will tell");
  }
}

}  // namespace

absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter) {
  const std::vector<ProfileSet::File>& files = profiles.files();
  DumpSeries series;
  series.files.resize(files.size());
  std::iota(series.files.begin(), series.files.end(), size_t{0});
  std::vector<int64_t> times;
  for (const ProfileSet::File& file : files) times.push_back(file.time_nanos);
  std::sort(times.begin(), times.end());
  if (times.front() > 0 && std::adjacent_find(times.begin(), times.end()) == times.end()) {
    std::sort(series.files.begin(), series.files.end(),
              [&](size_t a, size_t b) { return files[a].time_nanos < files[b].time_nanos; });
    for (const int64_t time : times) series.seconds.push_back(static_cast<double>(time - times[0]) / 1e9);
  }
  if (counter.empty()) return series;

  for (const size_t f : series.files) {
    std::string known;
    std::optional<int64_t> count;
    for (const std::string& line : files[f].comments) {
      const Comment comment(line);
      if (comment.word != "counter") continue;
      known += (known.empty() ? "" : ", ") + comment.name;
      if (comment.name == counter) count = comment.Number("value");
    }
    if (!count.has_value()) {
      return absl::InvalidArgumentError(Cat(files[f].path, ": has no counter '", counter, "' (it has ",
                                            known.empty() ? "none" : known,
                                            "); the program sets it with hbmprof::SetCounter(\"", counter, "\", n)"));
    }
    const auto value = static_cast<double>(*count);
    if (!series.counts.empty() && value <= series.counts.back()) {
      return absl::InvalidArgumentError(Cat(files[f].path, ": counter '", counter, "' is ", *count,
                                            ", no more than in the dump before; leave one of the two out"));
    }
    series.counts.push_back(value);
  }
  return series;
}

std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type) {
  // Sites differ in their stack and in labels that are text: a block size is no place.
  std::vector<uint32_t> kinds(profiles.label_set_count());
  std::vector<std::vector<std::pair<std::string, std::string>>> kind_labels;
  absl::flat_hash_map<std::string, uint32_t> kind_numbers;
  for (uint32_t set = 0; set < kinds.size(); ++set) {
    std::vector<std::pair<std::string, std::string>> labels;
    std::string key;
    for (const ProfileSet::Label& label : profiles.labels(set)) {
      if (label.text == 0) continue;
      labels.emplace_back(profiles.text(label.key), profiles.text(label.text));
      key += Cat(label.key, "=", label.text, ",");
    }
    const auto [entry, is_new] = kind_numbers.try_emplace(key, static_cast<uint32_t>(kind_labels.size()));
    if (is_new) kind_labels.push_back(std::move(labels));
    kinds[set] = entry->second;
  }

  const size_t dumps = series.files.size();
  std::vector<SiteGrowth> sites;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  for (size_t d = 0; d < dumps; ++d) {
    const ProfileSet::File& file = profiles.files()[series.files[d]];
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const ProfileSet::Sample& sample = file.samples[s];
      const uint32_t kind = kinds[sample.labels];
      const auto [entry, is_new] = numbers.try_emplace({sample.stack, kind}, sites.size());
      if (is_new) {
        SiteGrowth& site = sites.emplace_back();
        site.stack = sample.stack;
        site.labels = kind_labels[kind];
        site.values.resize(dumps);
      }
      int64_t& value = sites[entry->second].values[d];
      value = Plus(value, profiles.Value(file, s, type));
    }
  }

  std::vector<double> index(dumps);
  std::iota(index.begin(), index.end(), 0.0);
  const std::vector<double>& at = !series.counts.empty()    ? series.counts
                                  : !series.seconds.empty() ? series.seconds
                                                            : index;
  for (SiteGrowth& site : sites) {
    Judge(site, at);
    const auto rate = [&](const std::vector<double>& units) {
      return units.empty() ? 0.0 : static_cast<double>(site.growth) / (units.back() - units[site.first]);
    };
    site.per_interval = rate(index);
    site.per_second = rate(series.seconds);
    site.per_count = rate(series.counts);
  }
  std::sort(sites.begin(), sites.end(), [](const SiteGrowth& a, const SiteGrowth& b) {
    return std::make_tuple(a.verdict, -a.per_interval, a.stack) < std::make_tuple(b.verdict, -b.per_interval, b.stack);
  });
  return sites;
}

std::string OneOf(const std::string& counter) {
  return counter.size() > 1 && counter.back() == 's' ? counter.substr(0, counter.size() - 1) : counter;
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kLeak:
      return "leak";
    case Verdict::kPerhaps:
      return "perhaps";
    case Verdict::kStopped:
      return "stopped";
    case Verdict::kUpAndDown:
      return "up and down";
    case Verdict::kFlat:
      return "flat";
  }
  return "";
}

const char* SureName(Sure sure) {
  switch (sure) {
    case Sure::kHigh:
      return "high";
    case Sure::kMedium:
      return "medium";
    case Sure::kLow:
      return "low";
  }
  return "";
}

}  // namespace hbmprof::tool
