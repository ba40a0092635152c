// The page that `hbmprof report` writes: it shows everything and needs no other file.
#ifndef HBMPROF_SRC_TOOL_REPORT_REPORT_H_
#define HBMPROF_SRC_TOOL_REPORT_REPORT_H_

#include "src/tool/findings/findings.h"
#include "src/tool/profile/view.h"
#include "src/tool/recording/cursor.h"

namespace hbmprof::tool {

// Returns the page for dumps of one program, or for the states of `recording`, which may be null. The last is shown,
// and compared with the earliest. `per` is the counter for the growth, or "". The page runs only its own script, and
// shows the strings of the profiles as text. Errors: those of ApplyFilters, CheckTextOfStacks and OrderDumps.
absl::StatusOr<std::string> ReportPage(ProfileSet profiles, Subject subject, RecordingReader* recording,
                                       const ViewOptions& options, const std::string& per);

// The parts of this page and of the page of `hbmprof serve`: the files beside this one as text. Each script begins with
// page.js.
extern const char kReportHtml[];  // with {{css}}, {{js}}, {{data}}, {{css_hash}} and {{js_hash}}
extern const char kReportCss[];
extern const char kReportJs[];
// SHA-256 of the two above, in hex.
extern const char kReportCssSha256[];
extern const char kReportJsSha256[];

extern const char kServeHtml[];  // loads kReportCss, kServeCss and kServeJs
extern const char kServeCss[];
extern const char kServeJs[];

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REPORT_REPORT_H_
