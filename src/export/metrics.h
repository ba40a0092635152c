// The metrics of a snapshot, for Prometheus. docs/serve.md describes every metric and label.
#ifndef HBMPROF_SRC_EXPORT_METRICS_H_
#define HBMPROF_SRC_EXPORT_METRICS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";
// Limits for the number of series of one process.
inline constexpr size_t kMaxMetricsTags = 4;         // tag keys; further ones are ignored
inline constexpr size_t kMaxMetricsTagValues = 100;  // combinations of their values, besides "other"

// Returns the metrics of `snapshot` in the text format 0.0.4 of Prometheus. `tags` are the keys of the tags by which
// the bytes in use are also split. `tracking`: whether tracking is on now. Depends only on its arguments. Throws
// std::bad_alloc.
std::string PrometheusText(const Snapshot& snapshot, const std::vector<std::string>& tags, bool tracking);

// Returns the keys in a text "KEY,KEY,...". Empty keys are left out.
std::vector<std::string> MetricsTags(std::string_view text);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_METRICS_H_
