// Births: when the live buffers of each site were born, at about one instant.
#ifndef HBMPROF_SRC_CORE_TABLES_BIRTHS_H_
#define HBMPROF_SRC_CORE_TABLES_BIRTHS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hbmprof/snapshot.h"
#include "src/core/tables/live_table.h"

namespace hbmprof::internal {

class Births {
 public:
  // Reads the live table, in steps, so that no event waits for longer than a step. Events during that time may be
  // missed. Takes the sites below `sites`, and the classes up to that of `uptime_seconds`.
  Births(const LiveTable& live, SiteId sites, int64_t uptime_seconds);

  // Returns the birth classes of a site (Snapshot::Sample::born). They add up to `objects` and `bytes`, the site's
  // exact numbers: the youngest class takes the difference to the records that were read, and then older ones, if a
  // class would become negative.
  std::vector<Snapshot::Sample::Born> Of(SiteId site, int64_t objects, int64_t bytes) const;

 private:
  using Born = Snapshot::Sample::Born;
  void Add(const LiveRecord& record);

  const int log2_;
  const uint32_t classes_;
  std::vector<std::vector<Born>> born_;  // by site: the classes that have records
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_BIRTHS_H_
