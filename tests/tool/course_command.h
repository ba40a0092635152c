// Writes labelled courses (courses.h) as profiles and reads the verdicts of `hbmprof leaks --json`.
#ifndef HBMPROF_TESTS_TOOL_COURSE_COMMAND_H_
#define HBMPROF_TESTS_TOOL_COURSE_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/tool/courses.h"

namespace hbmprof_test {

// The dumps of one program, with sites of every kind that fits the run.
struct ProgramCourses {
  ProgramRun run;
  std::vector<const CourseKind*> kinds;  // by site
  std::vector<SiteCourse> sites;
};
ProgramCourses MakeProgram(uint64_t seed, size_t dumps, ProgramRun::Special special, size_t sites_of_a_kind);

enum class Answer { kSure, kPerhaps, kNo };
// Runs `hbmprof leaks` on the given dumps of the program, at least three, and returns the answer for each site. Writes
// the files to `directory`. Passes a counter that stalls as --per. Returns nothing if the command failed.
std::vector<Answer> QueryCommand(const ProgramCourses& program, const std::vector<size_t>& dumps,
                                 const std::string& directory);

// Counts the answers for courses of one kind.
struct Tally {
  double sure = 0;
  double any = 0;  // sure or perhaps
  double all = 0;
  void Add(Answer answer);
  double SureShare() const { return all > 0 ? sure / all : 0; }
  double AnyShare() const { return all > 0 ? any / all : 0; }
};

// The numbers of all dumps of a program; `count` evenly spaced numbers, with the first and the last.
std::vector<size_t> AllDumps(size_t dumps);
std::vector<size_t> SpreadDumps(size_t dumps, size_t count);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_COURSE_COMMAND_H_
