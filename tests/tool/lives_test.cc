// The recall and the false alarms of `hbmprof leaks` on labelled programs with fixed seeds. The full tables are in
// benchmarks/LEAKS.md.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "src/tool/growth/judge.h"
#include "tests/tool/lives_command.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::hbmprof::tool::Course;
using ::hbmprof::tool::Judge;
using ::hbmprof::tool::JudgeLives;
using ::hbmprof::tool::LifeJudgement;
using ::hbmprof::tool::LifeTable;
using ::hbmprof::tool::Verdict;
using Is = Kind::Is;

struct Shares {
  std::map<std::string, Tally> kinds;
  Tally leaks;
  Tally replaced;
  Tally others;
};

Shares MeasureShares(size_t dumps, DumpTimes when, bool with_ages) {
  constexpr size_t kRuns = 3;
  constexpr size_t kSitesOfAKind = 5;
  Shares shares;
  const std::string directory = ScratchDir();
  for (size_t r = 0; r < kRuns; ++r) {
    const Program program = MakeProgram(100 * dumps + r, dumps, when, kSitesOfAKind);
    const std::vector<Answer> answers = QueryCommand(program, AllDumps(dumps), with_ages, directory);
    EXPECT_EQ(answers.size(), program.kinds.size());
    for (size_t s = 0; s < answers.size(); ++s) {
      const Kind& kind = *program.kinds[s];
      shares.kinds[kind.name].Add(answers[s]);
      if (kind.is == Is::kLeak) shares.leaks.Add(answers[s]);
      if (kind.is == Is::kReplaced) shares.replaced.Add(answers[s]);
      if (kind.is == Is::kNoLeak) shares.others.Add(answers[s]);
    }
  }
  return shares;
}

TEST(Lives, OneDumpWithAges) {
  Shares shares = MeasureShares(1, DumpTimes::kWhole, true);
  EXPECT_GE(shares.leaks.SureShare(), 0.86);
  EXPECT_GE(shares.leaks.AnyShare(), 0.95);
  EXPECT_LE(shares.others.SureShare(), 0.008);
  EXPECT_LE(shares.others.AnyShare(), 0.13);
  for (const char* kind : {"steady", "by_load", "late", "regular", "leak_on_day", "leak_beside_lru"}) {
    EXPECT_GE(shares.kinds[kind].SureShare(), 0.8) << kind;
  }
  for (const char* kind : {"weights", "traffic", "lru", "batches", "sessions", "replaced", "queue", "reloads"}) {
    EXPECT_EQ(shares.kinds[kind].SureShare(), 0) << kind;
  }
}

TEST(Lives, ThreeDumpsWithAges) {
  Shares shares = MeasureShares(3, DumpTimes::kWhole, true);
  EXPECT_GE(shares.leaks.AnyShare(), 0.95);
  EXPECT_LE(shares.others.SureShare(), 0.015);
  EXPECT_EQ(shares.replaced.SureShare(), 0);
  EXPECT_GE(shares.replaced.AnyShare(), 0.5) << "the totals are judged in addition";
}

TEST(Lives, LateDumpsWithAges) {
  Shares shares = MeasureShares(8, DumpTimes::kLate, true);
  EXPECT_GE(shares.leaks.SureShare(), 0.83);
  EXPECT_LE(shares.others.SureShare(), 0.015);
}

TEST(Lives, EighteenDumpsWithoutAges) {
  Shares shares = MeasureShares(18, DumpTimes::kWhole, false);
  EXPECT_GE(shares.leaks.SureShare(), 0.7);
  EXPECT_GE(shares.leaks.AnyShare(), 0.88);
  EXPECT_LE(shares.others.SureShare(), 0.05);
  EXPECT_LE(shares.others.AnyShare(), 0.25);
}

TEST(Lives, FewDumpsWithoutAgesAreNeverSure) {
  Shares shares = MeasureShares(8, DumpTimes::kWhole, false);
  EXPECT_EQ(shares.leaks.SureShare(), 0);
  EXPECT_GE(shares.leaks.AnyShare(), 0.9);
}

TEST(Lives, VerdictIsIndependentOfUnitsAndOrigin) {
  const Program program = MakeProgram(1, 18, DumpTimes::kWhole, 3);
  for (size_t s = 0; s < program.kinds.size(); ++s) {
    Course course;
    Course other;
    for (size_t d = 0; d < 18; ++d) {
      course.at.push_back(std::floor(program.times[d] * 1e6));
      course.in_use.push_back(static_cast<double>(program.dumps[d][s].bytes));
      other.at.push_back(course.at.back() * 16 + 4096);
      other.in_use.push_back(course.in_use.back() * 4 + 65536);
    }
    EXPECT_EQ(Judge(course).verdict, Judge(other).verdict) << program.kinds[s]->name;
  }
}

// Any values at the smallest number of dumps, three.
TEST(Lives, JudgesArbitraryValues) {
  const double largest = 9.2e18;
  for (const double a : {0.0, 1.0, largest}) {
    for (const double b : {0.0, 1.0, largest}) {
      for (const double c : {0.0, 1.0, largest}) {
        const auto judgement = Judge({{0, 1e-9, 1}, {a, b, c}});
        EXPECT_TRUE(std::isfinite(judgement.late) && std::isfinite(judgement.fall)) << a << " " << b << " " << c;
        if (c <= a) {
          EXPECT_GT(judgement.verdict, Verdict::kPerhaps) << a << " " << b << " " << c;
        }
        for (const double now : {0.5, 1.0, 3.0, 64.0}) {
          const LifeJudgement life = JudgeLives({now, 1, {a, b, c}, {a, b, c}, {b, c}});
          EXPECT_TRUE(std::isfinite(life.kept_bytes) && std::isfinite(life.per_second)) << a << " " << b << " " << c;
        }
      }
    }
  }
}

// A table of 64 classes: `live` by class, and the freed buffers by octave of age.
LifeJudgement::Finding FindingOf(const std::vector<double>& live, const std::vector<double>& freed) {
  return JudgeLives({64, 1, live, live, freed}).finding;
}

TEST(LifeTable, FindsWhatIsKept) {
  using Finding = LifeJudgement::Finding;
  const std::vector<double> even(64, 1);
  EXPECT_EQ(FindingOf(even, {}), Finding::kLeak);
  EXPECT_EQ(FindingOf(even, {100000, 500, 20}), Finding::kLeak) << "others live up to 4 s";
  EXPECT_EQ(FindingOf(even, {0, 1000, 1000, 1000, 1000, 1000, 1000}), Finding::kNoneIsOld)
      << "buffers still die at 32 s";
  std::vector<double> start(64);
  start[0] = 1000;
  EXPECT_EQ(FindingOf(start, {500}), Finding::kNoneIsOld);
  start[63] = 20;
  EXPECT_EQ(FindingOf(start, {50000}), Finding::kNoneIsOld) << "traffic";
  std::vector<double> stopped(even);
  std::fill(stopped.begin() + 40, stopped.end(), 0);
  EXPECT_EQ(FindingOf(stopped, {}), Finding::kStopped);
  std::fill(stopped.begin() + 38, stopped.end(), 0);
  EXPECT_EQ(FindingOf(stopped, {0, 0, 0, 0, 0, 200}), Finding::kStopped)
      << "tables that were copied to larger ones until all fitted: others died at ages up to 32 s, and the last birth "
         "is "
         "26 s ago";
  std::vector<double> bursts(64);
  for (const size_t i : {5, 9, 14, 50, 60}) bursts[i] = 8;
  for (const size_t i : {25, 31, 38}) bursts[i] = 20;
  EXPECT_EQ(FindingOf(bursts, {}), Finding::kLeak);
  std::vector<double> batch(even);
  std::fill(batch.begin(), batch.begin() + 20, 0);
  EXPECT_EQ(FindingOf(batch, {}), Finding::kLeak) << "it began late";
  EXPECT_EQ(FindingOf(batch, {0, 0, 0, 0, 5, 5}), Finding::kBatch);
  EXPECT_EQ(FindingOf(batch, {0, 30, 1, 1, 1, 1}), Finding::kLeak) << "few others became old";
  std::vector<double> slower(64);
  for (size_t i = 0; i < 64; ++i) slower[i] = 1000 * std::exp(-static_cast<double>(i) / 20);
  EXPECT_EQ(FindingOf(slower, {}), Finding::kSlowing);
  std::vector<double> jumps(64);
  jumps[10] = jumps[30] = jumps[50] = 10;
  EXPECT_EQ(FindingOf(jumps, {}), Finding::kFewTimes);
}

TEST(LifeTable, BuffersWithoutBytesAreNoLeak) {
  const std::vector<double> live(64, 1);
  EXPECT_EQ(JudgeLives({64, 1, live, live, {}}).finding, LifeJudgement::Finding::kLeak);
  EXPECT_EQ(JudgeLives({64, 1, live, std::vector<double>(64), {}}).finding, LifeJudgement::Finding::kNoneIsOld);
}

TEST(LifeTable, HasTheFiguresOfALeak) {
  std::vector<double> live(64, 2);
  live[0] = 500;
  std::vector<double> bytes(64, 200);
  const LifeJudgement life = JudgeLives({64, 1, live, bytes, {1000, 7}});
  ASSERT_EQ(life.finding, LifeJudgement::Finding::kLeak);
  EXPECT_EQ(life.settled, 1);
  EXPECT_EQ(life.oldest, 3) << "the first 4 % belong to the start";
  EXPECT_EQ(life.newest, 63);
  EXPECT_EQ(life.kept, 60 * 2);
  EXPECT_EQ(life.kept_bytes, 60 * 200);
  EXPECT_NEAR(life.per_second, 200, 1);
}

}  // namespace
}  // namespace hbmprof_test
