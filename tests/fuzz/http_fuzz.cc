// The server of `hbmprof serve` ends each connection, whatever a client sends, and goes on to answer others.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "src/tool/serve/http_server.h"

namespace {

using hbmprof::tool::HttpRequest;
using hbmprof::tool::HttpResponse;
using hbmprof::tool::HttpServer;

std::unique_ptr<HttpServer> Start() {
  hbmprof::tool::HttpServerOptions options;
  options.hosts = {"monitor.example"};
  auto server = HttpServer::Start(options, [](const HttpRequest& request) {
    HttpResponse response;
    response.body = "path " + request.path + " " + request.Parameter("pid");
    return response;
  });
  if (!server.ok()) std::abort();
  return *std::move(server);
}

// Sends `request` in two parts, of which the first has `first` bytes. Returns the answer.
std::string Send(int port, std::string_view request, size_t first) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // The ports of earlier connections are free after a minute.
  while (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno != EADDRNOTAVAIL) std::abort();
    usleep(10'000);
  }
  first = std::min(first, request.size());
  send(fd, request.data(), first, MSG_NOSIGNAL);
  send(fd, request.data() + first, request.size() - first, MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
    answer.append(bytes, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<HttpServer> server = Start();
  if (size == 0) return 0;
  const std::string_view request(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string answer = Send(server->port(), request, data[0]);
  if (!answer.empty() && answer.rfind("HTTP/1.1 ", 0) != 0) std::abort();
  constexpr char kGood[] = "GET /x?pid=7 HTTP/1.1\r\nHost: monitor.example\r\n\r\n";
  if (Send(server->port(), kGood, SIZE_MAX).find("\r\n\r\npath /x 7") == std::string::npos) std::abort();
  return 0;
}
