// Writes labelled programs (lives.h) as profiles and reads the verdicts of `hbmprof leaks --json`.
#ifndef HBMPROF_TESTS_TOOL_LIVES_COMMAND_H_
#define HBMPROF_TESTS_TOOL_LIVES_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/tool/lives.h"

namespace hbmprof_test {

// The dumps of one program, with sites of every kind.
struct Program {
  Run run;
  std::vector<double> times;                  // of the dumps
  std::vector<const Kind*> kinds;             // by site
  std::vector<std::vector<SiteState>> dumps;  // by dump and site
};
Program MakeProgram(uint64_t seed, size_t dumps, DumpTimes when, size_t sites_of_a_kind);

enum class Answer { kSure, kPerhaps, kNo };
// Runs `hbmprof leaks` on these dumps of the program and returns the answer for each site. Writes the files to
// `directory`, with the ages of buffers or without. Returns nothing if the command failed.
std::vector<Answer> QueryCommand(const Program& program, const std::vector<size_t>& dumps, bool with_ages,
                                 const std::string& directory);

// Counts the answers for sites of one kind.
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

#endif  // HBMPROF_TESTS_TOOL_LIVES_COMMAND_H_
