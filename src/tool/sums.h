// Sums over samples, as pprof makes them: a row's `flat` is what its innermost frames hold, `cum` what every stack it
// is on holds, once each. Not here: printing (table.h).
#ifndef HBMPROF_SRC_TOOL_SUMS_H_
#define HBMPROF_SRC_TOOL_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/tool/arithmetic.h"
#include "src/tool/profile.h"

namespace hbmprof::tool {

// What tells rows apart.
struct Grouping {
  enum class Frames { kNone, kFunctions, kLines, kFiles };
  std::vector<std::string> labels;  // keys; their values come first
  Frames frames = Frames::kFunctions;

  // From a list such as "device,function". "function", "line" and "file" are frames, whatever else is a label's key;
  // "" is "function". Error: kInvalidArgument for more than one of the three.
  static absl::StatusOr<Grouping> Parse(const std::vector<std::string>& names);
};

// Which samples count: those that have all of these labels.
using Conditions = std::vector<std::pair<std::string, std::string>>;
// From texts such as "device=GPU:0". Error: kInvalidArgument for one without "=".
absl::StatusOr<Conditions> ParseConditions(const std::vector<std::string>& texts);

// The files that make one column, summed: [begin, end).
struct Column {
  size_t begin;
  size_t end;
};

// Two columns side by side; one that is not asked for is zero.
using Values = std::int64_t[2];

class Sums {
 public:
  struct Row {
    std::vector<std::string> labels;
    std::string name;   // the frame; "[libfoo.so]" or "<unknown>" for code without a name; "" without frames
    std::string place;  // file:line that contributes most, else the binary, else ""
    Values flat = {0, 0};
    Values cum = {0, 0};
    uint32_t number = 0;

    int64_t flat_change() const { return Minus(flat[1], flat[0]); }
    int64_t cum_change() const { return Minus(cum[1], cum[0]); }
  };
  // What flows between two rows: `cum` of the stacks in which `callee` is called by `caller` directly.
  struct Edge {
    uint32_t caller;
    uint32_t callee;
    Values cum = {0, 0};
    bool inlined = false;  // everywhere
  };

  // `columns` are one or two; with one, it is the second of the values, and the first is zero.
  Sums(const ProfileSet& profiles, const std::vector<Column>& columns, size_t type, const Grouping& grouping,
       const Conditions& conditions, bool with_edges = false);

  // Rows that are zero in every column, or whose columns are equal, are left out, as in pprof. Sorted by the change of
  // flat, or of cum, the largest first by magnitude.
  std::vector<Row> Rows(bool by_cum) const;
  const std::vector<Edge>& edges() const { return edges_; }
  const Row& row(uint32_t number) const { return rows_[number]; }
  // The sum of all values' magnitudes, per column.
  const Values& total() const { return total_; }
  // The plain sum of all values, per column.
  const Values& sum() const { return sum_; }

 private:
  std::vector<Row> rows_;
  std::vector<Edge> edges_;
  Values total_ = {0, 0};
  Values sum_ = {0, 0};
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_H_
