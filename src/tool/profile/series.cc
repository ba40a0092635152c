#include "src/tool/profile/series.h"

namespace hbmprof::tool {
namespace {

// Returns whether the file has the ages of buffers, all of one process. The ages have whole seconds, so those of a
// young process say little. The comment with the uptime does not show that there are ages: other tools keep it and
// remove them.
bool HasAges(const ProfileSet& profiles, const ProfileSet::File& file) {
  const auto processes =
      absl::c_count_if(file.info.processes, [](const Comment& process) { return process.values.count("pid") > 0; });
  if (file.info.UptimeSeconds().value_or(0) < 16 || processes > 1) return false;
  if (absl::c_any_of(file.samples, [&](const auto& sample) { return !profiles.ages(sample).empty(); })) return true;
  // Without a live buffer there is nothing whose age is missing.
  const std::optional<size_t> live = profiles.FindType("inuse_objects");
  for (size_t s = 0; s < file.samples.size(); ++s) {
    if (!live.has_value() || profiles.Value(file, s, *live) != 0) return false;
  }
  return true;
}

// Sets the range of dumps to be judged: from `begin` on the longest sequence of one process, of equal ones the last.
void FindRestarts(const ProfileSet& profiles, DumpSeries& series) {
  const size_t dumps = series.files.size();
  const std::optional<size_t> total_type = profiles.FindType("alloc_space");
  const size_t begin = series.end = series.begin;
  size_t processes = 0;
  size_t first = begin;  // dump of the process
  int64_t total_before = 0;
  std::string process_before;
  for (size_t d = begin; d < dumps; ++d) {
    const ProfileSet::File& file = profiles.files()[series.files[d]];
    const std::string process = ProcessIn(file);
    const int64_t total = total_type.has_value() ? SumOf(profiles, file, *total_type) : 0;
    const bool other_process = !process.empty() && !process_before.empty() && process != process_before;
    const bool counter_fell = !series.counts.empty() && d > begin && series.counts[d] < series.counts[d - 1];
    if (d == begin || other_process || total < total_before || counter_fell) {
      ++processes;
      first = d;
    }
    if (d + 1 - first >= series.end - series.begin) {
      series.begin = first;
      series.end = d + 1;
    }
    total_before = total;
    process_before = process;
  }
  if (processes == 1) return;
  if (series.end - series.begin < 3) {
    series.begin = begin;
    series.end = dumps;
    series.restart =
        Cat("the dumps are of ", processes,
            " processes, and none of these wrote three dumps in a row: all dumps are judged as those of one process");
    return;
  }
  series.restart =
      Cat("the program was restarted ", processes == 2 ? "once" : Cat(processes - 1, " times"), ": only dumps ",
          series.begin + 1, " to ", series.end, " are judged, the longest series of one process");
}

size_t CountDifferent(const std::vector<double>& values, size_t begin, size_t end) {
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) count += i == begin || values[i] != values[i - 1] ? 1 : 0;
  return count;
}

}  // namespace

std::vector<double> DumpSeries::Exposure() const {
  const auto at = [&](size_t dump) { return counts.begin() + static_cast<std::ptrdiff_t>(dump); };
  // The counts of several processes that are judged as one can fall.
  if (!counts.empty() && std::is_sorted(at(begin), at(end))) return counts;
  const auto intervals = static_cast<double>(std::max<size_t>(files.size(), 2) - 1);
  if (!seconds.empty() && seconds.back() >= 0.1 * intervals) return seconds;
  std::vector<double> index(files.size());
  absl::c_iota(index, 0.0);
  return index;
}

absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter) {
  const std::vector<ProfileSet::File>& files = profiles.files();
  DumpSeries series;
  series.files.resize(files.size());
  absl::c_iota(series.files, 0);
  const bool timed = absl::c_all_of(series.files, [&](size_t f) { return files[f].time_nanos > 0; });
  if (timed) {
    absl::c_stable_sort(series.files, [&](size_t a, size_t b) { return files[a].time_nanos < files[b].time_nanos; });
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
    // A dump from before the program has set the counter for the first time says nothing on growth per unit of it.
    if (!count.has_value() && series.counts.empty() && d + 1 < series.files.size()) continue;
    if (!count.has_value()) {
      return InvalidArgument(file.path, ": has no counter '", counter, "' (it has ", known.empty() ? "none" : known,
                             "); the program sets it with hbmprof::SetCounter(\"", counter, "\", n)");
    }
    if (series.counts.empty()) series.begin = d;
    series.counts.resize(d);
    series.counts.push_back(static_cast<double>(*count));
  }
  FindRestarts(profiles, series);
  const std::optional<size_t> live = profiles.FindType("inuse_space");
  while (live.has_value() && series.end - series.begin > 3 &&
         IsFreed(profiles, files[series.files[series.end - 1]], *live)) {
    --series.end;
  }
  series.has_ages = HasAges(profiles, files[series.files[series.end - 1]]);
  const size_t judged = series.end - series.begin;
  if (series.files.size() < 3) return series;  // not enough to judge growth
  if (!counter.empty()) {
    const size_t different = CountDifferent(series.counts, series.begin, series.end);
    if (different < 3) {
      return InvalidArgument("counter '", counter, "' has only ", different, " values in ", judged,
                             " dumps: these are too few to compute growth per unit of it; leave out --per");
    }
  }
  // If two dumps have the same time, the clock was too coarse for this series.
  if (timed && CountDifferent(series.seconds, series.begin, series.end) < judged) series.seconds.clear();
  return series;
}

int64_t SumOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type) {
  int64_t sum = 0;
  for (size_t s = 0; s < file.samples.size(); ++s) AddTo(sum, profiles.Value(file, s, type));
  return sum;
}

bool HasMemory(const ProfileSet::File& file) {
  return !file.samples.empty() || absl::c_any_of(file.removed, [](int64_t bytes) { return bytes != 0; }) ||
         absl::c_any_of(file.info.devices, [](const auto& one) { return one.Number("peak").value_or(0) > 0; });
}

bool IsFreed(const ProfileSet& profiles, const ProfileSet::File& file, size_t type) {
  int64_t held = 0;
  for (size_t s = 0; s < file.samples.size(); ++s) {
    const std::string kind = profiles.LabelText(file.samples[s].labels, "kind");
    if (kind != "pool" && kind != "executable") AddTo(held, profiles.Value(file, s, type));
  }
  constexpr int64_t kRemnant = 4096;
  const std::optional<size_t> peak = profiles.FindType("peak_space");
  const bool is_bytes = peak.has_value() && profiles.types()[type].unit == profiles.types()[*peak].unit;
  return held == 0 || (is_bytes && held > 0 && held <= kRemnant && held < SumOf(profiles, file, *peak) / 1000);
}

}  // namespace hbmprof::tool
