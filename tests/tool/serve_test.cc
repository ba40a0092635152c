// `hbmprof serve`: the answers to a scraper, a browser and an attacker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "src/tool/report/report.h"
#include "src/tool/serve/http_server.h"
#include "tests/support/program_run.h"
#include "tests/support/running_program.h"
#include "tests/tool/http_client.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/report_data.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using hbmprof::tool::HttpRequest;
using hbmprof::tool::HttpResponse;
using hbmprof::tool::HttpServer;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "a-token-of-24-characters";

// `hbmprof serve` on a free port, for the processes of a folder.
class Server {
 public:
  Server(const std::string& sockets, const std::vector<std::string>& arguments)
      : program_(Argv(arguments), {"HBMPROF_SOCKET_DIR=" + sockets}) {
    const std::string line = program_.ReadLine();
    std::sscanf(line.c_str(), "serving http://127.0.0.1:%d/", &port_);
    EXPECT_GT(port_, 0) << line;
  }
  ~Server() {
    if (program_.pid() > 0) End();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  // The most memory that it has had, in KiB.
  int64_t PeakMemory() const {
    std::ifstream file("/proc/" + std::to_string(program_.pid()) + "/status");
    int64_t kib = 0;
    for (std::string line; std::getline(file, line);) std::sscanf(line.c_str(), "VmHWM: %" SCNd64, &kib);
    return kib;
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // Returns the status of waitpid.
  int End() {
    kill(program_.pid(), SIGTERM);
    return program_.Wait();
  }

 private:
  static std::vector<std::string> Argv(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {ToolPath(), "serve", "--port", "0"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    if (std::find(argv.begin(), argv.end(), "--interval") == argv.end())
      argv.insert(argv.end(), {"--interval", "100ms"});
    return argv;
  }
  RunningProgram program_;
  int port_ = 0;
};

class ServeTest : public testing::Test {
 protected:
  // Starts a process that holds 3,000,000 bytes, with `threads` threads that allocate.
  RunningProgram& Start(const std::string& threads = "0", const std::string& program = HBMPROF_CONTROL_PROGRAM) {
    programs_.push_back(std::make_unique<RunningProgram>(std::vector<std::string>{program, "hold", threads},
                                                         std::vector<std::string>{"HBMPROF_SOCKET_DIR=" + sockets_}));
    EXPECT_EQ(programs_.back()->ReadLine(), "ready");
    return *programs_.back();
  }
  ProfileView View(const HttpAnswer& answer) const {
    EXPECT_EQ(answer.status, 200) << answer.body;
    const auto profile = ParseProfile(answer.body);
    EXPECT_TRUE(profile.ok()) << profile.status();
    return ProfileView(profile.ok() ? *profile : Profile());
  }
  // Repeats the request until `is_there` holds, for 20 seconds.
  static std::string GetUntil(int port, const std::string& path,
                              const std::function<bool(const std::string&)>& is_there) {
    std::string body;
    for (int i = 0; i < 200; ++i) {
      body = HttpGet(port, path).body;
      if (is_there(body)) return body;
      usleep(100'000);
    }
    ADD_FAILURE() << path << ": " << body;
    return body;
  }

  const std::string directory_ = NewDirectory();
  const std::string sockets_ = directory_ + "/sockets";
  std::vector<std::unique_ptr<RunningProgram>> programs_;
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// --- What it serves ---

TEST_F(ServeTest, HeapIsTheProfileOfAProcess) {
  const RunningProgram& program = Start();
  Server server(sockets_, {});
  const HttpAnswer answer = HttpGet(server.port(), "/debug/pprof/heap?pid=" + std::to_string(program.pid()));
  EXPECT_EQ(View(answer).SumUnder("inuse_space", "(anonymous namespace)::LoadWeights"), 3'000'000);
  EXPECT_THAT(answer.headers, HasSubstr("application/octet-stream"));
  EXPECT_EQ(server.End(), 0);
}

TEST_F(ServeTest, ProfileByNameHasTheDevicesOfItsProcess) {
  Start();
  const Server server(sockets_, {});
  for (const char* query : {"?name=control_program", ""}) {
    const ProfileView view = View(HttpGet(server.port(), std::string("/debug/pprof/heap") + query));
    EXPECT_EQ(view.Comment("device sim:0", "in_use"), "3000000");
  }
  Start();
  EXPECT_EQ(View(HttpGet(server.port(), "/debug/pprof/heap?name=control_program")).Comment("device sim:0", "in_use"),
            "")
      << "the sum of two processes";
}

TEST_F(ServeTest, RouteOfOneProcessListsTheProcesses) {
  const RunningProgram& one = Start();
  const Server server(sockets_, {});
  EXPECT_TRUE(nlohmann::json::parse(HttpGet(server.port(), "/explain.json").body)["findings"].is_array())
      << "there is only one";
  const RunningProgram& other = Start();
  for (const char* path : {"/explain.json", "/report", "/report?name=control_program"}) {
    const HttpAnswer answer = HttpGet(server.port(), path);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_THAT(answer.body, AllOf(HasSubstr("this route answers for one process: add pid=ID, one of: "),
                                   HasSubstr(std::to_string(one.pid()) + " control_program"),
                                   HasSubstr(std::to_string(other.pid()) + " control_program")));
  }
}

TEST_F(ServeTest, CommandsReadTheProfileOfAUrl) {
  const RunningProgram& program = Start();
  const Server server(sockets_, {});
  const std::string path = "/debug/pprof/heap?pid=" + std::to_string(program.pid());
  EXPECT_THAT(RunTool({"top", server.url() + path}).err, HasSubstr("(curl -fsSo profile.pb.gz URL)"));
  const std::string file = directory_ + "/profile.pb.gz";
  WriteFile(file, HttpGet(server.port(), path).body);
  EXPECT_THAT(RunTool({"top", "--exact", file}).out, HasSubstr("3000000 B"));
  EXPECT_EQ(HttpGet(server.port(), "/debug/pprof/heap?pid=1").status, 404);
}

TEST_F(ServeTest, HeapByNameAddsProcessesUp) {
  const RunningProgram& one = Start();
  Start();
  const Server server(sockets_, {});
  for (const char* selection : {"?name=control_program", ""}) {
    const ProfileView view = View(HttpGet(server.port(), std::string("/debug/pprof/heap") + selection));
    EXPECT_EQ(view.Sum("inuse_space"), 6'000'000);
    EXPECT_EQ(view.SumWhere("inuse_space", "pid", std::to_string(one.pid())), 3'000'000);
    EXPECT_EQ(view.SumWhere("inuse_space", "name", "control_program"), 6'000'000);
  }
}

TEST_F(ServeTest, MetricsHaveEveryProcess) {
  const RunningProgram& one = Start();
  const RunningProgram& other = Start();
  const Server server(sockets_, {});
  const HttpAnswer answer = HttpGet(server.port(), "/metrics");
  EXPECT_THAT(answer.headers, HasSubstr("text/plain; version=0.0.4"));
  for (const RunningProgram* program : {&one, &other}) {
    // In a container there are more labels.
    const std::string labels = "[{]pid=\"" + std::to_string(program->pid()) + "\",name=\"control_program\"[^}]*";
    EXPECT_THAT(answer.body, ContainsRegex("\nhbmprof_process_up" + labels + "[}] 1\n"));
    EXPECT_THAT(answer.body, ContainsRegex("\nhbmprof_device_memory_in_use_bytes" + labels +
                                           ",device=\"sim:0\",space=\"device\"[}] 3000000\n"));
  }
  EXPECT_THAT(answer.body, HasSubstr("\nhbmprof_silent_processes 0\n"));
}

TEST_F(ServeTest, StoppedProcessDoesNotBlockOthers) {
  const RunningProgram& stopped = Start();
  const RunningProgram& other = Start();
  kill(stopped.pid(), SIGSTOP);
  waitpid(stopped.pid(), nullptr, WUNTRACED);  // all of its threads have stopped
  const Server server(sockets_, {});
  const std::string metrics = HttpGet(server.port(), "/metrics").body;
  EXPECT_THAT(metrics, ContainsRegex("hbmprof_process_up[{]pid=\"" + std::to_string(other.pid()) +
                                     "\",name=\"control_program\"[^}]*[}] 1\n"));
  EXPECT_THAT(metrics, HasSubstr("hbmprof_silent_processes 1\n"));
  kill(stopped.pid(), SIGCONT);
}

// Failed before: all seemed to be well.
TEST_F(ServeTest, FolderThatIsRefusedCountsAsSilent) {
  const Server server(sockets_, {});
  EXPECT_THAT(HttpGet(server.port(), "/metrics").body, HasSubstr("hbmprof_silent_processes 0\n")) << "no folder yet";
  ASSERT_EQ(mkdir(sockets_.c_str(), 0700), 0);
  ASSERT_EQ(chmod(sockets_.c_str(), 0777), 0);
  EXPECT_THAT(HttpGet(server.port(), "/metrics").body, HasSubstr("hbmprof_silent_processes 1\n"));
}

TEST_F(ServeTest, ReportAndPageHaveTheirPolicy) {
  const RunningProgram& program = Start();
  const Server server(sockets_, {});
  const HttpAnswer report = HttpGet(server.port(), "/report?pid=" + std::to_string(program.pid()));
  EXPECT_EQ(report.status, 200);
  EXPECT_THAT(report.body, AllOf(HasSubstr("LoadWeights"), HasSubstr("<meta http-equiv=\"Content-Security-Policy\"")));
  const HttpAnswer page = HttpGet(server.port(), "/");
  EXPECT_THAT(page.headers,
              HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'"));
  EXPECT_THAT(page.headers, HasSubstr("X-Frame-Options: DENY"));
}

TEST_F(ServeTest, ProcessesHaveAHistory) {
  const RunningProgram& program = Start();
  const Server server(sockets_, {});
  const auto json = nlohmann::json::parse(GetUntil(server.port(), "/processes.json", [](const std::string& body) {
    const auto data = nlohmann::json::parse(body, nullptr, false);
    return data["processes"].size() == 1 && data["processes"][0]["history"].size() >= 3;
  }));
  const nlohmann::json& process = json["processes"][0];
  EXPECT_EQ(process["id"], std::to_string(program.pid()));
  EXPECT_EQ(process["history"][0], 3'000'000);
  EXPECT_EQ(process["memories"][0]["name"], "sim:0");
}

TEST_F(ServeTest, EndedProcessStays) {
  RunningProgram& program = Start();
  const Server server(sockets_, {});
  const std::string pid = std::to_string(program.pid());
  const std::string said = HttpGet(server.port(), "/explain.json?pid=" + pid).body;
  EXPECT_THAT(said, HasSubstr("growth NOT judged"));
  const auto has = [](const std::string& text) {
    return [text](const std::string& body) { return body.find(text) != std::string::npos; };
  };
  GetUntil(server.port(), "/processes.json", has("growth NOT judged"));
  program.Wait();
  const auto process =
      nlohmann::json::parse(GetUntil(server.port(), "/processes.json", has("\"ended\":true")))["processes"][0];
  EXPECT_EQ(process["id"], pid);
  EXPECT_EQ(process["history"][0], 3'000'000);
  EXPECT_EQ(process["explain"], nlohmann::json::parse(said)) << "the last answer";
  EXPECT_EQ(HttpGet(server.port(), "/explain.json?pid=" + pid).status, 404);
}

// Failed before: it was silent for ever, and never ended.
TEST_F(ServeTest, KilledProcessOfAnotherUserHasEnded) {
  const RunningProgram& program = Start();
  const Server server(sockets_, {});
  const auto has = [](const std::string& text) {
    return [text](const std::string& body) { return body.find(text) != std::string::npos; };
  };
  GetUntil(server.port(), "/processes.json", has("control_program"));
  const std::string socket = sockets_ + "/hbmprof." + std::to_string(program.pid()) + ".sock";
  // Only root can give it to another user. Else it is in a folder from which this user can remove nothing.
  const bool is_root = geteuid() == 0;
  ASSERT_EQ(is_root ? chown(socket.c_str(), 65534, 65534) : chmod(sockets_.c_str(), 0500), 0);
  kill(program.pid(), SIGKILL);
  GetUntil(server.port(), "/processes.json", has("\"ended\":true"));
  EXPECT_THAT(HttpGet(server.port(), "/metrics").body, HasSubstr("hbmprof_silent_processes 0\n"));
  EXPECT_EQ(access(socket.c_str(), F_OK) == 0, !is_root) << "root removes it";
  chmod(sockets_.c_str(), 0700);
}

// --- Who may read it ---

TEST_F(ServeTest, RefusesForeignHosts) {
  const Server server(sockets_, {"--host", "monitor.example"});
  const auto status = [&](const std::string& headers) {
    return SendHttp(server.port(), "GET /metrics HTTP/1.1\r\n" + headers + "\r\n").status;
  };
  for (const char* host : {"127.0.0.1", "127.0.0.1:4747", "localhost", "localhost:1", "[::1]:4747", "10.1.2.3",
                           "monitor.example", "monitor.example:80"}) {
    EXPECT_EQ(status(std::string("Host: ") + host + "\r\n"), 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:4747", "127.0.0.1.evil.example", "localhost.evil.example",
                           "monitor.example.evil", "", "[::1", "0x7f.1"}) {
    EXPECT_EQ(status(std::string("Host: ") + host + "\r\n"), 403) << host;
  }
  EXPECT_EQ(status(""), 403) << "no Host";
  EXPECT_EQ(status("Host: 127.0.0.1\r\nHost: evil.example\r\n"), 403) << "two";
}

TEST_F(ServeTest, RefusesRequestsOfOtherSites) {
  const Server server(sockets_, {});
  EXPECT_EQ(HttpGet(server.port(), "/metrics", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n").status,
            403);
  EXPECT_EQ(HttpGet(server.port(), "/", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n").status, 200);
}

TEST_F(ServeTest, RequiresTheToken) {
  const std::string file = directory_ + "/token";
  WriteFile(file, std::string(kToken) + "\n");
  chmod(file.c_str(), 0600);
  const Server server(sockets_, {"--token-file", file});
  for (const char* path : {"/", "/metrics", "/debug/pprof/heap", "/serve.js", "/nothing"}) {
    EXPECT_EQ(HttpGet(server.port(), path).status, 401) << path;
  }
  const auto status = [&](const std::string& value) {
    return HttpGet(server.port(), "/metrics", "Authorization: " + value + "\r\n").status;
  };
  EXPECT_EQ(status(std::string("Bearer ") + kToken), 200);
  EXPECT_EQ(status("Basic YW55OmEtdG9rZW4tb2YtMjQtY2hhcmFjdGVycw=="), 200) << "any:a-token-of-24-characters";
  for (const char* wrong : {"Bearer ", "Bearer a-token-of-24-character", "Bearer a-token-of-24-characters2", "Basic ",
                            "Basic YTpi", "Basic !!!!", "Digest x", "a-token-of-24-characters"}) {
    EXPECT_EQ(status(wrong), 401) << wrong;
  }
}

// Failed before: the token was that of the start.
TEST_F(ServeTest, TokenIsThatOfTheFile) {
  const std::string file = directory_ + "/token";
  const auto renew = [&](const std::string& token, mode_t mode) {
    WriteFile(file + ".new", token);
    chmod((file + ".new").c_str(), mode);
    std::filesystem::rename(file + ".new", file);
  };
  renew(kToken, 0600);
  const Server server(sockets_, {"--token-file", file});
  const auto status = [&](const std::string& token) {
    return HttpGet(server.port(), "/metrics", "Authorization: Bearer " + token + "\r\n").status;
  };
  EXPECT_EQ(status(kToken), 200);
  const std::string next = "the-next-token-of-this-server";
  renew(next + "\n", 0600);
  EXPECT_EQ(status(kToken), 401);
  EXPECT_EQ(status(next), 200);
  renew("short", 0600);
  EXPECT_EQ(status("short"), 401);
  EXPECT_EQ(status(next), 200);
  renew("a-token-that-every-user-can-read", 0644);
  EXPECT_EQ(status("a-token-that-every-user-can-read"), 401);
  EXPECT_EQ(status(next), 200);
  std::filesystem::remove(file);
  EXPECT_EQ(status(next), 200);
}

TEST_F(ServeTest, OtherMachinesNeedAToken) {
  const CommandResult open = RunTool({"serve", "--address", "0.0.0.0", "--port", "0"});
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_THAT(open.err, HasSubstr("other machines could read all profiles; add --token-file"));
  const std::string file = directory_ + "/token";
  WriteFile(file, kToken);
  chmod(file.c_str(), 0644);
  EXPECT_THAT(RunTool({"serve", "--token-file", file}).err, HasSubstr("every user can read the token"));
  chmod(file.c_str(), 0600);
  WriteFile(file, "short");
  EXPECT_THAT(RunTool({"serve", "--token-file", file}).err, HasSubstr("a token has at least 16 characters"));
  EXPECT_THAT(RunTool({"serve", "--address", "example.com"}).err, HasSubstr("example.com"));
}

TEST_F(ServeTest, TwoServersDoNotShareAPort) {
  const Server server(sockets_, {});
  const CommandResult second = RunTool({"serve", "--port", std::to_string(server.port())});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("cannot listen on 127.0.0.1 port"));
}

// --- What a bad client can do ---

TEST_F(ServeTest, ServesNoFiles) {
  const Server server(sockets_, {});
  for (const char* path :
       {"/etc/passwd", "/../../../../etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd",
        "//etc/passwd", "/serve.js/../../etc/passwd", "/debug/pprof/heap/../../../etc/passwd", "/debug/pprof/"}) {
    const HttpAnswer answer = HttpGet(server.port(), path);
    EXPECT_EQ(answer.status, 404) << path;
    EXPECT_THAT(answer.body, AllOf(HasSubstr(" /metrics"), HasSubstr(" /processes.json"), HasSubstr(" /explain.json")));
    EXPECT_THAT(answer.body, Not(HasSubstr("root:"))) << path;
  }
  for (const char* pid : {"../../../../tmp/x", "%2e%2e%2fx", "1%00", "1%0aprofile", "*"}) {
    EXPECT_EQ(HttpGet(server.port(), std::string("/debug/pprof/heap?pid=") + pid).status, 404) << pid;
  }
}

TEST_F(ServeTest, RefusesOtherMethodsBodiesAndLargeRequests) {
  const Server server(sockets_, {});
  const std::string host = " HTTP/1.1\r\nHost: 127.0.0.1\r\n";
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    EXPECT_EQ(SendHttp(server.port(), method + std::string(" /metrics") + host + "\r\n").status, 405) << method;
  }
  EXPECT_EQ(SendHttp(server.port(), "GET /metrics" + host + "Content-Length: 5\r\n\r\nhello").status, 413);
  EXPECT_GE(SendHttp(server.port(), "GET /" + std::string(100'000, 'x') + host + "\r\n").status, 400);
  EXPECT_NE(SendHttp(server.port(), "GET /" + host + "X: " + std::string(100'000, 'x') + "\r\n\r\n").status, 200);
  SendHttp(server.port(), "nonsense\r\n\r\n");
  SendHttp(server.port(), std::string("\0\xff\r\n\r\n", 6));
  EXPECT_EQ(HttpGet(server.port(), "/metrics").status, 200);
}

// The server alone, with other times for its clients than those of the command.
std::unique_ptr<HttpServer> ServerWith(double client_seconds, HttpServer::Handler handler) {
  hbmprof::tool::HttpServerOptions options;
  options.client_seconds = client_seconds;
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}
HttpResponse Body(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

TEST(HttpServerTest, IdleConnectionsDoNotStopIt) {
  const auto server = ServerWith(600, [](const HttpRequest&) { return Body("x"); });
  std::vector<int> idle;
  for (int i = 0; i < 600; ++i) idle.push_back(ConnectTo(server->port()));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(HttpGet(server->port(), "/metrics").status, 200);
  EXPECT_LT(SecondsSince(start), 10);
  for (const int fd : idle) close(fd);
}

// A range is ignored, as HTTP allows.
TEST_F(ServeTest, RangeReadsOnlyTheAnswer) {
  const Server server(sockets_, {});
  const HttpAnswer whole = HttpGet(server.port(), "/serve.js");
  for (const char* range : {"0-99999", "-99999", "5-", "5-4", "0-,0-,0-", "99999-"}) {
    const HttpAnswer answer = HttpGet(server.port(), "/serve.js", std::string("Range: bytes=") + range + "\r\n");
    EXPECT_EQ(answer.status, 200) << range;
    EXPECT_EQ(answer.body, whole.body) << range;
  }
}

TEST_F(ServeTest, LargeHeadsTakeLittleMemory) {
  const Server server(sockets_, {});
  EXPECT_EQ(HttpGet(server.port(), "/metrics").status, 200);
  const int64_t before = server.PeakMemory();
  std::string lines;
  while (lines.size() < size_t{20} << 20) lines += "a:b\r\n";
  std::vector<std::thread> clients;
  for (const std::string& head :
       {"GET / HTTP/1.1\r\n" + lines, "GET / HTTP/1.1\r\nX: " + std::string(lines.size(), 'x'),
        "GET /" + std::string(lines.size(), 'x')}) {
    clients.emplace_back([&server, head] { EXPECT_NE(SendHttp(server.port(), head).status, 200); });
  }
  // Each part ends within a line, so that a parser can take all lines before it.
  clients.emplace_back([&server] {
    const int fd = ConnectTo(server.port());
    std::string part = "GET / HTTP/1.1\r\na:";
    for (int i = 0; i < 20'000 && send(fd, part.data(), part.size(), MSG_NOSIGNAL) > 0; ++i) {
      part = "b\r\n";
      for (int line = 0; line < 100; ++line) part += "a:b\r\n";
      part += "a:";
      usleep(100);
    }
    close(fd);
  });
  for (std::thread& client : clients) client.join();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("not compared: the sanitizer keeps freed memory (%" PRId64 " KiB before)\n", before);
#else
  EXPECT_LT(server.PeakMemory(), before + 16 * 1024) << "KiB";
#endif
  EXPECT_EQ(HttpGet(server.port(), "/", "X: " + std::string(60'000, 'x') + "\r\n").status, 200) << "up to 64 KiB";
}

TEST_F(ServeTest, HeadHasNoBody) {
  const Server server(sockets_, {});
  const HttpAnswer head = SendHttp(server.port(), "HEAD /serve.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  const size_t bytes = HttpGet(server.port(), "/serve.js").body.size();
  EXPECT_THAT(head.headers, HasSubstr("Content-Length: " + std::to_string(bytes)));
}

// --- Limits ---

// A process whose answers a test chooses: a body, or "ok BYTES\n" and any bytes after it.
class FakeProcess {
 public:
  // With `is_slow`, the answer to "metrics" is sent in 30 seconds, byte by byte.
  FakeProcess(const std::string& sockets, std::function<std::string(const std::string&)> answer, bool is_slow = false)
      : answer_(std::move(answer)),
        is_slow_(is_slow),
        path_(sockets + "/hbmprof.77.sock"),
        fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    mkdir(sockets.c_str(), 0700);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 100), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeProcess() {
    end_ = true;
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
    unlink(path_.c_str());
  }
  FakeProcess(const FakeProcess&) = delete;
  FakeProcess& operator=(const FakeProcess&) = delete;

 private:
  void Serve() {
    while (!end_) {
      const int client = accept(fd_, nullptr, nullptr);
      if (client < 0) continue;
      std::string request;
      char byte;
      while (recv(client, &byte, 1, 0) == 1 && byte != '\n') request += byte;
      const std::string body = answer_(request);
      const bool has_head = body.rfind("ok ", 0) == 0;
      const std::string all = has_head ? body : "ok " + std::to_string(body.size()) + "\n" + body;
      const size_t step = is_slow_ && request.rfind("metrics", 0) == 0 ? 1 : all.size();
      for (size_t at = 0; at < all.size() && !end_; at += step) {
        if (send(client, &all[at], step, MSG_NOSIGNAL) < 0) break;
        if (step != all.size()) usleep(static_cast<useconds_t>(30'000'000 / all.size()));
      }
      close(client);
    }
  }

  const std::function<std::string(const std::string&)> answer_;
  const bool is_slow_;
  const std::string path_;
  const int fd_;
  std::atomic<bool> end_{false};
  std::thread thread_;
};

std::string LargeAnswer(const std::string& request) {
  if (request == "info") return "pid 77\nname large\nversion 1\nseconds 5\n";
  if (request.rfind("metrics", 0) == 0) return "ok 300000000\nx 1\n";
  return request == "profile" ? "ok 300000000\n" : std::string(size_t{100} << 20, 'x');
}

// The group is that of the process's own answer, because this test is in no container.
TEST_F(ServeTest, MetricsHaveTheContainer) {
  const std::string id(64, 'a');
  const FakeProcess process(sockets_, [&](const std::string& request) {
    if (request == "info") {
      return "pid 77\nname worker\nversion 1\nseconds 5\nhost train-7\nenvironment POD_NAMESPACE ml\"x\n"
             "environment CONTAINER_NAME trainer\nenvironment RANK 3\n"
             "cgroup 0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-" +
             id + ".scope\nmemory device 1 1 -1 GPU:0\n";
    }
    return std::string("# TYPE x gauge\nx{pod=\"forged\"} 1\n");
  });
  const Server server(sockets_, {});
  const std::string labels =
      "{pid=\"77\",name=\"worker\",container=\"trainer\",pod=\"train-7\",namespace=\"ml\\\"x\",container_id=\"" + id +
      "\",pod_uid=\"01234567-89ab-cdef-0123-456789abcdef\"";
  const std::string metrics = HttpGet(server.port(), "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("hbmprof_process_up" + labels + "} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\nx" + labels + ",exported_pod=\"forged\"} 1\n"));
}

TEST_F(ServeTest, RefusesAnswersThatAreTooLarge) {
  const FakeProcess process(sockets_, &LargeAnswer);
  const Server server(sockets_, {"--max-samples", "0", "--max-bytes", "0"});
  const HttpAnswer answer = HttpGet(server.port(), "/debug/pprof/heap?pid=77");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("the answer has 300000000 bytes, more than the limit of 268435456"));
  const std::string metrics = HttpGet(server.port(), "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("hbmprof_process_up{pid=\"77\",name=\"large\"} 0\n"));
}

TEST_F(ServeTest, ABadAnswerDoesNotHideOtherProcesses) {
  const RunningProgram& program = Start();
  for (const bool is_large : {false, true}) {
    const FakeProcess process(sockets_, [is_large](const std::string& request) {
      return request == "info" || is_large ? LargeAnswer(request) : "no profile";
    });
    const Server server(sockets_, {"--max-samples", "0", "--max-bytes", "0"});
    EXPECT_EQ(View(HttpGet(server.port(), "/debug/pprof/heap")).Sum("inuse_space"), 3'000'000);
    EXPECT_GE(HttpGet(server.port(), "/debug/pprof/heap?name=large").status, 400) << "there is no other";
  }
  EXPECT_GT(program.pid(), 0);
}

TEST_F(ServeTest, CommandsNeedNoFurtherThreads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer itself needs the stacks";
#endif
  Start();
  Start();
  // A stack of 128 TiB cannot be mapped.
  const std::string limit = "ulimit -s 137438953472 && exec \"$@\"";
  const auto run = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {"bash", "-c", limit, "bash", ToolPath()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return RunCommand(command, {"HBMPROF_SOCKET_DIR=" + sockets_});
  };
  const CommandResult ps = run({"ps"});
  EXPECT_EQ(ps.exit_code, 0) << ps.err;
  EXPECT_THAT(ps.out, testing::ContainsRegex("control_program.*\n.*control_program"));
  const CommandResult serve = run({"serve", "--port", "0"});
  EXPECT_EQ(serve.exit_code, 2) << serve.err;
}

TEST_F(ServeTest, DoesNotWaitForAProcessThatAnswersSlowly) {
  const auto answer = [](const std::string& request) {
    return request == "info" ? LargeAnswer(request) : std::string(300, 'x');
  };
  const FakeProcess process(sockets_, answer, /*is_slow=*/true);
  const Server server(sockets_, {});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(HttpGet(server.port(), "/metrics").body, HasSubstr("hbmprof_process_up{pid=\"77\",name=\"large\"} 0\n"));
  EXPECT_LT(SecondsSince(start), 10) << "the whole answer takes 30 s";
}

// Failed before: each 16 of them took three seconds.
TEST_F(ServeTest, ManySilentProcessesTakeThreeSeconds) {
  const RunningProgram& program = Start();
  std::vector<int> silent;
  for (int i = 0; i < 80; ++i) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    (sockets_ + "/hbmprof." + std::to_string(i) + ".sock").copy(address.sun_path, sizeof(address.sun_path) - 1);
    silent.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(silent.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(silent.back(), i % 2), 0) << "half of them soon accept no connection";
  }
  const Server server(sockets_, {});
  for (int i = 0; i < 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::string metrics = HttpGet(server.port(), "/metrics").body;
    EXPECT_LT(SecondsSince(start), 9) << "a scraper waits ten seconds";
    EXPECT_THAT(metrics, HasSubstr("hbmprof_silent_processes 80\n"));
    EXPECT_THAT(metrics, ContainsRegex("hbmprof_process_up[{]pid=\"" + std::to_string(program.pid()) + "\".*[}] 1\n"));
  }
  for (const int fd : silent) close(fd);
}

// Sends a request and reads nothing of the answer, which is larger than the buffers of the system.
int RequestAndTakeNothing(int port, const std::string& path) {
  const int fd = ConnectTo(port);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  char first;
  EXPECT_EQ(recv(fd, &first, 1, MSG_PEEK), 1);
  return fd;
}

TEST(HttpServerTest, EndsAlthoughAClientTakesNothing) {
  auto server = ServerWith(600, [](const HttpRequest&) { return Body(std::string(size_t{32} << 20, 'x')); });
  const int fd = RequestAndTakeNothing(server->port(), "/");
  const auto start = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(SecondsSince(start), 60) << "the client may take an hour";
  close(fd);
}

TEST(HttpServerTest, DisconnectsAClientThatSendsItsRequestSlowly) {
  const auto server = ServerWith(0.4, [](const HttpRequest&) { return Body("x"); });
  const int fd = ConnectTo(server->port());
  const auto start = std::chrono::steady_clock::now();
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + std::string(1000, 'x');
  bool is_closed = false;
  for (size_t i = 0; i < request.size() && !is_closed; ++i) {
    send(fd, &request[i], 1, MSG_NOSIGNAL);
    usleep(20'000);
    char byte;
    is_closed = recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
  EXPECT_TRUE(is_closed);
  EXPECT_LT(SecondsSince(start), 10) << "the whole request takes 20 s";
  close(fd);
}

TEST(HttpServerTest, DisconnectsAClientThatTakesItsAnswerSlowly) {
  const auto server = ServerWith(0.4, [](const HttpRequest&) { return Body(std::string(size_t{100} << 20, 'x')); });
  const int fd = ConnectTo(server->port());
  const std::string request = "GET /debug/pprof/heap?pid=77 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  const auto start = std::chrono::steady_clock::now();
  std::vector<char> bytes(100'000);
  size_t taken = 0;
  // Once the server has closed the connection, the rest comes from the buffers of the system.
  for (ssize_t count; (count = recv(fd, bytes.data(), bytes.size(), 0)) > 0; taken += static_cast<size_t>(count)) {
    if (SecondsSince(start) < 10) usleep(20'000);
  }
  EXPECT_LT(taken, size_t{100} << 20) << "all of it takes 20 s";
  EXPECT_LT(SecondsSince(start), 60) << "the client may take an hour";
  close(fd);
}

// --- The page ---

constexpr char kHostile[] = "<img src=x onerror=document.title='ran'><script>document.title='ran'</script>";

// Returns the answer of a process with this name, which is also that of its device and of a function that leaks.
std::string AnswerOf(const std::string& hostile, const std::string& request) {
  if (request == "info") {
    return "pid 77\nname " + hostile + "\nversion " + hostile + "\nseconds 5\nmemory device 4096 8192 10000 " +
           hostile + "\n";
  }
  if (request.rfind("metrics", 0) == 0) return "# TYPE x gauge\nx{a=\"" + hostile + "\"} 1\n} 5\nx 1 \xff\n";
  if (request == "stats") return "{" + hostile;
  ProfileMaker maker(
      {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  maker.Comment("hbmprof version=1 host=h pid=77 uptime=63");
  const std::vector<int64_t> values = {64, 64 * 4096, 64, 64 * 4096};
  hbmprof::pprof::Ages& ages =
      *maker.Sample({maker.Frame(hostile, "/" + hostile + ".cc", 3)}, values, {{"device", hostile}}).mutable_ages();
  for (int i = 0; i < 64; ++i) {
    ages.add_born_bytes(4096);
    ages.add_born_counts(1);
  }
  return maker.Bytes();
}

std::string HostileAnswer(const std::string& request) { return AnswerOf(kHostile, request); }

TEST_F(ServeTest, MetricsHaveFindingsWithAnyName) {
  // The 200th byte is in a character.
  const FakeProcess process(sockets_, [](const std::string& request) {
    std::string name = "a\"b\\c" + std::string(194, 'd');
    for (int i = 0; i < 50; ++i) name += "\u00e4";
    return AnswerOf(name, request);
  });
  const Server server(sockets_, {});
  const std::string metrics = GetUntil(server.port(), "/metrics", [](const std::string& body) {
    return body.find("\nhbmprof_finding{") != std::string::npos;
  });
  const std::string name = "\"a\\\"b\\\\c" + std::string(194, 'd') + "...\"";
  EXPECT_THAT(metrics, HasSubstr(",code=\"LEAK\",device=" + name + ",function=" + name + "} 1\n"));
  EXPECT_THAT(metrics, ContainsRegex("\nhbmprof_findings[{][^\n]*[}] [1-9]\n"));
  if (RunCommand({"promtool", "--version"}).exit_code != 0) return;
  WriteFile(directory_ + "/metrics", metrics);
  const CommandResult checked = RunCommand({"sh", "-c", "promtool check metrics < '" + directory_ + "/metrics'"});
  EXPECT_THAT(checked.out + checked.err, Not(HasSubstr("error while linting"))) << metrics;
}

// Failed before: the time was twelve times --interval.
TEST_F(ServeTest, FindingsAreRenewedEachMinuteForAnyInterval) {
  for (const char* interval : {"1h", "100ms"}) {
    std::atomic<int> profiles{0};
    const FakeProcess process(sockets_, [&profiles](const std::string& request) {
      profiles += request == "profile" ? 1 : 0;
      return AnswerOf("name", request);
    });
    const Server server(sockets_, {"--interval", interval});
    GetUntil(server.port(), "/metrics",
             [](const std::string& body) { return body.find("\nhbmprof_finding{") != std::string::npos; });
    for (int i = 0; i < 4; ++i) {
      HttpGet(server.port(), "/metrics");
      sleep(1);
    }
    EXPECT_EQ(profiles, 1) << interval;
  }
}

// Failed before: the report judged a profile that was folded for Pyroscope, and knew nothing of the process.
TEST_F(ServeTest, ReportJudgesTheWholeProfile) {
  const FakeProcess process(sockets_, [](const std::string& request) {
    if (request.rfind("profile ", 0) != 0) return AnswerOf("server", request);
    ProfileMaker folded;
    folded.Sample({folded.Frame("[folded]")}, {1, 10});
    return folded.Bytes();
  });
  const Server server(sockets_, {});
  const nlohmann::json data = ReportData(HttpGet(server.port(), "/report?pid=77").body);
  ASSERT_FALSE(data["findings"].empty()) << data["trust"];
  EXPECT_EQ(data["findings"][0]["function"], "server");
  EXPECT_EQ(data["findings"][0]["next"], "hbmprof leaks --frames 0 77");
}

// Returns the page's elements once the script has filled them.
std::string Browse(const std::string& directory, const std::string& url) {
  const CommandResult result =
      RunCommand({"timeout", "60", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                  "--user-data-dir=" + directory + "/chromium", "--virtual-time-budget=4000", "--dump-dom", url});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST_F(ServeTest, PageShowsHostileNamesAsText) {
  if (RunCommand({"chromium", "--version"}).exit_code != 0) GTEST_SKIP() << "chromium is not here";
  const FakeProcess process(sockets_, &HostileAnswer);
  const Server server(sockets_, {});
  GetUntil(server.port(), "/processes.json",
           [](const std::string& body) { return body.find("img") != std::string::npos; });
  const std::string page = Browse(directory_, server.url() + "/");
  EXPECT_THAT(page, HasSubstr("<title>Device memory of this host</title>"));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("<span class=\"tag leak\">LEAK</span> &lt;img src=x"));
  EXPECT_THAT(page, HasSubstr("4.00 KiB of 9.77 KiB"));
  const std::string report = Browse(directory_, server.url() + "/report?pid=77");
  EXPECT_THAT(report, HasSubstr("&lt;/script&gt; (77)</title>"));
  EXPECT_THAT(report, Not(HasSubstr("<img")));
  EXPECT_THAT(HttpGet(server.port(), "/metrics").body,
              AllOf(HasSubstr("x{pid=\"77\",name="), Not(HasSubstr("\n} 5")), Not(HasSubstr("\xff"))));
}

TEST_F(ServeTest, PageShowsWhatExplainSays) {
  if (RunCommand({"chromium", "--version"}).exit_code != 0) GTEST_SKIP() << "chromium is not here";
  const RunningProgram& program = Start();
  const Server server(sockets_, {});
  GetUntil(server.port(), "/processes.json",
           [](const std::string& body) { return body.find("sim:0") != std::string::npos; });
  const std::string page = Browse(directory_, server.url() + "/");
  EXPECT_THAT(page, HasSubstr("1 process with a control channel in " + sockets_));
  const std::string trust = "trust: complete since the start; 0 dropped; recording on; growth NOT judged: ";
  EXPECT_THAT(page, HasSubstr("no finding, but not all could be judged. " + trust)) << "it is too young";
  EXPECT_THAT(page, HasSubstr("href=\"" + server.url() + "/report?pid=" + std::to_string(program.pid()) + "\""));
}

TEST_F(ServeTest, PageWithATokenInItsUrlShowsTheProcesses) {
  if (RunCommand({"chromium", "--version"}).exit_code != 0) GTEST_SKIP() << "chromium is not here";
  Start();
  const std::string file = directory_ + "/token";
  WriteFile(file, kToken);
  chmod(file.c_str(), 0600);
  const Server server(sockets_, {"--token-file", file});
  sleep(1);  // until the first point of the history
  const std::string host = "127.0.0.1:" + std::to_string(server.port());
  const std::string page = Browse(directory_, std::string("http://user:") + kToken + "@" + host + "/");
  EXPECT_THAT(page, HasSubstr("1 process with a control channel in " + sockets_));
  EXPECT_THAT(page, AllOf(HasSubstr("href=\"http://" + host + "/report?pid="), Not(HasSubstr(kToken))));
}

// On a telephone. No letter is outside of the page, or of a part that cuts.
TEST_F(ServeTest, PageFitsIntoFourHundredPixels) {
  if (RunCommand({"chromium", "--version"}).exit_code != 0) GTEST_SKIP() << "chromium is not here";
  const std::string name = "a_long_name::of_a_function<without::a, space>::operator()_" + std::string(80, 'x');
  const nlohmann::json finding = {
      {"code", "OUT_OF_MEMORY"}, {"advice", true}, {"sentence", name + " leaks 1.00 MiB/s"}, {"action", name}};
  nlohmann::json process = {
      {"id", "1234567.2"}, {"name", name}, {"seconds", 100}, {"history", {1, 2, 1 << 30}}, {"ended", true}};
  process["last_answer"] = 3000;
  process["memories"].push_back(
      {{"name", "GPU:0 pinned_host"}, {"in_use", 1 << 30}, {"peak", 1 << 30}, {"limit", 1 << 30}});
  process["explain"] = {{"findings", {finding, finding, finding}}, {"more", 1}, {"trust", "trust: " + name}};
  nlohmann::json answer = {{"interval", 5}, {"directory", "/run/" + name}, {"processes", {process, process}}};
  answer["silent"].push_back(name);
  std::string page = hbmprof::tool::kServeHtml;
  page.insert(page.find("</head>"), std::string("<style>") + hbmprof::tool::kReportCss + hbmprof::tool::kServeCss +
                                        "html { width: 400px; }</style>");
  page.insert(page.find("</body>"),
              "<pre id=said></pre><script>window.fetch = async () => ({ok: true, json: async () => (" + answer.dump() +
                  ")});" + hbmprof::tool::kServeJs + R"(
setTimeout(() => {
  const all = [...document.querySelectorAll("body *")].filter(one => one.id !== "said");
  const isCut = one => getComputedStyle(one).overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1;
  const wrong = all.filter(one => one.getBoundingClientRect().right > 400.5 || isCut(one));
  $("said").textContent = document.querySelectorAll(".card").length + " cards; cut: " +
    wrong.map(one => one.tagName + " " + one.className).join(", ");
}, 500);
</script>)");
  WriteFile(directory_ + "/driven.html", page);
  EXPECT_THAT(Browse(directory_, "file://" + directory_ + "/driven.html"),
              HasSubstr("id=\"said\">2 cards; cut: </pre>"));
}

TEST(ServePage, ParsesNoHtml) {
  const std::string script = hbmprof::tool::kServeJs;
  ASSERT_THAT(script, HasSubstr("use strict"));
  for (const char* parser : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser",
                             "createContextualFragment", "srcdoc", "setHTML", "eval(", "Function("}) {
    EXPECT_THAT(script, Not(HasSubstr(parser)));
  }
}

}  // namespace
}  // namespace hbmprof_test
