#include "src/tool/recording/site_totals.h"

#include "hbmprof/allocation.h"

namespace hbmprof::tool {

std::string AccountName(const RecordingTables& tables, size_t account) {
  const std::string& device = tables.names.devices[account / kMemorySpaceCount].name;
  const auto space = static_cast<MemorySpace>(account % kMemorySpaceCount);
  return space == MemorySpace::kDevice ? device : Cat(device, " ", MemorySpaceName(space));
}

std::string MemoriesOf(const SiteTotals& totals, const RecordingTables& tables) {
  std::string names;
  for (size_t account = 0; account < totals.account_count(); ++account) {
    if (totals.account(account).is_used) names += (names.empty() ? "" : ", ") + AccountName(tables, account);
  }
  return names.empty() ? "none" : names;
}

SiteTotals::SiteTotals(const RecordingTables& tables)
    : tables_(tables),
      pools_(tables),
      rows_(tables.sites.size() + pools_.all().size()),
      accounts_(tables.names.devices.size() * kMemorySpaceCount) {
  for (uint32_t i = 0; i < tables.sites.size(); ++i) rows_[i].account = AccountOf(tables.sites[i]);
  for (uint32_t i = 0; i < pools_.all().size(); ++i) {
    rows_[RowOfPool(i)].account = pools_.all()[i].device * size_t{kMemorySpaceCount};
  }
  for (uint32_t i = 0; i < tables.sites.size(); ++i) {
    const Snapshot::Sample& sample = tables.sites[i];
    accounts_[rows_[i].account].now.is_used = true;
    AddToRow(RowOf(i), sample.inuse_bytes, sample.inuse_objects);
    if (pools_.from(i) == RecordedPools::kNone) {
      AddTo(accounts_[rows_[i].account].now.in_use, sample.inuse_bytes);
    } else {
      AddToRow(RowOfPool(pools_.from(i)), Minus(0, sample.inuse_bytes), 0);
    }
  }
  for (AccountState& account : accounts_) {
    account.now.peak = account.now.in_use;
    account.now.peak_idle = account.now.idle;
    account.now.peak_time = tables.start_time;
    account.peak_number = 1;
  }
}

uint32_t SiteTotals::stack_of(uint32_t row) const {
  const auto sites = static_cast<uint32_t>(tables_.sites.size());
  return row < sites ? tables_.sites[row].stack : static_cast<uint32_t>(tables_.names.stacks.size()) + row - sites;
}

int64_t SiteTotals::ChangeOf(const RecordedEvent& event) {
  if (internal::Begins(event.kind)) return event.bytes;
  return internal::Ends(event.kind) ? Minus(0, event.bytes) : 0;
}

void SiteTotals::AddToRow(uint32_t number, int64_t bytes, int64_t objects) {
  RowState& row = rows_[number];
  AccountState& account = accounts_[row.account];
  if (row.peak_number != account.peak_number) {
    row.peak_number = account.peak_number;
    row.peak_bytes = row.now.bytes;
    row.peak_objects = row.now.objects;
  }
  AddTo(row.now.bytes, bytes);
  AddTo(row.now.objects, objects);
  if (number >= tables_.sites.size()) AddTo(account.now.idle, bytes);
}

bool SiteTotals::Apply(const RecordedEvent& event) {
  ++events_;
  if (is_new_change_) changed_.clear();
  is_new_change_ = !event.is_continued;
  ForEachChange(event, [this](uint32_t row, int64_t bytes, int objects) { AddToRow(row, bytes, objects); });
  const bool has_site = event.site < tables_.sites.size() && event.kind != RecordedKind::kFailed;
  if (has_site) {
    const size_t account = account_of(event.site);
    if (pools_.from(event.site) == RecordedPools::kNone) AddTo(accounts_[account].now.in_use, ChangeOf(event));
    if (!absl::c_linear_search(changed_, account)) changed_.push_back(account);
  }
  if (event.is_continued) return false;
  for (const size_t number : changed_) {
    AccountState& account = accounts_[number];
    const bool is_higher = account.now.in_use > account.now.peak;
    // The same memory, now at another site, such as that of a segment.
    const bool is_moved = event.kind == RecordedKind::kMoveTo && account.peak_buffer == event.id;
    if (has_site && account.peak_buffer == event.id) account.peak_buffer.reset();
    const bool is_better =
        account.now.in_use == account.now.peak && (is_moved || account.now.idle < account.now.peak_idle);
    if (!is_higher && !is_better) continue;
    if (is_higher && event.kind == RecordedKind::kAlloc) account.peak_buffer = event.id;
    account.now.peak = account.now.in_use;
    account.now.peak_idle = account.now.idle;
    account.now.peak_time = event.time;
    account.now.peak_event = events_ - 1;
    ++account.peak_number;
  }
  return true;
}

}  // namespace hbmprof::tool
