#include "src/tool/fit/fit.h"

#include <cmath>

#include "src/core/pool_samples.h"
#include "src/tool/profile/labels.h"

namespace hbmprof::tool {
namespace {

using Row = MemoryFit::Row;

constexpr double kFarTimes = 4;   // a prediction so far from what was measured says so
constexpr size_t kMostRuns = 64;  // the work grows with the square

absl::StatusOr<Point> PointOf(const ProfileSet::File& file, const std::vector<std::string>& counters) {
  Point point;
  for (const std::string& counter : counters) {
    const std::vector<Comment>& all = file.info.counters;
    const auto found = absl::c_find_if(all, [&](const Comment& one) { return one.name == counter; });
    if (found == all.end()) {
      const auto name = [](std::string* text, const Comment& one) { *text += one.name; };
      return InvalidArgument(file.path, ": has no counter '", counter, "' (it has ",
                             all.empty() ? "none" : absl::StrJoin(all, ", ", name),
                             "); the program sets it with hbmprof::SetCounter(\"", counter,
                             "\", n), or give each profile its value: --value n");
    }
    point.push_back(static_cast<double>(found->Number("value").value_or(0)));
    if (point.back() > 0) continue;
    return InvalidArgument(file.path, ": the counter '", counter, "' is ", found->Text("value"),
                           "; only values above 0 can be judged");
  }
  return point;
}

class Fitter {
 public:
  Fitter(const ProfileSet& profiles, size_t type, const FitRequest& request)
      : profiles_(profiles), files_(profiles.files()), type_(type), request_(request) {}

  absl::StatusOr<Fit> Run() {
    fit_.counters = request_.counters;
    fit_.type = profiles_.types()[type_].type;
    fit_.is_requested = request_.at.has_value();
    points_ = request_.values;
    for (size_t f = points_.size(); f < files_.size(); ++f) {
      ASSIGN_OR_RETURN(Point point, PointOf(files_[f], request_.counters));
      points_.push_back(std::move(point));
    }
    ReadSamples();
    if (memories_.empty()) return InvalidArgument(files_[0].path, ": no memory was recorded");
    FindRuns();
    if (fit_.runs.size() > kMostRuns) {
      return InvalidArgument("there are ", fit_.runs.size(), " values of ", absl::StrJoin(fit_.counters, ", "),
                             "; give profiles of at most ", kMostRuns);
    }
    if (fit_.runs.size() < 2) {
      return InvalidArgument("there is one value of ", absl::StrJoin(fit_.counters, ", "),
                             "; how memory grows is seen from three on");
    }
    std::vector<Point> points;
    for (const Fit::Run& run : fit_.runs) points.push_back(run.at);
    finder_.emplace(std::move(points));
    LookAtValues();
    for (const auto& [name, memory] : memories_) fit_.memories.push_back(FitOf(name, memory));
    absl::c_stable_sort(fit_.memories, [](const MemoryFit& a, const MemoryFit& b) { return a.at.bytes > b.at.bytes; });
    return std::move(fit_);
  }

 private:
  using ByFile = std::vector<double>;
  struct Memory {
    ByFile recorded;
    std::map<uint32_t, ByFile> by_stack;
    std::vector<size_t> files;  // by run
  };

  void Add(size_t file, int64_t bytes, ByFile& to) const {
    to.resize(files_.size());
    to[file] += static_cast<double>(bytes);
  }

  // At the peak of a device, a pool can have much idle memory that is used at other times. So its blocks count as they
  // were at its own peak, and the rest of its memory is idle.
  void ReadSamples() {
    const ProfileSet::LabelGroups labels = profiles_.GroupLabels({"device", "kind", "allocator"});
    const std::optional<size_t> pool_peak =
        fit_.type == "peak_space" ? profiles_.FindType("pool_peak_space") : std::nullopt;
    for (size_t f = 0; f < files_.size(); ++f) {
      std::map<std::pair<std::string, std::string>, uint32_t> idle_of;  // the stack of idle memory, by device and pool
      for (size_t s = 0; s < files_[f].samples.size() && pool_peak.has_value(); ++s) {
        const std::vector<std::string>& values = labels.values[labels.of_set[files_[f].samples[s].labels]];
        // Those of segments have no bytes of this type.
        if (values[1] != "pool" || profiles_.Value(files_[f], s, type_) == 0) continue;
        idle_of[{values[0], values[2]}] = files_[f].samples[s].stack;
      }
      for (size_t s = 0; s < files_[f].samples.size(); ++s) {
        const ProfileSet::Sample& sample = files_[f].samples[s];
        const std::vector<std::string>& values = labels.values[labels.of_set[sample.labels]];
        if (values[1] == "managed" || values[1] == "pinned_host") continue;  // no memory of the device
        Memory& memory = memories_[values[0].empty() ? "memory" : values[0]];
        const int64_t bytes = profiles_.Value(files_[f], s, type_);
        Add(f, bytes, memory.recorded);
        const auto idle = idle_of.find({values[0], values[2]});
        const bool is_block = idle != idle_of.end() && values[1] != "pool";
        const int64_t counted = is_block ? profiles_.Value(files_[f], s, *pool_peak) : bytes;
        Add(f, counted, memory.by_stack[sample.stack]);
        if (is_block) Add(f, Minus(bytes, counted), memory.by_stack[idle->second]);
      }
    }
  }

  // Returns whether the peak of a file is that of an earlier, larger run of the same process: it is the highest since
  // the start.
  bool HasOldPeak(size_t file) const {
    const std::string process = ProcessIn(files_[file]);
    for (size_t e = 0; e < files_.size() && !process.empty() && fit_.type.rfind("peak_", 0) == 0; ++e) {
      if (ProcessIn(files_[e]) == process && files_[e].time_nanos <= files_[file].time_nanos &&
          SizeOf(points_[e]) > SizeOf(points_[file]) && absl::c_all_of(memories_, [&](const auto& one) {
            return one.second.recorded[e] == one.second.recorded[file];
          }))
        return true;
    }
    return false;
  }

  // Finds the runs, and for each memory the file that has measured each of them: of several, that with the most bytes.
  void FindRuns() {
    std::map<std::pair<double, Point>, std::vector<size_t>> files;  // by size and values
    std::vector<size_t> old;
    for (size_t f = 0; f < files_.size(); ++f) {
      (HasOldPeak(f) ? old : files[{SizeOf(points_[f]), points_[f]}]).push_back(f);
    }
    for (const auto& [point, of_point] : files) {
      fit_.runs.push_back({files_[of_point[0]].path, point.second});
      for (auto& [name, memory] : memories_) {
        const std::vector<double>& bytes = memory.recorded;
        memory.files.push_back(
            *absl::c_max_element(of_point, [&bytes](size_t a, size_t b) { return bytes[a] < bytes[b]; }));
      }
    }
    if (!old.empty()) {
      Note(Cat(old.size(), " of ", files_.size(), " profiles ", old.size() == 1 ? "does" : "do",
               " not count: the peak is that of an earlier, larger run of the same process"));
    }
    if (files.size() + old.size() < files_.size())
      Note("of profiles with equal values, the one with the highest peak counts");
  }

  void Note(std::string text) { fit_.notes.push_back(std::move(text)); }

  // Finds out where the memory is predicted, what the values cannot decide, and what is to be noted.
  void LookAtValues() {
    const size_t count = fit_.counters.size();
    const std::string names = absl::StrJoin(fit_.counters, " and ");
    for (size_t c = 0; c < count; ++c) {
      const auto [low, high] =
          absl::c_minmax_element(fit_.runs, [c](const Fit::Run& a, const Fit::Run& b) { return a.at[c] < b.at[c]; });
      const double least = low->at[c];
      const double most = high->at[c];
      const std::string& name = fit_.counters[c];
      fit_.at.push_back(fit_.is_requested ? (*request_.at)[c] : most);
      if (least == most) fit_.undecided = Cat("all profiles have the same ", name);
      if (most < 2 * least) {
        is_narrow_ = true;
        Note(Cat("the values of ", name, " are within a factor of two: steps can look like constants"));
      }
      const double times = std::max(fit_.at[c] / most, least / fit_.at[c]);
      if (times <= kFarTimes) continue;
      Note(Cat(PointText({name}, {fit_.at[c]}), absl::StrFormat(" is %.1f times", times),
               " outside of what was measured: measure nearer to it"));
    }
    if (!fit_.undecided.empty()) return;
    if (fit_.runs.size() < count + 2) {
      fit_.undecided = Cat(fit_.runs.size(), " values cannot tell a line from steps; measure more");
    } else if (!finder_->CanDecide()) {
      fit_.undecided = Cat(names, " grow together, so nothing tells their effects apart; change one of them alone");
    } else if (!finder_->CanDecideProducts()) {
      Note(Cat("these values cannot tell all products of ", names, " from sums; measure more of them"));
    }
    const auto is_doubled = [this](const Fit::Run& run) { return finder_->IsDoubled(run.at); };
    if (absl::c_all_of(fit_.runs, is_doubled) && !finder_->IsDoubled(fit_.at)) {
      Note("all values are powers of two times the smallest: rounding up looks like a line; measure a value between");
    }
  }

  // Returns the memory that only the driver reports, by function; nothing if a file does not know it.
  std::map<std::string, ByFile> UnaccountedMemoryOf(const std::string& name) {
    std::map<std::string, ByFile> unaccounted;
    size_t known = 0;
    bool is_of_all_processes = false;
    for (size_t f = 0; f < files_.size(); ++f) {
      for (const ProfileInfo::Device& device : files_[f].info.devices) {
        if (device.name != name || !device.is_device_memory()) continue;
        known += device.Number("unaccounted").has_value() ? 1 : 0;
        is_of_all_processes = is_of_all_processes || device.Text("driver_scope") == "device";
      }
      for (const UnaccountedMemory& one : UnaccountedOf(files_[f])) {
        if (one.device == name) Add(f, one.bytes, unaccounted[std::string(one.function)]);
      }
    }
    if (known < files_.size()) {
      Note(Cat(name, ": unaccounted memory is not known, so the peak is that of the recorded memory"));
      return {};
    }
    if (is_of_all_processes && !unaccounted.empty())
      Note(Cat(name, ": unaccounted memory is that of all processes on the device"));
    return unaccounted;
  }

  // Call stacks of one function without a law are added up, too: which of them has the memory can change with the size.
  std::vector<Row> RowsOf(const std::string& name, const Memory& memory) {
    std::map<std::tuple<std::string, std::string, bool>, Row> rows;
    const auto add = [&](const ProfileSet::ShownFrame& frame, const ByFile& by_file) {
      std::vector<double> bytes;
      for (const size_t file : memory.files) bytes.push_back(by_file[file]);
      if (absl::c_all_of(bytes, [](double one) { return one == 0; })) return;
      const bool is_steps = fit_.undecided.empty() && finder_->Find(bytes).is_steps;
      Row& row = rows[{frame.name, frame.Position(), is_steps}];
      row.function = frame.name;
      row.position = frame.Position();
      ++row.stacks;
      AddTo(row.law.measured, bytes);
    };
    for (const auto& [stack, by_file] : memory.by_stack) {
      const std::vector<ProfileSet::ShownFrame> frames = profiles_.ShownStack(stack);
      add(frames.empty() ? ProfileSet::ShownFrame{"[no stack]"} : frames[0], by_file);
    }
    for (const auto& [function, by_file] : UnaccountedMemoryOf(name)) add({function}, by_file);
    std::vector<Row> sorted;
    for (auto& [key, row] : rows) {
      if (fit_.undecided.empty()) row.law = finder_->Find(row.law.measured);
      row.bytes = fit_.undecided.empty() ? finder_->At(row.law, fit_.at).bytes : row.law.measured.back();
      sorted.push_back(std::move(row));
    }
    absl::c_stable_sort(sorted, [](const Row& a, const Row& b) { return a.bytes > b.bytes; });
    return sorted;
  }

  MemoryFit FitOf(const std::string& name, const Memory& memory) {
    MemoryFit result;
    result.name = name;
    result.limit = request_.limit;
    for (const ProfileInfo::Device& device : files_[memory.files.back()].info.devices) {
      if (request_.limit.has_value() || device.name != name || !device.is_device_memory()) continue;
      if (const auto limit = device.Number("limit"); limit.value_or(0) > 0) result.limit = limit;
    }
    result.rows = RowsOf(name, memory);
    result.measured = result.predicted = std::vector<double>(fit_.runs.size());
    std::vector<Law> laws;  // of idle memory
    std::vector<Law> held;
    for (const Row& row : result.rows) {
      (internal::IsIdleMemoryFrame(row.function) ? laws : held).push_back(row.law);
      AddTo(result.measured, row.law.measured);
    }
    if (fit_.is_requested && result.limit.has_value()) result.verdict = FitVerdict::kUndecided;
    if (!fit_.undecided.empty()) return result;
    const size_t idle = laws.size();
    if (std::optional<Law> sum = finder_->FindSum(held); sum.has_value()) {
      Note(Cat(name, ": the prediction is that of the sum of all functions, as the peak moves between them"));
      held = {*std::move(sum)};
    }
    laws.insert(laws.end(), held.begin(), held.end());
    for (const Law& law : laws) {
      AddTo(result.predicted, law.measured);
      AddTo(result.predicted, law.errors);
      if (law.holds()) AddTo(result.terms, law.terms);
      if (!law.holds()) result.steps += finder_->At(law, fit_.at).bytes;
    }
    result.at = finder_->SumAt(laws, fit_.at);
    result.at.high += IdleBeyond(laws, idle, fit_.at);
    if (!result.limit.has_value()) return result;
    const auto limit = static_cast<double>(*result.limit);
    for (size_t c = 0; c < fit_.counters.size(); ++c) result.full_at.push_back(FullAt(laws, idle, c, limit));
    if (fit_.is_requested && result.at.low > limit) result.verdict = FitVerdict::kDoesNotFit;
    if (fit_.is_requested && result.at.high <= limit && !is_narrow_) result.verdict = FitVerdict::kFits;
    return result;
  }

  // The idle memory of pools depends on the order of events, so it has no law. At most it is the largest measured part
  // of the other memory. Returns by how much that is more than what its laws, the first `count`, say.
  double IdleBeyond(const std::vector<Law>& laws, size_t count, const Point& at) const {
    double part = 0;
    double beyond = 0;
    for (size_t r = 0; r <= fit_.runs.size(); ++r) {  // the last is `at`
      double held = 0;
      double idle = 0;
      for (size_t i = 0; i < laws.size(); ++i) {
        (i < count ? idle : held) += r < fit_.runs.size() ? laws[i].measured[r] : finder_->At(laws[i], at).bytes;
      }
      beyond = std::max(0.0, part * held - idle);
      if (held > 0) part = std::max(part, idle / held);
    }
    return beyond;
  }

  // Returns the value of a counter at which the limit can be reached, if the others are as in `fit_.at`.
  std::optional<double> FullAt(const std::vector<Law>& laws, size_t idle, size_t counter, double limit) const {
    constexpr double kMost = 1 << 20;  // times the value
    const auto is_full = [&](double value) {
      Point at = fit_.at;
      at[counter] = value;
      return finder_->SumAt(laws, at).bytes + IdleBeyond(laws, idle, at) >= limit;
    };
    double low = fit_.at[counter] / kMost;
    double high = fit_.at[counter] * kMost;
    if (is_full(low) || !is_full(high)) return std::nullopt;
    while (high > low * (1 + 1e-9)) {
      const double middle = std::sqrt(low * high);
      (is_full(middle) ? high : low) = middle;
    }
    return high;
  }

  const ProfileSet& profiles_;
  const std::vector<ProfileSet::File>& files_;
  const size_t type_;
  const FitRequest& request_;
  std::vector<Point> points_;  // by file
  std::map<std::string, Memory> memories_;
  std::optional<LawFinder> finder_;  // of the runs
  bool is_narrow_ = false;
  Fit fit_;
};

}  // namespace

std::optional<FitVerdict> Fit::verdict() const {
  std::optional<FitVerdict> worst;
  for (const MemoryFit& memory : memories) worst = std::max(worst, memory.verdict);
  return worst;
}

absl::StatusOr<Fit> FitProfiles(const ProfileSet& profiles, size_t type, const FitRequest& request) {
  return Fitter(profiles, type, request).Run();
}

}  // namespace hbmprof::tool
