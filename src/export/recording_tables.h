// The tables, samples and lost events of a recording as bytes. docs/recording.md describes them.
#ifndef HBMPROF_SRC_EXPORT_RECORDING_TABLES_H_
#define HBMPROF_SRC_EXPORT_RECORDING_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "src/export/recording.h"
#include "src/export/recording_events.h"

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

// Adds the contents of a block of tables to `tables`. Returns false if the block is damaged or refers to elements that
// do not exist, or does not continue the tables. Then only the elements before the first wrong one are added.
bool AddTablesBlock(std::string_view contents, RecordingTables* tables);

// Returns what a RunReader needs, besides the kinds of the sites.
EventLimits LimitsOf(const RecordingTables& tables);

std::string SampleBytes(const DriverSample& sample);
// Adds the samples of a block. Returns false, with `samples` unchanged, if the block is damaged or refers to a device
// that does not exist.
bool AddSamplesBlock(std::string_view contents, size_t devices, std::vector<DriverSample>* samples);

std::string LostBytes(const LostEvents& lost);
bool AddLostBlock(std::string_view contents, std::vector<LostEvents>* lost);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_RECORDING_TABLES_H_
