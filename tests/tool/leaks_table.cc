// leaks_table DIRECTORY [SEED [RUNS]]: recall and false alarms of `hbmprof leaks` on labelled courses, as the tables of
// benchmarks/LEAKS.md. Beside it, on the same courses: a least-squares line (growing if its slope is above zero with
// p < 0.005) and the last dump against the first (growing if 5 % of the largest value lie between them).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/tool/course_command.h"

namespace hbmprof_test {
namespace {

constexpr size_t kSitesOfAKind = 6;

// Student's t with n - 2 degrees of freedom, one-sided.
double Critical(size_t dumps) {
  static const std::map<size_t, double> p005 = {{3, 63.66},  {4, 9.925},  {6, 4.604},  {8, 3.707},  {12, 3.169},
                                                {18, 2.921}, {30, 2.763}, {60, 2.663}, {200, 2.601}};
  return p005.at(dumps);
}

bool LineRises(const ProgramRun& run, const std::vector<int64_t>& values) {
  const auto n = static_cast<double>(values.size());
  double mean_t = 0;
  double mean_v = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    mean_t += run.times[i] / n;
    mean_v += static_cast<double>(values[i]) / n;
  }
  double tt = 0;
  double tv = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    tt += (run.times[i] - mean_t) * (run.times[i] - mean_t);
    tv += (run.times[i] - mean_t) * (static_cast<double>(values[i]) - mean_v);
  }
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double residual = static_cast<double>(values[i]) - mean_v - tv / tt * (run.times[i] - mean_t);
    squares += residual * residual;
  }
  return tv > 0 && tv / tt > Critical(values.size()) * std::sqrt(squares / (n - 2) / tt);
}

bool LastAboveFirst(const std::vector<int64_t>& values) {
  const auto most = static_cast<double>(*std::max_element(values.begin(), values.end()));
  return static_cast<double>(values.back() - values.front()) > 0.05 * most;
}

// Means over the kinds with equal weights.
struct Mean {
  double sure = 0;
  double any = 0;
  double kinds = 0;
  void Add(const Tally& tally) {
    sure += tally.SureShare();
    any += tally.AnyShare();
    kinds += 1;
  }
  std::string Text() const {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1f / %.1f", 100 * sure / kinds, 100 * any / kinds);
    return text;
  }
};

int Main(const std::string& directory, uint64_t seed, size_t runs) {
  using Is = CourseKind::Is;
  using Special = ProgramRun::Special;
  const size_t counts[] = {3, 4, 6, 8, 12, 18, 30, 60, 200};
  std::map<const CourseKind*, std::map<size_t, Tally>> tallies;
  std::map<size_t, std::map<const CourseKind*, Tally>> lines;  // sure: least squares; any: last against first
  for (const size_t dumps : counts) {
    for (const Special special : {Special::kNone, Special::kRestart, Special::kStalling}) {
      if (special == Special::kRestart && dumps < 6) continue;  // otherwise no process is sure to have three dumps
      for (size_t r = 0; r < runs; ++r) {
        const uint64_t program_seed = ((seed * 1000 + dumps) * 1000 + r) * 3 + static_cast<uint64_t>(special);
        const ProgramCourses program = MakeProgram(program_seed, dumps, special, kSitesOfAKind);
        const std::vector<Answer> answers = QueryCommand(program, AllDumps(dumps), directory);
        if (answers.empty()) {
          std::fprintf(stderr, "leaks_table: the command failed on %s\n", directory.c_str());
          return 1;
        }
        for (size_t s = 0; s < answers.size(); ++s) {
          tallies[program.kinds[s]][dumps].Add(answers[s]);
          Tally& simple = lines[dumps][program.kinds[s]];
          simple.sure += LineRises(program.run, program.sites[s].bytes) ? 1 : 0;
          simple.any += LastAboveFirst(program.sites[s].bytes) ? 1 : 0;
          simple.all += 1;
        }
      }
    }
  }

  using Use = CourseKind::Use;
  std::printf(
      "| dumps | plain leaks | plain others | mixed leaks | mixed others | held out leaks | held out others | all "
      "leaks "
      "| all others | least squares: all leaks, others | last against first "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const size_t dumps : counts) {
    std::map<std::pair<Is, Use>, Mean> by_use;
    std::map<Is, Mean> means;
    std::map<Is, Mean> simple;
    for (const CourseKind& kind : CourseKinds()) {
      const Tally& tally = tallies[&kind][dumps];
      if (tally.all == 0) continue;
      by_use[{kind.is, kind.use}].Add(tally);
      means[kind.is].Add(tally);
      simple[kind.is].Add(lines[dumps][&kind]);
    }
    std::printf("| %zu |", dumps);
    for (const Use use : {Use::kPlain, Use::kMixed, Use::kHeldOut}) {
      for (const Is is : {Is::kLeak, Is::kNoLeak}) std::printf(" %s |", by_use[{is, use}].Text().c_str());
    }
    const Mean& leaks = simple[Is::kLeak];
    const Mean& others = simple[Is::kNoLeak];
    std::printf(" %s | %s | %.0f, %.0f | %.0f, %.0f |\n", means[Is::kLeak].Text().c_str(),
                means[Is::kNoLeak].Text().c_str(), 100 * leaks.sure / leaks.kinds, 100 * others.sure / others.kinds,
                100 * leaks.any / leaks.kinds, 100 * others.any / others.kinds);
  }

  std::printf("\n| kind | is | use |");
  for (const size_t dumps : counts) std::printf(" %zu |", dumps);
  std::printf("\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const CourseKind& kind : CourseKinds()) {
    std::printf("| %s | %s | %s |", kind.name,
                kind.is == Is::kLeak     ? "leak"
                : kind.is == Is::kNoLeak ? "no"
                                         : "undecidable",
                kind.use == Use::kPlain   ? "plain"
                : kind.use == Use::kMixed ? "mixed"
                                          : "held out");
    for (const size_t dumps : counts) {
      const Tally& tally = tallies[&kind][dumps];
      if (tally.all == 0) {
        std::printf(" |");
      } else {
        std::printf(" %.0f / %.0f |", 100 * tally.SureShare(), 100 * tally.AnyShare());
      }
    }
    std::printf("\n");
  }

  // More dumps of the same courses: the leaks that are sure with some dumps, and their verdicts with 61 dumps.
  std::printf("\n| sure with | still sure with 61 dumps | at least perhaps |\n|---|---|---|\n");
  constexpr size_t kAll = 61;
  std::map<std::string, Tally> kept;
  for (size_t r = 0; r < runs; ++r) {
    const ProgramCourses program = MakeProgram((seed * 1000 + 61) * 1000 + r, kAll, Special::kNone, kSitesOfAKind);
    const std::vector<Answer> all = QueryCommand(program, AllDumps(kAll), directory);
    for (const size_t some : {6, 8, 11, 21, 31}) {
      const std::vector<Answer> spread = QueryCommand(program, SpreadDumps(kAll, some), directory);
      const std::vector<Answer> early =
          some > 8 ? QueryCommand(program, AllDumps(some), directory) : std::vector<Answer>();
      for (size_t s = 0; s < all.size(); ++s) {
        if (program.kinds[s]->is != Is::kLeak) continue;
        char name[64];
        std::snprintf(name, sizeof(name), "%2zu of the 61, spread", some);
        if (spread[s] == Answer::kSure) kept[name].Add(all[s]);
        std::snprintf(name, sizeof(name), "the first %2zu", some);
        if (!early.empty() && early[s] == Answer::kSure) kept[name].Add(all[s]);
      }
    }
  }
  for (const auto& [name, tally] : kept) {
    std::printf("| %s | %.1f %% of %.0f | %.1f %% |\n", name.c_str(), 100 * tally.SureShare(), tally.all,
                100 * tally.AnyShare());
  }
  return 0;
}

}  // namespace
}  // namespace hbmprof_test

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY [SEED [RUNS]]\n", argv[0]);
    return 2;
  }
  return hbmprof_test::Main(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2026,
                            argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 25);
}
