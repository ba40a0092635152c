#include "hbmprof/http.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "hbmprof/hbmprof.h"
#include "src/api/control/live.h"
#include "src/base/fork.h"
#include "src/base/message.h"
#include "src/core/injected/injected.h"
#include "src/export/metrics.h"
#include "src/protocol/http_query.h"

namespace hbmprof {
namespace {

HttpAnswer ErrorAnswer(int status, std::string_view message) {
  return {status, "text/plain; charset=utf-8", std::string("hbmprof: ").append(message).append("\n")};
}

HttpAnswer ErrorAnswer(const absl::Status& error) {
  const int status = error.code() == absl::StatusCode::kInvalidArgument ? 400 : 503;
  return ErrorAnswer(status, internal::TextOf(error));
}

HttpAnswer HeapAnswer(const internal::HttpParameters& parameters) {
  PprofOptions options;
  for (const auto& [name, value] : parameters) {
    // Parameters that pprof and Go programs send; they have no effect.
    if (name == "gc" || (name == "debug" && value == "0")) continue;
    if (const absl::Status read = internal::ReadPprofLimit(name, value, &options); !read.ok()) return ErrorAnswer(read);
  }
  absl::StatusOr<std::string> profile = device_memory_profile(options);
  if (!profile.ok()) return ErrorAnswer(profile.status());
  return {200, "application/octet-stream", *std::move(profile)};
}

HttpAnswer MetricsAnswer(const internal::HttpParameters& parameters) {
  std::string_view tags;
  for (const auto& [name, value] : parameters) {
    if (name != "tags") return ErrorAnswer(400, "/metrics has the parameter tags, not '" + name + "'");
    tags = value;
  }
  return {200, internal::kMetricsContentType, internal::LiveMetrics(tags)};
}

}  // namespace

HttpAnswer AnswerHttpGet(std::string_view target) try {
  if (internal::IsOff()) return ErrorAnswer(503, internal::kOffText);
  if (const auto* const injected = internal::InjectedOfDefault()) return injected->AnswerGet(target);
  const size_t question = std::min(target.find('?'), target.size());
  const std::string_view path = target.substr(0, question);
  const internal::HttpParameters parameters =
      internal::ParseHttpQuery(target.substr(std::min(question + 1, target.size())));
  if (path == "/debug/pprof/heap") return HeapAnswer(parameters);
  if (path == "/metrics") return MetricsAnswer(parameters);
  return ErrorAnswer(404, "the routes are /debug/pprof/heap and /metrics");
} catch (const std::exception&) {
  return ErrorAnswer(503, "the host has no memory for the answer");
}

}  // namespace hbmprof
