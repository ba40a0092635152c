// Functions that read the pages of `hbmprof report`.
#ifndef HBMPROF_TESTS_TOOL_REPORT_DATA_H_
#define HBMPROF_TESTS_TOOL_REPORT_DATA_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hbmprof_test {

// Returns the text between `begin` and the next `end`, or "".
std::string Between(const std::string& text, const std::string& begin, const std::string& end);

// Returns the data of the page, which src/tool/report/report.js describes.
nlohmann::json ReportData(const std::string& html);

// Returns the values of a series of the data.
std::vector<int64_t> SeriesValues(const std::string& text);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_REPORT_DATA_H_
