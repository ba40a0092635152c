// The parts of the report's page: src/tool/report/ as text.
#ifndef HBMPROF_SRC_TOOL_REPORT_PAGE_H_
#define HBMPROF_SRC_TOOL_REPORT_PAGE_H_

namespace hbmprof::tool {

extern const char kReportHtml[];  // with {{css}}, {{data}} and {{js}} where the others go
extern const char kReportCss[];
extern const char kReportJs[];

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REPORT_PAGE_H_
