#include "hbmprof/http.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "src/api/live.h"
#include "src/export/metrics.h"

namespace hbmprof {
namespace {

// Names and values of a query.
using Parameters = std::vector<std::pair<std::string, std::string>>;

int DigitOf(char byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

// Decodes "%2C" and "+". An escape that is not complete stays as it is.
std::string Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? DigitOf(text[i + 1]) : -1;
    const int low = high >= 0 ? DigitOf(text[i + 2]) : -1;
    if (low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

Parameters ParametersOf(std::string_view query) {
  Parameters parameters;
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    const size_t equals = std::min(one.find('='), one.size());
    if (!one.empty()) {
      parameters.emplace_back(Decoded(one.substr(0, equals)), Decoded(one.substr(std::min(equals + 1, one.size()))));
    }
    query.remove_prefix(std::min(one.size() + 1, query.size()));
  }
  return parameters;
}

HttpAnswer ErrorAnswer(int status, std::string_view message) {
  return {status, "text/plain; charset=utf-8", std::string("hbmprof: ").append(message).append("\n")};
}

HttpAnswer ErrorAnswer(const absl::Status& error) {
  const int status = error.code() == absl::StatusCode::kInvalidArgument ? 400 : 503;
  return ErrorAnswer(status, std::string_view(error.message().data(), error.message().size()));
}

HttpAnswer HeapAnswer(const Parameters& parameters) {
  PprofOptions options;
  for (const auto& [name, value] : parameters) {
    // What pprof and Go programs send.
    if (name == "gc" || (name == "debug" && value == "0")) continue;
    if (const absl::Status read = internal::ReadPprofLimit(name, value, &options); !read.ok()) return ErrorAnswer(read);
  }
  absl::StatusOr<std::string> profile = device_memory_profile(options);
  if (!profile.ok()) return ErrorAnswer(profile.status());
  return {200, "application/octet-stream", *std::move(profile)};
}

HttpAnswer MetricsAnswer(const Parameters& parameters) {
  std::optional<std::string_view> tags;
  for (const auto& [name, value] : parameters) {
    if (name != "tags") return ErrorAnswer(400, "/metrics has the parameter tags, not '" + name + "'");
    tags = value;
  }
  return {200, internal::kMetricsContentType, internal::LiveMetrics(tags)};
}

}  // namespace

HttpAnswer AnswerHttpGet(std::string_view target) try {
  const size_t question = std::min(target.find('?'), target.size());
  const std::string_view path = target.substr(0, question);
  const Parameters parameters = ParametersOf(target.substr(std::min(question + 1, target.size())));
  if (path == "/debug/pprof/heap") return HeapAnswer(parameters);
  if (path == "/metrics") return MetricsAnswer(parameters);
  return ErrorAnswer(404, "the routes are /debug/pprof/heap and /metrics");
} catch (const std::exception&) {
  return ErrorAnswer(503, "the host has no memory for the answer");
}

}  // namespace hbmprof
