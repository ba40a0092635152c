// EditDistance: how similar two texts are.
#ifndef HBMPROF_SRC_BASE_EDIT_DISTANCE_H_
#define HBMPROF_SRC_BASE_EDIT_DISTANCE_H_

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace hbmprof::internal {

// Returns the number of characters to add, to remove or to replace, to make one text of the other.
inline size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> distances(b.size() + 1);  // of a part of `a`, by the length of a part of `b`
  std::iota(distances.begin(), distances.end(), size_t{0});
  for (const char c : a) {
    size_t shorter = distances[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = shorter + (c == b[j] ? 0 : 1);
      shorter = std::exchange(distances[j + 1], std::min({distances[j] + 1, distances[j + 1] + 1, changed}));
    }
  }
  return distances.back();
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_EDIT_DISTANCE_H_
