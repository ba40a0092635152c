// Sums over samples with pprof's meaning: `flat` of a row is the sum over the samples whose leaf is this row. `cum` is
// the sum over the samples whose stack contains this row; each sample counts once. sums_view.h prints them.
#ifndef HBMPROF_SRC_TOOL_SUMS_SUMS_H_
#define HBMPROF_SRC_TOOL_SUMS_SUMS_H_

#include <array>

#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// The properties that distinguish rows.
struct Grouping {
  enum class Frames { kNone, kFunctions, kLines, kFiles };
  std::vector<std::string> labels;  // keys; their values are the first cells of a row
  Frames frames = Frames::kFunctions;
  // Whether code of the device, of the kind "executable", has rows of its own: "f (kernel code)", where f is the leaf.
  bool marks_code = false;

  // Parses names such as "device", "function". "function", "line" and "file" select frames; other names are label keys.
  // No names mean "function". Error: kInvalidArgument if more than one name selects frames.
  static absl::StatusOr<Grouping> Parse(const std::vector<std::string>& names);
};

// The position of what is in several files.
inline constexpr char kSeveralFiles[] = "several files";
// Changes `known`, a position as Sums::Row has it, to the one of what is there and at `position`.
void JoinPosition(const std::string& position, std::string& known);

// The files [begin, end) that are added up in one column.
struct Column {
  size_t begin;
  size_t end;
};

// The values of two columns; an unused column is zero.
using Values = std::array<int64_t, 2>;

class Sums {
 public:
  struct Row {
    std::vector<std::string> labels;
    std::string name;  // "[libfoo.so]" or "<unknown>" for code without a name; "" if rows are labels only
    // file:line of what is flat, else of the calls; the file if there are several lines; kSeveralFiles; else the
    // binary, else "".
    std::string position;
    Values flat = {0, 0};
    Values cum = {0, 0};
    uint32_t number = 0;
    bool is_code = false;  // Grouping::marks_code

    int64_t flat_change() const { return Minus(flat[1], flat[0]); }
    int64_t cum_change() const { return Minus(cum[1], cum[0]); }
  };
  // A call between two rows: `cum` is the sum over the samples in whose stack `caller` calls `callee` directly.
  struct Edge {
    uint32_t caller;
    uint32_t callee;
    Values cum = {0, 0};
    bool inlined = false;  // the call is inlined in every stack
  };

  // Sums the sample type `type`. `columns` has one or two columns. If it has one, this is the second of the Values, and
  // the first is 0. Makes edges if `with_edges` is true.
  Sums(const ProfileSet& profiles, const std::vector<Column>& columns, size_t type, const Grouping& grouping,
       bool with_edges = false);

  // Returns the rows in which a value differs between the columns, as pprof does, sorted by the absolute change of flat
  // or of cum, largest first, growth before shrinkage of the same size.
  std::vector<Row> Rows(bool by_cum) const;
  const std::vector<Edge>& edges() const { return edges_; }
  const Row& row(uint32_t number) const { return rows_[number]; }
  // Returns for each column the sum of the absolute values of all samples, including those that a filter removed, as in
  // pprof.
  const Values& total() const { return total_; }
  // Returns for each column the sum of the values of the samples that no filter removed.
  const Values& sum() const { return sum_; }

 private:
  class Builder;

  std::vector<Row> rows_;
  std::vector<Edge> edges_;
  Values total_ = {0, 0};
  Values sum_ = {0, 0};
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SUMS_SUMS_H_
