// leaks_table DIRECTORY [SEED [RUNS [DUMPS]]]: recall and false alarms of `hbmprof leaks` on labelled programs, as the
// tables of benchmarks/LEAKS.md: with the ages of buffers, and without. DUMPS: only series of at most this number.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "tests/tool/lives_command.h"

namespace hbmprof_test {
namespace {

constexpr size_t kSitesOfAKind = 6;

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
    return kinds == 0 ? "" : text;
  }
};

int Main(const std::string& directory, uint64_t seed, size_t runs, size_t most_dumps) {
  using Is = Kind::Is;
  using Use = Kind::Use;
  struct Row {
    size_t dumps;
    DumpTimes when;
    bool with_ages;
  };
  std::vector<Row> rows;
  for (const size_t dumps : {1, 3, 8, 18, 60}) {
    rows.push_back({dumps, DumpTimes::kWhole, true});
    if (dumps > 1) rows.push_back({dumps, DumpTimes::kWhole, false});
  }
  for (const size_t dumps : {3, 8, 18}) {
    for (const bool with_ages : {true, false}) rows.push_back({dumps, DumpTimes::kLate, with_ages});
  }
  rows.erase(std::remove_if(rows.begin(), rows.end(), [&](const Row& row) { return row.dumps > most_dumps; }),
             rows.end());

  std::map<const Kind*, std::vector<Tally>> tallies;  // by row
  for (const Kind& kind : Kinds()) tallies[&kind].resize(rows.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t r = 0; r < runs; ++r) {
      const uint64_t program_seed = (seed * 1000 + rows[row].dumps) * 1000 + r;  // the same with and without ages
      const Program program = MakeProgram(program_seed, rows[row].dumps, rows[row].when, kSitesOfAKind);
      const std::vector<Answer> answers =
          QueryCommand(program, AllDumps(rows[row].dumps), rows[row].with_ages, directory);
      if (answers.empty()) {
        std::fprintf(stderr, "leaks_table: the command failed on %s\n", directory.c_str());
        return 1;
      }
      for (size_t s = 0; s < answers.size(); ++s) tallies[program.kinds[s]][row].Add(answers[s]);
    }
  }

  std::printf(
      "| dumps | tuned: leaks | others | seen: leaks | others | last: leaks | others | fresh: leaks | others | "
      "held out: leaks | others | blind: leaks | others | by replacement | undecidable |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (size_t row = 0; row < rows.size(); ++row) {
    std::map<std::pair<Is, Use>, Mean> means;
    Mean replaced;
    Mean undecidable;
    for (const Kind& kind : Kinds()) {
      const Tally& tally = tallies[&kind][row];
      means[{kind.is, kind.use}].Add(tally);
      if (kind.is == Is::kReplaced) replaced.Add(tally);
      if (kind.is == Is::kUndecidable) undecidable.Add(tally);
    }
    std::printf("| %zu%s, %s |", rows[row].dumps, rows[row].when == DumpTimes::kLate ? " late" : "",
                rows[row].with_ages ? "**ages**" : "totals");
    for (const Use use : {Use::kTuned, Use::kSeen, Use::kLast, Use::kFresh, Use::kHeldOut, Use::kBlind}) {
      for (const Is is : {Is::kLeak, Is::kNoLeak}) std::printf(" %s |", means[{is, use}].Text().c_str());
    }
    std::printf(" %s | %s |\n", replaced.Text().c_str(), undecidable.Text().c_str());
  }

  std::printf("\n| kind | 1 dump, ages | 8, ages | 8, totals |\n|---|---|---|---|\n");
  for (const Is is : {Is::kLeak, Is::kReplaced, Is::kNoLeak, Is::kUndecidable}) {
    constexpr const char* kNames[] = {"leaks", "leaks by replacement", "no leaks", "undecidable"};
    std::printf("| **%s** | | | |\n", kNames[static_cast<size_t>(is)]);
    for (const Kind& kind : Kinds()) {
      if (kind.is != is) continue;
      constexpr const char* kMarks[] = {"", " *", " **", " ***", " (held out)", " (blind)"};
      std::printf("| `%s`%s |", kind.name, kMarks[static_cast<size_t>(kind.use)]);
      for (size_t row = 0; row < rows.size(); ++row) {
        if (rows[row].when == DumpTimes::kLate || (rows[row].dumps != 1 && rows[row].dumps != 8)) continue;
        const Tally& tally = tallies[&kind][row];
        std::printf(" %.0f / %.0f |", 100 * tally.SureShare(), 100 * tally.AnyShare());
      }
      std::printf("\n");
    }
  }
  return 0;
}

}  // namespace
}  // namespace hbmprof_test

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY [SEED [RUNS [DUMPS]]]\n", argv[0]);
    return 2;
  }
  return hbmprof_test::Main(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2026,
                            argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 12,
                            argc > 4 ? std::strtoull(argv[4], nullptr, 10) : SIZE_MAX);
}
