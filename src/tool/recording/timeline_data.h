// The data of a timeline: the values of a recording in a fixed number of intervals of equal length.
#ifndef HBMPROF_SRC_TOOL_RECORDING_TIMELINE_DATA_H_
#define HBMPROF_SRC_TOOL_RECORDING_TIMELINE_DATA_H_

#include "src/tool/recording/cursor.h"
#include "src/tool/recording/stacks.h"

namespace hbmprof::tool {

struct TimelineOptions {
  size_t intervals = 24;  // at least 1
  // "function": the program's own functions. "library": the libraries of labels.h. "tag": all tags of an allocation.
  // Any other text: the value of the tag with this key. Empty: no groups.
  std::string by;
  // The number of groups that are shown: those with the most bytes at the peak. All others together are the group
  // "other".
  size_t max_groups = 4;
  size_t max_holders = 5;  // the number of elements of Memory::holders; 0: all
  std::string memory;      // only this memory (AccountName); empty: all
};

struct Timeline {
  // Times are nanoseconds since the start of the recording. Sizes are bytes.
  struct Interval {
    int64_t in_use = 0;  // the highest
    int64_t idle = 0;    // the idle bytes of pools (a part of in_use) at the instant of in_use
    int64_t peak = 0;    // the highest in_use since the start of the recording
    // The last values in the interval or before it.
    std::optional<int64_t> limit;
    std::optional<int64_t> driver_in_use;
    std::optional<int64_t> unaccounted;
    std::vector<int64_t> groups;  // as Memory::groups; their sum is in_use
  };
  struct Memory {
    std::string name;
    std::vector<Interval> intervals;
    int64_t peak = 0;
    int64_t peak_time = 0;
    int64_t end_in_use = 0;  // at the end
    std::optional<int64_t> limit;
    std::vector<std::string> groups;
    std::vector<FunctionSum> holders;  // at the peak, largest first
    size_t holder_count = 0;           // the number of all holders, including those that max_holders leaves out
  };
  // kReport: the report of a failed allocation, which follows its kFailed.
  enum class MarkKind { kProfile, kFailed, kReport };
  struct Mark {
    int64_t time = 0;
    MarkKind kind = MarkKind::kProfile;
    std::string name;    // of the mark in the recording; empty for kFailed
    int64_t bytes = 0;   // of the failed allocation
    std::string memory;  // in which the allocation failed; empty if it is not known
  };
  int64_t start_unix_nanos = 0;
  int64_t duration = 0;
  int64_t events = 0;
  std::vector<Memory> memories;  // those in which a call site allocates
  std::vector<Mark> marks;

  // Returns the interval of a time.
  size_t IntervalOf(int64_t time) const;
};

// Reads all events, twice if there are groups. Error: kInvalidArgument if there is no such memory or tag.
absl::StatusOr<Timeline> MakeTimeline(RecordingReader& recording, const RecordedStacks& stacks,
                                      const TimelineOptions& options);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_TIMELINE_DATA_H_
