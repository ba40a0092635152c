// `hbmprof serve` in use: a real Prometheus and the real pprof read the metrics and profiles of a process that links
// hbmprof, of one under the injected library (on the fake driver), and of one with the PJRT plugin (on the fake one).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/support/pprof_tool.h"
#include "tests/support/running_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/tool/http_client.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns a port that is free now.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

std::string Encoded(const std::string& text) {
  std::string encoded;
  char escape[8];
  for (const char c : text) {
    std::snprintf(escape, sizeof(escape), "%%%02X", static_cast<unsigned char>(c));
    encoded += escape;
  }
  return encoded;
}

class FleetTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const auto& program : programs_) kill(program->pid(), SIGTERM);
    for (const auto& program : programs_) program->Wait();
  }

  // Starts `hbmprof serve`. Returns its port.
  int Serve() {
    Start({ToolPath(), "serve", "--port", "0", "--metrics-tags", "phase", "--interval", "500ms"}, {});
    int port = 0;
    const std::string line = programs_.back()->ReadLine();
    std::sscanf(line.c_str(), "serving http://127.0.0.1:%d/", &port);
    EXPECT_GT(port, 0) << line;
    return port;
  }

  // Starts the three programs, and waits until all answer.
  void StartPrograms(int port) {
    // Leaks KV pages until TearDown ends it.
    Start({HBMPROF_LLM_SERVER, "--leak", "--dumps", "9999", "--dump-dir", directory_, "--max-tokens", "8", "--kv-pages",
           "100000", "--cancel-every", "2", HBMPROF_PROMPTS},
          {"POD_NAME=chat-0", "POD_NAMESPACE=serving", "CONTAINER_NAME=server"});
    Start({ToolPath(), "run", "--library", HBMPROF_INJECTED, "--output", directory_ + "/run", "--", HBMPROF_INJECT_ENDS,
           "sleep"},
          {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES});
    Start({HBMPROF_PJRT_HOST, HBMPROF_PJRT_SHIM, "wait"}, {"HBMPROF_PJRT_PLUGIN=" HBMPROF_FAKE_PJRT});
    for (const char* name : {"llm_server", "inject_ends", "pjrt_host"}) {
      WaitFor(
          [&] {
            return HttpGet(port, "/metrics").body.find("name=\"" + std::string(name) + "\"") != std::string::npos;
          },
          name);
    }
  }

  // Starts Prometheus with the shipped files, in which the intervals are shorter and the limits lower.
  int StartPrometheus(int serve_port) {
    std::string config = ReadFile(HBMPROF_DEPLOY "/prometheus/prometheus.yml");
    config = std::regex_replace(config, std::regex("15s"), "500ms");
    config = std::regex_replace(config, std::regex("127.0.0.1:4747"), "127.0.0.1:" + std::to_string(serve_port));
    WriteFile(directory_ + "/prometheus.yml", config);
    std::string alerts = ReadFile(HBMPROF_DEPLOY "/prometheus/alerts.yml");
    alerts = std::regex_replace(alerts, std::regex("20m"), "6s");
    alerts = std::regex_replace(alerts, std::regex("10m"), "3s");
    alerts = std::regex_replace(alerts, std::regex("for: [35][ms]"), "for: 0s");
    alerts = std::regex_replace(alerts, std::regex("67108864"), "100");
    WriteFile(directory_ + "/alerts.yml", alerts);
    const int port = FreePort();
    Start({"/usr/bin/env", "prometheus", "--config.file=" + directory_ + "/prometheus.yml",
           "--storage.tsdb.path=" + directory_ + "/tsdb", "--web.listen-address=127.0.0.1:" + std::to_string(port),
           "--log.level=error"},
          {});
    WaitFor(
        [&] {
          const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
          sockaddr_in address = {};
          address.sin_family = AF_INET;
          address.sin_port = htons(static_cast<uint16_t>(port));
          address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          const bool listens = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
          close(fd);
          return listens;
        },
        "Prometheus listens");
    return port;
  }

  // Returns the results of a query, each with "metric" and "value".
  static json Query(int port, const std::string& query) {
    // HTTP/1.0: the body is not split into chunks.
    const HttpAnswer answer =
        SendHttp(port, "GET /api/v1/query?query=" + Encoded(query) + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
    const json data = json::parse(answer.body, nullptr, false);
    return data.is_discarded() || data["status"] != "success" ? json::array() : data["data"]["result"];
  }

  static void WaitFor(const std::function<bool()>& holds, const std::string& what) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << what;
      usleep(200'000);
    }
  }

  void Start(const std::vector<std::string>& argv, std::vector<std::string> environment) {
    environment.push_back("HBMPROF_SOCKET_DIR=" + directory_ + "/sockets");
    programs_.push_back(std::make_unique<RunningProgram>(argv, environment));
  }

  const std::string directory_ = NewDirectory();
  std::vector<std::unique_ptr<RunningProgram>> programs_;
};

// Returns the names of hbmprof's metrics in a text.
std::set<std::string> MetricNames(const std::string& text) {
  std::set<std::string> names;
  const std::regex name("hbmprof_[a-z_]+");
  for (std::sregex_iterator i(text.begin(), text.end(), name), end; i != end; ++i) names.insert(i->str());
  return names;
}

TEST_F(FleetTest, PrometheusReadsMetricsAndFiresAlert) {
  if (RunCommand({"prometheus", "--version"}).exit_code != 0) GTEST_SKIP() << "prometheus is not installed";
  const int serve = Serve();
  StartPrograms(serve);
  const int prometheus = StartPrometheus(serve);

  const auto bytes_of = [&](const std::string& labels) {
    const json result = Query(prometheus, "sum(hbmprof_device_memory_bytes{" + labels + "})");
    return result.empty() ? -1.0 : std::stod(result[0]["value"][1].get<std::string>());
  };
  WaitFor([&] { return bytes_of("name=\"pjrt_host\"") > 0; }, "Prometheus has read the metrics");
  EXPECT_EQ(bytes_of("name=\"pjrt_host\""), 4096);
  EXPECT_EQ(bytes_of("name=\"inject_ends\",device=\"GPU:0\""), 1 << 20);
  EXPECT_GT(bytes_of("name=\"llm_server\",tag_phase=\"\""), 6 << 20) << "the weights";
  EXPECT_GT(bytes_of("pod=\"chat-0\",namespace=\"serving\",container=\"server\""), 6 << 20);
  WaitFor([&] { return bytes_of("name=\"llm_server\",tag_phase=\"prefill\"") > 0; }, "the tag phase");

  WaitFor(
      [&] {
        const json alerts = Query(prometheus, "ALERTS{alertname=\"HbmprofSteadyGrowth\",alertstate=\"firing\"}");
        return !alerts.empty() && alerts[0]["metric"]["name"] == "llm_server";
      },
      "the alert on the leak");
  EXPECT_TRUE(Query(prometheus, "ALERTS{name=~\"pjrt_host|inject_ends\",alertname=\"HbmprofSteadyGrowth\"}").empty());

  // The shipped alerts and the dashboard use only metrics that exist.
  WaitFor([&] { return HttpGet(serve, "/metrics").body.find("\nhbmprof_findings{") != std::string::npos; }, "findings");
  const std::set<std::string> existing = MetricNames(HttpGet(serve, "/metrics").body);
  for (const char* file : {HBMPROF_DEPLOY "/prometheus/alerts.yml", HBMPROF_DEPLOY "/grafana/hbmprof.json"}) {
    for (const std::string& name : MetricNames(ReadFile(file)))
      EXPECT_TRUE(existing.count(name)) << file << " " << name;
  }
}

// Returns the text with the values that Grafana gives the variables of the dashboard, and with shorter times.
std::string BoardQuery(std::string query) {
  query = std::regex_replace(query, std::regex("[$](instance|name)"), ".*");
  query = std::regex_replace(query, std::regex("[$]__rate_interval|10m"), "3s");
  return std::regex_replace(query, std::regex("1h"), "3s");
}

TEST_F(FleetTest, EveryQueryOfTheDashboardHasData) {
  if (RunCommand({"prometheus", "--version"}).exit_code != 0) GTEST_SKIP() << "prometheus is not installed";
  const int serve = Serve();
  StartPrograms(serve);
  const int prometheus = StartPrometheus(serve);
  const json board = json::parse(ReadFile(HBMPROF_DEPLOY "/grafana/hbmprof.json"));
  size_t queries = 0;
  for (const json& panel : board["panels"]) {
    for (const json& target : panel["targets"]) {
      const std::string query = BoardQuery(target["expr"]);
      ASSERT_EQ(query.find('$'), std::string::npos) << query;
      WaitFor(
          [&] {
            HttpGet(serve, "/explain.json?name=llm_server");  // the next judgement would be in a minute
            return !Query(prometheus, query).empty();
          },
          panel["title"].get<std::string>() + ": " + query);
      ++queries;
    }
  }
  EXPECT_GE(queries, 10);
  // The lists from which hosts and processes are selected.
  for (const json& variable : board["templating"]["list"]) {
    if (variable["type"] != "query") continue;
    std::smatch call;
    const std::string text = BoardQuery(variable["query"]["query"]);
    ASSERT_TRUE(std::regex_match(text, call, std::regex("label_values[(](.*), ([a-z]+)[)]"))) << text;
    const json result = Query(prometheus, call[1]);
    ASSERT_FALSE(result.empty()) << text;
    EXPECT_TRUE(result[0]["metric"].contains(call[2].str())) << text;
  }

  // The table of findings says what `hbmprof explain` says: of these programs, only the server leaks.
  const std::string leak = "hbmprof_finding{code=\"LEAK\",function=\"llm::KvCache::AllocatePage\"}";
  WaitFor([&] { return !Query(prometheus, leak).empty(); }, "the leak");
  const json finding = Query(prometheus, leak)[0];
  EXPECT_EQ(finding["metric"]["name"], "llm_server");
  EXPECT_EQ(finding["metric"]["device"], "sim:0");
  EXPECT_TRUE(Query(prometheus, "hbmprof_finding{code=\"LEAK\",name!=\"llm_server\"}").empty());
  EXPECT_EQ(Query(prometheus, "hbmprof_findings").size(), 3);
}

TEST_F(FleetTest, PromtoolAcceptsTheMetrics) {
  if (RunCommand({"promtool", "--version"}).exit_code != 0) GTEST_SKIP() << "promtool is not installed";
  const int serve = Serve();
  StartPrograms(serve);
  WriteFile(directory_ + "/metrics", HttpGet(serve, "/metrics").body);
  const CommandResult result = RunCommand({"sh", "-c", "promtool check metrics < '" + directory_ + "/metrics'"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(FleetTest, PprofReadsTheEndpoint) {
  const PprofTool pprof = GooglePprof();
  if (pprof.command.empty()) GTEST_SKIP() << "pprof is not here";
  const int serve = Serve();
  StartPrograms(serve);
  const std::string url = "http://127.0.0.1:" + std::to_string(serve) + "/debug/pprof/heap";
  const CommandResult top = pprof.Run({"-top", "-sample_index=inuse_space", "-unit=B", url + "?name=inject_ends"});
  EXPECT_EQ(top.exit_code, 0) << top.err;
  EXPECT_THAT(top.out, HasSubstr("1048576B"));
  const CommandResult all = pprof.Run({"-tags", "-sample_index=inuse_space", url});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  for (const char* name : {"llm_server", "inject_ends", "pjrt_host"}) EXPECT_THAT(all.out, HasSubstr(name));
}

}  // namespace
}  // namespace hbmprof_test
