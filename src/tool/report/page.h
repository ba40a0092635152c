// The parts of the report's page and of the page of `hbmprof serve`: src/tool/report/ as text.
#ifndef HBMPROF_SRC_TOOL_REPORT_PAGE_H_
#define HBMPROF_SRC_TOOL_REPORT_PAGE_H_

namespace hbmprof::tool {

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

#endif  // HBMPROF_SRC_TOOL_REPORT_PAGE_H_
