// SiteTotals: the sums of a recording, event by event: bytes and buffers of each row, bytes in use and peak of each
// account. It keeps no map of the live buffers (RecordingState does), so an event takes a few nanoseconds.
//
// A row is what a profile shows: the buffers or blocks of a site, or the idle memory of a pool, whose objects are the
// pool's segments. The rows of sites come first, then those of pools. The sites of segments have no bytes. So the rows
// of an account add up to its bytes in use.
// Sums wrap around on overflow, which only a damaged file can cause.
#ifndef HBMPROF_SRC_TOOL_RECORDING_SITE_TOTALS_H_
#define HBMPROF_SRC_TOOL_RECORDING_SITE_TOTALS_H_

#include "src/tool/recording/cursor.h"

namespace hbmprof::tool {

// An account is one memory space of one device: device * kMemorySpaceCount + space.
//
// Returns the device's name, and the space if it is not device memory: "GPU:0", "GPU:0 pinned_host".
std::string AccountName(const RecordingTables& tables, size_t account);

class SiteTotals {
 public:
  struct Row {
    int64_t bytes = 0;    // live
    int64_t objects = 0;  // live
  };
  struct Account {
    int64_t in_use = 0;
    int64_t idle = 0;  // of pools; part of in_use
    // The highest in_use since the start of the recording, and its time and event (0: the first one; -1: the start). Of
    // the instants with this in_use it is the first with the least idle memory, so that a new segment has its block. If
    // the buffer that made the peak moves, as when it becomes a segment, the instants before that do not count.
    int64_t peak = 0;
    int64_t peak_idle = 0;
    int64_t peak_time = 0;
    int64_t peak_event = -1;
    bool is_used = false;  // it has a site
  };

  // `tables` must outlive this object.
  explicit SiteTotals(const RecordingTables& tables);

  // Enters the event. Returns whether the change is complete: only then are the values those of one instant.
  bool Apply(const RecordedEvent& event);

  // Returns by how much the event changes the live bytes of its site.
  static int64_t ChangeOf(const RecordedEvent& event);
  // Calls visit(row, bytes, objects) with the change of each row that the event changes.
  template <typename Visit>
  void ForEachChange(const RecordedEvent& event, const Visit& visit) const {
    if (event.site >= tables_.sites.size() || event.kind == RecordedKind::kFailed) return;
    const int64_t bytes = ChangeOf(event);
    visit(RowOf(event.site), bytes, internal::Begins(event.kind) ? 1 : -1);
    if (pools_.from(event.site) != RecordedPools::kNone) visit(RowOfPool(pools_.from(event.site)), Minus(0, bytes), 0);
  }

  uint32_t row_count() const { return static_cast<uint32_t>(rows_.size()); }
  const Row& row(uint32_t number) const { return rows_[number].now; }
  size_t account_of(uint32_t row) const { return rows_[row].account; }
  // The call stack of the row, as RecordedStacks numbers it.
  uint32_t stack_of(uint32_t row) const;
  size_t account_count() const { return accounts_.size(); }
  const Account& account(size_t number) const { return accounts_[number].now; }
  // The live bytes and buffers of a row at the peak of its account.
  int64_t peak_bytes(uint32_t row) const { return AtPeak(row) ? rows_[row].peak_bytes : rows_[row].now.bytes; }
  int64_t peak_objects(uint32_t row) const { return AtPeak(row) ? rows_[row].peak_objects : rows_[row].now.objects; }
  // The accounts that the last change has changed.
  const std::vector<size_t>& changed_accounts() const { return changed_; }

 private:
  struct RowState {
    Row now;
    size_t account = 0;
    uint64_t peak_number = 0;  // the peak of the account whose values are stored in peak_bytes and peak_objects
    int64_t peak_bytes = 0;
    int64_t peak_objects = 0;
  };
  struct AccountState {
    Account now;
    uint64_t peak_number = 0;             // grows with each new peak
    std::optional<uint64_t> peak_buffer;  // the buffer whose allocation has made the peak
  };

  // Returns whether the values at the peak are stored. Otherwise they are the present values.
  bool AtPeak(uint32_t row) const { return rows_[row].peak_number == accounts_[rows_[row].account].peak_number; }
  uint32_t RowOfPool(uint32_t pool) const { return static_cast<uint32_t>(tables_.sites.size()) + pool; }
  uint32_t RowOf(uint32_t site) const {
    return pools_.segment_of(site) == RecordedPools::kNone ? site : RowOfPool(pools_.segment_of(site));
  }
  void AddToRow(uint32_t row, int64_t bytes, int64_t objects);

  const RecordingTables& tables_;
  const RecordedPools pools_;
  std::vector<RowState> rows_;
  std::vector<AccountState> accounts_;
  std::vector<size_t> changed_;
  bool is_new_change_ = true;
  int64_t events_ = 0;
};

// Returns the names of the accounts that have a site: "GPU:0, GPU:0 pinned_host"; "none" if there is none.
std::string MemoriesOf(const SiteTotals& totals, const RecordingTables& tables);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_RECORDING_SITE_TOTALS_H_
