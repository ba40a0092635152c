// A naive model of pools: a map of all records, and sums over it that are computed anew at every peak. Also a program
// that uses pools at random and correctly (RandomPools), and the comparison of a snapshot with the model.
#ifndef HBMPROF_TESTS_SUPPORT_POOLS_MODEL_H_
#define HBMPROF_TESTS_SUPPORT_POOLS_MODEL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"

namespace hbmprof_test {

// Pools are numbered from 1; 0 is none. Addresses and sizes are in units.
class PoolsModel {
 public:
  static constexpr int kTags = 4;
  static constexpr int kDevices = 2;
  // Three pools inside each other, two others of the same device, and one of the other device.
  static constexpr int kPools = 6;
  static constexpr int kOuter[kPools + 1] = {0, 0, 1, 2, 0, 0, 0};
  static constexpr int DeviceOf(int pool) { return pool == kPools ? 1 : 0; }

  struct Key {
    bool operator<(const Key& other) const { return std::tie(from, start) < std::tie(other.from, other.start); }
    bool operator==(const Key& other) const { return from == other.from && start == other.start; }
    int from;  // the pool that has handed the memory out
    int64_t start;
  };
  struct Record {
    int64_t units;
    int tag;
    int device;
    int segment_of = 0;  // the pool that it is a segment of
  };
  struct Values {
    bool operator==(const Values& other) const { return objects == other.objects && units == other.units; }
    void Add(const Values& more) {
      objects += more.objects;
      units += more.units;
    }
    int64_t objects = 0;
    int64_t units = 0;
  };
  // Of one device at one instant. Blocks are indexed by their pool; 0 are the buffers.
  struct Held {
    using ByTag = std::array<Values, kTags>;
    std::array<ByTag, kPools + 1> leaves{};
    ByTag from_device{};                          // buffers and segments, by tag
    std::array<Values, kPools + 1> segments{};    // of the pool
    std::array<Values, kPools + 1> handed_out{};  // by the pool
    int64_t idle(int pool) const { return std::max<int64_t>(signed_idle(pool), 0); }
    int64_t signed_idle(int pool) const {
      return segments[static_cast<size_t>(pool)].units - handed_out[static_cast<size_t>(pool)].units;
    }
    int64_t in_use() const {
      int64_t sum = 0;
      for (const Values& values : from_device) sum += values.units;
      return sum;
    }
  };
  struct PoolState {
    int64_t peak_reserved = 0;
    int64_t peak_allocated = 0;
    Held::ByTag at_peak{};  // its blocks at its peak
  };
  struct Device {
    int64_t peak = 0;
    Held at_peak;
    std::optional<Key> peak_key;  // the live record whose allocation made the peak
    int64_t num_allocs = 0;
    int64_t largest = 0;
  };

  // --- Events ---

  void Add(const Key& key, const Record& record) {
    ASSERT_TRUE(records_.emplace(key, record).second) << "live already: " << key.from << " at " << key.start;
    Values& allocated = allocated_[SiteOf(key, record)];
    ++allocated.objects;
    allocated.units += record.units;
    ++devices_[D(record)].num_allocs;
    Grown(key, record, true);
  }
  void End(const Key& key) {
    ASSERT_EQ(records_.count(key), 1u) << "not live: " << key.from << " at " << key.start;
    ForgetPeak(key);
    records_.erase(key);
  }
  void Resize(const Key& key, int64_t units) {
    Record& record = records_.at(key);
    const int64_t more = units - record.units;
    if (more == 0) return;
    record.units = units;
    if (more > 0) {
      allocated_[SiteOf(key, record)].units += more;
      Grown(key, record, false);
    }
    ForgetPeak(key);
  }
  // A record becomes a segment of `pool`, or with 0 a nested segment becomes a block again.
  void SetSegment(const Key& key, int pool) {
    Record& record = records_.at(key);
    const Values moved = {1, record.units};
    Subtract(&allocated_[SiteOf(key, record)], moved);
    record.segment_of = pool;
    allocated_[SiteOf(key, record)].Add(moved);
    LookAtPools(record.device, false);
    Device& device = devices_[D(record)];
    if (!(device.peak_key == key)) return;
    // It was the same memory at the peak.
    device.peak_key.reset();
    Subtract(&device.at_peak.leaves[static_cast<size_t>(key.from)][static_cast<size_t>(record.tag)], moved);
    device.at_peak.segments[static_cast<size_t>(pool)].Add(moved);
  }
  void ResetPeak(int device) {
    devices_[static_cast<size_t>(device)].peak = -1;
    LookAtDevice(device, std::nullopt);
    for (int pool = 1; pool <= kPools; ++pool) {
      if (DeviceOf(pool) == device) pools_[static_cast<size_t>(pool)] = {-1, -1, {}};
    }
    LookAtPools(device, true);
  }

  // --- State ---

  const std::map<Key, Record>& records() const { return records_; }
  Held HeldBy(int device) const {
    Held held;
    for (const auto& [key, record] : records_) {
      if (record.device != device) continue;
      const Values values = {1, record.units};
      const auto tag = static_cast<size_t>(record.tag);
      if (key.from == 0) held.from_device[tag].Add(values);
      held.handed_out[static_cast<size_t>(key.from)].Add(values);
      if (record.segment_of != 0) {
        held.segments[static_cast<size_t>(record.segment_of)].Add(values);
      } else {
        held.leaves[static_cast<size_t>(key.from)][tag].Add(values);
      }
    }
    return held;
  }
  const Device& device(int device) const { return devices_[static_cast<size_t>(device)]; }
  const PoolState& pool(int pool) const { return pools_[static_cast<size_t>(pool)]; }
  int64_t num_live(int device) const {
    return std::count_if(records_.begin(), records_.end(),
                         [&](const auto& entry) { return entry.second.device == device; });
  }
  Values allocated(int from, int tag, int device) const {
    const auto found = allocated_.find({from, 0, tag, device});
    return found == allocated_.end() ? Values{} : found->second;
  }

 private:
  using Site = std::tuple<int, int, int, int>;  // from, segment_of, tag, device

  static size_t D(const Record& record) { return static_cast<size_t>(record.device); }
  static Site SiteOf(const Key& key, const Record& record) {
    return {key.from, record.segment_of, record.tag, record.device};
  }
  static void Subtract(Values* values, const Values& less) { values->Add({-less.objects, -less.units}); }

  void ForgetPeak(const Key& key) {
    for (Device& device : devices_) {
      if (device.peak_key == key) device.peak_key.reset();
    }
  }
  void Grown(const Key& key, const Record& record, bool is_new) {
    Device& device = devices_[D(record)];
    device.largest = std::max(device.largest, record.units);
    LookAtDevice(record.device, is_new ? std::make_optional(key) : std::nullopt);
    LookAtPools(record.device, false);
  }
  void LookAtDevice(int number, std::optional<Key> key) {
    Device& device = devices_[static_cast<size_t>(number)];
    Held held = HeldBy(number);
    if (held.in_use() <= device.peak) return;
    device.peak = held.in_use();
    device.at_peak = held;
    device.peak_key = key;
  }
  void LookAtPools(int device, bool has_reset) {
    const Held held = HeldBy(device);
    for (int number = 1; number <= kPools; ++number) {
      if (DeviceOf(number) != device) continue;
      const auto i = static_cast<size_t>(number);
      PoolState& pool = pools_[i];
      pool.peak_reserved = std::max(pool.peak_reserved, held.segments[i].units);
      if (held.handed_out[i].units <= pool.peak_allocated && !has_reset) continue;
      pool.peak_allocated = held.handed_out[i].units;
      pool.at_peak = held.leaves[i];
      Device& of_pool = devices_[static_cast<size_t>(device)];
      if (held.in_use() == of_pool.peak) of_pool.at_peak = held;
    }
  }

  std::map<Key, Record> records_;
  std::map<Site, Values> allocated_;  // ever
  std::array<Device, kDevices> devices_;
  std::array<PoolState, kPools + 1> pools_;
};

// The devices and pools of a model in a profiler, and the comparison of the two.
class ModeledPools {
 public:
  static constexpr uint64_t kBase = uint64_t{1} << 32;
  static constexpr int64_t kUnit = 256;
  static hbmprof::BufferId At(int64_t unit) { return hbmprof::BufferId(kBase + static_cast<uint64_t>(unit * kUnit)); }
  static size_t Bytes(int64_t units) { return static_cast<size_t>(units * kUnit); }
  static std::string NameOf(int pool) { return "pool" + std::to_string(pool); }

  explicit ModeledPools(hbmprof::Profiler* profiler) : profiler_(*profiler) {
    for (int device = 0; device < PoolsModel::kDevices; ++device) {
      devices_.push_back(profiler->Device("sim:" + std::to_string(device)));
    }
    pools_.emplace_back();
    for (int pool = 1; pool <= PoolsModel::kPools; ++pool) {
      pools_.push_back({devices_[static_cast<size_t>(PoolsModel::DeviceOf(pool))], profiler->Allocator(NameOf(pool))});
    }
  }
  hbmprof::Profiler& profiler() const { return profiler_; }
  hbmprof::DeviceId device(int device) const { return devices_[static_cast<size_t>(device)]; }
  const hbmprof::Pool& pool(int pool) const { return pools_[static_cast<size_t>(pool)]; }

  // Expects that a snapshot has exactly the values of the model.
  static void ExpectSame(const hbmprof::Snapshot& snapshot, const PoolsModel& model) {
    for (size_t device = 0; device < snapshot.devices.size(); ++device) {
      const std::string& name = snapshot.devices[device].name;
      SCOPED_TRACE(name);
      ExpectSameDevice(snapshot, static_cast<uint32_t>(device), name.back() - '0', model);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  using Sample = hbmprof::Snapshot::Sample;
  using Values = PoolsModel::Values;

  static void ExpectEqual(int64_t objects, int64_t bytes, const Values& expected) {
    ASSERT_EQ(bytes, expected.units * kUnit);
    ASSERT_EQ(objects, expected.objects);
  }

  static void ExpectSameDevice(const hbmprof::Snapshot& snapshot, uint32_t index, int number, const PoolsModel& model) {
    constexpr size_t kPools = PoolsModel::kPools;
    // The sums of the samples: leaves by pool and tag, the idle rows by pool.
    Sample leaves[kPools + 1][PoolsModel::kTags];
    Sample idle[kPools + 1];
    int64_t reserved_objects[PoolsModel::kTags] = {};
    int64_t reserved_bytes[PoolsModel::kTags] = {};
    Sample total;
    for (const Sample& sample : snapshot.samples) {
      if (sample.device != index) continue;
      const std::string& allocator = snapshot.allocators[sample.allocator];
      const auto pool = static_cast<size_t>(allocator.empty() ? 0 : allocator.back() - '0');
      total.inuse_bytes += sample.inuse_bytes;
      total.peak_bytes += sample.peak_bytes;
      ASSERT_GE(sample.inuse_bytes, 0);
      ASSERT_GE(sample.peak_bytes, 0);
      ASSERT_GE(sample.pool_peak_bytes, 0);
      if (sample.tags.empty()) {
        ASSERT_EQ(sample.kind, hbmprof::MemoryKind::kPool);
        ASSERT_EQ(idle[pool].inuse_bytes + idle[pool].peak_bytes, 0) << "two rows of one pool";
        idle[pool] = sample;
        continue;
      }
      const auto tag = static_cast<size_t>(std::stoi(sample.tags.at(0).second));
      reserved_objects[tag] += sample.reserved_objects;
      reserved_bytes[tag] += sample.reserved_bytes;
      if (sample.kind == hbmprof::MemoryKind::kPool) {
        ASSERT_EQ(sample.inuse_bytes + sample.peak_bytes + sample.pool_peak_bytes + sample.alloc_bytes, 0);
        continue;
      }
      Sample& sum = leaves[pool][tag];
      sum.alloc_objects += sample.alloc_objects;
      sum.alloc_bytes += sample.alloc_bytes;
      sum.inuse_objects += sample.inuse_objects;
      sum.inuse_bytes += sample.inuse_bytes;
      sum.peak_objects += sample.peak_objects;
      sum.peak_bytes += sample.peak_bytes;
      sum.pool_peak_objects += sample.pool_peak_objects;
      sum.pool_peak_bytes += sample.pool_peak_bytes;
    }
    const PoolsModel::Held held = model.HeldBy(number);
    const PoolsModel::Held& at_peak = model.device(number).at_peak;
    for (size_t tag = 0; tag < PoolsModel::kTags; ++tag) {
      SCOPED_TRACE("tag " + std::to_string(tag));
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(reserved_objects[tag], reserved_bytes[tag], held.from_device[tag]));
      for (size_t pool = 0; pool <= kPools; ++pool) {
        SCOPED_TRACE("leaves of pool " + std::to_string(pool));
        const Sample& sample = leaves[pool][tag];
        const auto expect = [](int64_t objects, int64_t bytes, const Values& expected) {
          ASSERT_NO_FATAL_FAILURE(ExpectEqual(objects, bytes, expected));
        };
        expect(sample.inuse_objects, sample.inuse_bytes, held.leaves[pool][tag]);
        expect(sample.peak_objects, sample.peak_bytes, at_peak.leaves[pool][tag]);
        expect(sample.alloc_objects, sample.alloc_bytes,
               model.allocated(static_cast<int>(pool), static_cast<int>(tag), number));
        if (pool == 0 || PoolsModel::DeviceOf(static_cast<int>(pool)) != number) continue;
        expect(sample.pool_peak_objects, sample.pool_peak_bytes, model.pool(static_cast<int>(pool)).at_peak[tag]);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    int64_t pool_units = 0;
    int64_t idle_units = 0;
    int64_t excess = 0;
    int64_t excess_at_peak = 0;
    for (int pool = 1; pool <= PoolsModel::kPools; ++pool) {
      if (PoolsModel::DeviceOf(pool) != number) continue;
      SCOPED_TRACE("pool " + std::to_string(pool));
      const auto i = static_cast<size_t>(pool);
      idle_units += held.idle(pool);
      excess += held.idle(pool) - held.signed_idle(pool);
      excess_at_peak += at_peak.idle(pool) - at_peak.signed_idle(pool);
      ASSERT_EQ(idle[i].inuse_bytes, held.idle(pool) * kUnit);
      ASSERT_EQ(idle[i].inuse_objects, held.idle(pool) != 0 ? held.segments[i].objects : 0);
      ASSERT_EQ(idle[i].peak_bytes, at_peak.idle(pool) * kUnit);
      ASSERT_NO_FATAL_FAILURE(ExpectSamePool(snapshot.devices[index], pool, held, model));
    }
    for (const auto& [key, record] : model.records()) {
      if (key.from == 0 && record.segment_of != 0 && record.device == number) pool_units += record.units;
    }
    const hbmprof::DeviceStats& stats = snapshot.devices[index].spaces[0];
    const PoolsModel::Device& device = model.device(number);
    ASSERT_EQ(stats.bytes_in_use, held.in_use() * kUnit);
    ASSERT_EQ(stats.peak_bytes_in_use, device.peak * kUnit);
    ASSERT_EQ(stats.pool_bytes, pool_units * kUnit);
    ASSERT_EQ(stats.idle_bytes, idle_units * kUnit);
    ASSERT_EQ(stats.num_live, model.num_live(number));
    ASSERT_EQ(stats.num_allocs, device.num_allocs);
    ASSERT_EQ(stats.largest_alloc_size, device.largest * kUnit);
    ASSERT_EQ(total.inuse_bytes, stats.bytes_in_use + excess * kUnit);
    ASSERT_EQ(total.peak_bytes, stats.peak_bytes_in_use + excess_at_peak * kUnit);
  }

  static void ExpectSamePool(const hbmprof::Snapshot::Device& device, int pool, const PoolsModel::Held& held,
                             const PoolsModel& model) {
    const auto i = static_cast<size_t>(pool);
    const auto found = std::find_if(device.pools.begin(), device.pools.end(),
                                    [&](const auto& stats) { return stats.name == NameOf(pool); });
    const hbmprof::PoolStats stats = found == device.pools.end() ? hbmprof::PoolStats{} : *found;
    ASSERT_EQ(stats.bytes_reserved, held.segments[i].units * kUnit);
    ASSERT_EQ(stats.bytes_allocated, held.handed_out[i].units * kUnit);
    ASSERT_EQ(stats.idle_bytes, held.idle(pool) * kUnit);
    ASSERT_EQ(stats.segments, held.segments[i].objects);
    ASSERT_EQ(stats.peak_bytes_reserved, model.pool(pool).peak_reserved * kUnit);
    ASSERT_EQ(stats.peak_bytes_allocated, model.pool(pool).peak_allocated * kUnit);
  }

  hbmprof::Profiler& profiler_;
  std::vector<hbmprof::DeviceId> devices_;
  std::vector<hbmprof::Pool> pools_;
};

// A call of the profiler, as the model sees it.
struct PoolOperation {
  enum Kind : uint8_t { kAdd, kEnd, kResize, kSetSegment, kResetPeak, kSnapshot };
  Kind kind;
  PoolsModel::Key key{};
  PoolsModel::Record record{};                  // kAdd: the new record; kResize: `units`; kSetSegment: `segment_of`
  int device = 0;                               // kResetPeak
  const hbmprof::Snapshot* snapshot = nullptr;  // kSnapshot

  void Apply(PoolsModel* model) const {
    switch (kind) {
      case kAdd:
        return model->Add(key, record);
      case kEnd:
        return model->End(key);
      case kResize:
        return model->Resize(key, record.units);
      case kSetSegment:
        return model->SetSegment(key, record.segment_of);
      case kResetPeak:
        return model->ResetPeak(device);
      case kSnapshot:
        return ModeledPools::ExpectSame(*snapshot, *model);
    }
  }
};

// A program that uses the pools at random, with the addresses from `base` to `base + units`. `begin(operation)` is
// called before each call of the profiler. `gone(key)` is called after it for each record in the memory that the call
// has ended: the program does not mention them any more.
class RandomPools {
 public:
  using Key = PoolsModel::Key;
  using Record = PoolsModel::Record;

  RandomPools(const ModeledPools& pools, uint64_t seed, int64_t base, int64_t units,
              std::function<void(const PoolOperation&)> begin, std::function<void(const Key&)> gone)
      : pools_(pools), base_(base), units_(units), begin_(std::move(begin)), gone_(std::move(gone)), random_(seed) {}

  // Makes one call. Makes none if what was drawn is not possible now.
  void Step() {
    const int64_t kind = Below(20);
    if (kind < 3) {
      Buffer();
    } else if (kind < 7) {
      Segment();
    } else if (kind < 13) {
      Block();
    } else if (kind < 17) {
      Free();
    } else if (kind < 18) {
      EndNestedSegment();
    } else {
      Resize();
    }
  }
  // Frees everything.
  void Finish() {
    while (!live_.empty()) Free(live_.begin()->first);
  }
  // All records of the device have ended.
  void Forget(int device) {
    for (auto entry = live_.begin(); entry != live_.end();) {
      entry = entry->second.device == device ? live_.erase(entry) : std::next(entry);
    }
  }

 private:
  int64_t Below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }
  hbmprof::Profiler& profiler() const { return pools_.profiler(); }
  static hbmprof::BufferId At(int64_t unit) { return ModeledPools::At(unit); }
  static int64_t BytesOf(int64_t units) { return static_cast<int64_t>(ModeledPools::Bytes(units)); }
  int64_t EndOf(const Key& key) const { return key.start + live_.at(key).units; }

  template <typename Selects>
  std::optional<Key> Any(const Selects& selects) {
    std::vector<Key> found;
    for (const auto& [key, record] : live_) {
      if (selects(key, record)) found.push_back(key);
    }
    if (found.empty()) return std::nullopt;
    return found[static_cast<size_t>(Below(static_cast<int64_t>(found.size())))];
  }
  // Where the free addresses of `from` end that begin at `start`.
  int64_t FreeUntil(int from, int64_t start, int64_t limit) const {
    for (const auto& [key, record] : live_) {
      if (key.from != from || key.start + record.units <= start) continue;
      limit = std::min(limit, std::max(key.start, start));
    }
    return limit;
  }
  // Draws free addresses in [start, end). Returns a record of 0 units if it finds none.
  std::pair<Key, Record> Draw(int from, int64_t start, int64_t end, int device) {
    const Key key = {from, start + Below(end - start)};
    const int64_t most = FreeUntil(from, key.start, end) - key.start;
    const int64_t units = most == 0 ? 0 : 1 + Below(std::min<int64_t>(most, 24));
    return {key, {units, static_cast<int>(Below(PoolsModel::kTags)), device}};
  }
  void Add(const Key& key, const Record& record) {
    begin_({PoolOperation::kAdd, key, record});
    live_[key] = record;
  }

  void Buffer() {
    const auto [key, record] = Draw(0, base_, base_ + units_, static_cast<int>(Below(PoolsModel::kDevices)));
    if (record.units == 0) return;
    const hbmprof::ScopedTag tag("t", std::to_string(record.tag));
    Add(key, record);
    EXPECT_TRUE(profiler().RecordAlloc(At(key.start), ModeledPools::Bytes(record.units),
                                       {pools_.device(record.device), hbmprof::MemoryKind::kDevice, {}}));
  }

  void Segment() {
    const int pool = 1 + static_cast<int>(Below(PoolsModel::kPools));
    const int outer = PoolsModel::kOuter[pool];
    const int device = PoolsModel::DeviceOf(pool);
    const auto expect = [&](const Key& key, int64_t units) {
      EXPECT_TRUE(profiler().RecordSegment(pools_.pool(pool), At(key.start), ModeledPools::Bytes(units)));
    };
    if (outer != 0 || Below(2) == 0) {
      const std::optional<Key> key = Any([&](const Key& key, const Record& record) {
        return key.from == outer && record.segment_of == 0 && record.device == device;
      });
      if (!key.has_value()) return;
      Record& record = live_[*key];
      record.segment_of = pool;
      begin_({PoolOperation::kSetSegment, *key, record});
      return expect(*key, 1 + Below(record.units));
    }
    auto [key, record] = Draw(0, base_, base_ + units_, device);
    if (record.units == 0) return;
    record.segment_of = pool;
    const hbmprof::ScopedTag tag("t", std::to_string(record.tag));
    Add(key, record);
    expect(key, record.units);
  }

  void Block() {
    const std::optional<Key> segment = Any([](const Key&, const Record& record) { return record.segment_of != 0; });
    if (!segment.has_value()) return;
    const int pool = live_[*segment].segment_of;
    const auto [key, record] = Draw(pool, segment->start, EndOf(*segment), live_[*segment].device);
    if (record.units == 0) return;
    const hbmprof::ScopedTag tag("t", std::to_string(record.tag));
    Add(key, record);
    EXPECT_TRUE(profiler().RecordBlock(pools_.pool(pool), At(key.start), ModeledPools::Bytes(record.units)));
  }

  // The memory in [start, end), of which `pool` has handed out blocks, has ended.
  void EndMemory(int pool, int64_t start, int64_t end) {
    if (pool == 0) return;
    for (;;) {
      const auto entry = live_.lower_bound({pool, start});
      if (entry == live_.end() || entry->first.from != pool || entry->first.start >= end) return;
      const auto [key, record] = *entry;
      live_.erase(entry);
      gone_(key);
      EndMemory(record.segment_of, key.start, key.start + record.units);
    }
  }

  void Free() {
    const bool segments = Below(3) == 0;
    const std::optional<Key> key =
        Any([&](const Key&, const Record& record) { return segments == (record.segment_of != 0); });
    if (key.has_value()) Free(*key);
  }
  void Free(Key key) {
    const Record record = live_.at(key);
    live_.erase(key);
    begin_({PoolOperation::kEnd, key});
    const bool as_segment = key.from == 0 && record.segment_of != 0 && Below(2) == 0;
    const std::optional<int64_t> bytes =
        as_segment      ? profiler().RecordSegmentFree(pools_.pool(record.segment_of), At(key.start))
        : key.from == 0 ? profiler().RecordFree(At(key.start))
                        : profiler().RecordBlockFree(pools_.pool(key.from), At(key.start));
    EXPECT_EQ(bytes, BytesOf(record.units));
    EndMemory(record.segment_of, key.start, key.start + record.units);
  }

  void EndNestedSegment() {
    const std::optional<Key> key =
        Any([](const Key& key, const Record& record) { return key.from != 0 && record.segment_of != 0; });
    if (!key.has_value()) return;
    Record& record = live_[*key];
    const int pool = std::exchange(record.segment_of, 0);
    begin_({PoolOperation::kSetSegment, *key, record});
    EXPECT_EQ(profiler().RecordSegmentFree(pools_.pool(pool), At(key->start)), BytesOf(record.units));
    EndMemory(pool, key->start, EndOf(*key));
  }

  void Resize() {
    const std::optional<Key> key = Any([](const Key&, const Record&) { return true; });
    if (!key.has_value()) return;
    Record& record = live_[*key];
    int64_t limit = base_ + units_;
    for (const auto& [other, of_other] : live_) {
      const int64_t end = other.start + of_other.units;
      if (key->from != 0 && of_other.segment_of == key->from && other.start <= key->start && key->start < end) {
        limit = end;
      }
    }
    limit = FreeUntil(key->from, EndOf(*key), limit);
    const int64_t units = 1 + Below(std::min(limit - key->start, record.units + 8));
    const int64_t end = key->start + units;
    const int64_t old_end = EndOf(*key);
    for (const auto& [other, of_other] : live_) {
      const bool is_in_it = other.from == record.segment_of && other.from != 0 && key->start <= other.start;
      if (is_in_it && other.start < end && other.start + of_other.units > end && other.start < old_end) return;
    }
    record.units = units;
    begin_({PoolOperation::kResize, *key, record});
    EXPECT_TRUE(key->from == 0
                    ? profiler().RecordResize(At(key->start), ModeledPools::Bytes(units))
                    : profiler().RecordBlockResize(pools_.pool(key->from), At(key->start), ModeledPools::Bytes(units)));
    EndMemory(record.segment_of, end, old_end);
  }

  const ModeledPools& pools_;
  const int64_t base_;
  const int64_t units_;
  const std::function<void(const PoolOperation&)> begin_;
  const std::function<void(const Key&)> gone_;
  std::mt19937_64 random_;
  std::map<Key, Record> live_;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_POOLS_MODEL_H_
