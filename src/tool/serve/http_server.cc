// Uses Boost.Beast.
#include "src/tool/serve/http_server.h"

#include <arpa/inet.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <future>
#include <list>
#include <system_error>
#include <thread>

#include "absl/strings/escaping.h"
#include "src/protocol/http_query.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kMaxHeadBytes = uint32_t{64} << 10;
constexpr size_t kThreads = 16;
// The most connections that have not sent their whole request. Each of them takes at most twice kMaxHeadBytes.
constexpr size_t kMaxReading = 256;
// The most connections whose request is being answered. Only their requests are kept as fields, which take up to 30
// times as many bytes.
constexpr size_t kMaxAnswering = 64;
constexpr std::chrono::seconds kEndTime{5};  // for answers that are being sent when the server ends

using RequestHead = http::request_header<>;

asio::steady_timer::duration Seconds(double seconds) {
  return std::chrono::duration_cast<asio::steady_timer::duration>(std::chrono::duration<double>(seconds));
}

template <typename Name>
std::string_view Field(const RequestHead& request, Name name) {
  const auto value = request[name];
  return {value.data(), value.size()};
}

// Compares in a time that depends only on the length of `given`.
bool IsSameSecret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

// Returns whether the header Authorization has the token: "Bearer TOKEN", or "Basic" with TOKEN as the password.
bool HasToken(const RequestHead& request, const std::string& token) {
  const std::string header(Field(request, http::field::authorization));
  if (header.rfind("Bearer ", 0) == 0) return IsSameSecret(std::string_view(header).substr(7), token);
  if (header.rfind("Basic ", 0) != 0) return false;
  std::string user_and_password;
  if (!absl::Base64Unescape(header.substr(6), &user_and_password)) return false;
  const size_t colon = user_and_password.find(':');
  return colon != std::string::npos && IsSameSecret(std::string_view(user_and_password).substr(colon + 1), token);
}

// Returns the host in "HOST:PORT", without the brackets of an IPv6 address.
std::string HostOf(std::string_view authority) {
  if (authority.substr(0, 1) != "[") return std::string(authority.substr(0, authority.find(':')));
  const size_t end = authority.find(']');
  return end == std::string_view::npos ? "" : std::string(authority.substr(1, end - 1));
}

bool IsAllowedHost(const RequestHead& request, const std::vector<std::string>& names) {
  if (request.count(http::field::host) != 1) return false;
  const std::string host = HostOf(Field(request, http::field::host));
  return host == "localhost" || IsIpAddress(host) || absl::c_linear_search(names, host);
}

// Returns the answer to a request that a check refuses, else nullopt.
std::optional<HttpResponse> RefusalOf(const HttpServerOptions& options, const RequestHead& request) {
  if (!IsAllowedHost(request, options.hosts)) {
    return TextResponse(403, "The header Host is neither an IP address, nor localhost, nor a name that --host allows.");
  }
  if (options.token && !HasToken(request, options.token())) return TextResponse(401, "The token is missing or wrong.");
  if (Field(request, "Sec-Fetch-Site") == "cross-site" && Field(request, "Sec-Fetch-Mode") != "navigate") {
    return TextResponse(403, "A page of another site must not read this.");
  }
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    return TextResponse(405, "Only GET and HEAD are allowed.");
  }
  if (request.count(http::field::transfer_encoding) > 0) return TextResponse(413, "A request must have no body.");
  return std::nullopt;
}

HttpRequest RequestOf(const RequestHead& head) {
  const std::string_view target(head.target().data(), head.target().size());
  const size_t question = std::min(target.find('?'), target.size());
  const internal::HttpParameters parameters =
      internal::ParseHttpQuery(target.substr(std::min(question + 1, target.size())));
  return {internal::DecodeUrl(target.substr(0, question)), {parameters.begin(), parameters.end()}};
}

class Connection;

// All members except `work` are used on the thread of `io`, once that runs.
struct Server {
  HttpServerOptions options;
  HttpServer::Handler handler;
  std::list<Connection*> reading;  // the oldest one first
  std::atomic<size_t> answering{0};
  asio::io_context io{1};
  asio::io_context work;  // for the handler, on kThreads threads
  tcp::acceptor acceptor{io};
  asio::steady_timer retry{io};  // of the acceptor
};

// One request and its answer. Keeps itself alive as long as an operation on it is pending.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    parser_.header_limit(kMaxHeadBytes);
    parser_.body_limit(0);
  }

  void Start() {
    place_ = server_.reading.insert(server_.reading.end(), this);
    stream_.expires_after(Seconds(server_.options.client_seconds));
    // The parser gets the whole head at once: its limit does not count lines that it has already parsed.
    asio::async_read_until(stream_, asio::dynamic_buffer(head_, kMaxHeadBytes), "\r\n\r\n",
                           [self = shared_from_this()](error_code error, size_t) {
                             self->StopReading();
                             if (!error) self->parser_.put(asio::buffer(self->head_), error);
                             self->OnHead(error);
                           });
  }

  ~Connection() {
    StopReading();
    if (is_accepted_) --server_.answering;
  }

  // Ends a connection that is in `reading`.
  void Drop() {
    StopReading();
    stream_.close();
  }

 private:
  void StopReading() {
    if (place_.has_value()) server_.reading.erase(*place_);
    place_.reset();
  }

  void OnHead(error_code error) {
    const bool is_too_large = error == asio::error::not_found || error == http::error::header_limit;
    if (is_too_large) return Send(TextResponse(431, "The request is too large."));
    if (error == http::error::body_limit) return Send(TextResponse(413, "A request must have no body."));
    if (error.category() == make_error_code(http::error::bad_method).category()) {
      return Send(TextResponse(400, "This is no valid request: " + error.message() + "."));
    }
    if (error) return;  // the client has ended the connection or is too slow
    if (std::optional<HttpResponse> refusal = RefusalOf(server_.options, parser_.get())) {
      return Send(*std::move(refusal));
    }
    if (server_.answering >= kMaxAnswering)
      return Send(TextResponse(503, "Too many requests at the same time; try again."));
    ++server_.answering;
    is_accepted_ = true;
    asio::post(server_.work, [self = shared_from_this(), busy = asio::make_work_guard(server_.io)] {
      const auto answer = std::make_shared<HttpResponse>(self->Answer());
      asio::post(self->server_.io, [self, answer] { self->Send(std::move(*answer)); });
    });
  }

  HttpResponse Answer() const {
    try {
      return server_.handler(RequestOf(parser_.get()));
    } catch (const std::exception& error) {
      return TextResponse(500, error.what());
    }
  }

  void Send(HttpResponse answer) {
    response_.version(11);
    response_.result(static_cast<unsigned>(answer.status));
    response_.keep_alive(false);
    response_.set(http::field::content_type, answer.type);
    response_.set("Content-Security-Policy", answer.policy);
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("X-Frame-Options", "DENY");
    response_.set("Referrer-Policy", "no-referrer");
    response_.set("Cross-Origin-Resource-Policy", "same-origin");
    response_.set(http::field::cache_control, "no-store");
    if (answer.status == 401)
      response_.set(http::field::www_authenticate, "Basic realm=\"hbmprof: the password is the token\"");
    if (answer.status == 405) response_.set(http::field::allow, "GET, HEAD");
    if (!answer.file_name.empty()) {
      response_.set(http::field::content_disposition, Cat("attachment; filename=\"", answer.file_name, "\""));
    }
    response_.content_length(answer.body.size());
    response_.body() = std::move(answer.body);
    stream_.expires_after(Seconds(6 * server_.options.client_seconds));
    const auto end = [self = shared_from_this()](error_code, size_t) {
      error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    };
    if (parser_.get().method() == http::verb::head) {
      http::async_write_header(stream_, serializer_, end);
    } else {
      http::async_write(stream_, serializer_, end);
    }
  }

  Server& server_;
  beast::tcp_stream stream_;
  std::string head_;  // as received
  http::request_parser<http::empty_body> parser_;
  std::optional<std::list<Connection*>::iterator> place_;  // in `reading`
  http::response<http::string_body> response_;
  http::response_serializer<http::string_body> serializer_{response_};
  bool is_accepted_ = false;  // counted in `answering`
};

// Accepts connections until the acceptor is closed.
void AcceptAll(Server& server) {
  server.acceptor.async_accept([&server](error_code error, tcp::socket socket) {
    if (!server.acceptor.is_open()) return;
    if (error) {
      // The connection stays in the queue if there are no descriptors or no memory for it. A client that only connects
      // must not keep others out.
      if (error == asio::error::no_descriptors && !server.reading.empty()) server.reading.front()->Drop();
      server.retry.expires_after(std::chrono::milliseconds(100));
      server.retry.async_wait([&server](error_code ended) {
        if (!ended) AcceptAll(server);
      });
      return;
    }
    AcceptAll(server);
    if (server.reading.size() >= kMaxReading) server.reading.front()->Drop();
    std::make_shared<Connection>(server, std::move(socket))->Start();
  });
}

// Runs the operations of `context` until none is left. One that fails for lack of memory ends its connection.
void RunAll(asio::io_context& context) {
  while (true) {
    try {
      context.run();
      return;
    } catch (const std::exception&) {
      continue;
    }
  }
}

}  // namespace

HttpResponse TextResponse(int status, std::string_view text) {
  HttpResponse response;
  response.status = status;
  response.body = Cat(Visible(text), "\n");
  return response;
}

bool IsIpAddress(const std::string& text) {
  in6_addr any;
  return inet_pton(AF_INET, text.c_str(), &any) == 1 || inet_pton(AF_INET6, text.c_str(), &any) == 1;
}

std::string HttpRequest::Parameter(const std::string& name) const { return ValueOr(parameters, name); }

struct HttpServer::State {
  Server server;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> busy;  // of server.work
  std::vector<std::thread> threads;
  std::promise<void> all_sent;  // the first thread has ended

  ~State() {
    asio::post(server.io, [this] {
      server.acceptor.close();
      server.retry.cancel();
      while (!server.reading.empty()) server.reading.front()->Drop();
    });
    if (threads.empty()) return;
    // The first thread ends when all requests are answered. A client that takes nothing of its answer must not delay
    // the end.
    all_sent.get_future().wait_for(kEndTime);
    server.io.stop();
    busy.reset();
    for (std::thread& thread : threads) thread.join();
  }
};

HttpServer::HttpServer(std::unique_ptr<State> state, int port) : state_(std::move(state)), port_(port) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(options.address, error);
  if (error) return InvalidArgument("--address ", options.address, ": give an IP address");
  auto state = std::make_unique<State>();
  Server& server = state->server;
  server.options = options;
  server.handler = std::move(handler);
  const tcp::endpoint endpoint(address, static_cast<unsigned short>(options.port));
  server.acceptor.open(endpoint.protocol(), error);
  if (!error) server.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) server.acceptor.bind(endpoint, error);
  if (!error) server.acceptor.listen(tcp::acceptor::max_listen_connections, error);
  const int port = error ? 0 : server.acceptor.local_endpoint(error).port();
  if (error) {
    return Unavailable("cannot listen on ", options.address, " port ", options.port, ": ", error.message(),
                       "; --port selects another port");
  }
  state->busy.emplace(asio::make_work_guard(server.work));
  AcceptAll(server);
  try {
    state->threads.emplace_back([state = state.get()] {
      RunAll(state->server.io);
      state->all_sent.set_value();
    });
    for (size_t i = 0; i < kThreads; ++i) state->threads.emplace_back([&server] { RunAll(server.work); });
  } catch (const std::system_error&) {
    if (state->threads.size() < 2) return ResourceExhausted("no thread could be started for the server");
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state), port));
}

}  // namespace hbmprof::tool
