// `hbmprof serve`: answers over HTTP for all processes of this host that have a control channel.
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>

#include "src/tool/commands/answer.h"
#include "src/tool/commands/command.h"
#include "src/tool/report/report.h"
#include "src/tool/serve/fleet.h"
#include "src/tool/serve/http_server.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

struct ServeOptions {
  HttpServerOptions http;
  Fleet::Options fleet;
  std::string token_file;
  std::string interval = "5s";
  std::string max_bytes = "4MiB";
};

HttpResponse Failure(const absl::Status& status) {
  static const std::map<absl::StatusCode, int> kNumbers = {{absl::StatusCode::kInvalidArgument, 400},
                                                           {absl::StatusCode::kNotFound, 404},
                                                           {absl::StatusCode::kUnavailable, 502},
                                                           {absl::StatusCode::kOutOfRange, 503},
                                                           {absl::StatusCode::kResourceExhausted, 503}};
  return TextResponse(ValueOr(kNumbers, status.code(), 500), MessageOf(status));
}

HttpResponse JsonAnswer(const Json& json) { return HttpResponse("application/json", Compact(json)); }

// Answers /debug/pprof/heap with the parameters pid and name.
absl::StatusOr<HttpResponse> Heap(Fleet& fleet, const HttpRequest& request) {
  ASSIGN_OR_RETURN(std::string profile, fleet.Profile({request.Parameter("pid"), request.Parameter("name")}));
  HttpResponse response("application/octet-stream", std::move(profile));
  response.file_name = "heap.pb.gz";
  return response;
}

absl::StatusOr<HttpResponse> Respond(Fleet& fleet, const HttpRequest& request) {
  if (request.path == "/") {
    HttpResponse page("text/html; charset=utf-8", kServeHtml);
    page.policy =
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'";
    return page;
  }
  if (request.path == "/report.css") return HttpResponse("text/css; charset=utf-8", kReportCss);
  if (request.path == "/serve.css") return HttpResponse("text/css; charset=utf-8", kServeCss);
  if (request.path == "/serve.js") return HttpResponse("text/javascript; charset=utf-8", kServeJs);
  if (request.path == "/debug/pprof/heap") return Heap(fleet, request);
  if (request.path == "/metrics") return HttpResponse("text/plain; version=0.0.4; charset=utf-8", fleet.Metrics());
  if (request.path == "/processes.json") return JsonAnswer(fleet.Processes());
  const Fleet::Selection selection = {request.Parameter("pid"), request.Parameter("name")};
  if (request.path != "/explain.json" && request.path != "/report") {
    return NotFound("not found; there are: / /metrics /debug/pprof/heap /report /processes.json /explain.json");
  }
  if (request.path == "/explain.json") {
    ASSIGN_OR_RETURN(const Json answer, fleet.Explain(selection));
    return JsonAnswer(answer);
  }
  ASSIGN_OR_RETURN(std::string page, fleet.Report(selection));
  HttpResponse response("text/html; charset=utf-8", std::move(page));
  response.policy = "frame-ancestors 'none'";  // the page has its own policy for everything else
  return response;
}

absl::StatusOr<Json> Explain(const LiveProcess& process, std::string profile, const std::string& stats) {
  ASSIGN_OR_RETURN(Program program, ProgramOf(process, std::move(profile), stats));
  ASSIGN_OR_RETURN(const Findings found, JudgeProgram("serve", ViewOptions(), "", "", program));
  Json answer = PageJson(found);
  Json& findings = answer["findings"];
  // A process can have thousands, and the answer is kept.
  const size_t shown = std::min<size_t>(findings.size(), 3);
  const size_t more = findings.size() - shown;
  findings.erase(findings.begin() + shown, findings.end());
  answer["more"] = more;  // may move `findings`
  answer["seconds"] = process.seconds;
  return answer;
}

absl::StatusOr<std::string> Report(const LiveProcess& process, std::string profile, const std::string& stats) {
  ASSIGN_OR_RETURN(Program program, ProgramOf(process, std::move(profile), stats));
  return ReportPage(std::move(program.profiles), std::move(program.subject), nullptr, ViewOptions(), "");
}

// Returns the token in a file. Error: kInvalidArgument if other users can read the file, or if the token is short.
absl::StatusOr<std::string> ReadToken(const std::string& path) {
  constexpr size_t kLeast = 16;
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return absl::Status(bytes.status().code(), Cat("--token-file ", MessageOf(bytes.status())));
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_IROTH) != 0) {
    return InvalidArgument("--token-file ", path, ": every user can read the token; chmod o-r");
  }
  const std::string token = bytes->substr(0, bytes->find_last_not_of("\r\n") + 1);
  if (token.size() >= kLeast) return token;
  return InvalidArgument("--token-file ", path, ": a token has at least ", kLeast,
                         " characters; make one with: head -c 20 /dev/urandom | base32");
}

bool IsLoopback(const std::string& address) {
  in_addr v4;
  return address == "::1" || (inet_pton(AF_INET, address.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

absl::Status Complete(ServeOptions& options) {
  ASSIGN_OR_RETURN(options.fleet.interval_s,
                   SecondsOf("--interval", options.interval, 0.1, 3600, "a time from 100ms to 1h"));
  options.fleet.directory = ControlDirectory();
  options.fleet.explain = &Explain;
  options.fleet.report = &Report;
  if (options.fleet.metrics_tags.find_first_of(" \n") != std::string::npos) {
    return InvalidArgument("--metrics-tags '", options.fleet.metrics_tags, "': write KEY,KEY,... without spaces");
  }
  if (!ParseBytes(options.max_bytes, &options.fleet.max_bytes) || options.fleet.max_bytes < 0) {
    return InvalidArgument("--max-bytes ", options.max_bytes, ": write a size such as 4MiB");
  }
  if (!IsIpAddress(options.http.address)) {
    return InvalidArgument("--address ", options.http.address, ": write an IP address such as 127.0.0.1 or ::1");
  }
  if (options.token_file.empty()) {
    if (IsLoopback(options.http.address)) return absl::OkStatus();
    return InvalidArgument("--address ", options.http.address,
                           ": other machines could read all profiles; add --token-file, or use the address 127.0.0.1");
  }
  ASSIGN_OR_RETURN(std::string token, ReadToken(options.token_file));
  // Whoever renews a secret replaces its file. A file that cannot be used leaves the last token in force.
  options.http.token = [path = options.token_file, token = std::move(token)]() mutable {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) token = ReadToken(path).value_or(token);
    return token;
  };
  return absl::OkStatus();
}

absl::StatusOr<int> RunServe(ServeOptions& options) {
  RETURN_IF_ERROR(CheckMemoryVariable());
  RETURN_IF_ERROR(Complete(options));
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before the first thread, which inherits the mask
  Fleet fleet(options.fleet);
  const absl::StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(options.http, [&fleet](const HttpRequest& request) {
        absl::StatusOr<HttpResponse> answer = Respond(fleet, request);
        return answer.ok() ? *std::move(answer) : Failure(answer.status());
      });
  if (!server.ok()) return server.status();
  const bool is_v6 = options.http.address.find(':') != std::string::npos;
  Print(Cat("serving http://", is_v6 ? "[" : "", options.http.address, is_v6 ? "]:" : ":", (*server)->port(),
            "/ for the processes in ", options.fleet.directory, "\n"));
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  return kSuccess;
}

}  // namespace

Command AddServeCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("serve", "Serve profiles, metrics and a live page over HTTP");
  auto options = std::make_shared<ServeOptions>();
  options->http.port = 4747;
  arguments->add_option("--address", options->http.address, "The IP address to listen on")->capture_default_str();
  arguments->add_option("--port", options->http.port, "The port; 0: any free port")
      ->capture_default_str()
      ->transform(WholeNumber(0, 65535));
  arguments->add_option("--token-file", options->token_file, "Require the token in this file from every client")
      ->type_name("FILE");
  arguments
      ->add_option("--host", options->http.hosts,
                   "A host name that clients may use, besides IP addresses; can be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  arguments->add_option("--interval", options->interval, "Time between two points of the history")
      ->capture_default_str();
  arguments
      ->add_option("--metrics-tags", options->fleet.metrics_tags, "Split the metrics by these tags (default: none)")
      ->type_name("KEY,...");
  AddCount(*arguments, "--max-samples", options->fleet.max_samples, "Fold profiles to this many samples; 0: all");
  arguments->add_option("--max-bytes", options->max_bytes, "Fold profiles to this size; 0: any")->capture_default_str();
  return {arguments, [options] { return RunServe(*options); }};
}

}  // namespace hbmprof::tool
