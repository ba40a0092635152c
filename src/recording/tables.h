// The tables, samples and lost events of a recording as bytes. docs/recording.md describes them.
#ifndef HBMPROF_SRC_RECORDING_TABLES_H_
#define HBMPROF_SRC_RECORDING_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "src/recording/events.h"
#include "src/recording/recording.h"

namespace hbmprof::internal {

// Makes the contents of the blocks of tables.
class TablesWriter {
 public:
  // Returns the elements of `tables` that earlier calls have not returned, as the contents of blocks of at most about
  // 1 MiB each. There are none if nothing is new.
  std::vector<std::string> NewElements(const RecordingTables& tables);
  // The elements to which events may refer after the calls of NewElements so far.
  const std::vector<uint32_t>& sites() const { return sites_; }
  const EventLimits& limits() const { return limits_; }

 private:
  // The number of elements in the tables so far.
  struct Counts {
    size_t stacks = 0;
    size_t named_frames = 0;
    size_t devices = 0;
    size_t allocators = 0;
    size_t modules = 0;
    size_t sites = 0;
    size_t tag_sets = 0;
    size_t threads = 0;
    size_t marks = 0;
    size_t live = 0;
  };

  std::string header_;  // as last written
  Counts counts_;
  std::unordered_set<uint64_t> functions_;  // addresses
  std::vector<uint32_t> sites_;
  EventLimits limits_;
};

std::string SampleBytes(const DriverSample& sample);
std::string LostBytes(const LostEvents& lost);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_TABLES_H_
