// The page that `hbmprof report` writes.
#ifndef HBMPROF_SRC_TOOL_REPORT_H_
#define HBMPROF_SRC_TOOL_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "src/tool/profile.h"
#include "src/tool/view.h"

namespace hbmprof::tool {

// Returns the page for dumps of one program: the last is shown, compared with the first. `per` is the counter for the
// growth, or "". The page runs only its own script, and shows the strings of the profiles as text. Errors: those of
// ApplyFilters, CheckTextOfStacks and OrderDumps.
absl::StatusOr<std::string> ReportPage(ProfileSet profiles, const ViewOptions& options, const std::string& per);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REPORT_H_
