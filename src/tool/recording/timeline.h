// The timeline: the values of a recording at a limited number of instants. The terminal, the page of the report and the
// JSON show the same one.
#ifndef HBMPROF_SRC_TOOL_RECORDING_TIMELINE_H_
#define HBMPROF_SRC_TOOL_RECORDING_TIMELINE_H_

#include "src/tool/recording/cursor.h"

namespace hbmprof::tool {

struct TimelineOptions {
  size_t intervals = 24;  // of equal length, between two instants each; at least 1
  std::string memory;     // only this memory (AccountName); empty: all
  // Returns the group of a row of SiteTotals; nullopt: none. The groups with the most bytes become bands. Null: there
  // are no bands.
  std::function<std::optional<size_t>(uint32_t row)> group_of;
  size_t max_bands = 4;  // of a memory, besides the one of all other groups
};

// Times are nanoseconds since the start of the recording. Sizes are bytes.
struct Timeline {
  // The bytes of one group, or of all other groups, by instant.
  struct Band {
    std::optional<size_t> group;
    std::vector<int64_t> values;
  };
  struct AtPeak {
    uint32_t row = 0;  // of SiteTotals
    int64_t bytes = 0;
    int64_t count = 0;  // of buffers
  };
  struct Memory {
    size_t account = 0;
    std::string name;
    std::optional<int64_t> limit;
    int64_t peak = 0;
    int64_t peak_time = 0;
    std::optional<size_t> peak_instant;  // only if there are bands, and the peak is not that of the start
    std::vector<AtPeak> at_peak;
    std::vector<Band> bands;  // largest first; the one of all other groups is the last
    // By instant.
    std::vector<int64_t> in_use;
    std::vector<int64_t> low;   // the lowest in_use since the instant before
    std::vector<int64_t> high;  // likewise, the highest
    std::vector<int64_t> idle;  // the idle bytes of pools, a part of in_use
    // The driver's bytes in use, and Unaccounted of the same sample: the last one.
    std::vector<std::optional<int64_t>> driver_in_use;
    std::vector<std::optional<int64_t>> unaccounted;
  };
  // kReport: the report of a failed allocation, which follows its kFailed. kOff: recording was turned off.
  enum class MarkKind { kProfile, kFailed, kReport, kOff };
  struct Mark {
    int64_t time = 0;
    MarkKind kind = MarkKind::kProfile;
    std::string name;               // of the mark in the recording; empty for kFailed
    int64_t bytes = 0;              // of the failed allocation; 0: not known
    std::string memory;             // in which the allocation failed; empty if it is not known
    uint32_t site = 0;              // of the failed allocation, as RecordedEvent::site
    std::optional<size_t> instant;  // of the first marks and the first failed allocations
  };
  int64_t duration = 0;
  std::vector<int64_t> times;                // of the instants: the ends of the intervals, the start, peaks and marks
  std::vector<Memory> memories;              // those in which a call site allocates
  std::vector<Mark> marks;                   // the first 10,000
  size_t mark_count = 0;                     // of all
  std::vector<std::optional<int64_t>> host;  // resident bytes of the process, by instant
};

// Reads all events, twice if there are bands. Error: kInvalidArgument if there is no such memory.
absl::StatusOr<Timeline> MakeTimeline(RecordingReader& recording, const TimelineOptions& options);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_TIMELINE_H_
