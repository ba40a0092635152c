// Uses Boost.Beast.
#include "src/tool/source/http_client.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "absl/strings/escaping.h"
#include "src/protocol/http_query.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kMaxAnswerBytes = size_t{1} << 30;
constexpr uint32_t kMaxHeadBytes = uint32_t{64} << 10;

// The URLs of this command line by their names (HideCredentials).
std::map<std::string, std::string>& NamedUrls() {
  static std::map<std::string, std::string> urls;
  return urls;
}

struct Url {
  std::string authority;  // host and port, as in the URL
  std::string host;
  std::string port;
  std::string user;
  std::string password;
  std::string path;  // with the parameters
};

Url ParseUrl(const std::string& text) {
  Url url;
  const size_t begin = text.find("://") + 3;
  const size_t end = std::min(text.find_first_of("/?#", begin), text.size());
  url.authority = text.substr(begin, end - begin);
  if (const size_t at = url.authority.rfind('@'); at != std::string::npos) {
    const size_t colon = std::min(url.authority.find(':'), at);
    url.user = internal::DecodeUrl(url.authority.substr(0, colon), '+');
    if (colon < at) url.password = internal::DecodeUrl(url.authority.substr(colon + 1, at - colon - 1), '+');
    url.authority.erase(0, at + 1);
  }
  url.host = HostOf(url.authority);
  const size_t colon = url.authority.find(':', url.authority.find(']') + 1);  // npos + 1 is 0
  url.port = colon < url.authority.size() ? url.authority.substr(colon + 1) : "80";
  const std::string rest = text.substr(end, text.find('#', end) - end);
  if (rest.empty() || rest[0] != '/') url.path = "/";
  for (const char c : rest) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte < 127) {
      url.path += c;
    } else {
      url.path += Cat("%", absl::BytesToHexString(std::string(1, c)));
    }
  }
  return url;
}

// Starts an asynchronous operation, whose limit of time a synchronous one would not have, and waits for it.
template <typename Start>
error_code Await(asio::io_context& context, const Start& start) {
  error_code result;
  context.restart();
  start([&result](error_code error, const auto&...) { result = error; });
  context.run();
  return result;
}

constexpr std::chrono::seconds kPartTime{330};

error_code Exchange(asio::io_context& context, beast::tcp_stream& stream,
                    const http::request<http::empty_body>& request, http::response_parser<http::string_body>& parser) {
  stream.expires_after(kPartTime);
  error_code error =
      Await(context, [&](auto done) { http::async_write(stream, request, [done](error_code e, size_t) { done(e); }); });
  beast::flat_buffer buffer;
  while (!error && !parser.is_done()) {
    stream.expires_after(kPartTime);
    error = Await(context, [&](auto done) { http::async_read_some(stream, buffer, parser, done); });
  }
  return error;
}

}  // namespace

std::string HostOf(const std::string& authority) {
  if (!authority.empty() && authority[0] == '[') {
    const size_t end = authority.find(']');
    return end == std::string::npos ? "" : authority.substr(1, end - 1);
  }
  return authority.substr(0, authority.find(':'));
}

bool IsUrl(const std::string& source) {
  return (source.rfind("http://", 0) == 0 || source.rfind("https://", 0) == 0) && access(source.c_str(), F_OK) != 0;
}

std::string HideCredentials(const std::string& source) {
  const size_t at = source.rfind('@');
  if (at == std::string::npos || !IsUrl(source)) return source;
  const size_t begin = source.find("://") + 3;
  std::string name = Cat(source.substr(0, begin), "***", source.substr(at));
  // Two URLs that differ in the password only are two sources.
  while (NamedUrls().try_emplace(name, source).first->second != source) name.insert(begin, "*");
  return name;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  constexpr size_t kLeast = 16;
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return absl::Status(bytes.status().code(), Cat("--token-file ", MessageOf(bytes.status())));
  std::string token = *bytes;
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_IROTH) != 0) {
    return InvalidArgument("--token-file ", path, ": every user can read the token; chmod o-r");
  }
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() >= kLeast) return token;
  return InvalidArgument("--token-file ", path, ": a token has at least ", kLeast,
                         " characters; make one with: head -c 20 /dev/urandom | base32");
}

absl::StatusOr<std::string> HttpGet(const std::string& url) {
  const std::string& name = url;
  if (url.rfind("https:", 0) == 0) {
    return absl::UnimplementedError(
        Cat(name, ": hbmprof reads no HTTPS; download it first: curl -fsSo profile.pb.gz '", name, "'"));
  }
  Url parts = ParseUrl(ValueOr(NamedUrls(), url, url));
  if (parts.user.empty() && parts.password.empty() && !token_file.empty()) {
    ASSIGN_OR_RETURN(parts.password, ReadToken(token_file));
  }
  // A slash in a password ends the part of the URL that has the host.
  const char* const hint =
      parts.path.find('@') == std::string::npos ? "" : "; in a user or password, write / as %2F, ? as %3F and # as %23";
  if (parts.host.empty()) return InvalidArgument(name, ": the URL has no host", hint);
  if (int port = 0; !absl::SimpleAtoi(parts.port, &port) || port < 1 || port > 65535) {
    return InvalidArgument(name, ": the port of the URL is not a number from 1 to 65535", hint);
  }
  asio::io_context context;
  beast::tcp_stream stream(context);
  error_code error;
  const auto addresses = tcp::resolver(context).resolve(parts.host, parts.port, error);
  stream.expires_after(std::chrono::seconds(10));
  if (!error) error = Await(context, [&](auto done) { stream.async_connect(addresses, done); });
  if (error) return Unavailable(name, ": cannot connect: ", error.message(), hint);
  http::request<http::empty_body> request(http::verb::get, parts.path, 11);
  request.set(http::field::host, parts.authority);
  request.keep_alive(false);
  if (!parts.user.empty() || !parts.password.empty()) {
    request.set(http::field::authorization, Cat("Basic ", absl::Base64Escape(Cat(parts.user, ":", parts.password))));
  }
  http::response_parser<http::string_body> parser;
  parser.eager(true);
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(kMaxAnswerBytes);
  error = Exchange(context, stream, request, parser);
  if (error == http::error::body_limit) return ResourceExhausted(name, ": is larger than 1 GiB");
  if (error) return Unavailable(name, ": the transfer failed: ", error.message());
  std::string& body = parser.get().body();
  if (parser.get().result() != http::status::ok) {
    return InvalidArgument(name, ": the server answers ", parser.get().result_int(), " ",
                           body.substr(0, std::min(body.find('\n'), size_t{200})));
  }
  return std::move(body);
}

}  // namespace hbmprof::tool
