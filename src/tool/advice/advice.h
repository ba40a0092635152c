// Advice on the memory of a program, computed from a recording. docs/advise.md describes each kind of advice, its
// thresholds and its computation.
//
// Buffers are those that the program takes from the driver: allocations and segments of pools. Blocks of pools count
// only for kNeverFreed, which judges the states of the recording as `hbmprof leaks` does.
#ifndef HBMPROF_SRC_TOOL_ADVICE_ADVICE_H_
#define HBMPROF_SRC_TOOL_ADVICE_ADVICE_H_

#include "src/tool/profile/profile.h"
#include "src/tool/recording/cursor.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/util/common.h"
#include "src/tool/util/terminal.h"

namespace hbmprof::tool {

enum class AdviceKind {
  kNeverFreed,     // memory of a function grows until the end
  kFragmentation,  // free memory is in pieces that are too small
  kPeak,           // buffers that were live at a short peak and were freed after it
  kReuse,          // buffers that overlap with the next buffer of about the same size; idle bytes of pools at the peak
  kChurn,          // short-lived buffers, again and again
  kReallocated,    // a thread frees a buffer, and its next event allocates a buffer of the same size
  kPool,           // sizes that a pool would serve with fewer calls of the driver
};
// Returns "never_freed", "fragmentation", "peak", "reuse", "churn", "reallocated" or "pool".
const char* AdviceKindName(AdviceKind kind);

struct Advice {
  using Site = FunctionSum;  // for kReuse and kReallocated, the count is of pairs of buffers
  AdviceKind kind = AdviceKind::kChurn;
  std::string account;      // the device, with its memory space if it is not device memory
  std::string text;         // what to do, in a sentence
  std::string how;          // how the figures were computed, in a sentence or two
  std::vector<Site> sites;  // those with the most bytes or calls first; at most five
  int64_t bytes = 0;        // the main figure: saved, kept or lost bytes, or the size of the pool
  // Results of the simulation: a name such as "peak_before", and the value in bytes or calls.
  std::vector<std::pair<std::string, int64_t>> replay;
};

struct AdviceReport {
  struct Account {
    std::string name;
    int64_t peak = 0;          // bytes
    double peak_seconds = 0;   // since the start of the recording
    int64_t driver_calls = 0;  // allocations and frees, in the recording
  };
  double seconds = 0;  // length of the recording
  std::vector<Account> accounts;
  std::vector<Advice> advice;  // in the order of AdviceKind
};

// `states` are those of ReadRecorded, with the view of own code. Reads the events up to three times. Needs memory for
// the live buffers, and 2 bits for each event. `progress` counts the events of two of these passes. Errors: those of
// OrderDumps.
absl::StatusOr<AdviceReport> Advise(RecordingReader& recording, const RecordedStacks& stacks, const ProfileSet& states,
                                    Progress& progress);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ADVICE_ADVICE_H_
