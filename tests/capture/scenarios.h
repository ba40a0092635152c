// Scenarios: kinds of calls and signals, to test stack capture in. scenarios.inc.cc is compiled several times, by each
// installed compiler and with different options, into one namespace each. ScenarioSets() lists them.
#ifndef HBMPROF_TESTS_CAPTURE_SCENARIOS_H_
#define HBMPROF_TESTS_CAPTURE_SCENARIOS_H_

#include <cstdint>
#include <vector>

namespace capture_test {

// Scenarios call this function at the points whose stacks are tested.
using Probe = void (*)();

struct ScenarioSet {
  const char* name;  // compiler and options
  std::vector<const char*> scenarios;
  void (*run)(int scenario, Probe probe);
  // Runs a chain of `depth` calls and then the probe. `seed` selects the functions and call sites.
  void (*random_chain)(uint64_t seed, int depth, Probe probe);
};

std::vector<ScenarioSet> ScenarioSets();

}  // namespace capture_test

#endif  // HBMPROF_TESTS_CAPTURE_SCENARIOS_H_
