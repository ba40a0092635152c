#include "src/core/pool_samples.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "src/base/saturating.h"

namespace hbmprof::internal {
namespace {

// Sums of one pool at the peak of its account.
struct Sums {
  int64_t peak_bytes = 0;  // of its segments, minus what it has handed out
  int64_t peak_segments = 0;
};

// Returns the index of the pool of this name, which is added to `device` if it is missing.
size_t IndexOfPool(const std::string& name, Snapshot::Device* device) {
  for (size_t i = 0; i < device->pools.size(); ++i) {
    if (device->pools[i].name == name) return i;
  }
  device->pools.emplace_back().name = name;
  return device->pools.size() - 1;
}

}  // namespace

std::string IdleMemoryFrame(const std::string& pool) {
  return pool.empty() ? "[idle memory of a pool]" : "[idle memory of " + pool + "]";
}

void SeparatePools(const std::vector<uint32_t>& from, const std::function<uint64_t(const std::string&)>& frame_of,
                   Snapshot* snapshot) {
  std::vector<std::vector<Sums>> sums(snapshot->devices.size());
  // Returns the pool of a sample's device with this name, and its sums.
  const auto pool_of = [&](const Snapshot::Sample& sample, uint32_t allocator) -> std::pair<PoolStats&, Sums&> {
    Snapshot::Device& device = snapshot->devices[sample.device];
    const size_t index = IndexOfPool(snapshot->allocators[allocator], &device);
    std::vector<Sums>& of_device = sums[sample.device];
    if (of_device.size() <= index) of_device.resize(index + 1);
    return {device.pools[index], of_device[index]};
  };
  for (Snapshot::Device& device : snapshot->devices) {
    for (DeviceStats& stats : device.spaces) stats.pool_bytes = stats.idle_bytes = 0;
    for (PoolStats& pool : device.pools) pool.bytes_reserved = pool.bytes_allocated = pool.segments = 0;
  }
  for (size_t i = 0; i < snapshot->samples.size(); ++i) {
    Snapshot::Sample& sample = snapshot->samples[i];
    if (from[i] != 0) {
      const auto [pool, of_pool] = pool_of(sample, from[i] - 1);
      pool.bytes_allocated = SaturatingSum(pool.bytes_allocated, sample.inuse_bytes);
      of_pool.peak_bytes = SaturatingDifference(of_pool.peak_bytes, sample.peak_bytes);
    } else {
      sample.reserved_objects = sample.inuse_objects;
      sample.reserved_bytes = sample.inuse_bytes;
    }
    if (sample.kind != MemoryKind::kPool) continue;
    const auto [pool, of_pool] = pool_of(sample, sample.allocator);
    pool.bytes_reserved = SaturatingSum(pool.bytes_reserved, sample.inuse_bytes);
    pool.segments = SaturatingSum(pool.segments, sample.inuse_objects);
    of_pool.peak_bytes = SaturatingSum(of_pool.peak_bytes, sample.peak_bytes);
    of_pool.peak_segments = SaturatingSum(of_pool.peak_segments, sample.peak_objects);
    int64_t& pool_bytes = snapshot->devices[sample.device].spaces[static_cast<int>(MemorySpace::kDevice)].pool_bytes;
    pool_bytes = SaturatingSum(pool_bytes, sample.reserved_bytes);
    Snapshot::Sample segment;
    segment.stack = sample.stack;
    segment.device = sample.device;
    segment.kind = sample.kind;
    segment.allocator = sample.allocator;
    segment.tags = std::move(sample.tags);
    segment.reserved_objects = sample.reserved_objects;
    segment.reserved_bytes = sample.reserved_bytes;
    sample = std::move(segment);
  }
  for (uint32_t d = 0; d < snapshot->devices.size(); ++d) {
    Snapshot::Device& device = snapshot->devices[d];
    sums[d].resize(device.pools.size());
    for (size_t i = 0; i < device.pools.size(); ++i) {
      PoolStats& pool = device.pools[i];
      pool.idle_bytes = std::max<int64_t>(SaturatingDifference(pool.bytes_reserved, pool.bytes_allocated), 0);
      int64_t& idle_bytes = device.spaces[static_cast<int>(MemorySpace::kDevice)].idle_bytes;
      idle_bytes = SaturatingSum(idle_bytes, pool.idle_bytes);
      if (pool.bytes_allocated > pool.bytes_reserved) {
        snapshot->warnings.push_back("The blocks of the pool " + (pool.name.empty() ? "without a name" : pool.name) +
                                     " on " + device.name + " have " +
                                     std::to_string(SaturatingDifference(pool.bytes_allocated, pool.bytes_reserved)) +
                                     " bytes more than its segments: some segments were not recorded");
      }
      Snapshot::Sample idle;
      idle.device = d;
      idle.kind = MemoryKind::kPool;
      idle.inuse_objects = pool.idle_bytes != 0 ? pool.segments : 0;
      idle.inuse_bytes = pool.idle_bytes;
      idle.peak_bytes = std::max<int64_t>(sums[d][i].peak_bytes, 0);
      idle.peak_objects = idle.peak_bytes != 0 ? sums[d][i].peak_segments : 0;
      if (idle.inuse_bytes == 0 && idle.peak_bytes == 0) continue;
      const auto name = std::find(snapshot->allocators.begin(), snapshot->allocators.end(), pool.name);
      idle.allocator = static_cast<uint32_t>(name - snapshot->allocators.begin());
      idle.stack = static_cast<uint32_t>(snapshot->stacks.size());
      snapshot->stacks.push_back({{frame_of(IdleMemoryFrame(pool.name))}, false});
      snapshot->samples.push_back(std::move(idle));
    }
  }
}

}  // namespace hbmprof::internal
