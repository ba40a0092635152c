// The dumps of one program in order of time.
#ifndef HBMPROF_SRC_TOOL_PROFILE_SERIES_H_
#define HBMPROF_SRC_TOOL_PROFILE_SERIES_H_

#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

struct DumpSeries {
  std::vector<size_t> files;    // of the ProfileSet, in the order of time
  std::vector<double> seconds;  // since the first dump; empty if unknown
  std::vector<double> counts;   // of the counter, 0 before it was set; empty without a counter
  // The dumps that are judged, [begin, end). These are all dumps from the first one with the counter on, or if there
  // was a restart, those of the process that wrote most of them. A restart is detected by a new process id, or by a
  // decrease of the allocation total or of the counter. Without the last ones if the program has freed all at its end
  // and at least three are left: what it kept until then is judged.
  size_t begin = 0;
  size_t end = 0;
  std::string restart;  // in words; "" if there was none

  // Whether the last judged dump has the ages of buffers, those of one process that has run for 16 seconds.
  bool has_ages = false;

  // Returns the quantity against which growth is judged: the counter, else seconds, else the dumps' numbers. If the
  // dumps are less than 0.1 s apart, it returns the numbers instead of seconds, because such short times are mostly
  // random. The quantity does not decrease within the judged dumps.
  std::vector<double> Exposure() const;
};

// Returns the files in the order of their times, or in the given order if a time is missing. `counter` is the name of a
// counter that SetCounter set, or "". Errors:
// kInvalidArgument if a file after the first one with the counter lacks it, or all files, or if there are three or more
// files and the counter has fewer than three different values.
absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter);

int64_t SumOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type);
// Returns whether memory was recorded until the file was made.
bool HasMemory(const ProfileSet::File& file);
inline constexpr char kNoMemoryText[] =
    "no memory was recorded: a linked library records only the calls that go through it (TrackingAllocator, "
    "RecordAlloc); `hbmprof run` records those of all libraries, and `hbmprof doctor` says which it can record";
// Returns whether nothing of a type is in use but idle memory of pools, code, and at most 4 KiB of a much larger peak,
// as tensor.item() leaves pinned bytes behind: the program holds nothing itself.
bool IsFreed(const ProfileSet& profiles, const ProfileSet::File& file, size_t type);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_SERIES_H_
