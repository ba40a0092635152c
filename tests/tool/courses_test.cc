// The recall and the false alarms of `hbmprof leaks` on labelled courses with fixed seeds. The full table is in
// benchmarks/LEAKS.md.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "src/tool/growth/judge.h"
#include "tests/tool/course_command.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::hbmprof::tool::Course;
using ::hbmprof::tool::Judge;
using ::hbmprof::tool::Verdict;
using Is = CourseKind::Is;
using Special = ProgramRun::Special;

constexpr size_t kRuns = 4;
constexpr size_t kSitesOfAKind = 5;

struct Shares {
  std::map<std::string, Tally> kinds;
  Tally leaks;
  Tally others;
};

Shares MeasureShares(size_t dumps) {
  Shares shares;
  const std::string directory = ScratchDir();
  for (const Special special : {Special::kNone, Special::kRestart, Special::kStalling}) {
    for (size_t r = 0; r < kRuns; ++r) {
      const ProgramCourses program =
          MakeProgram(100 * dumps + 10 * r + static_cast<size_t>(special), dumps, special, kSitesOfAKind);
      const std::vector<Answer> answers = QueryCommand(program, AllDumps(dumps), directory);
      EXPECT_EQ(answers.size(), program.sites.size());
      for (size_t s = 0; s < answers.size(); ++s) {
        const CourseKind& kind = *program.kinds[s];
        shares.kinds[kind.name].Add(answers[s]);
        if (kind.is == Is::kLeak) shares.leaks.Add(answers[s]);
        if (kind.is == Is::kNoLeak) shares.others.Add(answers[s]);
      }
    }
  }
  return shares;
}

TEST(Courses, RecallAndFalseAlarmsWithEightDumps) {
  const Shares shares = MeasureShares(8);
  EXPECT_GE(shares.leaks.SureShare(), 0.70);
  EXPECT_GE(shares.leaks.AnyShare(), 0.90);
  EXPECT_LE(shares.others.SureShare(), 0.05);
}

TEST(Courses, RecallAndFalseAlarmsWithEighteenDumps) {
  Shares shares = MeasureShares(18);
  EXPECT_GE(shares.leaks.SureShare(), 0.84);
  EXPECT_GE(shares.leaks.AnyShare(), 0.94);
  EXPECT_LE(shares.others.SureShare(), 0.03);
  for (const char* kind : {"steady", "by_load", "late", "slow", "stairs", "leak_restarted", "leak_stalling"}) {
    EXPECT_GE(shares.kinds[kind].SureShare(), 0.75) << kind;
  }
  for (const char* kind : {"flat", "noise", "cache", "lru", "jumps", "jumps_4_to_8", "day", "saw", "warm_up",
                           "loads_and_unloads", "second_warm_up", "caches", "stopped"}) {
    EXPECT_LE(shares.kinds[kind].SureShare(), 0.05) << kind;
  }
}

TEST(Courses, RecallAndFalseAlarmsWithSixtyDumps) {
  Shares shares = MeasureShares(60);
  EXPECT_GE(shares.leaks.SureShare(), 0.86);
  EXPECT_GE(shares.leaks.AnyShare(), 0.95);
  EXPECT_LE(shares.others.SureShare(), 0.03);
  for (const char* kind : {"jumps", "jumps_4_to_8"}) EXPECT_LE(shares.kinds[kind].SureShare(), 0.05) << kind;
}

TEST(Courses, MoreDumpsOfTheSameCourseKeepTheVerdict) {
  const std::string directory = ScratchDir();
  Tally kept;
  for (size_t r = 0; r < kRuns; ++r) {
    const ProgramCourses program = MakeProgram(7000 + r, 61, Special::kNone, kSitesOfAKind);
    const std::vector<Answer> all = QueryCommand(program, AllDumps(61), directory);
    const std::vector<Answer> some = QueryCommand(program, SpreadDumps(61, 8), directory);
    ASSERT_EQ(all.size(), some.size());
    for (size_t s = 0; s < all.size(); ++s) {
      if (program.kinds[s]->is == Is::kLeak && some[s] == Answer::kSure) kept.Add(all[s]);
    }
  }
  EXPECT_GE(kept.all, 100);
  EXPECT_GE(kept.SureShare(), 0.95);
  EXPECT_GE(kept.AnyShare(), 0.97);
}

TEST(Courses, VerdictIsIndependentOfUnitsAndOrigin) {
  const ProgramCourses program = MakeProgram(1, 18, Special::kNone, 3);
  for (size_t s = 0; s < program.sites.size(); ++s) {
    Course course;
    Course other;
    for (size_t d = 0; d < 18; ++d) {
      course.at.push_back(std::floor(program.run.times[d] * 1e6));
      course.in_use.push_back(static_cast<double>(program.sites[s].bytes[d]));
      course.allocated.push_back(static_cast<double>(program.sites[s].allocated[d]));
      other.at.push_back(course.at.back() * 16 + 4096);
      other.in_use.push_back(course.in_use.back() * 4 + 65536);
      other.allocated.push_back(course.allocated.back() * 4 + 65536);
    }
    EXPECT_EQ(Judge(course).verdict, Judge(other).verdict) << program.kinds[s]->name;
  }
}

// Any values at the smallest number of dumps, three.
TEST(Courses, JudgesArbitraryValues) {
  const double largest = 9.2e18;
  for (const double a : {0.0, 1.0, largest}) {
    for (const double b : {0.0, 1.0, largest}) {
      for (const double c : {0.0, 1.0, largest}) {
        const auto judgement = Judge({{0, 1e-9, 1}, {a, b, c}, {}});
        EXPECT_TRUE(std::isfinite(judgement.late) && std::isfinite(judgement.kept)) << a << " " << b << " " << c;
        if (c <= a) {
          EXPECT_GT(judgement.verdict, Verdict::kPerhaps) << a << " " << b << " " << c;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hbmprof_test
