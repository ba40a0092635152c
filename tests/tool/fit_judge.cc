// fit_judge [SEED [RUNS]]: finds the weights of src/tool/growth/judge.cc by logistic regression. Its data are the sites
// of the tuned kinds of labelled programs that grew (lives.h). Prints the rows of the table of weights.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "src/tool/growth/judge.h"
#include "tests/tool/lives_command.h"

namespace hbmprof_test {
namespace {

using hbmprof::tool::kFeatures;

constexpr size_t kWidth = 2 * (kFeatures + 1);  // the features and 1, each for few and for many dumps
constexpr size_t kSitesOfAKind = 6;

struct Example {
  std::array<double, kWidth> x;
  bool is_leak;
  double weight;
};

void AddExamples(uint64_t seed, size_t dumps, DumpTimes when, std::vector<Example>& examples) {
  const Program program = MakeProgram(seed, dumps, when, kSitesOfAKind);
  const double fewness = 2 / static_cast<double>(dumps - 1);
  for (size_t s = 0; s < program.kinds.size(); ++s) {
    const Kind& kind = *program.kinds[s];
    if (kind.use != Kind::Use::kTuned || kind.is == Kind::Is::kUndecidable) continue;
    hbmprof::tool::Course course;
    course.at = program.times;
    for (const auto& dump : program.dumps) course.in_use.push_back(static_cast<double>(dump[s].bytes));
    if (course.in_use.back() <= course.in_use.front()) continue;
    const hbmprof::tool::Features features = Measure(course);
    Example example = {{}, kind.is != Kind::Is::kNoLeak, when == DumpTimes::kLate ? 0.3 : 1};
    for (size_t f = 0; f <= kFeatures; ++f) {
      const double value = f < kFeatures ? features[f] : 1;
      example.x[2 * f] = fewness * value;
      example.x[2 * f + 1] = (1 - fewness) * value;
    }
    examples.push_back(example);
  }
}

// Newton's method with a small penalty on large weights.
std::array<double, kWidth> Fit(const std::vector<Example>& examples) {
  std::array<double, kWidth> weights = {};
  for (int step = 0; step < 20; ++step) {
    double equations[kWidth][kWidth + 1] = {};
    for (size_t i = 0; i < kWidth; ++i) {
      equations[i][i] = 1;
      equations[i][kWidth] = -weights[i];
    }
    for (const Example& example : examples) {
      double sum = 0;
      for (size_t i = 0; i < kWidth; ++i) sum += weights[i] * example.x[i];
      const double p = 1 / (1 + std::exp(-sum));
      for (size_t i = 0; i < kWidth; ++i) {
        const double x = example.weight * example.x[i];
        for (size_t j = 0; j < kWidth; ++j) equations[i][j] += p * (1 - p) * x * example.x[j];
        equations[i][kWidth] += ((example.is_leak ? 1 : 0) - p) * x;
      }
    }
    for (size_t column = 0; column < kWidth; ++column) {  // the matrix is positive definite: no pivots are needed
      for (size_t row = 0; row < kWidth; ++row) {
        if (row == column) continue;
        const double factor = equations[row][column] / equations[column][column];
        for (size_t j = column; j <= kWidth; ++j) equations[row][j] -= factor * equations[column][j];
      }
    }
    for (size_t i = 0; i < kWidth; ++i) weights[i] += equations[i][kWidth] / equations[i][i];
  }
  return weights;
}

int Main(uint64_t seed, size_t runs) {
  const std::pair<size_t, size_t> kShares[] = {{3, 2},  {4, 1},  {5, 1},  {6, 1}, {8, 2},
                                               {12, 1}, {18, 2}, {30, 1}, {60, 1}};
  std::vector<Example> examples;
  for (const auto& [dumps, share] : kShares) {
    for (size_t r = 0; r < share * runs; ++r) {
      AddExamples((seed * 1000 + dumps) * 1000 + r, dumps, DumpTimes::kWhole, examples);
      const bool has_late = (dumps == 3 || dumps == 8 || dumps == 18) && r % 2 == 0;
      if (has_late) AddExamples((seed * 1000 + dumps) * 1000 + 500 + r, dumps, DumpTimes::kLate, examples);
    }
  }
  const std::array<double, kWidth> weights = Fit(examples);
  for (size_t f = 0; f <= kFeatures; ++f) {
    double mean = 0;
    for (const Example& example : examples) {
      mean += (example.x[2 * f] + example.x[2 * f + 1]) / static_cast<double>(examples.size());
    }
    std::printf("{%.2f, %.2f, %.2f}\n", weights[2 * f], weights[2 * f + 1], mean);
  }
  return 0;
}

}  // namespace
}  // namespace hbmprof_test

int main(int argc, char** argv) {
  return hbmprof_test::Main(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1,
                            argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 16);
}
