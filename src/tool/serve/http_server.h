// The HTTP server of `hbmprof serve`.
#ifndef HBMPROF_SRC_TOOL_SERVE_HTTP_SERVER_H_
#define HBMPROF_SRC_TOOL_SERVE_HTTP_SERVER_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// A GET request that the server has accepted.
struct HttpRequest {
  std::string path;  // decoded, without the parameters
  std::multimap<std::string, std::string> parameters;

  // Returns the first value of the parameter; "" if it is missing.
  std::string Parameter(const std::string& name) const;
};

struct HttpResponse {
  explicit HttpResponse(std::string with_type = "text/plain; charset=utf-8", std::string with_body = "")
      : type(std::move(with_type)), body(std::move(with_body)) {}

  int status = 200;
  std::string type;
  std::string body;
  std::string file_name;  // if not "", a browser saves the body under this name
  // The value of the header Content-Security-Policy.
  std::string policy = "default-src 'none'";
};

// Returns a response with `text` and a line feed, as in Visible.
HttpResponse TextResponse(int status, std::string_view text);

bool IsIpAddress(const std::string& text);

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // an IP address to listen on
  int port = 0;                       // 0: any free port
  // Not null: returns what a request must have as a bearer token, or as the password of the scheme Basic. One thread
  // calls it, for each request.
  std::function<std::string()> token;
  // Names that are allowed in the header Host, besides "localhost" and IP addresses.
  std::vector<std::string> hosts;
  // How long a client may take to send its request, in seconds. To receive the answer, it may take six times this time.
  double client_seconds = 10;
};

// Answers GET and HEAD requests until it is destroyed.
//
// It refuses requests of more than 64 KiB (431) or with a body (413) before it looks at anything else. It refuses
// requests whose header Host is a name that is not allowed (403): a page of another site could otherwise read the
// answers through a name that it points to this address. It also refuses requests without the token (401), requests
// that a page of another site makes in the background (403), and other methods (405). It ignores the header Range.
//
// Each connection has one request. 16 threads answer one request each; 48 more wait for them, and further ones are
// refused (503). Of more than 256 connections that have not sent their request, the oldest is ended. A client that
// takes longer than HttpServerOptions::client_seconds allows is disconnected.
class HttpServer {
 public:
  // Called by several threads at once. An exception becomes the status 500.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Errors: kUnavailable (the address cannot be used), kInvalidArgument (`address` is not an IP address),
  // kResourceExhausted (no thread).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Handler handler);
  // Stops accepting requests and waits for those that are being answered. Answers that a client has not taken after
  // five seconds are lost.
  ~HttpServer();

  int port() const { return port_; }

 private:
  struct State;
  HttpServer(std::unique_ptr<State> state, int port);

  std::unique_ptr<State> state_;
  int port_;
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SERVE_HTTP_SERVER_H_
