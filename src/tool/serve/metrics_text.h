// Metrics of several processes as one text in Prometheus' format.
#ifndef HBMPROF_SRC_TOOL_SERVE_METRICS_TEXT_H_
#define HBMPROF_SRC_TOOL_SERVE_METRICS_TEXT_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// The metrics of one process, in the text format 0.0.4 of Prometheus, without timestamps.
struct ProcessMetrics {
  std::vector<std::pair<std::string, std::string>> labels;  // names and values, of the process
  std::string text;
};

// Returns the metrics of all processes. Each sample gets the labels of its process. If it already has a label NAME
// with one of these names, that label becomes exported_NAME, as in Prometheus. Each family has one HELP and one TYPE,
// those of the first process that has it. Leaves out lines that are not valid.
std::string MergeMetrics(const std::vector<ProcessMetrics>& processes);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SERVE_METRICS_TEXT_H_
