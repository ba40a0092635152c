#include "src/core/joined/snapshot_bytes.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {
namespace {

// Writes values to bytes, or reads them from bytes: the fields of a type are listed once, for both directions.
class Stream {
 public:
  // A writer changes no value that it passes.
  explicit Stream(std::string* written) : written_(written) {}
  explicit Stream(std::string_view read) : rest_(read) {}

  template <typename... Values>
  void Pass(Values&... values) {
    (PassOne(values), ...);
  }
  // Of a reader: whether exactly its bytes were read.
  bool is_done() const { return ok_ && rest_.empty(); }

 private:
  // A number, a truth value or an enumerator: eight bytes.
  template <typename Value>
  void PassOne(Value& value) {
    auto word = static_cast<uint64_t>(value);
    if (written_ != nullptr) {
      written_->append(reinterpret_cast<const char*>(&word), sizeof(word));
      return;
    }
    const std::string_view bytes = Take(sizeof(word));
    word = 0;
    if (ok_) std::memcpy(&word, bytes.data(), sizeof(word));
    value = static_cast<Value>(word);
  }
  void PassOne(std::string& text) {
    const uint64_t count = PassCount(text.size());
    if (written_ != nullptr) {
      written_->append(text);
    } else {
      text.assign(Take(count));
    }
  }
  template <typename T>
  void PassOne(std::vector<T>& list) {
    const uint64_t count = PassCount(list.size());
    if (written_ == nullptr) list.resize(count);
    for (T& one : list) PassOne(one);
  }
  template <typename A, typename B>
  void PassOne(std::pair<A, B>& pair) {
    Pass(pair.first, pair.second);
  }
  template <typename T>
  void PassOne(std::optional<T>& value) {
    bool has_value = value.has_value();
    PassOne(has_value);
    if (!has_value) return value.reset();
    PassOne(value.has_value() ? *value : value.emplace());
  }
  void PassOne(DeviceStats& value) {
    Pass(value.bytes_in_use, value.peak_bytes_in_use, value.num_allocs, value.num_live, value.largest_alloc_size,
         value.pool_bytes, value.idle_bytes, value.bytes_limit, value.bytes_free, value.largest_free_block_bytes,
         value.driver_bytes_in_use, value.driver_peak_bytes_in_use, value.driver_scope, value.driver_cache_bytes,
         value.unaccounted, value.baseline);
  }
  void PassOne(PoolStats& value) {
    Pass(value.name, value.bytes_reserved, value.bytes_allocated, value.idle_bytes, value.peak_bytes_reserved,
         value.peak_bytes_allocated, value.segments);
  }
  void PassOne(DeviceProbe& value) {
    Pass(value.bytes_limit, value.bytes_free, value.largest_free_block_bytes, value.driver_bytes_in_use,
         value.driver_peak_bytes_in_use, value.driver_scope, value.driver_cache_bytes, value.baseline, value.uuid,
         value.processes);
  }
  void PassOne(TrackerStats& value) {
    Pass(value.foreign_frees, value.refused_frees, value.replaced_records, value.dropped_records, value.dropped_bytes,
         value.reentrant_events, value.truncated_stacks, value.dropped_tag_values, value.live_records, value.sites,
         value.host_bytes, value.max_host_bytes, value.unwinder);
  }
  void PassOne(Snapshot::Sample& value) {
    Pass(value.stack, value.device, value.kind, value.allocator, value.tags, value.alloc_objects, value.alloc_bytes,
         value.peak_objects, value.peak_bytes, value.inuse_objects, value.inuse_bytes, value.reserved_objects,
         value.reserved_bytes, value.pool_peak_objects, value.pool_peak_bytes, value.born, value.freed_by_octave);
  }
  void PassOne(Snapshot::Sample::Born& value) { Pass(value.birth_class, value.objects, value.bytes); }
  void PassOne(Snapshot::Stack& value) { Pass(value.return_addresses, value.truncated); }
  void PassOne(Snapshot::NamedFrame& value) { Pass(value.function, value.file, value.line, value.start_line); }
  void PassOne(Snapshot::Python& value) { Pass(value.version, value.problem); }
  void PassOne(Snapshot::Module& value) {
    Pass(value.start, value.limit, value.offset, value.bias, value.path, value.build_id);
  }
  void PassOne(Snapshot::Device& value) {
    Pass(value.name);
    for (DeviceStats& space : value.spaces) Pass(space);
    Pass(value.uuid, value.processes, value.pools);
  }
  void PassOne(DeviceProcess& value) { Pass(value.process_id, value.bytes, value.is_this); }
  void PassOne(FoundBuffer& value) {
    Pass(value.address, value.bytes, value.attributes.device, value.attributes.kind, value.attributes.allocator,
         value.tags, value.stack);
  }
  void PassOne(Snapshot& value) {
    Pass(value.samples, value.stacks, value.named_frames, value.devices, value.allocators, value.modules, value.tracker,
         value.python, value.counters, value.warnings, value.time_unix_nanos, value.process_id, value.host,
         value.environment, value.uptime_seconds, value.birth_class_log2);
  }
  // Passes the length of a text or a list, whose elements have at least eight bytes each. A length that was read is
  // never more than the bytes that are left.
  uint64_t PassCount(uint64_t count) {
    PassOne(count);
    ok_ = ok_ && (written_ != nullptr || count <= rest_.size());
    return ok_ ? count : 0;
  }
  std::string_view Take(uint64_t count) {
    ok_ = ok_ && count <= rest_.size();
    if (!ok_) return {};
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }

  std::string* const written_ = nullptr;  // null: reads
  std::string_view rest_;
  bool ok_ = true;
};

// A field that is added to one of these must be added to its list above.
static_assert(sizeof(DeviceStats) == 8 * 24 && sizeof(TrackerStats) == 8 * 12 + sizeof(std::string));
static_assert(sizeof(DeviceProbe) == 8 * 15 + sizeof(std::string) + sizeof(std::vector<int>));
static_assert(sizeof(PoolStats) == 8 * 6 + sizeof(std::string));
static_assert(sizeof(Snapshot::Sample) == 8 * 12 + 3 * sizeof(std::vector<int>));
static_assert(sizeof(Snapshot::Stack) == 8 + sizeof(std::vector<int>));
static_assert(sizeof(Snapshot::NamedFrame) == 8 * 2 + 2 * sizeof(std::string));
static_assert(sizeof(Snapshot::Python) == 2 * sizeof(std::string));
static_assert(sizeof(Snapshot::Module) == 8 * 4 + 2 * sizeof(std::string));
static_assert(sizeof(Snapshot::Device) ==
              kMemorySpaceCount * sizeof(DeviceStats) + 2 * sizeof(std::string) + 2 * sizeof(std::vector<int>));
static_assert(sizeof(DeviceProcess) == 8 * 4);
static_assert(sizeof(FoundBuffer) ==
              8 * 2 + (sizeof(Attributes) + 7) / 8 * 8 + sizeof(std::vector<int>) + sizeof(Snapshot::Stack));

}  // namespace

template <typename T>
std::string ToBytes(const T& value) {
  std::string bytes;
  Stream(&bytes).Pass(const_cast<T&>(value));
  return bytes;
}

template <typename T>
bool FromBytes(std::string_view bytes, T* value) {
  Stream stream(bytes);
  stream.Pass(*value);
  return stream.is_done();
}

#define HBMPROF_INSTANTIATE(T)            \
  template std::string ToBytes(const T&); \
  template bool FromBytes(std::string_view, T*);
HBMPROF_INSTANTIATE(Snapshot)
HBMPROF_INSTANTIATE(DeviceStats)
HBMPROF_INSTANTIATE(TrackerStats)
HBMPROF_INSTANTIATE(FoundBuffer)
HBMPROF_INSTANTIATE(DeviceProbe)

}  // namespace hbmprof::internal
