// The timeline of the report: the values of a recording at a limited number of instants, so that the page has a limited
// size.
//
// A page has a fixed number of instants. Between two instants it has the lowest and the highest bytes in use of each
// account; at each instant it has the exact bytes in use of the call stacks with the most bytes, and of all others
// together. The peak of each account, marks and failed allocations are instants too.
#ifndef HBMPROF_SRC_TOOL_REPORT_TIMELINE_H_
#define HBMPROF_SRC_TOOL_REPORT_TIMELINE_H_

#include "src/tool/recording/cursor.h"
#include "src/tool/util/json.h"

namespace hbmprof::tool {

// A row of the page: a node of its tree, and a set of labels.
struct TimelineRow {
  size_t node = 0;
  size_t labels = 0;
};

// Returns the timeline as JSON, which report/report.js describes. `row_of` returns the row of the page for a row of
// SiteTotals (`site`); nullopt: it is left out. `rest_of` returns the row of an account for all those whose bytes are
// too few for a row of their own. Reads all events twice.
Json TimelineJson(RecordingReader& recording, const std::function<std::optional<TimelineRow>(uint32_t site)>& row_of,
                  const std::function<TimelineRow(size_t account)>& rest_of, Progress& progress);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REPORT_TIMELINE_H_
