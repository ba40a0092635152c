#include "src/tool/profile/info.h"

#include <charconv>

namespace hbmprof::tool {
namespace {

std::string Decode(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

Comment::Comment(std::string_view text) {
  bool first = true;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string_view part = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    const size_t equals = part.find('=');
    if (first) {
      word = part;
    } else if (equals == std::string_view::npos) {
      name += (name.empty() ? "" : " ") + Decode(part);
    } else {
      values[Decode(part.substr(0, equals))] = Decode(part.substr(equals + 1));
    }
    first = false;
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
  if (comment.word == "device") {
    devices.emplace_back(std::move(comment));
  } else if (comment.word == "warning") {
    if (comment.values.count("text") > 0) warnings.push_back(comment.Text("text"));
  } else if (comment.word == "tracker") {
    trackers.push_back(std::move(comment));
  } else if (comment.word == "hbmprof") {
    processes.push_back(std::move(comment));
  } else if (comment.word == "environment") {
    environments.push_back(std::move(comment));
  } else if (comment.word == "counter") {
    counters.push_back(std::move(comment));
  }
}

std::string OffSince(const std::vector<std::string>& warnings) {
  constexpr std::string_view kBegin = "Recording has been off since ";
  for (const std::string& warning : warnings) {
    if (warning.rfind(kBegin, 0) != 0) continue;
    return warning.substr(kBegin.size(), warning.find(": ", kBegin.size()) - kBegin.size());
  }
  return "";
}

std::optional<int64_t> ProfileInfo::UptimeSeconds() const {
  std::optional<int64_t> longest;
  for (const Comment& process : processes) longest = std::max(longest, process.Number("uptime"));
  return longest;
}

}  // namespace hbmprof::tool
