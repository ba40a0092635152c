#include "src/export/stats_json.h"

#include <cstdio>
#include <optional>
#include <string_view>

#include "hbmprof/version.h"
#include "src/export/device_stats.h"
#include "src/export/utf8.h"

namespace hbmprof::internal {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char byte : ValidUtf8(text)) {
    if (static_cast<unsigned char>(byte) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(byte));
      quoted += escape;
    } else {
      if (byte == '"' || byte == '\\') quoted += '\\';
      quoted += byte;
    }
  }
  return quoted + '"';
}

// An object or an array that grows member by member.
class List {
 public:
  explicit List(bool is_object) : end_(is_object ? '}' : ']'), text_(1, is_object ? '{' : '[') {}

  List& AddJson(std::string_view key, std::string_view json) {
    if (text_.size() > 1) text_ += ',';
    if (end_ == '}') text_.append(Quoted(key)).append(":");
    text_.append(json);
    return *this;
  }
  List& Add(std::string_view key, std::string_view text) { return AddJson(key, Quoted(text)); }
  List& Add(std::string_view key, int64_t number) { return AddJson(key, std::to_string(number)); }
  List& Add(std::string_view key, std::optional<int64_t> number) {
    return number.has_value() ? Add(key, *number) : *this;
  }
  List& AddFlag(std::string_view key, bool is_set) { return AddJson(key, is_set ? "true" : "false"); }
  std::string text() const { return text_ + end_; }

 private:
  const char end_;
  std::string text_;
};

List Object() { return List(true); }
List Array() { return List(false); }

std::string DeviceJson(const Snapshot::Device& device) {
  List object = Object();
  object.Add("name", device.name);
  if (!device.uuid.empty()) object.Add("uuid", device.uuid);
  List spaces = Array();
  for (int i = 0; i < kMemorySpaceCount; ++i) {
    const DeviceStats& stats = device.spaces[i];
    if (!IsUsed(stats) && !stats.bytes_limit.has_value()) continue;
    List space = Object();
    space.Add("space", MemorySpaceName(static_cast<MemorySpace>(i)));
    for (const DeviceStatsField& field : kDeviceStatsFields) space.Add(field.name, field.value(stats));
    if (stats.driver_bytes_in_use.has_value()) space.Add("driver_scope", DriverScopeName(stats.driver_scope));
    spaces.AddJson("", space.text());
  }
  List pools = Array();
  for (const PoolStats& pool : device.pools) {
    pools.AddJson("", Object()
                          .Add("name", pool.name)
                          .Add("bytes_reserved", pool.bytes_reserved)
                          .Add("bytes_allocated", pool.bytes_allocated)
                          .Add("idle_bytes", pool.idle_bytes)
                          .Add("peak_bytes_reserved", pool.peak_bytes_reserved)
                          .Add("peak_bytes_allocated", pool.peak_bytes_allocated)
                          .Add("segments", pool.segments)
                          .text());
  }
  List processes = Array();
  for (const DeviceProcess& process : device.processes) {
    processes.AddJson("", Object()
                              .Add("process_id", process.process_id)
                              .Add("bytes", process.bytes)
                              .AddFlag("is_this", process.is_this)
                              .text());
  }
  return object.AddJson("spaces", spaces.text())
      .AddJson("pools", pools.text())
      .AddJson("processes", processes.text())
      .text();
}

std::string TrackerJson(const TrackerStats& tracker) {
  List object = Object();
#define HBMPROF_NUMBER(name) object.Add(#name, tracker.name);
  HBMPROF_TRACKER_STATS(HBMPROF_NUMBER)
#undef HBMPROF_NUMBER
  return object.Add("unwinder", tracker.unwinder).text();
}

}  // namespace

std::string StatsJson(const Snapshot& snapshot, const ProcessState& process) {
  List tags = Object();
  for (const auto& [key, value] : process.tags) tags.Add(key, value);
  List counters = Object();
  for (const auto& [name, value] : snapshot.counters) counters.Add(name, value);
  List devices = Array();
  for (const Snapshot::Device& device : snapshot.devices) devices.AddJson("", DeviceJson(device));
  List warnings = Array();
  for (const std::string& warning : snapshot.warnings) warnings.Add("", warning);
  return Object()
      .Add("pid", snapshot.process_id)
      .Add("name", process.name)
      .Add("host", snapshot.host)
      .Add("version", HBMPROF_VERSION_STRING)
      .Add("seconds", process.seconds)
      .Add("time_unix_nanos", snapshot.time_unix_nanos)
      .AddFlag("tracking", process.tracking)
      .AddJson("tags", tags.text())
      .AddJson("counters", counters.text())
      .AddJson("devices", devices.text())
      .AddJson("tracker", TrackerJson(snapshot.tracker))
      .AddJson("warnings", warnings.text())
      .text();
}

}  // namespace hbmprof::internal
