// How the memory of a program grows with its counters, from profiles at several values of them: one typed result, which
// `hbmprof fit` shows.
#ifndef HBMPROF_SRC_TOOL_FIT_FIT_H_
#define HBMPROF_SRC_TOOL_FIT_FIT_H_

#include "src/tool/fit/law.h"
#include "src/tool/profile/profile.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {

struct FitRequest {
  std::vector<std::string> counters;  // names
  std::vector<Point> values;          // by file; empty: those that the files have
  std::optional<Point> at;            // where the memory is predicted
  std::optional<int64_t> limit;       // of each memory; no value: that of the profiles
};

enum class FitVerdict { kFits, kUndecided, kDoesNotFit };  // the worst last

// The memory of one device.
struct MemoryFit {
  // Call stacks of one function: all that have a law, or all that have none.
  struct Row {
    std::string function;
    std::string position;
    size_t stacks = 0;
    Law law;           // of the sum; without terms: undecided
    double bytes = 0;  // at Fit::at
  };

  std::string name;
  std::optional<int64_t> limit;
  std::vector<double> measured;   // by run
  std::vector<double> predicted;  // by run, from the other runs
  std::vector<double> terms;      // the sum of those that hold
  double steps = 0;               // the part of `at.bytes` that the terms do not have
  Estimate at;
  std::optional<FitVerdict> verdict;           // without a limit there is none
  std::vector<std::optional<double>> full_at;  // by counter: the value at which the limit can be reached
  std::vector<Row> rows;                       // the most bytes first
};

struct Fit {
  struct Run {
    std::string name;
    Point at;
  };

  std::vector<std::string> counters;
  std::string type;       // the sample type
  std::vector<Run> runs;  // that count, in the order of their sizes
  Point at;               // as requested, else the largest measured values
  bool is_requested = false;
  std::string undecided;  // why nothing can be predicted; "" if it can
  std::vector<MemoryFit> memories;
  std::vector<std::string> notes;  // what a reader of the prediction should know

  // The worst of all memories; nullopt if no limit is known.
  std::optional<FitVerdict> verdict() const;
};

// `profiles` has the view of own code; `type` has bytes. Errors: kInvalidArgument if a file has no value of a counter,
// or one that is not positive, or if there are fewer than two values.
absl::StatusOr<Fit> FitProfiles(const ProfileSet& profiles, size_t type, const FitRequest& request);

// Returns a point as text: "batch=8, tokens=4096".
std::string PointText(const std::vector<std::string>& counters, const Point& point);

// Adds the answer. `rows`: the number of rows of each memory to show, 0: all.
void AddFit(const Fit& fit, size_t rows, Answer& answer);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_FIT_FIT_H_
