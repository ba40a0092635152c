#include "src/tool/fit/law.h"

#include <cmath>

namespace hbmprof::tool {
namespace {

constexpr double kTolerance = 0.05;    // the largest error of a law, as a part of the largest value
constexpr double kSafety = 3;          // times the standard error of a sum, estimated by leaving points out
constexpr double kLeastMargin = 0.01;  // of a sum
constexpr double kCancelled = 4;       // times the errors of a sum are those of its parts
constexpr double kEqualSizes = 1e-3;   // in octaves
constexpr double kEqualBytes = 0.05;   // in octaves

using Course = std::vector<std::pair<double, double>>;

double LargestOf(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

double SumOfTerms(const std::vector<double>& terms, const Point& at) {
  double sum = 0;
  for (size_t term = 0; term < terms.size(); ++term) sum += terms[term] * TermAt(term, at);
  return sum;
}

// Finds the power of the size with which the bytes grow, perhaps beside a constant. It is 0 if any two points do not
// grow clearly faster than a line.
void FindPower(Law& law) {
  constexpr size_t kFewest = 4;          // three points match some constant
  constexpr double kEqualPowers = 0.02;  // beside a constant
  const Course& course = law.course;
  double best = INFINITY;
  for (double rest = 1; rest > 1e-3 && course.size() > 2; rest *= course.size() < kFewest ? 0 : 0.99) {
    const double constant = (1 - rest) * course[0].second;
    double least = INFINITY;
    double most = 0;
    double power = 0;
    for (size_t i = 1; i < course.size(); ++i) {
      const double growth = (course[i].second - constant) / (course[i - 1].second - constant);
      power = std::log2(growth) / std::log2(course[i].first / course[i - 1].first);
      least = std::min(least, growth > 0 ? power : 0);
      most = std::max(most, power);
    }
    if (!(least > 1.1) || std::isinf(most) || most - least >= best) continue;
    best = std::min(kEqualPowers, most - least);
    law.constant = constant;
    law.power = power;
  }
}

// Rounding up to powers of two: f(2 s) = 2 f(s), and all values are powers of two times each other.
bool CanBeDoubling(const Course& course) {
  if (absl::c_any_of(course, [](const auto& one) { return one.second <= 0; })) return false;
  if (std::log2(course.back().second / course.front().second) < 1 - kEqualBytes) return false;
  for (size_t i = 0; i < course.size(); ++i) {
    for (size_t j = i + 1; j < course.size(); ++j) {
      const double steps = std::log2(course[j].second / course[i].second);
      const double octaves = std::log2(course[j].first / course[i].first);
      if (std::fabs(steps - std::round(steps)) > kEqualBytes) return false;
      if (std::round(steps) < std::floor(octaves + kEqualSizes)) return false;
      if (std::round(steps) > std::ceil(octaves - kEqualSizes)) return false;
    }
  }
  return true;
}

// REQUIRES: CanBeDoubling(course).
Estimate DoublingAt(const Course& course, double size) {
  const auto octave_of = [&](double one) { return std::ceil(std::log2(one / course.back().first) - kEqualSizes); };
  const double factor = std::exp2(octave_of(size));
  double low = course.back().second / 2 * factor;
  double high = low * 2;
  for (const auto& [other, bytes] : course) {
    const double moved = factor / std::exp2(octave_of(other));
    if (other * moved <= size * (1 + kEqualSizes)) low = std::max(low, bytes * moved);
    if (other * moved >= size * (1 - kEqualSizes)) high = std::min(high, bytes * moved);
  }
  return {low, high, high};
}

// Pages: f(s) = page * ceil(s / size). Returns the least and the greatest value at `size`, and the one between that is
// next to `line`; nothing if the course is not that of pages.
std::optional<Estimate> PagesAt(const Course& course, double size, double line) {
  constexpr size_t kFewest = 4;       // pages of some size match any three values
  constexpr double kMostPages = 12;   // smaller pages are a line
  constexpr double kInexact = 0.025;  // of the bytes
  if (course.size() < kFewest || course.back().second <= 0) return std::nullopt;
  for (double count = 2; count <= kMostPages; ++count) {
    const double page = course.back().second / count;
    double low = 0;  // the size of a page
    double high = INFINITY;
    for (const auto& [one, bytes] : course) {
      const double pages = std::round(bytes / page);
      if (pages < 1 || std::fabs(bytes - page * pages) > kInexact * bytes) high = 0;
      low = std::max(low, one / pages);
      high = std::min(high, pages < 2 ? INFINITY : one / (pages - 1));
    }
    if (low >= high) continue;
    const double least = page * std::ceil(size / high);
    const double most = page * std::ceil(size / low);
    return Estimate{least, std::clamp(line, least, most), most};
  }
  return std::nullopt;
}

}  // namespace

double TermAt(size_t term, const Point& point) {
  double product = 1;
  for (size_t i = 0; i < point.size(); ++i) product *= (term >> i & 1) != 0 ? point[i] : 1;
  return product;
}

void AddTo(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(std::max(sums.size(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

double SizeOf(const Point& point) { return TermAt(SIZE_MAX, point); }

LawFinder::LawFinder(std::vector<Point> points)
    : points_(std::move(points)), term_count_(size_t{1} << points_[0].size()) {
  for (size_t set = 1; set < size_t{1} << term_count_; set += 2) {
    Basis basis;
    for (size_t term = 0; term < term_count_; ++term) {
      if ((set >> term & 1) != 0) basis.terms.push_back(term);
    }
    for (size_t left_out = 0; left_out <= points_.size(); ++left_out) {
      std::optional<Matrix> solver = SolverOf(basis.terms, left_out);
      if (solver.has_value()) basis.solvers.push_back(*std::move(solver));
    }
    if (basis.solvers.size() == points_.size() + 1) bases_.push_back(std::move(basis));
  }
}

// Solves the normal equations. Returns nothing if the points do not tell the terms apart.
std::optional<LawFinder::Matrix> LawFinder::SolverOf(const std::vector<size_t>& terms, size_t left_out) const {
  const size_t count = terms.size();
  const Point& largest = points_.back();
  Matrix matrix(count, std::vector<double>(count + points_.size()));  // on the right the solver, when it is done
  for (size_t p = 0; p < points_.size(); ++p) {
    if (p == left_out) continue;
    for (size_t i = 0; i < count; ++i) {
      const double value = TermAt(terms[i], points_[p]) / TermAt(terms[i], largest);
      for (size_t j = 0; j < count; ++j) {
        matrix[i][j] += value * TermAt(terms[j], points_[p]) / TermAt(terms[j], largest);
      }
      matrix[i][count + p] = value;
    }
  }
  for (size_t column = 0; column < count; ++column) {
    const auto pivot = std::max_element(
        matrix.begin() + static_cast<std::ptrdiff_t>(column), matrix.end(),
        [column](const auto& a, const auto& b) { return std::fabs(a[column]) < std::fabs(b[column]); });
    if (std::fabs((*pivot)[column]) < 1e-9) return std::nullopt;
    std::swap(matrix[column], *pivot);
    const double divisor = matrix[column][column];
    for (double& value : matrix[column]) value /= divisor;
    for (size_t i = 0; i < count; ++i) {
      const double factor = matrix[i][column];
      for (size_t j = 0; i != column && j < matrix[i].size(); ++j) matrix[i][j] -= factor * matrix[column][j];
    }
  }
  for (size_t i = 0; i < count; ++i) {
    matrix[i].erase(matrix[i].begin(), matrix[i].begin() + static_cast<std::ptrdiff_t>(count));
    for (double& value : matrix[i]) value /= TermAt(terms[i], largest);
  }
  return matrix;
}

bool LawFinder::CanDecide() const {
  return absl::c_any_of(bases_, [this](const Basis& basis) {
    const auto is_counter = [](size_t term) { return term != 0 && (term & (term - 1)) == 0; };
    return static_cast<size_t>(absl::c_count_if(basis.terms, is_counter)) == points_[0].size();
  });
}

bool LawFinder::IsDoubled(const Point& at) const {
  const double octaves = std::log2(SizeOf(at) / SizeOf(points_[0]));
  return std::fabs(octaves - std::round(octaves)) <= kEqualSizes;
}

size_t LawFinder::AxisOf(const std::vector<double>& measured) const {
  for (size_t axis = 1; axis < term_count_ - 1; axis *= 2) {
    size_t same = 0;  // pairs of points with the same value
    size_t equal = 0;
    for (size_t a = 0; a < points_.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (TermAt(axis, points_[a]) != TermAt(axis, points_[b])) continue;
        ++same;
        equal += std::fabs(measured[a] - measured[b]) <= kTolerance * LargestOf(measured) ? 1 : 0;
      }
    }
    if (same > 0 && equal == same) return axis;
  }
  return term_count_ - 1;
}

Law LawFinder::Find(const std::vector<double>& measured) const {
  // Of sums that are equally good, the shorter one is the more likely one.
  constexpr double kPenalty = 1.25;  // for each term
  constexpr double kExact = 1e-5;    // a smaller part of the largest value is rounding
  constexpr double kRounding = 1e-3;
  const double largest = LargestOf(measured);
  Law best;
  double best_score = INFINITY;
  for (const Basis& basis : bases_) {
    Law law;
    double squares = 0;
    for (size_t left_out = 0; left_out <= points_.size(); ++left_out) {
      law.terms.assign(term_count_, 0);
      for (size_t i = 0; i < basis.terms.size(); ++i) {
        law.terms[basis.terms[i]] = absl::c_inner_product(basis.solvers[left_out][i], measured, 0.0);
      }
      if (left_out == points_.size()) break;
      const double error = SumOfTerms(law.terms, points_[left_out]) - measured[left_out];
      law.errors.push_back(error);
      law.without.push_back(law.terms);
      squares += error * error;
    }
    const double score =
        std::max(std::sqrt(squares), kExact * largest) * std::pow(kPenalty, static_cast<double>(basis.terms.size()));
    if (score >= best_score) continue;
    best_score = score;
    best = std::move(law);
  }
  best.is_steps = LargestOf(best.errors) > kTolerance * largest;
  best.measured = measured;
  best.axis = AxisOf(measured);
  std::map<double, double> course;
  for (size_t p = 0; p < points_.size(); ++p) {
    double& bytes = course[TermAt(best.axis, points_[p])];
    bytes = std::max(bytes, measured[p]);
  }
  best.course.assign(course.begin(), course.end());
  best.can_be_doubling = CanBeDoubling(best.course);
  if (!best.can_be_doubling && LargestOf(best.errors) > kRounding * largest) FindPower(best);
  if (best.constant == 0 && !best.is_steps) best.power = 0;
  return best;
}

std::optional<Law> LawFinder::FindSum(const std::vector<Law>& laws) const {
  std::vector<double> measured;
  double errors = 0;
  for (const Law& law : laws) {
    if (law.power > 0) return std::nullopt;
    AddTo(measured, law.measured);
    errors += law.is_steps ? LargestOf(law.errors) : 0;
  }
  if (errors == 0) return std::nullopt;
  Law sum = Find(measured);
  if (sum.is_steps || LargestOf(sum.errors) > errors / kCancelled) return std::nullopt;
  return sum;
}

Estimate LawFinder::At(const Law& law, const Point& at) const {
  const double size = TermAt(law.axis, at);
  const double line = std::max(0.0, SumOfTerms(law.terms, at));
  if (law.can_be_doubling) {
    const Estimate doubling = DoublingAt(law.course, size);
    return law.is_steps ? doubling : Estimate{std::min(line, doubling.low), line, std::max(line, doubling.high)};
  }
  const auto& [last_size, last] = law.course.back();
  const double power = law.constant + (last - law.constant) * std::pow(size / last_size, law.power);
  // A power that adds little to a constant is near a line.
  if (!law.is_steps) return {line, line, law.power > 0 ? std::max(line, power) : line};
  if ((law.axis & (law.axis - 1)) == 0 && size <= last_size) {
    const auto after = absl::c_find_if(law.course, [size](const auto& one) { return one.first >= size; });
    const auto before = after - (after == law.course.begin() ? 0 : 1);
    const auto [low, high] = std::minmax(before->second, after->second);
    return {low, high, high};
  }
  // Beside a constant, a few steps can look like this, and growth may have stopped.
  const double low = law.constant > 0 ? std::min(last, line) : std::min(line, power);
  if (law.power > 0) return {low, power, std::max(line, power)};
  if (const std::optional<Estimate> pages = PagesAt(law.course, size, line); pages.has_value()) return *pages;
  // If the last value is much less than the others predict, or the end is flat, growth may have stopped.
  double usual = 0;
  for (size_t p = 0; p + 1 < points_.size(); ++p) {
    usual = std::max(usual, std::fabs(SumOfTerms(law.without.back(), points_[p]) - law.measured[p]));
  }
  const auto& [first_size, first] = law.course.front();
  const auto& [before_size, before] = law.course[law.course.size() - std::min<size_t>(law.course.size(), 2)];
  const double growth = (last - first) * (last_size - before_size) / (last_size - first_size);
  const bool is_flat = last - before <= std::max(0.0, growth / 4);
  const bool has_stopped = size > last_size && (is_flat || law.errors.back() > std::max(4 * usual, kTolerance * last));
  const double margin = 2 * LargestOf(law.errors);
  return {std::max(0.0, std::min(last, line) - margin), has_stopped ? last : std::max(last, line),
          std::max(last, line) + margin};
}

Estimate LawFinder::SumAt(const std::vector<Law>& laws, const Point& at) const {
  Estimate sum;
  std::vector<double> changes(points_.size());  // of the sum, if a point is left out
  for (const Law& law : laws) {
    const Estimate one = At(law, at);
    sum.low += one.low;
    sum.bytes += one.bytes;
    sum.high += one.high;
    for (size_t p = 0; p < points_.size() && !law.is_steps; ++p) {
      changes[p] += SumOfTerms(law.without[p], at) - SumOfTerms(law.terms, at);
    }
  }
  const double error = std::sqrt(absl::c_inner_product(changes, changes, 0.0));
  const double margin = std::max(kSafety * error, kLeastMargin * sum.bytes);
  return {sum.low - margin, sum.bytes, sum.high + margin};
}

}  // namespace hbmprof::tool
