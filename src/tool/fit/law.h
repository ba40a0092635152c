// Decides how bytes depend on the values of counters: from the bytes at some measured points to a law, or to none.
// Arithmetic only: fit.h reads profiles. docs/fit.md says how users read laws.
#ifndef HBMPROF_SRC_TOOL_FIT_LAW_H_
#define HBMPROF_SRC_TOOL_FIT_LAW_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// The values of the counters; all are positive.
using Point = std::vector<double>;

// A term is a product of counters: bit i of its number says whether counter i is a factor. Term 0 is 1.
double TermAt(size_t term, const Point& point);
// The product of all counters.
double SizeOf(const Point& point);

// Adds values to the first sums.
void AddTo(std::vector<double>& sums, const std::vector<double>& values);

struct Law {
  std::vector<double> terms;  // a sum: by term, its bytes for each unit
  bool is_steps = false;      // no sum of terms holds; `terms` is the nearest one
  bool holds() const { return !terms.empty() && !is_steps; }
  // Of steps that grow faster than a line: the power of the last points, without a constant.
  double power = 0;
  double constant = 0;

  // By measured point: the bytes; the terms if it is left out; what these say of it, minus the bytes.
  std::vector<double> measured;
  std::vector<std::vector<double>> without;
  std::vector<double> errors;
  // The largest bytes by the value of the term `axis`: of the counter on which alone they depend, else of all.
  size_t axis = 0;
  std::vector<std::pair<double, double>> course;
  bool can_be_doubling = false;  // the course is as of sizes that are rounded up to powers of two
};

// Where a value lies.
struct Estimate {
  double low = 0;
  double bytes = 0;
  double high = 0;
};

class LawFinder {
 public:
  // `points`: those that were measured, each once, the smallest size first.
  explicit LawFinder(std::vector<Point> points);

  // Returns whether the effect of each counter can be told from those of the others; if not, nothing can be found.
  bool CanDecide() const;
  // Returns whether all products can be told from sums, too.
  bool CanDecideProducts() const { return bases_.back().terms.size() == term_count_; }
  // Returns whether a size is a power of two times the smallest. If all are, sizes that are rounded up look like a
  // line.
  bool IsDoubled(const Point& at) const;

  // `measured`: bytes by point.
  Law Find(const std::vector<double>& measured) const;
  // Returns the law of the sum, if the errors of steps cancel each other out: which of them has the memory changes.
  std::optional<Law> FindSum(const std::vector<Law>& laws) const;
  // Returns what a law says, without its errors.
  Estimate At(const Law& law, const Point& at) const;
  // Returns the sum of the laws, with the errors of the sum.
  Estimate SumAt(const std::vector<Law>& laws, const Point& at) const;

 private:
  using Matrix = std::vector<std::vector<double>>;
  // Terms, and what follows from the points alone.
  struct Basis {
    std::vector<size_t> terms;
    // By point that is left out, last without one: the factors of the terms are this matrix times the measured bytes.
    std::vector<Matrix> solvers;
  };

  std::optional<Matrix> SolverOf(const std::vector<size_t>& terms, size_t left_out) const;
  size_t AxisOf(const std::vector<double>& measured) const;

  const std::vector<Point> points_;
  const size_t term_count_;
  std::vector<Basis> bases_;  // the constant alone comes first, all terms last
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_FIT_LAW_H_
