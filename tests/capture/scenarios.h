// Ways to get somewhere in a program, for tests of stack capture. scenarios.inc.cc is compiled several times, by each
// compiler there is and with different options, into a
// namespace each; ScenarioSets() lists them.
#ifndef HBMPROF_TESTS_CAPTURE_SCENARIOS_H_
#define HBMPROF_TESTS_CAPTURE_SCENARIOS_H_

#include <cstdint>
#include <vector>

namespace capture_test {

// What each scenario calls wherever it wants its stack looked at.
using Probe = void (*)();

struct ScenarioSet {
  const char* name;  // compiler and options
  std::vector<const char*> scenarios;
  void (*run)(int scenario, Probe probe);
  // A chain of `depth` calls, of functions and call sites chosen by `seed`, with the probe at its end.
  void (*random_chain)(uint64_t seed, int depth, Probe probe);
};

std::vector<ScenarioSet> ScenarioSets();

}  // namespace capture_test

#endif  // HBMPROF_TESTS_CAPTURE_SCENARIOS_H_
