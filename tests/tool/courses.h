// Labelled courses: the bytes that leaking and other call sites hold at each dump of one program.
#ifndef HBMPROF_TESTS_TOOL_COURSES_H_
#define HBMPROF_TESTS_TOOL_COURSES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hbmprof_test {

// Uniform random numbers. A seed gives the same numbers on every platform.
class Random {
 public:
  // The sequences of neighbouring seeds are independent.
  explicit Random(uint64_t seed);
  uint64_t Bits();
  double Uniform(double low, double high);
  // The logarithm is uniform. low > 0.
  double LogUniform(double low, double high);
  int Int(int low, int high);  // both included
  bool Chance(double p) { return Uniform(0, 1) < p; }
  double Normal();
  double Exponential(double mean);
  int64_t Poisson(double mean);

 private:
  uint64_t state_;
};

// The properties that all sites of one program share: the times of the dumps and the load.
struct ProgramRun {
  enum class Load { kConstant, kNoisy, kDay, kRamp, kStalling };
  std::vector<double> times;     // of the dumps, from 0 to 1
  std::vector<double> requests;  // served until each dump, since the (re)start; strictly increasing unless stalling
  std::vector<double> work;      // done until each dump, from 0 to 1, over all restarts
  size_t restart = 0;            // the first dump of the second process; 0: one process
  Load load = Load::kConstant;

  enum class Special { kNone, kRestart, kStalling };
  static ProgramRun Make(Random& random, size_t dumps, Special special);

 private:
  friend class CourseMaker;
  std::vector<double> grid_;  // the work done at times 0, 1/size, ...
};

struct CourseKind {
  const char* name;
  enum class Is { kLeak, kNoLeak, kUndecidable } is;
  // The thresholds of the judge were chosen with courses of the plain and mixed kinds, and not with the held-out kinds.
  // benchmarks/LEAKS.md says when the figures of the held-out kinds were seen.
  enum class Use { kPlain, kMixed, kHeldOut } use;
  ProgramRun::Special special;
};
// All kinds.
const std::vector<CourseKind>& CourseKinds();

struct SiteCourse {
  std::vector<int64_t> bytes;      // in use at each dump
  std::vector<int64_t> allocated;  // by the process until each dump
  std::vector<int64_t> objects;    // in use at each dump
  std::vector<int64_t> allocated_objects;
};
// A course of this kind. `kind.special` must be that of the run.
SiteCourse MakeCourse(const CourseKind& kind, const ProgramRun& run, Random& random);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_COURSES_H_
