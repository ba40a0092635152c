// Labelled courses (courses.h), judged by the command: written as profiles, read back from `hbmprof leaks --json`.
#ifndef HBMPROF_TESTS_TOOL_COURSE_COMMAND_H_
#define HBMPROF_TESTS_TOOL_COURSE_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/tool/courses.h"

namespace hbmprof_test {

// A program's dumps: sites of every kind that goes with the run.
struct ProgramCourses {
  ProgramRun run;
  std::vector<const CourseKind*> kinds;  // by site
  std::vector<SiteCourse> sites;
};
ProgramCourses MakeProgram(uint64_t seed, size_t dumps, ProgramRun::Special special, size_t sites_of_a_kind);

enum class Answer { kSure, kPerhaps, kNo };
// By site. `dumps`: which of the program's dumps the command gets, at least three. The files are written to
// `directory`. A counter that stalls is given as --per. Returns nothing if the command failed.
std::vector<Answer> AskCommand(const ProgramCourses& program, const std::vector<size_t>& dumps,
                               const std::string& directory);

// How many courses of each kind were answered how.
struct Tally {
  double sure = 0;
  double any = 0;  // sure or perhaps
  double all = 0;
  void Add(Answer answer);
  double SureShare() const { return all > 0 ? sure / all : 0; }
  double AnyShare() const { return all > 0 ? any / all : 0; }
};

// All dumps of a program with `dumps`; `count` of them, the first and the last included.
std::vector<size_t> AllDumps(size_t dumps);
std::vector<size_t> SpreadDumps(size_t dumps, size_t count);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_COURSE_COMMAND_H_
