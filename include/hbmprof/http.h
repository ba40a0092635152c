// Answers for the routes of the program's own HTTP server. This library does not start an HTTP server.
//
//   route                  answer                                                       read by
//   /debug/pprof/heap      the profile (pprof, gzip-compressed)                         pprof, Pyroscope, Parca
//   /metrics               metrics in the text format 0.0.4 (docs/serve.md)             Prometheus
//
//   server.Get("/debug/pprof/heap", [](const Request& request, Response& response) {
//     const hbmprof::HttpAnswer answer = hbmprof::AnswerHttpGet(request.target);
//     response.status = answer.status;
//     response.set_content(answer.body, answer.content_type);
//   });
//
// Send the body unchanged and without the header Content-Encoding, although a profile is compressed.
// examples/http_routes has complete programs. The answers describe the program's memory and name its functions: serve
// them only to clients that are allowed to see this.
#ifndef HBMPROF_HTTP_H_
#define HBMPROF_HTTP_H_

#include <string>
#include <string_view>

namespace hbmprof {

struct HttpAnswer {
  int status = 200;          // of HTTP: 200, 400, 404 or 503
  std::string content_type;  // value of the header Content-Type
  std::string body;
};

// Returns the answer to the request "GET `target`", about Profiler::Default(). `target` is the path and the query of
// the request line, as in "/debug/pprof/heap?max_samples=16000". Parameters of the query:
//   /debug/pprof/heap   max_samples, max_bytes: as in PprofOptions (pprof.h); gc and debug=0 have no effect
//   /metrics            tags=KEY,KEY: the keys of the tags by which the bytes in use are split; at most 4 are used. A
//                       metric has at most 100 combinations of their values; the bytes of all others count as "other"
// Escapes such as %2C are decoded. An error is an answer with a text: status 404 if there is no such route, 400 if a
// parameter is not known or has a bad value, 503 if the host has no memory. Any thread may call it; other threads
// continue to allocate meanwhile. Throws std::bad_alloc only if the host has no memory for the text of an error.
HttpAnswer AnswerHttpGet(std::string_view target);

}  // namespace hbmprof

#endif  // HBMPROF_HTTP_H_
