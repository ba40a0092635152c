// See rank_table.h.
#include "src/tool/sums/rank_table.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "absl/strings/numbers.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// The variables that have the number of a process in the run, its number on its host, and the number of processes.
constexpr const char* kRankVariables[] = {"RANK",     "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                          "PMI_RANK", "MV2_COMM_WORLD_RANK",  "SLURM_PROCID"};
constexpr const char* kLocalRankVariables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
constexpr const char* kSizeVariables[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                          "SLURM_NTASKS"};

// Returns the value of the first of these variables that is a number of at least 0.
template <size_t kCount>
std::optional<int64_t> FirstNumber(const Comment& environment, const char* const (&variables)[kCount]) {
  for (const char* variable : variables) {
    if (const std::optional<int64_t> number = environment.Number(variable); number.value_or(-1) >= 0) return number;
  }
  return std::nullopt;
}

std::string RankIn(const ProfileSet::File& file) {
  if (file.info.environments.size() == 1) {  // several: of a sum of processes
    const Comment& environment = file.info.environments[0];
    if (const auto rank = FirstNumber(environment, kRankVariables); rank.has_value()) return std::to_string(*rank);
    if (const auto local = FirstNumber(environment, kLocalRankVariables); local.has_value()) {
      return Cat(file.info.processes.empty() ? "" : file.info.processes[0].Text("host"), "/", *local);
    }
  }
  return file.path;
}

// Sorts numbers by value, before other names.
std::pair<int64_t, std::string> OrderOf(const std::string& rank) {
  int64_t number = 0;
  const bool is_number = absl::SimpleAtoi(rank, &number);
  return {is_number ? number : std::numeric_limits<int64_t>::max(), rank};
}

int64_t MedianOf(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

uint32_t RankTable::TextOf(const std::string& text) {
  const auto [entry, is_new] = texts_.try_emplace(text, static_cast<uint32_t>(text_list_.size()));
  if (is_new) text_list_.push_back(text);
  return entry->second;
}

uint32_t RankTable::FrameOf(const ProfileSet::ShownFrame& frame) {
  const auto [entry, is_new] =
      frame_numbers_.try_emplace(Cat(frame.name, "\n", frame.Position()), static_cast<uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(frame);
  return entry->second;
}

void RankTable::Add(const ProfileSet& profiles, size_t type) {
  const ProfileSet::LabelGroups groups = profiles.GroupLabels(by_);
  std::vector<std::vector<uint32_t>> frames(profiles.locations().size());  // by location; empty: not yet known
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint32_t> numbers;    // of rows, by stack and group
  const auto row_of = [&](uint32_t stack, uint32_t group) {
    std::vector<uint64_t> key;
    for (const std::string& text : groups.values[group]) key.push_back(TextOf(text));
    const size_t length = by_stack_ ? profiles.stacks().length(stack) : 0;
    for (size_t l = 0; l < length; ++l) {
      const uint64_t location = profiles.stacks().begin(stack)[l];
      if (frames[location].empty()) {
        for (const ProfileSet::ShownFrame& frame : profiles.ShownLocation(location)) {
          frames[location].push_back(FrameOf(frame));
        }
      }
      key.insert(key.end(), frames[location].begin(), frames[location].end());
    }
    const uint32_t row = rows_.Intern(key);
    if (row == values_.size()) values_.emplace_back();
    return row;
  };
  for (const ProfileSet::File& file : profiles.files()) {
    const auto number = static_cast<uint32_t>(files_.size());
    std::string process = ProcessIn(file);
    const std::string rank = RankIn(file);
    // In containers with the network of the host, processes with equal ids have the same name of the host.
    if (!process.empty() && rank != file.path) process += Cat(" ", rank);
    files_.push_back({file.path, std::move(process), rank, file.time_nanos});
    for (const Comment& environment : file.info.environments) {
      world_size_ = std::max(world_size_, FirstNumber(environment, kSizeVariables).value_or(0));
    }
    for (size_t s = 0; s < file.samples.size(); ++s) {
      const int64_t value = profiles.Value(file, s, type);
      if (value == 0) continue;
      const std::pair<uint32_t, uint32_t> key = {file.samples[s].stack, groups.of_set[file.samples[s].labels]};
      const auto [row, is_new] = numbers.try_emplace(key, 0);
      if (is_new) row->second = row_of(key.first, key.second);
      std::vector<Value>& values = values_[row->second];
      if (values.empty() || values.back().file != number) values.push_back({number, 0});
      values.back().value = Plus(values.back().value, value);
    }
  }
}

void RankTable::Judge(const std::vector<int64_t>& values, Row* row) {
  row->median = MedianOf(values);
  std::vector<int64_t> distances;
  distances.reserve(values.size());
  for (const int64_t value : values) {
    distances.push_back(Magnitude(Minus(value, row->median)));
    if (value != 0) ++row->rank_count;
  }
  const auto at = [&](auto found) {
    const auto rank = static_cast<size_t>(found - values.begin());
    return std::make_pair(rank, values[rank]);
  };
  row->smallest = at(std::min_element(values.begin(), values.end()));
  row->largest = at(std::max_element(values.begin(), values.end()));
  const auto farthest = std::max_element(distances.begin(), distances.end());
  row->outlier = at(values.begin() + (farthest - distances.begin()));
  // No overflow: the noise counts only if it is less than the distance.
  const int64_t noise = MedianOf(distances);
  row->distance = noise > *farthest / kNoise ? 0 : *farthest - kNoise * noise;
}

RankTable::Result RankTable::Take() {
  Result result;
  result.world_size = world_size_;
  absl::flat_hash_map<std::string, size_t> latest;  // by process
  std::vector<bool> counts(files_.size(), true);
  for (size_t f = 0; f < files_.size(); ++f) {
    if (files_[f].process.empty()) continue;
    const auto [entry, is_new] = latest.try_emplace(files_[f].process, f);
    if (is_new) continue;
    ++result.left_out;
    const bool is_later = files_[f].time_nanos >= files_[entry->second].time_nanos;
    counts[is_later ? std::exchange(entry->second, f) : f] = false;
  }
  std::vector<std::pair<int64_t, std::string>> names;
  for (size_t f = 0; f < files_.size(); ++f) {
    if (counts[f]) names.push_back(OrderOf(files_[f].rank));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  absl::flat_hash_map<std::string, size_t> ranks;
  for (const auto& [order, name] : names) {
    ranks[name] = result.ranks.size();
    result.ranks.push_back({name, 0, {}});
  }
  for (size_t f = 0; f < files_.size(); ++f) {
    if (counts[f]) result.ranks[ranks[files_[f].rank]].files.push_back(files_[f].path);
  }
  if (result.ranks.empty()) return result;
  std::vector<int64_t> values(result.ranks.size());
  for (uint32_t number = 0; number < values_.size(); ++number) {
    std::fill(values.begin(), values.end(), 0);
    for (const Value& value : values_[number]) {
      if (!counts[value.file]) continue;
      const size_t rank = ranks[files_[value.file].rank];
      values[rank] = Plus(values[rank], value.value);
      result.ranks[rank].total = Plus(result.ranks[rank].total, value.value);
    }
    Row row;
    Judge(values, &row);
    if (row.rank_count == 0) continue;
    const uint64_t* word = rows_.begin(number);
    for (size_t l = 0; l < by_.size(); ++l) row.labels.push_back(text_list_[*word++]);
    row.frames = word;
    row.frame_count = static_cast<size_t>(rows_.end(number) - word);
    result.rows.push_back(std::move(row));
  }
  // Rows with equal figures keep the order in which they were found.
  std::stable_sort(result.rows.begin(), result.rows.end(), [](const Row& a, const Row& b) {
    const auto key = [](const Row& row) {
      return std::make_tuple(row.distance, Minus(row.largest.second, row.smallest.second), Magnitude(row.median));
    };
    return key(a) > key(b);
  });
  result.frames = std::move(frames_);
  result.keys = std::move(rows_);
  return result;
}

}  // namespace hbmprof::tool
