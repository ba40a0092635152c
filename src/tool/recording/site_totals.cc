#include "src/tool/recording/site_totals.h"

#include "hbmprof/allocation.h"
#include "src/tool/util/text.h"

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
    : sites_(tables.sites.size()), accounts_(tables.names.devices.size() * kMemorySpaceCount) {
  for (size_t i = 0; i < sites_.size(); ++i) {
    const Snapshot::Sample& sample = tables.sites[i];
    SiteState& site = sites_[i];
    site.account = AccountOf(sample);
    site.is_segment = tables.site_kinds[i] == RecordingTables::SiteKind::kSegment;
    site.now.bytes = sample.inuse_bytes;
    site.now.objects = sample.inuse_objects;
    site.now.allocated_bytes = std::max(sample.alloc_bytes, sample.inuse_bytes);
    site.now.freed_bytes = Minus(site.now.allocated_bytes, sample.inuse_bytes);
    site.now.allocated_objects = std::max(sample.alloc_objects, sample.inuse_objects);
    site.now.freed_objects = Minus(site.now.allocated_objects, sample.inuse_objects);
    Account& account = accounts_[site.account].now;
    account.is_used = true;
    AddTo(account.in_use, sample.inuse_bytes);
    if (site.is_segment) AddTo(account.idle, sample.inuse_bytes);
  }
  for (AccountState& account : accounts_) {
    account.now.peak = account.now.in_use;
    account.now.peak_time = tables.start_time;
    account.peak_number = 1;
  }
}

int64_t SiteTotals::ChangeOf(const RecordedEvent& event) {
  switch (event.kind) {
    case RecordedKind::kAlloc:
    case RecordedKind::kMoveTo:
      return event.bytes;
    case RecordedKind::kFree:
    case RecordedKind::kCharge:
    case RecordedKind::kMoveFrom:
      return Minus(0, event.bytes);
    case RecordedKind::kFailed:
    case RecordedKind::kTags:
    case RecordedKind::kResetPeak:
    case RecordedKind::kMark:
      break;
  }
  return 0;
}

bool SiteTotals::Apply(const RecordedEvent& event) {
  ++events_;
  if (is_new_change_) changed_.clear();
  is_new_change_ = !event.is_continued;
  const int64_t change = ChangeOf(event);
  // A buffer of 0 bytes counts as an object.
  const bool has_site = event.site < sites_.size() && event.kind != RecordedKind::kFailed;
  if (has_site) {
    SiteState& site = sites_[event.site];
    AccountState& account = accounts_[site.account];
    if (site.peak_number != account.peak_number) {
      site.peak_number = account.peak_number;
      site.peak_bytes = site.now.bytes;
      site.peak_objects = site.now.objects;
    }
    const bool is_charge = event.kind == RecordedKind::kCharge;
    const bool begins = internal::Begins(event.kind);
    AddTo(site.now.bytes, change);
    if (change > 0) AddTo(site.now.allocated_bytes, change);
    if (change < 0) site.now.freed_bytes = Minus(site.now.freed_bytes, change);
    if (!is_charge) {
      AddTo(begins ? site.now.allocated_objects : site.now.freed_objects, 1);
      AddTo(site.now.objects, begins ? 1 : -1);
    }
    AddTo(account.now.in_use, change);
    if (site.is_segment) AddTo(account.now.idle, change);
    if (!absl::c_linear_search(changed_, site.account)) changed_.push_back(site.account);
  }
  if (event.is_continued) return false;
  for (const size_t number : changed_) {
    AccountState& account = accounts_[number];
    if (account.now.in_use <= account.now.peak) continue;
    account.now.peak = account.now.in_use;
    account.now.peak_time = event.time;
    account.now.peak_event = events_ - 1;
    ++account.peak_number;
  }
  return true;
}

}  // namespace hbmprof::tool
