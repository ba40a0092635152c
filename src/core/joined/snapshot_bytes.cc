#include "src/core/joined/snapshot_bytes.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace hbmprof::internal {
namespace {

// Each type's fields are listed once, by Fields(), for both directions.
class Writer {
 public:
  template <typename... Values>
  void operator()(const Values&... values) {
    (Put(values), ...);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  template <typename Value>
  void Put(const Value& value);
  void Put(const std::string& text) {
    Put(text.size());
    bytes_.append(text);
  }
  template <typename T>
  void Put(const std::vector<T>& list) {
    Put(list.size());
    for (const T& one : list) Put(one);
  }
  template <typename A, typename B>
  void Put(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value.has_value()) Put(*value);
  }

  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (Get(values), ...);
  }
  bool Done() const { return ok_ && rest_.empty(); }

 private:
  template <typename Value>
  void Get(Value& value);
  void Get(std::string& text) { text.assign(Bytes(Count())); }
  template <typename T>
  void Get(std::vector<T>& list) {
    // Each element takes at least eight bytes (a text or a list has at least its length), so Count() can reject a count
    // that is greater than the number of bytes that are left.
    const uint64_t count = Count();
    list.clear();
    list.reserve(count);
    for (uint64_t i = 0; i < count && ok_; ++i) Get(list.emplace_back());
  }
  template <typename A, typename B>
  void Get(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T>
  void Get(std::optional<T>& value) {
    bool has_value = false;
    Get(has_value);
    value.reset();
    if (has_value) Get(value.emplace());
  }
  // A length or count; never more than the bytes that are left.
  uint64_t Count() {
    uint64_t count = 0;
    Get(count);
    ok_ = ok_ && count <= rest_.size();
    return ok_ ? count : 0;
  }
  std::string_view Bytes(uint64_t count) {
    ok_ = ok_ && count <= rest_.size();
    if (!ok_) return {};
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }

  std::string_view rest_;
  bool ok_ = true;
};

template <typename Visit, typename T>
void Fields(Visit& visit, T& value) {
  using Type = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Type, DeviceStats>) {
    visit(value.bytes_in_use, value.peak_bytes_in_use, value.num_allocs, value.num_live, value.largest_alloc_size,
          value.pool_bytes, value.bytes_reserved, value.bytes_limit, value.bytes_free, value.largest_free_block_bytes,
          value.driver_bytes_in_use, value.driver_peak_bytes_in_use, value.driver_scope, value.driver_cache_bytes,
          value.unaccounted, value.baseline);
  } else if constexpr (std::is_same_v<Type, TrackerStats>) {
    visit(value.foreign_frees, value.replaced_records, value.dropped_records, value.dropped_bytes,
          value.reentrant_events, value.truncated_stacks, value.dropped_tag_values, value.live_records, value.sites,
          value.host_bytes, value.max_host_bytes, value.unwinder);
  } else if constexpr (std::is_same_v<Type, Snapshot::Sample>) {
    visit(value.stack, value.device, value.kind, value.allocator, value.tags, value.block_bytes, value.alloc_objects,
          value.alloc_bytes, value.peak_objects, value.peak_bytes, value.inuse_objects, value.inuse_bytes, value.born,
          value.freed_by_octave);
  } else if constexpr (std::is_same_v<Type, Snapshot::Sample::Born>) {
    visit(value.birth_class, value.objects, value.bytes);
  } else if constexpr (std::is_same_v<Type, Snapshot::Stack>) {
    visit(value.return_addresses, value.truncated);
  } else if constexpr (std::is_same_v<Type, Snapshot::NamedFrame>) {
    visit(value.function, value.file, value.line, value.start_line);
  } else if constexpr (std::is_same_v<Type, Snapshot::Python>) {
    visit(value.version, value.problem);
  } else if constexpr (std::is_same_v<Type, Snapshot::Module>) {
    visit(value.start, value.limit, value.offset, value.bias, value.path, value.build_id);
  } else if constexpr (std::is_same_v<Type, Snapshot::Device>) {
    visit(value.name);
    for (auto& space : value.spaces) visit(space);
    visit(value.uuid, value.processes);
  } else if constexpr (std::is_same_v<Type, FoundBuffer>) {
    visit(value.address, value.bytes, value.attributes.device, value.attributes.kind, value.attributes.allocator,
          value.tags, value.stack);
  } else if constexpr (std::is_same_v<Type, DeviceProcess>) {
    visit(value.process_id, value.bytes, value.is_this);
  } else {
    static_assert(std::is_same_v<Type, Snapshot>);
    visit(value.samples, value.stacks, value.named_frames, value.devices, value.allocators, value.modules,
          value.tracker, value.python, value.counters, value.warnings, value.time_unix_nanos, value.process_id,
          value.host, value.environment, value.uptime_seconds, value.birth_class_log2);
  }
}

template <typename Value>
void Writer::Put(const Value& value) {
  if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) {
    const auto word = static_cast<uint64_t>(value);
    bytes_.append(reinterpret_cast<const char*>(&word), sizeof(word));
  } else {
    Fields(*this, value);
  }
}

template <typename Value>
void Reader::Get(Value& value) {
  if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) {
    uint64_t word = 0;
    const std::string_view bytes = Bytes(sizeof(word));
    if (ok_) std::memcpy(&word, bytes.data(), sizeof(word));
    value = static_cast<Value>(word);
  } else {
    Fields(*this, value);
  }
}

template <typename T>
std::string Write(const T& value) {
  Writer writer;
  writer(value);
  return writer.Take();
}

template <typename T>
bool Read(std::string_view bytes, T* value) {
  Reader reader(bytes);
  reader(*value);
  return reader.Done();
}

// A field that is added to one of these must be added to its list above.
static_assert(sizeof(DeviceStats) == 8 * 24 && sizeof(TrackerStats) == 8 * 11 + sizeof(std::string));
static_assert(sizeof(Snapshot::Sample) == 8 * 9 + 3 * sizeof(std::vector<int>));
static_assert(sizeof(Snapshot::Stack) == 8 + sizeof(std::vector<int>));
static_assert(sizeof(Snapshot::NamedFrame) == 8 * 2 + 2 * sizeof(std::string));
static_assert(sizeof(Snapshot::Python) == 2 * sizeof(std::string));
static_assert(sizeof(Snapshot::Module) == 8 * 4 + 2 * sizeof(std::string));
static_assert(sizeof(Snapshot::Device) ==
              kMemorySpaceCount * sizeof(DeviceStats) + 2 * sizeof(std::string) + sizeof(std::vector<int>));
static_assert(sizeof(DeviceProcess) == 8 * 4);
static_assert(sizeof(FoundBuffer) ==
              8 * 2 + (sizeof(Attributes) + 7) / 8 * 8 + sizeof(std::vector<int>) + sizeof(Snapshot::Stack));

}  // namespace

std::string ToBytes(const Snapshot& snapshot) { return Write(snapshot); }
std::string ToBytes(const DeviceStats& stats) { return Write(stats); }
std::string ToBytes(const TrackerStats& stats) { return Write(stats); }
std::string ToBytes(const FoundBuffer& buffer) { return Write(buffer); }
bool FromBytes(std::string_view bytes, Snapshot* snapshot) { return Read(bytes, snapshot); }
bool FromBytes(std::string_view bytes, DeviceStats* stats) { return Read(bytes, stats); }
bool FromBytes(std::string_view bytes, TrackerStats* stats) { return Read(bytes, stats); }
bool FromBytes(std::string_view bytes, FoundBuffer* buffer) { return Read(bytes, buffer); }

}  // namespace hbmprof::internal
