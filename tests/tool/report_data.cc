#include "tests/tool/report_data.h"

#include <gtest/gtest.h>

namespace hbmprof_test {

std::string Between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t at = text.find(begin);
  if (at == std::string::npos) return "";
  const size_t from = at + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

nlohmann::json ReportData(const std::string& html) {
  nlohmann::json data = nlohmann::json::parse(
      Between(html, "<script type=\"application/json\" id=\"data\">", "</script>"), nullptr, false);
  EXPECT_FALSE(data.is_discarded()) << "the page has no data";
  return data;
}

std::vector<int64_t> SeriesValues(int64_t unit, const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<int64_t> values;
  int64_t value = 0;
  uint64_t sum = 0;
  int shift = 0;
  for (const char c : text) {
    const uint64_t digit = digits.find(c);
    sum |= (digit & 31) << shift;
    shift += 5;
    if ((digit & 32) != 0) continue;
    value += (sum & 1) != 0 ? -static_cast<int64_t>(sum >> 1) : static_cast<int64_t>(sum >> 1);
    values.push_back(value * unit);
    sum = 0;
    shift = 0;
  }
  return values;
}

}  // namespace hbmprof_test
