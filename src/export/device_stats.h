// The list of the fields of DeviceStats (hbmprof/snapshot.h), which every renderer visits: the comments of a profile,
// JSON, the metrics, the tables of a recording, hbmprof_stats of the C interface, and a profiler that uses the injected
// library, which reads that back. A new field is added there and here, at the end: then the format of recordings gets a
// new version (src/recording/format.h). Older recordings can then not be read.
#ifndef HBMPROF_SRC_EXPORT_DEVICE_STATS_H_
#define HBMPROF_SRC_EXPORT_DEVICE_STATS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Calls NUMBER(name, comment, is_always_shown, metric, metric_name, help) for each field but driver_scope, for which it
// calls SCOPE(name).
//   name             of the field, also in JSON and in hbmprof_stats
//   comment          its key in the comment `device` of a profile; "": it is not there
//   is_always_shown  the comment shows it as "n/a" if it is not known; other comments leave it out
//   metric           enum Metric; metric_name and help are those of Prometheus
// clang-format off
#define HBMPROF_DEVICE_STATS(NUMBER, SCOPE)                                                                         \
  NUMBER(bytes_in_use, "in_use", true, kOfSpace, "hbmprof_device_memory_in_use_bytes",                              \
         "Recorded memory in use, including idle memory of pools.")                                                 \
  NUMBER(peak_bytes_in_use, "peak", true, kOfSpace, "hbmprof_device_memory_peak_bytes",                             \
         "The highest recorded memory in use since the start or the last reset of the peak.")                       \
  NUMBER(num_allocs, "num_allocs", true, kCountOfSpace, "hbmprof_device_allocations_total", "Recorded allocations.") \
  NUMBER(num_live, "num_live", true, kNone, "", "")                                                                 \
  NUMBER(largest_alloc_size, "largest_alloc", true, kNone, "", "")                                                  \
  NUMBER(pool_bytes, "pool", true, kOfDevice, "hbmprof_device_pool_bytes",                                          \
         "Memory that recorded pools have reserved.")                                                               \
  NUMBER(idle_bytes, "idle", true, kOfDevice, "hbmprof_device_pool_idle_bytes", "Idle memory of recorded pools.")   \
  NUMBER(bytes_limit, "limit", true, kOfDevice, "hbmprof_device_memory_limit_bytes", "The capacity of the device.") \
  NUMBER(bytes_free, "", false, kOfDevice, "hbmprof_device_memory_free_bytes",                                      \
         "Free memory of the device, which any process can allocate.")                                              \
  NUMBER(largest_free_block_bytes, "largest_free_block", true, kNone, "", "")                                       \
  NUMBER(driver_bytes_in_use, "driver_in_use", true, kOfDriver, "hbmprof_device_driver_memory_bytes",               \
         "Memory in use as the driver reports it, of this process or of all processes on the device.")              \
  NUMBER(driver_peak_bytes_in_use, "driver_peak", false, kNone, "", "")                                             \
  SCOPE(driver_scope)                                                                                               \
  NUMBER(driver_cache_bytes, "driver_cache", false, kOfDevice, "hbmprof_device_driver_pool_idle_bytes",             \
         "Idle memory of the pools of the driver.")                                                                 \
  NUMBER(unaccounted, "unaccounted", true, kOfDriver, "hbmprof_device_unaccounted_bytes",                           \
         "Memory in use as the driver reports it, without recorded memory and idle memory of its pools.")           \
  NUMBER(baseline, "baseline", false, kNone, "", "")

// Calls F(name) for each field of TrackerStats that is a number: for the C interface, for InjectedProfiler, for profiles
// and for JSON.
#define HBMPROF_TRACKER_STATS(F)                                                                                     \
  F(live_records) F(sites) F(dropped_records) F(dropped_bytes) F(foreign_frees) F(refused_frees) F(replaced_records) \
  F(reentrant_events) F(truncated_stacks) F(dropped_tag_values) F(host_bytes) F(max_host_bytes)
// clang-format on

enum class Metric : uint8_t {
  kNone,
  kOfSpace,       // a sample for each memory space of each device
  kCountOfSpace,  // the same; the number only grows
  kOfDevice,      // a sample for each device whose number is known
  kOfDriver,      // the same, with the label `scope`
};

// A field that is a number, as the renderers name it.
struct DeviceStatsField {
  std::string_view name;
  std::string_view comment;
  bool is_always_shown;
  Metric metric;
  std::string_view metric_name;
  std::string_view help;
  std::optional<int64_t> (*value)(const DeviceStats& stats);
};

#define HBMPROF_NUMBER(name, comment, is_always_shown, metric, metric_name, help)                                     \
  DeviceStatsField{#name, comment, is_always_shown, Metric::metric, metric_name, help, [](const DeviceStats& stats) { \
                     return std::optional<int64_t>(stats.name);                                                       \
                   }},
#define HBMPROF_SCOPE(name)
inline constexpr DeviceStatsField kDeviceStatsFields[] = {HBMPROF_DEVICE_STATS(HBMPROF_NUMBER, HBMPROF_SCOPE)};
#undef HBMPROF_NUMBER
#undef HBMPROF_SCOPE

// The text of DeviceStats::driver_scope.
constexpr std::string_view DriverScopeName(DriverScope scope) {
  return scope == DriverScope::kProcess ? "process" : "device";
}

// Returns whether memory was ever recorded in the memory space, or its numbers are those of a difference.
inline bool IsUsed(const DeviceStats& stats) {
  return stats.num_allocs != 0 || stats.num_live != 0 || stats.bytes_in_use != 0 || stats.peak_bytes_in_use != 0;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_DEVICE_STATS_H_
