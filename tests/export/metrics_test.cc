// The metrics and the JSON totals of made snapshots.
#include "src/export/metrics.h"

#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "src/export/stats_json.h"
#include "tests/export/server_snapshot.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof_test {
namespace {

using hbmprof::MemoryKind;
using hbmprof::Snapshot;
using hbmprof::internal::MetricsTags;
using hbmprof::internal::PrometheusText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The value of each sample line, by the text before it.
std::map<std::string, int64_t> Samples(const std::string& text) {
  std::map<std::string, int64_t> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stoll(line.substr(space + 1))).second) << line;
  }
  return samples;
}

// One device with a UUID and all figures, and a sample of `bytes` with the tag phase=`value` for each element.
Snapshot WithTags(const std::vector<std::pair<std::string, int64_t>>& values) {
  Snapshot s;
  s.allocators = {""};
  s.stacks.resize(1);
  s.devices.resize(1);
  s.devices[0].name = "GPU:0";
  s.devices[0].uuid = "GPU-1234";
  hbmprof::DeviceStats& stats = s.devices[0].spaces[0];
  for (const auto& [value, bytes] : values) {
    Snapshot::Sample& sample = s.samples.emplace_back();
    if (!value.empty()) sample.tags = {{"phase", value}};
    sample.inuse_bytes = sample.alloc_bytes = bytes;
    sample.inuse_objects = sample.alloc_objects = 1;
    stats.bytes_in_use += bytes;
    stats.num_allocs += 3;
    stats.num_live += 1;
  }
  stats.peak_bytes_in_use = 2 * stats.bytes_in_use;
  stats.bytes_limit = int64_t{1} << 40;
  stats.bytes_free = 7;
  stats.pool_bytes = 100;
  stats.idle_bytes = 40;
  stats.driver_bytes_in_use = 500;
  stats.driver_cache_bytes = 20;
  stats.unaccounted = -3;
  stats.driver_scope = hbmprof::DriverScope::kProcess;
  s.tracker.dropped_records = 5;
  s.tracker.dropped_bytes = 6000;
  return s;
}

TEST(PrometheusTextTest, HasEachFigureOfADevice) {
  const auto samples = Samples(PrometheusText(WithTags({{"", 300}}), {}, true));
  const std::string device = "{device=\"GPU:0\",gpu_uuid=\"GPU-1234\"";
  const std::string space = device + ",space=\"device\"}";
  EXPECT_EQ(samples.at("hbmprof_device_memory_in_use_bytes" + space), 300);
  EXPECT_EQ(samples.at("hbmprof_device_memory_peak_bytes" + space), 600);
  EXPECT_EQ(samples.at("hbmprof_device_allocations_total" + space), 3);
  EXPECT_EQ(samples.at("hbmprof_device_frees_total" + space), 2);
  EXPECT_EQ(samples.at("hbmprof_device_memory_bytes" + device + ",kind=\"device\"}"), 300);
  EXPECT_EQ(samples.at("hbmprof_device_memory_limit_bytes" + device + "}"), int64_t{1} << 40);
  EXPECT_EQ(samples.at("hbmprof_device_memory_free_bytes" + device + "}"), 7);
  EXPECT_EQ(samples.at("hbmprof_device_driver_memory_bytes" + device + ",scope=\"process\"}"), 500);
  EXPECT_EQ(samples.at("hbmprof_device_unaccounted_bytes" + device + ",scope=\"process\"}"), -3);
  EXPECT_EQ(samples.at("hbmprof_device_pool_bytes" + device + "}"), 100);
  EXPECT_EQ(samples.at("hbmprof_device_pool_idle_bytes" + device + "}"), 40);
  EXPECT_EQ(samples.at("hbmprof_device_driver_pool_idle_bytes" + device + "}"), 20);
  EXPECT_EQ(samples.at("hbmprof_dropped_allocations_total"), 5);
  EXPECT_EQ(samples.at("hbmprof_dropped_bytes_total"), 6000);
  EXPECT_EQ(samples.at("hbmprof_tracking"), 1);
  EXPECT_EQ(Samples(PrometheusText(Snapshot(), {}, false)).at("hbmprof_tracking"), 0);
}

TEST(PrometheusTextTest, UnknownFiguresAreLeftOut) {
  const std::string text = PrometheusText(ServerSnapshot(), {}, true);
  EXPECT_THAT(text, Not(HasSubstr("gpu_uuid")));
  EXPECT_THAT(text, Not(HasSubstr("hbmprof_device_driver_pool_idle_bytes{")));
}

TEST(PrometheusTextTest, KindsAndTagsAddUpToTheBytesInUse) {
  const Snapshot snapshot = ServerSnapshot();
  std::map<std::string, int64_t> in_use;
  for (const auto& [name, value] : Samples(PrometheusText(snapshot, {"phase", "request_class"}, true))) {
    for (const std::string metric : {"hbmprof_device_memory_bytes{", "hbmprof_device_memory_in_use_bytes{"}) {
      if (name.rfind(metric, 0) == 0) in_use[metric] += value;
    }
  }
  int64_t sum = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) sum += sample.inuse_bytes;
  EXPECT_EQ(in_use["hbmprof_device_memory_bytes{"], sum);
  EXPECT_GT(sum, 0);
}

TEST(PrometheusTextTest, TagsAreLabels) {
  const auto samples = Samples(PrometheusText(WithTags({{"decode", 10}, {"decode", 5}, {"", 1}}), {"phase"}, true));
  const std::string metric = "hbmprof_device_memory_bytes{device=\"GPU:0\",gpu_uuid=\"GPU-1234\",kind=\"device\",";
  EXPECT_EQ(samples.at(metric + "tag_phase=\"decode\"}"), 15);
  EXPECT_EQ(samples.at(metric + "tag_phase=\"\"}"), 1);
}

TEST(PrometheusTextTest, TagValuesBeyondTheLimitAreOther) {
  std::vector<std::pair<std::string, int64_t>> values;
  for (int i = 0; i < 150; ++i) values.emplace_back("value" + std::to_string(i), 1000 + i);
  const auto samples = Samples(PrometheusText(WithTags(values), {"phase"}, true));
  int64_t other = 0;
  int series = 0;
  for (const auto& [name, value] : samples) {
    if (name.rfind("hbmprof_device_memory_bytes{", 0) != 0) continue;
    ++series;
    if (name.find("tag_phase=\"other\"") != std::string::npos) other = value;
  }
  EXPECT_EQ(series, 101);
  EXPECT_EQ(other, 50 * 1000 + 49 * 50 / 2) << "the 50 smallest";
}

TEST(PrometheusTextTest, KeysWithOneLabelNameAreNotWrittenTwice) {
  const std::string text = PrometheusText(WithTags({{"x", 1}}), {"phase", "a.b", "a-b", "c", "d", "e"}, true);
  EXPECT_THAT(text, HasSubstr(",tag_phase=\"x\",tag_a_b=\"\",tag_c=\"\",tag_d=\"\"} 1\n"));
}

TEST(PrometheusTextTest, HostileTextIsEscaped) {
  Snapshot snapshot = WithTags({{"a\"b\\c\nd\xff", 1}});
  snapshot.devices[0].name = "x\"} 1\nevil 2";
  const std::string text = PrometheusText(snapshot, {"phase"}, true);
  EXPECT_THAT(text, HasSubstr("tag_phase=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("\nevil")));
}

TEST(PrometheusTextTest, PromtoolFindsNothing) {
  if (access("/usr/bin/promtool", X_OK) != 0) GTEST_SKIP() << "promtool is missing (Debian: prometheus)";
  Snapshot hostile = WithTags({{"a\"b\\c\nd\xff", 1}, {"decode", 2}, {"", 3}});
  hostile.devices[0].name = "x\"} 1\nevil 2";
  const std::string path = NewDirectory() + "/metrics";
  for (const Snapshot& snapshot : {Snapshot(), ServerSnapshot(), WithTags({{"x", 300}}), hostile}) {
    std::ofstream(path) << PrometheusText(snapshot, {"phase", "request class"}, true);
    const CommandResult run = RunCommand({"/bin/sh", "-c", "/usr/bin/promtool check metrics < " + path});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.out + run.err, "");
  }
}

TEST(MetricsTagsTest, SplitsAtCommas) {
  EXPECT_THAT(MetricsTags("phase,model"), ElementsAre("phase", "model"));
  EXPECT_THAT(MetricsTags(",a,,b,"), ElementsAre("a", "b"));
  EXPECT_THAT(MetricsTags(""), IsEmpty());
}

TEST(StatsJsonTest, HasTheFieldsOfTheSnapshot) {
  Snapshot snapshot = WithTags({{"", 300}});
  snapshot.process_id = 12;
  snapshot.host = "node";
  snapshot.counters = {{"requests", 7}};
  snapshot.warnings = {"first"};
  snapshot.devices[0].processes = {{12, 500, true}, {99, std::nullopt, false}};
  hbmprof::internal::ProcessState state;
  state.name = "a \"name\"\n\xff";
  state.seconds = 3;
  state.tracking = false;
  state.tags = {{"model", "llama"}};
  const std::string text = StatsJson(snapshot, state);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_EQ(json["pid"], 12);
  EXPECT_EQ(json["name"], "a \"name\"\n\xEF\xBF\xBD");
  EXPECT_EQ(json["seconds"], 3);
  EXPECT_EQ(json["tracking"], false);
  EXPECT_EQ(json["tags"]["model"], "llama");
  EXPECT_EQ(json["counters"]["requests"], 7);
  EXPECT_EQ(json["warnings"][0], "first");
  EXPECT_EQ(json["tracker"]["dropped_bytes"], 6000);
  const nlohmann::json& device = json["devices"][0];
  EXPECT_EQ(device["uuid"], "GPU-1234");
  ASSERT_EQ(device["spaces"].size(), 1u);
  EXPECT_EQ(device["spaces"][0]["space"], "device");
  EXPECT_EQ(device["spaces"][0]["bytes_in_use"], 300);
  EXPECT_EQ(device["spaces"][0]["unaccounted"], -3);
  EXPECT_EQ(device["spaces"][0]["driver_scope"], "process");
  EXPECT_FALSE(device["spaces"][0].contains("baseline"));
  EXPECT_EQ(device["processes"][0]["is_this"], true);
  EXPECT_FALSE(device["processes"][1].contains("bytes"));
}

}  // namespace
}  // namespace hbmprof_test
