// The tables, samples and lost events of a recording, field by field. Fields() lists the fields of each type once, for
// the writer (tables.cc) and for the command's reader.
#ifndef HBMPROF_SRC_RECORDING_FIELDS_H_
#define HBMPROF_SRC_RECORDING_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "src/export/device_stats.h"
#include "src/recording/recording.h"

namespace hbmprof::internal {

// A block of tables is a sequence of sections: the number of the section, the index of its first element (0 for kHeader
// and kFunctions), the number of its elements, the length of their bytes, and the bytes. A reader skips sections whose
// number it does not know.
enum class TablesSection : uint8_t {
  kHeader = 1,  // one element, which replaces the one before
  kNamedFrames = 2,
  kStacks = 3,
  kDevices = 4,
  kAllocators = 5,
  kModules = 6,
  kSites = 7,
  kFunctions = 8,
  kTagSets = 9,
  kThreads = 10,
  kMarks = 11,
  kLive = 12,
};
inline constexpr size_t kTablesSections = 13;

// A site and its pool, which are elements of two vectors.
struct SiteEntry {
  Snapshot::Sample sample;
  uint32_t pool = 0;
};
struct FunctionEntry {
  uint64_t address = 0;
  RecordingTables::FunctionName name;
};

// The lists of fields below, and HBMPROF_DEVICE_STATS, are those of the file format (docs/spec/recording.md). They stay
// as they are within a version.
// The element of kHeader.
template <typename Visit, typename Tables>
void HeaderFields(Visit& visit, Tables& tables) {
  visit(tables.start_time, tables.start_unix_nanos, tables.live_is_complete, tables.names.process_id, tables.names.host,
        tables.names.tracker.unwinder, tables.names.python.version, tables.names.python.problem, tables.names.warnings);
}

template <typename Visit, typename T>
void Fields(Visit& visit, T& value) {
  using Type = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Type, DeviceStats>) {
#define HBMPROF_NUMBER(name, ...) visit(value.name);
#define HBMPROF_SCOPE(name) visit(value.name);
    HBMPROF_DEVICE_STATS(HBMPROF_NUMBER, HBMPROF_SCOPE)
#undef HBMPROF_NUMBER
#undef HBMPROF_SCOPE
  } else if constexpr (std::is_same_v<Type, SiteEntry>) {
    auto& sample = value.sample;
    visit(value.pool, sample.stack, sample.device, sample.kind, sample.allocator, sample.tags, sample.alloc_objects,
          sample.alloc_bytes, sample.peak_objects, sample.peak_bytes, sample.inuse_objects, sample.inuse_bytes,
          sample.pool_peak_objects, sample.pool_peak_bytes);
  } else if constexpr (std::is_same_v<Type, Snapshot::NamedFrame>) {
    visit(value.function, value.file, value.line, value.start_line);
  } else if constexpr (std::is_same_v<Type, Snapshot::Module>) {
    visit(value.start, value.limit, value.offset, value.bias, value.path, value.build_id);
  } else if constexpr (std::is_same_v<Type, Snapshot::Device>) {
    visit(value.name);
    for (auto& space : value.spaces) visit(space);
    visit(value.uuid, value.pools);
  } else if constexpr (std::is_same_v<Type, PoolStats>) {
    visit(value.name, value.bytes_reserved, value.bytes_allocated, value.idle_bytes, value.peak_bytes_reserved,
          value.peak_bytes_allocated, value.segments);
  } else if constexpr (std::is_same_v<Type, FunctionEntry>) {
    visit(value.address, value.name.system_name, value.name.name);
  } else if constexpr (std::is_same_v<Type, RecordingTables::Thread>) {
    visit(value.id, value.name);
  } else if constexpr (std::is_same_v<Type, RecordingTables::Mark>) {
    visit(value.name);
  } else if constexpr (std::is_same_v<Type, RecordingTables::Live>) {
    visit(value.id, value.site, value.bytes);
  } else if constexpr (std::is_same_v<Type, DriverSample::Device>) {
    visit(value.device, value.bytes_in_use, value.bytes_free, value.bytes_limit, value.largest_free_block_bytes,
          value.cache_bytes);
  } else if constexpr (std::is_same_v<Type, DriverSample>) {
    visit(value.time, value.devices, value.host_resident_bytes, value.counters);
  } else {
    static_assert(std::is_same_v<Type, LostEvents>);
    visit(value.from, value.to, value.count);
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_FIELDS_H_
