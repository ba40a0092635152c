// SiteTotals: the sums of a recording, event by event: bytes and buffers of each site, bytes in use and peak of each
// account. It keeps no map of the live buffers (RecordingState does), so an event takes a few nanoseconds.
// Sums wrap around on overflow, which only a damaged file can cause.
#ifndef HBMPROF_SRC_TOOL_RECORDING_SITE_TOTALS_H_
#define HBMPROF_SRC_TOOL_RECORDING_SITE_TOTALS_H_

#include "src/tool/recording/cursor.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// An account is one memory space of one device: device * kMemorySpaceCount + space.
//
// Returns the device's name, and the space if it is not device memory: "GPU:0", "GPU:0 pinned_host".
std::string AccountName(const RecordingTables& tables, size_t account);

class SiteTotals {
 public:
  struct Site {
    int64_t bytes = 0;    // live; of a segment: its idle bytes
    int64_t objects = 0;  // live
    // Totals since the start of the process, which never decrease. allocated_bytes - freed_bytes is `bytes`. The bytes
    // of a segment that a block takes count as freed at the segment's site. When the block is freed, they count as
    // allocated again.
    int64_t allocated_bytes = 0;
    int64_t freed_bytes = 0;
    int64_t allocated_objects = 0;
    int64_t freed_objects = 0;
  };
  struct Account {
    int64_t in_use = 0;
    int64_t idle = 0;  // bytes of segments that no block covers; part of in_use
    // The highest in_use since the start of the recording, and when it was first reached: the time, and the event (0 is
    // the first one; -1: at the start).
    int64_t peak = 0;
    int64_t peak_time = 0;
    int64_t peak_event = -1;
    bool is_used = false;  // it has a site
  };

  // `tables` must outlive this object.
  explicit SiteTotals(const RecordingTables& tables);

  // Enters the event. Returns whether the change is complete: only then are the values those of one instant.
  bool Apply(const RecordedEvent& event);

  // Returns the change of its site's live bytes.
  static int64_t ChangeOf(const RecordedEvent& event);

  const Site& site(uint32_t number) const { return sites_[number].now; }
  size_t account_of(uint32_t site) const { return sites_[site].account; }
  size_t account_count() const { return accounts_.size(); }
  const Account& account(size_t number) const { return accounts_[number].now; }
  // The live bytes and buffers of a site at the peak of its account.
  int64_t peak_bytes(uint32_t site) const { return AtPeak(site) ? sites_[site].peak_bytes : sites_[site].now.bytes; }
  int64_t peak_objects(uint32_t site) const {
    return AtPeak(site) ? sites_[site].peak_objects : sites_[site].now.objects;
  }
  // The accounts that the last change has changed.
  const std::vector<size_t>& changed_accounts() const { return changed_; }

 private:
  struct SiteState {
    Site now;
    size_t account = 0;
    bool is_segment = false;
    uint64_t peak_number = 0;  // the peak of the account whose values are stored in peak_bytes and peak_objects
    int64_t peak_bytes = 0;
    int64_t peak_objects = 0;
  };
  struct AccountState {
    Account now;
    uint64_t peak_number = 0;  // grows with each new peak
  };

  // Returns whether the values at the peak are stored. Otherwise they are the present values.
  bool AtPeak(uint32_t site) const { return sites_[site].peak_number == accounts_[sites_[site].account].peak_number; }

  std::vector<SiteState> sites_;
  std::vector<AccountState> accounts_;
  std::vector<size_t> changed_;
  bool is_new_change_ = true;
  int64_t events_ = 0;
};

// Returns the names of the accounts that have a site: "GPU:0, GPU:0 pinned_host"; "none" if there is none.
std::string MemoriesOf(const SiteTotals& totals, const RecordingTables& tables);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_SITE_TOTALS_H_
