// See http.h.
#include "src/tool/http.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "src/base/descriptor.h"
#include "src/base/http_query.h"
#include "src/base/write_all.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kMaxAnswerBytes = size_t{1} << 30;
constexpr size_t kThreads = 16;
constexpr size_t kMaxConnections = 64;

// --- Checks of requests ---

// Compares in a time that depends only on the length of `given`.
bool IsSameSecret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

// Returns whether the header Authorization has the token: "Bearer TOKEN", or "Basic" with TOKEN as the password.
bool HasToken(const httplib::Request& request, const std::string& token) {
  const std::string header = request.get_header_value("Authorization");
  if (header.rfind("Bearer ", 0) == 0) return IsSameSecret(std::string_view(header).substr(7), token);
  if (header.rfind("Basic ", 0) != 0) return false;
  std::string user_and_password;
  if (!absl::Base64Unescape(header.substr(6), &user_and_password)) return false;
  const size_t colon = user_and_password.find(':');
  return colon != std::string::npos && IsSameSecret(std::string_view(user_and_password).substr(colon + 1), token);
}

bool IsIpAddress(const std::string& text) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 || inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

// Returns the host in the value of a header Host, without the port and the brackets of an IPv6 address.
std::string HostOf(const std::string& header) {
  if (!header.empty() && header[0] == '[') {
    const size_t end = header.find(']');
    return end == std::string::npos ? "" : header.substr(1, end - 1);
  }
  return header.substr(0, header.find(':'));
}

bool IsAllowedHost(const httplib::Request& request, const std::vector<std::string>& names) {
  if (request.get_header_value_count("Host") != 1) return false;
  const std::string host = HostOf(request.get_header_value("Host"));
  return host == "localhost" || IsIpAddress(host) || std::find(names.begin(), names.end(), host) != names.end();
}

// Returns the parameters of a request. The parser of httplib loses the part of a value after a second "=".
std::multimap<std::string, std::string> ParametersOf(std::string_view target) {
  const size_t question = std::min(target.find('?'), target.size());
  const internal::HttpParameters parameters =
      internal::ParseHttpQuery(target.substr(std::min(question + 1, target.size())));
  return {parameters.begin(), parameters.end()};
}

void Refuse(httplib::Response& response, int status, const std::string& why) {
  response.status = status;
  response.set_content(why + "\n", "text/plain; charset=utf-8");
}

// Refuses the request if a check fails. Returns whether it did.
bool IsRefused(const HttpServerOptions& options, const httplib::Request& request, httplib::Response& response) {
  if (!IsAllowedHost(request, options.hosts)) {
    Refuse(response, 403, "The header Host is neither an IP address, nor localhost, nor a name that --host allows.");
  } else if (!options.token.empty() && !HasToken(request, options.token)) {
    response.set_header("WWW-Authenticate", "Basic realm=\"hbmprof: the password is the token\"");
    Refuse(response, 401, "The token is missing or wrong.");
  } else if (request.get_header_value("Sec-Fetch-Site") == "cross-site" &&
             request.get_header_value("Sec-Fetch-Mode") != "navigate") {
    Refuse(response, 403, "A page of another site must not read this.");
  } else if (request.method != "GET" && request.method != "HEAD") {
    response.set_header("Allow", "GET, HEAD");
    Refuse(response, 405, "Only GET and HEAD are allowed.");
  } else if (request.get_header_value("Range").find(',') != std::string::npos) {
    Refuse(response, 416, "Only one range is allowed.");
  } else if (request.has_header("Transfer-Encoding") ||
             (request.has_header("Content-Length") && request.get_header_value("Content-Length") != "0")) {
    Refuse(response, 413, "A request must have no body.");
  } else {
    return false;
  }
  return true;
}

// --- Threads ---

// Runs the connections on kThreads threads. Accepts no further connection while kMaxConnections of them are open.
class ConnectionQueue : public httplib::ThreadPool {
 public:
  ConnectionQueue() : httplib::ThreadPool(kThreads) {}

  void enqueue(std::function<void()> serve) override {
    std::unique_lock<std::mutex> lock(mutex_);
    has_space_.wait(lock, [this] { return open_ < kMaxConnections; });
    ++open_;
    lock.unlock();
    httplib::ThreadPool::enqueue([this, serve = std::move(serve)] {
      serve();
      const std::lock_guard<std::mutex> guard(mutex_);
      --open_;
      has_space_.notify_one();
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_space_;
  size_t open_ = 0;  // guarded by mutex_
};

using Clock = std::chrono::steady_clock;

// A connection with limits for the time of the whole request and of the whole answer. The timeouts of the library hold
// for each byte, so a client that sends a byte now and then could keep a thread for hours.
class LimitedStream : public httplib::Stream {
 public:
  // `seconds`: HttpServerOptions::client_seconds.
  LimitedStream(int fd, double seconds) : fd_(fd), seconds_(seconds) {}

  bool is_readable() const override { return used_ < filled_ || WaitFor(POLLIN, request_deadline_); }
  bool is_writable() const override { return WaitFor(POLLOUT, answer_deadline_.value_or(After(seconds_))); }

  ssize_t read(char* bytes, size_t size) override {
    if (used_ == filled_) {
      if (!is_readable()) return -1;
      const ssize_t count =
          internal::RetryOnSignal([this] { return recv(fd_, buffer_, sizeof(buffer_), MSG_DONTWAIT); });
      if (count <= 0) return count;
      used_ = 0;
      filled_ = static_cast<size_t>(count);
    }
    const size_t count = std::min(size, filled_ - used_);
    std::memcpy(bytes, buffer_ + used_, count);
    used_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* bytes, size_t size) override {
    if (!answer_deadline_.has_value()) answer_deadline_ = After(6 * seconds_);
    if (!is_writable()) return -1;
    return internal::RetryOnSignal([&] { return send(fd_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL); });
  }

  // The address of the client is not used.
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override { get_remote_ip_and_port(ip, port); }
  socket_t socket() const override { return fd_; }

 private:
  static Clock::time_point After(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  bool WaitFor(short events, Clock::time_point deadline) const {
    const auto until = std::min(deadline, After(seconds_ / 2));
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd polled = {fd_, events, 0};
    return millis > 0 && internal::RetryOnSignal([&] { return poll(&polled, 1, static_cast<int>(millis)); }) > 0;
  }

  const int fd_;
  const double seconds_;
  const Clock::time_point request_deadline_ = After(seconds_);
  std::optional<Clock::time_point> answer_deadline_;  // set when the answer begins
  char buffer_[4096];
  size_t used_ = 0;
  size_t filled_ = 0;
};

// One request for each connection.
class LimitedServer : public httplib::Server {
 public:
  double client_seconds = 0;

 private:
  bool process_and_close_socket(socket_t fd) override {
    LimitedStream stream(fd, client_seconds);
    bool is_closed = false;
    const bool is_answered = process_request(stream, /*close_connection=*/true, is_closed, nullptr);
    shutdown(fd, SHUT_RDWR);
    close(fd);
    return is_answered;
  }
};

// Unlike the default of the library, without SO_REUSEPORT: a second server on the same port is an error.
void SetSocketOptions(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

void Fill(HttpResponse from, httplib::Response& to) {
  to.status = from.status;
  to.set_header("Content-Security-Policy", from.policy);
  if (!from.file_name.empty()) {
    to.set_header("Content-Disposition", Cat("attachment; filename=\"", from.file_name, "\""));
  }
  // `to` keeps the function, and so the answer, until the body is sent.
  const auto answer = std::make_shared<const HttpResponse>(std::move(from));
  const auto send = [answer](size_t offset, size_t size, httplib::DataSink& sink) {
    return sink.write(answer->body.data() + offset, size);
  };
  to.set_content_provider(answer->body.size(), answer->type, send);
}

}  // namespace

std::string HttpRequest::Parameter(const std::string& name) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? "" : found->second;
}

// --- Server ---

struct HttpServer::State {
  HttpServerOptions options;
  Handler handler;
  LimitedServer server;
  std::thread listener;
};

HttpServer::HttpServer(std::unique_ptr<State> state, int port) : state_(std::move(state)), port_(port) {}

HttpServer::~HttpServer() {
  state_->server.stop();
  state_->listener.join();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  if (!IsIpAddress(options.address)) {
    return absl::InvalidArgumentError(Cat("--address ", options.address, ": give an IP address"));
  }
  auto state = std::make_unique<State>();
  state->options = options;
  state->handler = std::move(handler);
  LimitedServer& server = state->server;
  server.new_task_queue = [] { return new ConnectionQueue; };
  server.set_socket_options(&SetSocketOptions);
  server.client_seconds = options.client_seconds;
  server.set_payload_max_length(0);
  server.set_default_headers({{"X-Content-Type-Options", "nosniff"},
                              {"X-Frame-Options", "DENY"},
                              {"Referrer-Policy", "no-referrer"},
                              {"Cross-Origin-Resource-Policy", "same-origin"},
                              {"Cache-Control", "no-store"}});
  // Answers every request itself, so that the routing of the library, which can serve files, is never used.
  server.set_pre_routing_handler([state = state.get()](const httplib::Request& request, httplib::Response& response) {
    if (!IsRefused(state->options, request, response)) {
      try {
        Fill(state->handler({request.path, ParametersOf(request.target)}), response);
      } catch (const std::exception& error) {
        Refuse(response, 500, error.what());
      }
    }
    return httplib::Server::HandlerResponse::Handled;
  });
  const int port = options.port == 0                                    ? server.bind_to_any_port(options.address)
                   : server.bind_to_port(options.address, options.port) ? options.port
                                                                        : -1;
  if (port < 0) {
    return absl::UnavailableError(Cat("cannot listen on ", options.address, " port ", options.port, ": ",
                                      std::strerror(errno), "; --port selects another port"));
  }
  state->listener = std::thread([&server] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state), port));
}

// --- Client ---

namespace {

struct Url {
  std::string origin;  // scheme, host and port
  std::string user;
  std::string password;
  std::string path;  // with the parameters
};

Url ParseUrl(const std::string& text) {
  Url url;
  const size_t begin = text.find("://") + 3;
  const size_t end = std::min(text.find_first_of("/?#", begin), text.size());
  std::string host = text.substr(begin, end - begin);
  if (const size_t at = host.rfind('@'); at != std::string::npos) {
    const size_t colon = std::min(host.find(':'), at);
    url.user = host.substr(0, colon);
    if (colon < at) url.password = host.substr(colon + 1, at - colon - 1);
    host.erase(0, at + 1);
  }
  if (!host.empty()) url.origin = text.substr(0, begin) + host;
  const std::string rest = text.substr(end, text.find('#', end) - end);
  url.path = rest.empty() || rest[0] != '/' ? "/" + rest : rest;
  return url;
}

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& url) {
  const Url parts = ParseUrl(url);
  // Messages must not contain the password.
  const std::string name = parts.origin + parts.path;
  if (parts.origin.empty()) return absl::InvalidArgumentError(Cat(url, ": the URL has no host"));
#if !defined(CPPHTTPLIB_OPENSSL_SUPPORT)
  if (parts.origin.rfind("https:", 0) == 0) {
    return absl::UnimplementedError(
        Cat(name,
            ": this hbmprof is built without OpenSSL and reads no HTTPS; download it first: curl -fsSo profile.pb.gz '",
            name, "'"));
  }
#endif
  httplib::Client client(parts.origin);
  if (!client.is_valid()) return absl::InvalidArgumentError(Cat(name, ": is not a URL that can be read"));
  client.set_connection_timeout(10);
  client.set_read_timeout(330);
  if (!parts.user.empty() || !parts.password.empty()) client.set_basic_auth(parts.user, parts.password);
  const internal::WriteSignalsBlocked blocked;  // the client does not protect its writes from SIGPIPE
  std::string body;
  const httplib::Result result = client.Get(parts.path, [&body](const char* data, size_t size) {
    body.append(data, size);
    return body.size() <= kMaxAnswerBytes;
  });
  blocked.Consume(EPIPE);
  if (body.size() > kMaxAnswerBytes) return absl::ResourceExhaustedError(Cat(name, ": is larger than 1 GiB"));
  if (result.error() == httplib::Error::Connection) return absl::UnavailableError(Cat(name, ": cannot connect"));
  if (!result) return absl::UnavailableError(Cat(name, ": the transfer failed: ", httplib::to_string(result.error())));
  if (result->status != 200) {
    return absl::InvalidArgumentError(Cat(name, ": the server answers ", result->status, " ",
                                          body.substr(0, std::min(body.find('\n'), size_t{200}))));
  }
  return body;
}

}  // namespace hbmprof::tool
