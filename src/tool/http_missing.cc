// See http.h: the functions of a command that is built without cpp-httplib.
#include "src/tool/http.h"
#include "src/tool/text.h"

namespace hbmprof::tool {

struct HttpServer::State {};

HttpServer::~HttpServer() = default;

std::string HttpRequest::Parameter(const std::string&) const { return ""; }

absl::StatusOr<std::string> HttpGet(const std::string& url) {
  return absl::UnimplementedError(
      Cat(url,
          ": this hbmprof is built without cpp-httplib and reads no URL; download it first: curl -fsSo profile.pb.gz '",
          url, "'"));
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions&, Handler) {
  return absl::UnimplementedError(
      "this hbmprof is built without cpp-httplib; install libcpp-httplib-dev and build it again");
}

}  // namespace hbmprof::tool
