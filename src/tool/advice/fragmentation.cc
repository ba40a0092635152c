// kFragmentation: free memory in small pieces, and the buffers between the pieces.
#include <cstdlib>

#include "src/tool/advice/analysis.h"

namespace hbmprof::tool::advise {

void Analysis::ReadDriverSamples() {
  for (const DriverSample& sample : recording_.samples()) {
    for (const DriverSample::Device& device : sample.devices) {
      if (device.device >= fragmentation.size() || !device.bytes_free.has_value() ||
          !device.largest_free_block_bytes.has_value()) {
        continue;
      }
      Fragmentation& result = fragmentation[device.device];
      ++result.samples;
      const int64_t free = *device.bytes_free;
      const int64_t largest = *device.largest_free_block_bytes;
      const auto& space = tables.names.devices[device.device].spaces[static_cast<int>(MemorySpace::kDevice)];
      const int64_t limit = device.bytes_limit.value_or(space.bytes_limit.value_or(free));
      const bool is_fragmented =
          free - largest > PercentOf(kFragmentedPercent, free) && free >= PercentOf(kMinFreePercent, limit);
      if (!is_fragmented) continue;
      ++result.fragmented;
      if (result.worst_sample != nullptr && free - largest <= result.free_bytes - result.largest) continue;
      result.worst_sample = &sample;
      result.free_bytes = free;
      result.largest = largest;
    }
  }
}

void Analysis::AddAddresses(uint64_t id, int64_t bytes, uint32_t site) {
  const Snapshot::Sample& sample = tables.sites[site];
  if (id >> 57 != 0 || bytes <= 0 || SpaceOf(sample.kind) != MemorySpace::kDevice) return;
  Fragmentation& device = fragmentation[sample.device];
  device.lowest = std::min(device.lowest, id);
  device.highest = std::max(device.highest, id + static_cast<uint64_t>(bytes));
}

void Analysis::ReadFreeBytes(int64_t time, const SiteTotals& totals) {
  while (const DriverSample* sample = cursor_.NextSample(time)) {
    for (const DriverSample::Device& device : sample->devices) {
      if (device.device >= fragmentation.size() || !device.bytes_free.has_value()) continue;
      Fragmentation& result = fragmentation[device.device];
      result.sampled_free = *device.bytes_free;
      result.sampled_in_use = totals.account(size_t{device.device} * kMemorySpaceCount).in_use;
    }
  }
}

void Analysis::CountFailure(const RecordedEvent& event, const SiteTotals& totals) {
  // The id of the event is the account.
  if (event.id % kMemorySpaceCount != static_cast<uint64_t>(MemorySpace::kDevice)) return;
  Fragmentation& device = fragmentation[event.id / kMemorySpaceCount];
  if (!device.sampled_free.has_value()) return;
  const int64_t growth = Minus(totals.account(event.id).in_use, device.sampled_in_use);
  const int64_t free = Minus(*device.sampled_free, std::max<int64_t>(growth, 0));
  // The size is 0 if it is not known.
  if (event.bytes > 0 && event.bytes <= free) ++device.failed;
}

void Analysis::StoreFragments(int64_t time, const Live& live) {
  for (Fragmentation& device : fragmentation) {
    if (device.worst_sample == nullptr || device.worst_sample->time >= time || !device.live.empty()) continue;
    for (const auto& [address, buffer] : live) {
      const Snapshot::Sample& site = tables.sites[buffer.site];
      if (site.device != device.device || SpaceOf(site.kind) != MemorySpace::kDevice || IsBlock(buffer.site) ||
          address >> 57 != 0 || buffer.bytes <= 0) {
        continue;
      }
      device.live[address] = {address + static_cast<uint64_t>(buffer.bytes), buffer.site};
    }
  }
}

namespace {

// Returns the length in bytes of the largest range of addresses without a live buffer. Buffers of the group `without`
// count as freed.
int64_t LargestRange(const Findings& found, const Fragmentation& device, std::optional<uint32_t> without) {
  uint64_t end = device.lowest;
  uint64_t largest = 0;
  for (const auto& [address, buffer] : device.live) {
    if (without.has_value() && found.group_of[buffer.second] == *without) continue;
    if (address > end) largest = std::max(largest, address - end);
    end = std::max(end, buffer.first);
  }
  if (device.highest > end) largest = std::max(largest, device.highest - end);
  return static_cast<int64_t>(largest);
}

void AddPins(const Findings& found, const Fragmentation& device, int64_t largest, Advice& advice) {
  std::map<uint32_t, Account::Freed> groups;
  for (const auto& [address, buffer] : device.live) {
    Account::Freed& group = groups[found.group_of[buffer.second]];
    AddTo(group.bytes, static_cast<int64_t>(buffer.first - address));
    ++group.count;
  }
  // Groups with few bytes come first, because they are the cheapest to move.
  std::vector<std::pair<int64_t, uint32_t>> order;
  for (const auto& [group, sums] : groups) order.emplace_back(sums.bytes, group);
  absl::c_sort(order);
  if (order.size() > 4 * kMaxCandidates) order.resize(4 * kMaxCandidates);
  std::vector<std::pair<int64_t, uint32_t>> pins;  // (range without the group, group)
  for (const auto& [bytes, group] : order) {
    const int64_t range = LargestRange(found, device, group);
    if (range - bytes > largest + largest / 2) pins.emplace_back(range, group);
  }
  std::sort(pins.rbegin(), pins.rend());
  if (pins.empty()) return;
  for (const auto& [range, group] : pins) {
    if (advice.sites.size() < kShownSites) {
      advice.sites.push_back(found.SiteOf(group, groups[group].bytes, groups[group].count));
    }
  }
  advice.text += Cat(" Buffers of ", advice.sites[0].function, " lie between the free pieces: without these ",
                     groups[pins[0].second].count, " buffers (", Bytes(groups[pins[0].second].bytes),
                     ") the largest free block has ", Bytes(pins[0].first), ".");
  advice.how += " The addresses of the live buffers at this instant give the same largest free block.";
  advice.replay = {{"largest_free_before", largest}, {"largest_free_after", pins[0].first}};
}

}  // namespace

void AdviseFragmentation(const Findings& found, const Fragmentation& device, AdviceReport& report) {
  if (device.worst_sample == nullptr ||
      (device.failed == 0 && device.fragmented < PercentOf(kMinFragmentedSamples, device.samples))) {
    return;
  }
  Advice advice = found.AdviceOn(AdviceKind::kFragmentation, device.device * kMemorySpaceCount);
  advice.bytes = device.free_bytes - device.largest;
  advice.text = Cat("Free memory is in small pieces: at ", found.At(device.worst_sample->time),
                    " the largest free block has ", Bytes(device.largest), " of ", Bytes(device.free_bytes), " free.");
  if (device.failed > 0) advice.text += Cat(" ", device.failed, " allocations failed although enough bytes were free.");
  advice.how = Cat("In ", device.fragmented, " of ", device.samples, " samples of the driver more than ",
                   kFragmentedPercent, " % of the free memory is outside of the largest free block.");
  const int64_t range = LargestRange(found, device, std::nullopt);
  // The addresses are used only if the largest range between them is about as large as the largest free block that the
  // driver reports. Otherwise they are not positions in the device's memory.
  const bool addresses_tell = std::abs(range - device.largest) <= std::max<int64_t>(device.largest / 10, 4096);
  if (addresses_tell) AddPins(found, device, range, advice);
  report.advice.push_back(std::move(advice));
}

}  // namespace hbmprof::tool::advise
