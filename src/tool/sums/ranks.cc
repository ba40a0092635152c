#include "src/tool/sums/ranks.h"

#include <tuple>

#include "src/tool/profile/labels.h"
#include "src/tool/profile/series.h"

namespace hbmprof::tool {
namespace {

// Values of ranks differ a little for many reasons. A distance of up to this many times the median distance counts as
// usual.
constexpr int64_t kNoise = 5;

// Sorts numbers by value, before other names.
std::pair<int64_t, std::string> OrderOf(const std::string& rank) {
  int64_t number = 0;
  return {absl::SimpleAtoi(rank, &number) ? number : INT64_MAX, rank};
}

int64_t MedianOf(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Fills in the figures of the row from the values by rank.
void Judge(const std::vector<int64_t>& values, ComparedRanks::Row& row) {
  row.median = MedianOf(values);
  std::vector<int64_t> distances;
  for (const int64_t value : values) {
    distances.push_back(Magnitude(Minus(value, row.median)));
    if (value != 0) ++row.rank_count;
  }
  const auto at = [&](std::ptrdiff_t rank) {
    return std::make_pair(static_cast<size_t>(rank), values[static_cast<size_t>(rank)]);
  };
  row.smallest = at(absl::c_min_element(values) - values.begin());
  row.largest = at(absl::c_max_element(values) - values.begin());
  const auto farthest = absl::c_max_element(distances);
  row.outlier = at(farthest - distances.begin());
  // No overflow: the noise counts only if it is less than the distance.
  const int64_t noise = MedianOf(distances);
  row.distance = noise > *farthest / kNoise ? 0 : *farthest - kNoise * noise;
}

}  // namespace

ComparedRanks CompareRanks(const ProfileSet& profiles, size_t type, Grouping grouping) {
  ComparedRanks result;
  std::map<std::pair<int64_t, std::string>, ComparedRanks::Rank> by_order;
  for (const ProfileSet::File& file : profiles.files()) {
    ComparedRanks::Rank& rank = by_order[OrderOf(RankOf(file))];
    AddTo(rank.total, SumOf(profiles, file, type));
    rank.files.push_back(file.path);
  }
  absl::flat_hash_map<std::string, size_t> ranks;
  for (auto& [order, rank] : by_order) {
    rank.name = order.second;
    ranks[rank.name] = result.ranks.size();
    result.ranks.push_back(std::move(rank));
  }
  grouping.labels.emplace_back(kRankLabel);
  const Sums sums(profiles, {{0, profiles.files().size()}}, type, grouping);
  absl::flat_hash_map<std::pair<std::vector<std::string>, std::string>, size_t> numbers;  // of rows
  std::vector<std::vector<int64_t>> values;                                               // by row and rank
  for (Sums::Row& of_rank : sums.Rows(false)) {
    const auto rank = ranks.find(of_rank.labels.back());
    if (rank == ranks.end() || of_rank.flat[1] == 0) continue;
    of_rank.labels.pop_back();
    const auto [entry, is_new] = numbers.try_emplace({of_rank.labels, of_rank.name}, values.size());
    if (is_new) values.emplace_back(result.ranks.size());
    AddTo(values[entry->second][rank->second], of_rank.flat[1]);
    if (is_new) static_cast<Sums::Row&>(result.rows.emplace_back()) = of_rank;
    JoinPosition(of_rank.position, result.rows[entry->second].position);
  }
  for (size_t i = 0; i < values.size(); ++i) Judge(values[i], result.rows[i]);
  absl::c_stable_sort(result.rows, [](const ComparedRanks::Row& a, const ComparedRanks::Row& b) {
    const auto key = [](const ComparedRanks::Row& row) {
      return std::make_tuple(row.distance, Minus(row.largest.second, row.smallest.second), Magnitude(row.median));
    };
    return key(a) > key(b);
  });
  return result;
}

}  // namespace hbmprof::tool
