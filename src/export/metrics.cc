#include "src/export/metrics.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hbmprof/version.h"
#include "src/base/saturating.h"
#include "src/export/device_stats.h"
#include "src/export/utf8.h"

namespace hbmprof::internal {
namespace {

constexpr std::string_view kOther = "other";  // the tags of the combinations beyond kMaxMetricsTagValues

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char byte : ValidUtf8(text)) {
    if (byte == '\n') {
      escaped += "\\n";
    } else {
      if (byte == '\\' || byte == '"') escaped += '\\';
      escaped += byte;
    }
  }
  return escaped;
}

// Returns "tag_" and the key, with "_" in place of each byte that a label name must not have.
std::string LabelName(std::string_view key) {
  std::string name = "tag_";
  for (const char byte : key) {
    const bool is_allowed =
        (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '_';
    name += is_allowed ? byte : '_';
  }
  return name;
}

class Writer {
 public:
  // Begins a metric: the lines below it are its samples.
  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_.append("# HELP ").append(name).append(" ").append(help).append("\n");
    text_.append("# TYPE ").append(name).append(" ").append(type).append("\n");
  }
  void Add(std::string_view labels, int64_t value) {
    text_.append(name_);
    if (!labels.empty()) text_.append("{").append(labels).append("}");
    text_.append(" ").append(std::to_string(value)).append("\n");
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
};

std::string Label(std::string_view name, std::string_view value) {
  return std::string(name).append("=\"").append(Escaped(value)).append("\"");
}

// Returns device="..." and, if the UUID is known, gpu_uuid="...".
std::string DeviceLabels(const Snapshot::Device& device) {
  std::string labels = Label("device", device.name);
  if (!device.uuid.empty()) labels.append(",").append(Label("gpu_uuid", device.uuid));
  return labels;
}

// Adds a metric with a sample for each memory space that was used or whose limit is known.
template <typename Value>
void AddSpaces(const Snapshot& snapshot, std::string_view name, std::string_view type, std::string_view help,
               const Value& value, Writer* writer) {
  writer->Begin(name, type, help);
  for (const Snapshot::Device& device : snapshot.devices) {
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const DeviceStats& stats = device.spaces[space];
      if (!IsUsed(stats) && !stats.bytes_limit.has_value()) continue;
      const std::string_view space_name = MemorySpaceName(static_cast<MemorySpace>(space));
      writer->Add(DeviceLabels(device) + "," + Label("space", space_name), value(stats));
    }
  }
}

void AddField(const Snapshot& snapshot, const DeviceStatsField& field, Writer* writer) {
  if (field.metric == Metric::kNone) return;
  if (field.metric == Metric::kOfSpace || field.metric == Metric::kCountOfSpace) {
    return AddSpaces(
        snapshot, field.metric_name, field.metric == Metric::kOfSpace ? "gauge" : "counter", field.help,
        [&](const DeviceStats& stats) { return *field.value(stats); }, writer);
  }
  writer->Begin(field.metric_name, "gauge", field.help);
  for (const Snapshot::Device& device : snapshot.devices) {
    const DeviceStats& stats = device.spaces[static_cast<int>(MemorySpace::kDevice)];
    const std::optional<int64_t> known = field.value(stats);
    if (!known.has_value()) continue;
    std::string labels = DeviceLabels(device);
    // Whether the driver's number is the memory of the process or of the whole device.
    if (field.metric == Metric::kOfDriver)
      labels.append(",").append(Label("scope", DriverScopeName(stats.driver_scope)));
    writer->Add(labels, *known);
  }
}

// The values of the tags by which the bytes are split, in the order of the keys.
using TagValues = std::vector<std::string>;

TagValues ValuesOf(const Snapshot::Sample& sample, const std::vector<std::string>& keys) {
  TagValues values;
  for (const std::string& key : keys) {
    const auto found = std::lower_bound(sample.tags.begin(), sample.tags.end(), key,
                                        [](const auto& tag, const std::string& wanted) { return tag.first < wanted; });
    values.push_back(found != sample.tags.end() && found->first == key ? found->second : "");
  }
  return values;
}

// Returns the combinations of tag values that get samples of their own: those with the most bytes allocated so far.
// That order rarely changes, so the series stay the same.
std::set<TagValues> ShownValues(const Snapshot& snapshot, const std::vector<std::string>& keys) {
  std::map<TagValues, int64_t> allocated;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    int64_t& bytes = allocated[ValuesOf(sample, keys)];
    bytes = SaturatingSum(bytes, sample.alloc_bytes);
  }
  std::vector<std::pair<int64_t, TagValues>> order;
  for (const auto& [values, bytes] : allocated) order.emplace_back(-bytes, values);
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kMaxMetricsTagValues));
  std::set<TagValues> shown;
  for (const auto& [bytes, values] : order) shown.insert(values);
  return shown;
}

void AddKindsAndTags(const Snapshot& snapshot, const std::vector<std::string>& tags, Writer* writer) {
  // Without keys whose label name another one has, and without those beyond kMaxMetricsTags.
  std::vector<std::string> keys;
  std::set<std::string> names;
  for (const std::string& tag : tags) {
    if (keys.size() < kMaxMetricsTags && names.insert(LabelName(tag)).second) keys.push_back(tag);
  }
  const std::set<TagValues> shown = ShownValues(snapshot, keys);
  const TagValues other(keys.size(), std::string(kOther));
  std::map<std::pair<std::pair<uint32_t, MemoryKind>, TagValues>, int64_t> sums;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    if (sample.kind == MemoryKind::kPool && sample.inuse_bytes == 0 && sample.peak_bytes == 0) continue;  // a segment
    TagValues values = ValuesOf(sample, keys);
    if (shown.count(values) == 0) values = other;
    sums[{{sample.device, sample.kind}, std::move(values)}] += sample.inuse_bytes;
  }
  writer->Begin("hbmprof_device_memory_bytes", "gauge", "Recorded memory in use, by kind and by the chosen tags.");
  for (const auto& [key, bytes] : sums) {
    const auto& [device, kind] = key.first;
    std::string labels = DeviceLabels(snapshot.devices[device]) + "," + Label("kind", MemoryKindName(kind));
    for (size_t i = 0; i < keys.size(); ++i) {
      labels.append(",").append(Label(LabelName(keys[i]), key.second[i]));
    }
    writer->Add(labels, bytes);
  }
}

void AddTracker(const TrackerStats& tracker, bool tracking, Writer* writer) {
  writer->Begin("hbmprof_dropped_allocations_total", "counter",
                "Allocations not recorded because a limit was reached.");
  writer->Add("", tracker.dropped_records);
  writer->Begin("hbmprof_dropped_bytes_total", "counter",
                "Bytes of the allocations not recorded because a limit was reached.");
  writer->Add("", tracker.dropped_bytes);
  writer->Begin("hbmprof_tracker_host_bytes", "gauge", "Host memory that the tables of hbmprof take.");
  writer->Add("", tracker.host_bytes);
  writer->Begin("hbmprof_tracking", "gauge", "1 if tracking is on, 0 if it is off.");
  writer->Add("", tracking ? 1 : 0);
  writer->Begin("hbmprof_info", "gauge", "1; the version of hbmprof is a label.");
  writer->Add(Label("version", HBMPROF_VERSION_STRING), 1);
}

}  // namespace

std::string PrometheusText(const Snapshot& snapshot, const std::vector<std::string>& tags, bool tracking) {
  Writer writer;
  for (const DeviceStatsField& field : kDeviceStatsFields) AddField(snapshot, field, &writer);
  AddSpaces(
      snapshot, "hbmprof_device_frees_total", "counter", "Recorded frees.",
      [](const DeviceStats& stats) { return std::max<int64_t>(0, stats.num_allocs - stats.num_live); }, &writer);
  AddKindsAndTags(snapshot, tags, &writer);
  AddTracker(snapshot.tracker, tracking, &writer);
  return writer.Take();
}

std::vector<std::string> MetricsTags(std::string_view text) {
  std::vector<std::string> tags;
  while (!text.empty()) {
    const std::string_view tag = text.substr(0, text.find(','));
    if (!tag.empty()) tags.emplace_back(tag);
    text.remove_prefix(std::min(tag.size() + 1, text.size()));
  }
  return tags;
}

}  // namespace hbmprof::internal
