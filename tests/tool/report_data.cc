#include "tests/tool/report_data.h"

#include <gtest/gtest.h>

#include <sstream>

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

std::vector<int64_t> SeriesValues(const std::string& text) {
  std::vector<int64_t> values;
  int64_t value = 0;
  std::istringstream differences(text);
  for (std::string difference; std::getline(differences, difference, ',');) {
    values.push_back(value += std::stoll(difference));
  }
  return values;
}

}  // namespace hbmprof_test
