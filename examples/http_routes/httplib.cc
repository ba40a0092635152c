// A server with cpp-httplib (Debian: libcpp-httplib-dev) that offers its device memory to pprof and to Prometheus.
//
//   http_routes_httplib
//
// Listens on a free port of 127.0.0.1, prints the port, and serves until its standard input ends. Then, for example:
//
//   pprof -top http://127.0.0.1:PORT/debug/pprof/heap
//   curl http://127.0.0.1:PORT/metrics
#include <httplib.h>

#include <cstdio>
#include <thread>

#include "hbmprof/hbmprof.h"
#include "hbmprof/http.h"
#include "hbmprof/simulated_device.h"

namespace {

void Answer(const httplib::Request& request, httplib::Response& response) {
  const hbmprof::HttpAnswer answer = hbmprof::AnswerHttpGet(request.target);
  response.status = answer.status;
  response.set_content(answer.body, answer.content_type);
}

}  // namespace

int main() {
  auto device = hbmprof::SimulatedDevice::Create({});
  if (!device.ok()) return 1;
  hbmprof::TrackingAllocator allocator(**device);
  const auto weights = allocator.Allocate(1 << 20);

  httplib::Server server;
  server.Get("/debug/pprof/heap", Answer);
  server.Get("/metrics", Answer);
  const int port = server.bind_to_any_port("127.0.0.1");
  if (!weights.ok() || port < 0) return 1;
  std::printf("%d\n", port);
  std::fflush(stdout);
  std::thread serving([&] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();
  while (std::getchar() != EOF) continue;
  server.stop();
  serving.join();
  return allocator.Free(*weights).ok() ? 0 : 1;
}
