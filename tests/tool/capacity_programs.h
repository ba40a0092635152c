// Generated programs whose memory follows known laws of their counters: what `hbmprof fit` is measured with.
#ifndef HBMPROF_TESTS_TOOL_CAPACITY_PROGRAMS_H_
#define HBMPROF_TESTS_TOOL_CAPACITY_PROGRAMS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hbmprof_test {

// The values of the counters.
using Counters = std::vector<double>;

class CapacityProgram {
 public:
  // Makes a program with one counter ("tokens") or two ("batch" and "tokens"), call stacks of different laws, and the
  // values at which it is measured. Equal seeds make equal programs.
  explicit CapacityProgram(uint64_t seed);

  const std::vector<std::string>& counters() const { return counters_; }
  const std::vector<Counters>& measured() const { return measured_; }
  // Twice the largest measured value of one counter; the others have their largest measured value.
  Counters beyond() const;
  // The peak without noise, with the memory that is not recorded.
  double PeakAt(const Counters& at) const;
  // The profiles at the measured values, in a new folder.
  std::vector<std::string> WriteProfiles(const std::string& directory) const;

 private:
  struct Site {
    std::string function;
    std::function<double(const Counters&)> bytes;
    bool is_recorded = true;
  };

  uint64_t seed_;
  std::vector<std::string> counters_;
  std::vector<Counters> measured_;
  std::vector<Site> sites_;
  double noise_ = 0;  // the standard deviation of each call stack's bytes, as a part of them
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_CAPACITY_PROGRAMS_H_
