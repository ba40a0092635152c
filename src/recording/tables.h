// The tables, samples and lost events of a recording as bytes. docs/spec/recording.md describes them.
#ifndef HBMPROF_SRC_RECORDING_TABLES_H_
#define HBMPROF_SRC_RECORDING_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "src/recording/fields.h"
#include "src/recording/recording.h"

namespace hbmprof::internal {

// Makes the contents of the blocks of tables.
class TablesWriter {
 public:
  // Returns the elements of `tables` that earlier calls have not returned, as the contents of blocks of at most about
  // 1 MiB each. There are none if nothing is new.
  std::vector<std::string> NewElements(const RecordingTables& tables);
  // RecordingTables::site_pools of the sites so far.
  const std::vector<uint32_t>& sites() const { return sites_; }

 private:
  std::string header_;                      // as last written
  size_t counts_[kTablesSections] = {};     // of the elements so far, by TablesSection
  std::unordered_set<uint64_t> functions_;  // addresses
  std::vector<uint32_t> sites_;
};

std::string SampleBytes(const DriverSample& sample);
std::string LostBytes(const LostEvents& lost);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_TABLES_H_
