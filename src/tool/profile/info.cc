#include "src/tool/profile/info.h"

#include "src/protocol/http_query.h"

namespace hbmprof::tool {

Comment::Comment(std::string_view text) {
  const auto decode = [](std::string_view part) { return internal::DecodeUrl(part, '+'); };
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ' ');
  word = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (const size_t equals = parts[i].find('='); equals != std::string::npos) {
      values[decode(parts[i].substr(0, equals))] = decode(parts[i].substr(equals + 1));
    } else {
      name += (name.empty() ? "" : " ") + decode(parts[i]);
    }
  }
}

std::optional<int64_t> Comment::Number(const std::string& key) const {
  int64_t number = 0;
  return absl::SimpleAtoi(Text(key), &number) ? std::optional(number) : std::nullopt;
}

std::string Comment::Text(const std::string& key, const std::string& missing) const {
  return ValueOr(values, key, missing);
}

ProfileInfo::Device::Device(Comment comment) : Comment(std::move(comment)), space(Text("space", "device")) {}

void ProfileInfo::Add(std::string_view text) {
  Comment comment(text);
  for (const auto& [word, list] : {std::pair("tracker", &trackers), std::pair("hbmprof", &processes),
                                   std::pair("environment", &environments), std::pair("counter", &counters)}) {
    const bool is_estimate = list == &counters && comment.name.rfind(kEstimatePrefix, 0) == 0;
    if (comment.word == word) return (is_estimate ? &estimates : list)->push_back(std::move(comment));
  }
  if (comment.word == "warning" && comment.values.count("text") > 0) warnings.push_back(comment.Text("text"));
  if (comment.word == "device") devices.emplace_back(std::move(comment));
}

bool IsGap(const std::string& warning) { return warning.rfind("Recording was off ", 0) == 0; }

bool IsPause(const std::string& warning) { return IsGap(warning) || !OffSince({warning}).empty(); }

bool IsDamage(const std::string& warning) {
  const auto contains = [&](const char* part) { return absl::StrContains(warning, part); };
  return contains("is damaged") || contains("recording ends at byte") || contains("events are missing");
}

std::string OffSince(const std::vector<std::string>& warnings) {
  constexpr std::string_view kBegin = "Recording has been off since ";
  for (const std::string& warning : warnings) {
    if (warning.rfind(kBegin, 0) != 0) continue;
    return warning.substr(kBegin.size(), warning.find(": ", kBegin.size()) - kBegin.size());
  }
  return "";
}

int64_t ProfileInfo::Dropped() const {
  int64_t dropped = 0;
  for (const Comment& tracker : trackers) AddTo(dropped, tracker.Number("dropped_records").value_or(0));
  return dropped;
}

std::optional<int64_t> ProfileInfo::UptimeSeconds() const {
  std::optional<int64_t> longest;
  for (const Comment& process : processes) longest = std::max(longest, process.Number("uptime"));
  return longest;
}

}  // namespace hbmprof::tool
