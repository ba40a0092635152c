// A program without an HTTP library that offers its device memory to pprof and to Prometheus. It answers one request at
// a time and reads only the first line of it.
//
//   http_routes_sockets
//
// Listens on a free port of 127.0.0.1, prints the port, and serves until its standard input ends.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "hbmprof/hbmprof.h"
#include "hbmprof/http.h"
#include "hbmprof/simulated_device.h"

namespace {

void Serve(int connection) {
  char bytes[4096];
  const ssize_t size = recv(connection, bytes, sizeof(bytes), 0);
  const std::string request(bytes, size > 0 ? static_cast<size_t>(size) : 0);
  hbmprof::HttpAnswer answer{405, "text/plain", "only GET is supported\n"};
  if (request.rfind("GET ", 0) == 0) answer = hbmprof::AnswerHttpGet(request.substr(4, request.find(' ', 4) - 4));
  const std::string response =
      "HTTP/1.1 " + std::to_string(answer.status) + " -\r\nContent-Type: " + answer.content_type +
      "\r\nContent-Length: " + std::to_string(answer.body.size()) + "\r\nConnection: close\r\n\r\n" + answer.body;
  for (size_t sent = 0; sent < response.size();) {
    const ssize_t count = send(connection, response.data() + sent, response.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += static_cast<size_t>(count);
  }
  close(connection);
}

}  // namespace

int main() {
  auto device = hbmprof::SimulatedDevice::Create({});
  if (!device.ok()) return 1;
  hbmprof::TrackingAllocator allocator(**device);
  const auto weights = allocator.Allocate(1 << 20);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!weights.ok() || bind(listener, any, size) != 0 || listen(listener, 8) != 0) return 1;
  getsockname(listener, any, &size);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  pollfd polled[] = {{listener, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  while (poll(polled, 2, -1) > 0 && polled[1].revents == 0) Serve(accept(listener, nullptr, nullptr));
  close(listener);
  return allocator.Free(*weights).ok() ? 0 : 1;
}
