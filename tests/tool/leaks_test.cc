// `hbmprof leaks` on the dumps of a server, in which one site leaks and others only seem to leak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <utility>

#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/report_data.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A server that records buffers, but allocates no memory for them. It has forty call sites, each in its own function.
class Server {
 public:
  // Serves `requests` more.
  void Serve(int requests) {
    for (int i = 0; i < requests; ++i) {
      ++served_;
      // Each request allocates at all forty sites. One of them never frees its 8 KiB; the others free
      // their buffers some requests later.
      ServeOne(std::make_index_sequence<40>());
      // A pool that grows until it is large enough.
      if (served_ <= 1600 && served_ % 16 == 0) PoolGrow(256 << 10);
      // Allocates for some time, then frees everything.
      Batch();
    }
    profiler_.SetCounter("requests", served_);
  }

  // Fills a cache with 500 MiB.
  void WarmUp() {
    for (int i = 0; i < 50; ++i) CacheInsert(10 << 20);
  }

  std::string Dump(const std::string& path) {
    hbmprof::Snapshot snapshot = profiler_.TakeSnapshot();
    snapshot.time_unix_nanos = int64_t{1700000000} * 1000000000 + int64_t{served_} * 10000000;  // 100 a second
    WriteFile(path, *hbmprof::SerializePprof(snapshot, &hbmprof::ElfSymbolizer()));
    return path;
  }

 private:
  static constexpr int kLeakingSite = 17;

  const void* NextId() { return reinterpret_cast<const void*>(next_id_ += 4096); }

  template <size_t N>
  [[gnu::noinline]] void Site() {
    const void* id = NextId();
    profiler_.RecordAlloc(id, N == kLeakingSite ? 8 << 10 : (N + 1) << 10);
    if (N != kLeakingSite) kept_[N].push_back(id);
    // Every site but the leaking one holds its last few buffers.
    if (kept_[N].size() > N % 4) {
      profiler_.RecordFree(kept_[N].front());
      kept_[N].pop_front();
    }
    asm volatile("" ::: "memory");
  }
  template <size_t... N>
  [[gnu::noinline]] void ServeOne(std::index_sequence<N...>) {
    (Site<N>(), ...);
  }
  [[gnu::noinline]] void CacheInsert(size_t bytes) {
    profiler_.RecordAlloc(NextId(), bytes);
    asm volatile("" ::: "memory");
  }
  [[gnu::noinline]] void PoolGrow(size_t bytes) {
    profiler_.RecordAlloc(NextId(), bytes);
    asm volatile("" ::: "memory");
  }
  [[gnu::noinline]] void Batch() {
    const void* id = NextId();
    profiler_.RecordAlloc(id, 1 << 20);
    batch_.push_back(id);
    if (batch_.size() >= 130) {
      for (const void* buffer : batch_) profiler_.RecordFree(buffer);
      batch_.clear();
    }
    asm volatile("" ::: "memory");
  }

  hbmprof::Profiler profiler_;
  uintptr_t next_id_ = 4096;
  int served_ = 0;
  std::array<std::deque<const void*>, 40> kept_;
  std::deque<const void*> batch_;
};

// Returns the paths of five dumps, with a different number of requests between them.
std::vector<std::string> ServerDumps(const std::string& dir) {
  Server server;
  std::vector<std::string> paths;
  const int requests[] = {10, 1000, 700, 1300, 850};
  for (int i = 0; i < 5; ++i) {
    server.Serve(requests[i]);
    if (i == 1) server.WarmUp();
    paths.push_back(server.Dump(dir + "/" + std::to_string(i) + ".pb.gz"));
  }
  return paths;
}

std::vector<std::string> With(std::vector<std::string> first, const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

TEST(Leaks, RanksTheOnlyLeakFirstWithItsRate) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, dumps));
  ASSERT_TRUE(json.is_object());
  std::vector<nlohmann::json> leaks;
  for (const auto& site : json["sites"]) {
    if (site["verdict"] == "leak" || site["verdict"] == "perhaps") leaks.push_back(site);
  }
  ASSERT_EQ(leaks.size(), 1u) << json.dump(1);
  EXPECT_EQ(leaks[0]["verdict"], "leak");
  EXPECT_EQ(leaks[0]["sure"], "low") << "five dumps";
  EXPECT_THAT(leaks[0]["why"].get<std::string>(), HasSubstr("grew permanently in 4 of 4 intervals; freed nothing"));
  EXPECT_THAT(leaks[0]["more_dumps"].get<std::string>(), HasSubstr("six dumps give a more reliable verdict"));
  EXPECT_THAT(leaks[0]["stack"][0]["name"].get<std::string>(), HasSubstr("Site"));
  EXPECT_NEAR(leaks[0]["per_count"].get<double>(), 8192, 82);
  EXPECT_NEAR(leaks[0]["per_second"].get<double>(), 819200, 8192);
  EXPECT_EQ(leaks[0]["growth"], 8192 * (1000 + 700 + 1300 + 850));
  EXPECT_EQ(json["sites"].size(), 40u + 3u);
}

TEST(Leaks, ExplainsTheOtherVerdicts) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const nlohmann::json json = ToolJson(With({"leaks"}, dumps));
  std::map<std::string, std::string> verdicts;
  for (const auto& site : json["sites"]) {
    const std::string name = site["stack"][0]["name"];
    verdicts[name.substr(name.rfind(':') + 1)] = site["verdict"];
  }
  EXPECT_EQ(verdicts["CacheInsert"], "stopped") << json.dump(1);
  EXPECT_EQ(verdicts["PoolGrow"], "stopped") << json.dump(1);
  EXPECT_EQ(verdicts["Batch"], "up and down") << json.dump(1);
}

TEST(Leaks, FailOverSetsTheExitCode) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const CommandResult over = RunTool(With({"leaks", "--fail-over", "1MiB", "--per", "requests"}, dumps));
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.out, HasSubstr("1. LEAK  +8.00 KiB/request"));
  EXPECT_THAT(over.out, HasSubstr("FAILED"));
  const CommandResult under = RunTool(With({"leaks", "--fail-over", "1GiB"}, dumps));
  EXPECT_EQ(under.exit_code, 0);
  EXPECT_THAT(under.out, Not(HasSubstr("FAILED")));
}

TEST(Leaks, FailOverCountsBytesForEachUnitOfMemory) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int dump = 0; dump < 6; ++dump) {
    ProfileMaker maker(std::vector<std::pair<std::string, std::string>>{{"inuse_space", "kilobytes"}});
    maker.message().set_time_nanos(int64_t{1700000000 + dump} * 1000000000);
    maker.Sample({maker.Frame("Grows")}, {10 + 1024 * dump});
    dumps.push_back(dir + "/" + std::to_string(dump) + ".pb.gz");
    maker.Write(dumps.back());
  }
  EXPECT_EQ(RunTool(With({"leaks", "--fail-over", "1MiB"}, dumps)).exit_code, 1);
  EXPECT_EQ(RunTool(With({"leaks", "--fail-over", "5MiB"}, dumps)).exit_code, 0) << "it grew by exactly as much";
}

// Its bytes can become known late, and parts of it get other records over time.
TEST(Leaks, LeaveOutMemoryFromBeforeTheAttach) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int dump = 0; dump < 5; ++dump) {
    ProfileMaker maker(std::vector<std::pair<std::string, std::string>>{{"inuse_space", "kilobytes"}});
    maker.message().set_time_nanos(int64_t{1700000000 + dump} * 1000000000);
    maker.Sample({maker.Frame("[before attach]")}, {10 + 4096 * dump});
    maker.Sample({maker.Frame("Grows"), maker.Frame("[before attach]")}, {10 + 1024 * dump});
    dumps.push_back(dir + "/" + std::to_string(dump) + ".pb.gz");
    maker.Write(dumps.back());
  }
  const nlohmann::json json = ToolJson(With({"leaks"}, dumps));
  ASSERT_EQ(json["sites"].size(), 1u) << json.dump();
  EXPECT_EQ(json["sites"][0]["stack"][0]["name"], "Grows");
}

TEST(Leaks, LeaveOutIdleMemoryOfPools) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int dump = 0; dump < 9; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(int64_t{1700000000 + dump} * 1000000000);
    maker.Sample({maker.Frame("[idle memory of cache]")}, {1, 1000000 * (dump + 1)}, {{"kind", "pool"}});
    maker.Sample({maker.Frame("LoadBatch")}, {1, 5000}, {{"kind", "device"}});
    maker.Sample({maker.Frame("Keep")}, {1, 1000 * (dump + 1)}, {{"kind", "device"}});
    dumps.push_back(dir + "/" + std::to_string(dump) + ".pb.gz");
    maker.Write(dumps.back());
  }
  const nlohmann::json json = ToolJson(With({"leaks"}, dumps));
  ASSERT_EQ(json["sites"].size(), 2u) << json.dump();
  EXPECT_EQ(json["sites"][0]["stack"][0]["name"], "Keep");
  EXPECT_EQ(json["sites"][0]["verdict"], "leak");
  EXPECT_EQ(json["sites"][1]["verdict"], "flat");
  EXPECT_EQ(json["rest"]["verdict"], "flat");
  const std::string page = dir + "/page.html";
  ASSERT_EQ(RunTool(With({"report", "-o", page}, dumps)).exit_code, 0);
  std::ifstream file(page);
  const std::string html{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(ReportData(html)["verdict"].dump(), AllOf(HasSubstr("Keep leaks"), Not(HasSubstr("LoadBatch"))));
}

// A site that keeps 1000 bytes each second, and has a large buffer in the first dump that it frees.
TEST(Leaks, ALeakHasGrown) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int64_t dump = 0; dump < 3; ++dump) {
    const int64_t seconds = 40 + 10 * dump;
    const int64_t other = dump == 0 ? 400000 : 0;
    ProfileMaker maker(
        {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    maker.message().set_time_nanos((1700000000 + seconds) * 1000000000);
    maker.Comment("hbmprof version=1 pid=7 uptime=" + std::to_string(seconds));
    hbmprof::pprof::Ages& ages = *maker
                                      .Sample({maker.Frame("Keep"), maker.Frame("main")},
                                              {seconds + 1, 1000 * seconds + 400000, seconds, 1000 * seconds + other})
                                      .mutable_ages();
    ages.mutable_born_bytes()->Resize(static_cast<int>(seconds), 1000);
    ages.set_born_bytes(0, 1000 + other);
    ages.mutable_born_counts()->Resize(static_cast<int>(seconds), 1);
    dumps.push_back(dir + "/" + std::to_string(dump));
    maker.Write(dumps.back());
  }
  const nlohmann::json site = ToolJson(With({"leaks", "--type", "inuse_space"}, dumps))["sites"][0];
  EXPECT_EQ(site["verdict"], "leak");
  EXPECT_NEAR(site["per_second"].get<double>(), 1000, 60);
  EXPECT_NEAR(site["growth"].get<double>(), 20000, 1200) << "in 20 s";
  EXPECT_NEAR(site["per_interval"].get<double>(), 10000, 600);
}

TEST(Leaks, OrdersDumpsByTime) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const std::vector<std::string> shuffled = {dumps[3], dumps[0], dumps[4], dumps[2], dumps[1]};
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, shuffled));
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["files"], dumps);
  EXPECT_EQ(json["sites"][0]["verdict"], "leak");
}

TEST(Leaks, FindsALeakInOneDumpByAges) {
  const std::string dump = ScratchDir() + "/dump";
  const auto leaks = [&](const std::vector<int64_t>& born, const std::string& comment) {
    ProfileMaker maker(
        {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    maker.message().set_default_sample_type(maker.Text("inuse_space"));
    maker.Comment(comment);
    const int64_t live = std::accumulate(born.begin(), born.end(), int64_t{0});
    hbmprof::pprof::Ages& ages =
        *maker.Sample({maker.Frame("Keep"), maker.Frame("main")}, {live, live, live, live}).mutable_ages();
    ages.mutable_born_bytes()->Assign(born.begin(), born.end());
    ages.mutable_born_counts()->Assign(born.begin(), born.end());
    maker.Write(dump);
    return RunTool({"leaks", "--fail-over", "1", dump});
  };
  const std::string comment = "hbmprof version=1 pid=7 uptime=63";
  const CommandResult found = leaks(std::vector<int64_t>(64, 1000), comment);
  EXPECT_EQ(found.exit_code, 1) << found.err;
  EXPECT_THAT(found.out, HasSubstr("1 sites: 1 leak, 0 perhaps"));
  EXPECT_THAT(found.out, HasSubstr("ago until now were never freed; this call stack freed none\n"));
  std::vector<int64_t> start(64);
  start[0] = 64000;
  const CommandResult none = leaks(start, comment);
  EXPECT_EQ(none.exit_code, 0) << none.out << none.err;
  EXPECT_THAT(none.out, HasSubstr("1 sites: 0 leak, 0 perhaps"));
  EXPECT_EQ(leaks(start, "hbmprof version=1 pid=7 uptime=15").exit_code, 2) << "too young";
  std::vector<int64_t> stopped(64, 1000);
  std::fill(stopped.begin() + 40, stopped.end(), 0);
  EXPECT_THAT(leaks(stopped, comment).out, HasSubstr("1 sites: 0 leak, 0 perhaps, 1 grew and stopped"));
  EXPECT_THAT(RunTool({"leaks", "--all", dump}).out, HasSubstr("last kept a buffer 24.0 s ago"));
}

// Other tools keep the comment with the uptime, but write samples without ages. The same holds for samples whose ages
// became labels.
TEST(Leaks, AgesAreKnownByTheSamplesAndNotByAComment) {
  const std::string dir = ScratchDir();
  // Twelve dumps of a site that keeps a buffer of 1 KiB each second.
  std::vector<std::string> own;
  std::vector<std::string> without;
  for (int64_t d = 0; d < 12; ++d) {
    ProfileMaker maker(
        {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    const int64_t seconds = 20 + 2 * d;
    maker.message().set_time_nanos((1700000000 + seconds) * 1000000000);
    maker.Comment("hbmprof version=1 pid=7 uptime=" + std::to_string(seconds));
    hbmprof::pprof::Sample& sample =
        maker.Sample({maker.Frame("Keep"), maker.Frame("main")}, {seconds, 1024 * seconds, seconds, 1024 * seconds});
    hbmprof::pprof::Ages& ages = *sample.mutable_ages();
    ages.mutable_born_bytes()->Resize(static_cast<int>(seconds), 1024);
    ages.mutable_born_counts()->Resize(static_cast<int>(seconds), 1);
    own.push_back(dir + "/own" + std::to_string(100 + d));
    maker.Write(own.back());
    sample.clear_ages();
    without.push_back(dir + "/without" + std::to_string(100 + d));
    maker.Write(without.back());
  }
  std::vector<std::vector<std::string>> rewritten = {without, {}};
  for (const std::string& dump : own) {
    rewritten[1].push_back(dump + ".births");
    ASSERT_EQ(RunTool({"convert", "--to", "births", dump, "-o", rewritten[1].back()}).exit_code, 0);
  }
  for (const PprofTool& pprof : PprofTools()) {
    std::vector<std::string>& dumps = rewritten.emplace_back();
    for (const std::string& dump : own) {
      dumps.push_back(dump + "." + pprof.name);
      ASSERT_EQ(pprof.Run({"-proto", "-output=" + dumps.back(), dump}).exit_code, 0);
    }
  }
  EXPECT_THAT(RunTool({"leaks", own.back()}).out, HasSubstr("1 sites: 1 leak"));
  for (const std::vector<std::string>& dumps : rewritten) {
    SCOPED_TRACE(dumps.back());
    const CommandResult one = RunTool({"leaks", dumps.back()});
    EXPECT_EQ(one.exit_code, 2) << one.out;
    EXPECT_THAT(one.err, HasSubstr("without the ages of buffers"));
    EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out, HasSubstr("1 sites: 1 leak"));
    const std::string page = dir + "/page.html";
    ASSERT_EQ(RunTool(With({"report", "-o", page}, dumps)).exit_code, 0);
    std::ifstream file(page);
    const std::string html{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    EXPECT_EQ(ReportData(html)["growth"]["sites"][0]["verdict"], "leak");
  }
  // The sample of one dump that has no ages does not count as one without buffers.
  ProfileMaker maker({{"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  maker.Comment("hbmprof version=1 pid=7 uptime=63");
  maker.Sample({maker.Frame("Young")}, {1, 10}).mutable_ages()->add_born_counts(1);
  maker.message().mutable_sample(0)->mutable_ages()->add_born_bytes(10);
  maker.Sample({maker.Frame("Added")}, {5, 50});
  maker.Write(own[0]);
  EXPECT_EQ(ToolJson({"leaks", own[0]})["sites"][1]["why"], "the ages of its buffers are not known");
  // A process without buffers has no ages, and does not leak.
  ProfileMaker idle({{"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  idle.Comment("hbmprof version=1 pid=7 uptime=63");
  idle.Write(own[0]);
  EXPECT_EQ(RunTool({"leaks", own[0]}).exit_code, 0);
}

TEST(Leaks, LabelsOfBirthsAreInSeconds) {
  const std::string dir = ScratchDir();
  ProfileMaker maker;
  maker.Comment("hbmprof version=1 pid=7 uptime=63");
  hbmprof::pprof::Ages& ages = *maker.Sample({maker.Frame("Keep")}, {64, 64}).mutable_ages();
  for (auto* born : {ages.mutable_born_bytes(), ages.mutable_born_counts()}) born->Resize(64, 1);
  maker.Write(dir + "/dump");
  ASSERT_EQ(RunTool({"convert", "--to", "births", dir + "/dump", "-o", dir + "/births"}).exit_code, 0);
  EXPECT_EQ(ToolJson({"top", "--tagfocus", "birth=0ms:9000ms", dir + "/births"})["selected"], 10);
}

TEST(Leaks, ExplainsMissingInput) {
  const std::string dir = ScratchDir();
  const std::vector<std::string> dumps = ServerDumps(dir);
  const CommandResult two = RunTool({"leaks", dumps[0], dumps[1]});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err, HasSubstr("give at least three"));
  const CommandResult unknown = RunTool(With({"leaks", "--per", "tokens"}, dumps));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("4.pb.gz: has no counter 'tokens' (it has requests)"));
  const CommandResult stuck = RunTool({"leaks", "--per", "requests", dumps[0], dumps[1], dumps[1]});
  EXPECT_EQ(stuck.exit_code, 2);
  EXPECT_THAT(stuck.err, HasSubstr("counter 'requests' has only 2 values in 3 dumps"));
  const CommandResult label = RunTool(With({"leaks", "--by", "phase"}, dumps));
  EXPECT_EQ(label.exit_code, 2);
  EXPECT_THAT(label.err, HasSubstr("no sample has the label 'phase'; the labels are: bytes, device, kind"));
  EXPECT_EQ(RunTool(With({"leaks", "--fail-on", "maybe"}, dumps)).exit_code, 2);
}

TEST(Leaks, RefusesTypesThatCountFreedBuffers) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  for (const char* type : {"alloc_space", "alloc_objects"}) {
    const CommandResult result = RunTool(With({"leaks", "-t", type, "--fail-over", "1TiB"}, dumps));
    EXPECT_EQ(result.exit_code, 2) << type;
    EXPECT_THAT(result.err, HasSubstr(std::string("leaks judges live buffers, not ") + type)) << type;
  }
  for (const char* type : {"inuse_space", "inuse_objects", "peak_space"}) {
    EXPECT_EQ(RunTool(With({"leaks", "-t", type}, dumps)).exit_code, 0) << type;
  }
}

// Sites as bytes over dumps, judged one by one.
struct Course {
  const char* name;
  std::vector<int64_t> values;
  const char* verdict;
};
TEST(Leaks, JudgesTypicalCourses) {
  const Course courses[] = {
      {"steady", {100, 200, 300, 400, 500}, "leak"},
      {"noisy_but_steady", {1000, 1900, 3100, 4000, 5200}, "leak"},
      {"warm_up_then_leak", {0, 90000, 90100, 90200, 90300}, "perhaps"},
      {"warm_up", {0, 500, 500, 500, 500}, "stopped"},
      {"slow_warm_up", {0, 300, 450, 500, 500}, "stopped"},
      {"plateau", {0, 100, 200, 210, 210}, "stopped"},
      {"decaying", {0, 800, 1200, 1400, 1500}, "perhaps"},
      {"sawtooth", {100, 900, 200, 800, 300}, "up and down"},
      {"sawtooth_that_ends_high", {100, 900, 200, 900, 950}, "up and down"},
      {"bursts", {0, 500, 500, 1100, 1500}, "leak"},
      {"few_bursts", {0, 500, 500, 1100, 1100}, "perhaps"},
      {"late_start", {0, 0, 0, 0, 5000}, "perhaps"},
      {"constant", {700, 700, 700, 700, 700}, "flat"},
      {"shrinking", {700, 600, 500, 400, 300}, "flat"},
  };
  const std::string dir = ScratchDir();
  std::vector<std::string> arguments = {"leaks"};
  for (size_t dump = 0; dump < 5; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + static_cast<int64_t>(dump) * 1000000000);
    for (const Course& course : courses) {
      maker.Sample({maker.Frame(course.name), maker.Frame("main")}, {1, course.values[dump]});
    }
    arguments.push_back(dir + "/" + std::to_string(dump));
    maker.Write(arguments.back());
  }
  const nlohmann::json json = ToolJson(arguments);
  std::map<std::string, nlohmann::json> sites;
  for (const auto& site : json["sites"]) sites[site["stack"][0]["name"]] = site;
  for (const Course& course : courses) {
    EXPECT_EQ(sites[course.name]["verdict"], course.verdict) << sites[course.name].dump();
    EXPECT_NE(sites[course.name]["why"], "");
    EXPECT_NE(sites[course.name]["more_dumps"], "");
  }
  EXPECT_EQ(sites["warm_up_then_leak"]["growth"], 300);
  EXPECT_EQ(sites["warm_up_then_leak"]["per_interval"], 100);
  const std::string all = RunTool(With(arguments, {"--rows", "0"})).out;
  EXPECT_THAT(all, HasSubstr(" did not grow (--all lists those that grew)\n"));
  EXPECT_THAT(all, Not(HasSubstr("no leaks:")));
  const std::string text = RunTool(With(arguments, {"--rows", "0", "--all"})).out;
  EXPECT_THAT(text, HasSubstr("of 4 intervals; freed nothing"));
  EXPECT_THAT(text, HasSubstr("last grew at dump 2 of 5; more dumps: it is a leak only if it grows again"));
  EXPECT_THAT(
      text,
      HasSubstr("of the bytes that it added; more dumps: it is a leak only if its lowest values continue to rise"));
}

// One site's course as profiles, a second and a hundred requests apart.
struct Dump {
  int64_t bytes;
  int64_t requests;  // negative: the counter is not set
  int pid = 1;
  std::map<std::string, std::string> labels;
};
std::vector<std::string> WriteDumps(const std::string& dir, const std::vector<Dump>& dumps) {
  std::vector<std::string> paths;
  for (size_t d = 0; d < dumps.size(); ++d) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + static_cast<int64_t>(d) * 1000000000);
    maker.Comment("hbmprof version=1 pid=" + std::to_string(dumps[d].pid));
    if (dumps[d].requests >= 0) maker.Comment("counter requests value=" + std::to_string(dumps[d].requests));
    maker.Sample({maker.Frame("site"), maker.Frame("main")}, {1, dumps[d].bytes}, dumps[d].labels);
    paths.push_back(dir + "/" + std::to_string(100 + d));
    maker.Write(paths.back());
  }
  return paths;
}

// The list of JAX's manual: nine dumps, and what it adds in each has a label value of its own.
TEST(Leaks, JudgesAStackOverAllItsLabels) {
  const std::string dir = ScratchDir();
  std::vector<std::string> arguments = {"leaks", "--fail-over", "1KiB"};
  for (int d = 1; d <= 9; ++d) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + d * int64_t{1000000000});
    for (int i = 1; i <= d; ++i) {
      maker.Sample({maker.Frame("anotherfunc"), maker.Frame("main")}, {1, 40000 * i},
                   {{"shape", "(" + std::to_string(i) + ", 10000)"}, {"kind", i % 2 == 0 ? "even" : "odd"}});
    }
    maker.Sample({maker.Frame("afunction"), maker.Frame("main")}, {1, 4000000}, {{"shape", "(1, 1000000)"}});
    arguments.push_back(dir + "/" + std::to_string(d));
    maker.Write(arguments.back());
  }
  const CommandResult result = RunTool(arguments);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("2 sites: 1 leak, 0 perhaps"));
  EXPECT_THAT(result.out, HasSubstr("sure: high"));
  EXPECT_THAT(result.out, HasSubstr("anotherfunc"));

  arguments.insert(arguments.end(), {"--by", "kind"});
  arguments.erase(arguments.begin() + 1, arguments.begin() + 3);
  const nlohmann::json json = ToolJson(arguments);
  ASSERT_TRUE(json.is_object());
  std::map<std::string, std::string> verdicts;
  for (const auto& site : json["sites"]) verdicts[site["labels"].dump()] = site["verdict"];
  EXPECT_EQ(verdicts, (std::map<std::string, std::string>{
                          {R"({"kind":"even"})", "perhaps"}, {R"({"kind":"odd"})", "leak"}, {"{}", "flat"}}));
}

// Each of forty sites grows once, so none of them is a leak; together they grow all the time.
TEST(Leaks, CountsGrowthOfAllOtherSites) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int d = 0; d < 20; ++d) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + d * int64_t{1000000000});
    for (int site = 0; site < 40; ++site) {
      maker.Sample({maker.Frame("site" + std::to_string(site)), maker.Frame("main")}, {1, 2 * d >= site ? 1 << 20 : 0});
    }
    dumps.push_back(dir + "/" + std::to_string(100 + d));
    maker.Write(dumps.back());
  }
  const CommandResult failed = RunTool(With({"leaks", "--fail-over", "1MiB"}, dumps));
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.out, HasSubstr("40 sites: 0 leak"));
  EXPECT_THAT(failed.out, HasSubstr("all other sites together: LEAK"));
  EXPECT_THAT(failed.out, HasSubstr("all other sites together by 38.00 MiB"));
  EXPECT_EQ(RunTool(With({"leaks", "--fail-over", "38MiB"}, dumps)).exit_code, 0);
  EXPECT_EQ(ToolJson(With({"leaks"}, dumps))["unexplained"], 38 << 20);
}

// Two sites go up and down, and their sum grows more and more slowly.
TEST(Leaks, ShowsAllOtherSitesIfTheyFailTheCheck) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int d = 0; d < 12; ++d) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + d * int64_t{1000000000});
    const int64_t half = std::llround((50 - 50 * std::exp(-d / 5.0)) * (1 << 20));
    const int64_t wave = d % 2 == 0 ? 200 << 20 : 0;
    maker.Sample({maker.Frame("first"), maker.Frame("main")}, {1, half + wave});
    maker.Sample({maker.Frame("second"), maker.Frame("main")}, {1, half + (200 << 20) - wave});
    dumps.push_back(dir + "/" + std::to_string(100 + d));
    maker.Write(dumps.back());
  }
  const CommandResult failed = RunTool(With({"leaks", "--fail-over", "1MiB", "--fail-on", "perhaps"}, dumps));
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.out, HasSubstr("2 sites: 0 leak, 0 perhaps"));
  EXPECT_THAT(failed.out, HasSubstr("FAILED: the leaks and possible leaks grew by 0 B, all other sites together by"));
  EXPECT_THAT(failed.out, HasSubstr("all other sites together: perhaps  +"));
  EXPECT_THAT(RunTool(With({"leaks", "--fail-over", "1MiB"}, dumps)).out, Not(HasSubstr("all other sites")));
}

// The sites that --fail-on growth counts are listed.
TEST(Leaks, ListsSitesThatStoppedIfTheyFailTheCheck) {
  std::vector<Dump> course;
  for (int d = 0; d < 12; ++d) course.push_back({int64_t{std::min(d, 6)} << 20, 100 * d});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  const CommandResult failed = RunTool(With({"leaks", "--fail-over", "1MiB", "--fail-on", "growth"}, dumps));
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.out, HasSubstr("no leaks:\n   6.00 MiB  site  last grew at dump 7 of 12"));
  EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out, Not(HasSubstr("no leaks:")));
}

TEST(Leaks, SaysWhenTheLimitIsReached) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int d = 0; d < 12; ++d) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + d * int64_t{1000000000});
    const int64_t bytes = int64_t{d} << 20;
    maker.Comment("device GPU:0 space=device in_use=" + std::to_string(bytes) + " limit=" + std::to_string(111 << 20));
    maker.Sample({maker.Frame("Grow"), maker.Frame("main")}, {1, bytes}, {{"device", "GPU:0"}});
    dumps.push_back(dir + "/" + std::to_string(100 + d));
    maker.Write(dumps.back());
  }
  EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out,
              HasSubstr("from 0 B to 11.00 MiB\n"
                        "Grow leaks 1.00 MiB each second (+11.00 MiB); GPU:0 reaches its limit in 100.0 s.\n"
                        "1 sites: 1 leak"));
  EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out, HasSubstr("freed nothing; the growth is even until the end\n"));
}

TEST(Leaks, FailOnSelectsTheVerdicts) {
  // Slows down: perhaps.
  std::vector<Dump> course;
  for (int d = 0; d < 12; ++d) course.push_back({std::llround((100 - 100 * std::exp(-d / 5.0)) * (1 << 20)), 100 * d});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  const nlohmann::json json = ToolJson(With({"leaks"}, dumps));
  ASSERT_EQ(json["sites"][0]["verdict"], "perhaps") << json.dump(1);
  EXPECT_THAT(json["sites"][0]["why"].get<std::string>(), HasSubstr("is slowing down"));
  EXPECT_EQ(RunTool(With({"leaks", "--fail-over", "1MiB"}, dumps)).exit_code, 0);
  EXPECT_EQ(RunTool(With({"leaks", "--fail-over", "1MiB", "--fail-on", "sure"}, dumps)).exit_code, 0);
  const CommandResult perhaps = RunTool(With({"leaks", "--fail-over", "1MiB", "--fail-on", "perhaps"}, dumps));
  EXPECT_EQ(perhaps.exit_code, 1);
  EXPECT_THAT(perhaps.out, HasSubstr("FAILED: the leaks and possible leaks grew by 88.92 MiB"));
}

TEST(Leaks, RequiresGrowthAtTheEnd) {
  const auto dumps = [](const std::vector<double>& bytes) {
    std::vector<Dump> course;
    for (const double value : bytes) course.push_back({std::llround(value), 100 * static_cast<int64_t>(course.size())});
    return WriteDumps(ScratchDir(), course);
  };
  const auto values = [](int count, const std::function<double(int)>& bytes) {
    std::vector<double> all;
    for (int d = 0; d < count; ++d) all.push_back(1e6 * bytes(d));
    return all;
  };
  const auto verdict = [&](const std::vector<double>& bytes) {
    return ToolJson(With({"leaks"}, dumps(bytes)))["sites"][0]["verdict"].get<std::string>();
  };
  EXPECT_EQ(verdict(values(18, [](int d) { return d; })), "leak");
  // Approaches a limit with a time constant of 0.6 of the whole time: it grows more and more slowly, but never stops.
  const std::vector<double> warm_up = values(8, [](int d) { return 10 * (1 - std::exp(-d / (0.6 * 7))); });
  EXPECT_EQ(verdict(warm_up), "perhaps");
  EXPECT_THAT(RunTool(With({"leaks"}, dumps(warm_up))).out,
              HasSubstr("is slowing down: the last third of the time added"));
  // A warm-up, and a leak all the time.
  EXPECT_EQ(verdict(values(18, [](int d) { return 10 * (1 - std::exp(-d / 2.0)) + d; })), "leak");
  // From dump 6 on it grows evenly with a quarter of the rate before.
  EXPECT_EQ(verdict(values(18, [](int d) { return 4 * std::min(d, 5) + std::max(d - 5, 0); })), "leak");
  // Equal jumps. The last one is some time before the end; in the second course it is at the end.
  EXPECT_EQ(verdict(values(18, [](int d) { return (d >= 2) + (d >= 10) + (d >= 13) + (d >= 15); })), "perhaps");
  EXPECT_EQ(verdict(values(18, [](int d) { return (d >= 2) + (d >= 10) + (d >= 13) + (d >= 17); })), "leak");
  // Models that are loaded and unloaded: a trend, but no noise that could hide growth.
  EXPECT_EQ(verdict({0e3, 35e3, 205e3, 205e3, 258e3, 258e3, 258e3, 1000e3, 1000e3, 830e3, 830e3, 830e3, 937e3, 937e3,
                     988e3, 988e3, 988e3, 988e3}),
            "perhaps");
}

TEST(Leaks, JudgesOneProcessAfterARestart) {
  // Three dumps, a restart, then fifteen dumps of a leak.
  std::vector<Dump> course = {{5000, 100, 7}, {5100, 200, 7}, {5200, 300, 7}};
  for (int d = 0; d < 15; ++d) course.push_back({1000 + 100 * d, 50 + 100 * d, 8});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  for (const std::vector<std::string>& per : {std::vector<std::string>{}, {"--per", "requests"}}) {
    std::vector<std::string> arguments = With({"leaks"}, per);
    const nlohmann::json json = ToolJson(With(arguments, dumps));
    ASSERT_TRUE(json.is_object());
    EXPECT_EQ(json["judged"]["first"], 3);
    EXPECT_EQ(json["judged"]["last"], 17);
    EXPECT_EQ(json["sites"][0]["verdict"], "leak");
    EXPECT_EQ(json["sites"][0]["growth"], 1400);
    if (!per.empty()) {
      EXPECT_EQ(json["sites"][0]["per_count"], 1.0);
    }
  }
  EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out,
              HasSubstr("the program was restarted once: only dumps 4 to 18 are judged"));
}

TEST(Leaks, IgnoresPausesOfTheCounter) {
  // Grows with each request. There are no requests in the second half of the time.
  std::vector<Dump> course;
  for (int d = 0; d < 20; ++d) course.push_back({1000 * std::min(d, 10), 100 * std::min(d, 10)});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  EXPECT_EQ(ToolJson(With({"leaks"}, dumps))["sites"][0]["verdict"], "stopped");
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, dumps));
  EXPECT_EQ(json["sites"][0]["verdict"], "leak");
  EXPECT_EQ(json["sites"][0]["per_count"], 10.0);
}

TEST(Leaks, JudgeFromTheFirstDumpWithTheCounter) {
  // A run that continues at request 1000000, after two dumps without the counter.
  std::vector<Dump> course = {{500, -1}, {1000, -1}};
  for (int d = 0; d < 12; ++d) course.push_back({1000 + 100 * d, 1000000 + 10 * d});
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps = WriteDumps(dir, course);
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, dumps));
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["judged"]["first"], 2);
  EXPECT_EQ(json["judged"]["last"], 13);
  EXPECT_EQ(json["counter"]["values"].size(), dumps.size());
  EXPECT_EQ(json["sites"][0]["verdict"], "leak");
  EXPECT_EQ(json["sites"][0]["growth"], 1100);
  EXPECT_EQ(json["sites"][0]["per_count"], 10.0);
  EXPECT_EQ(RunTool(With({"report", "-p", "requests", "-o", dir + "/page"}, dumps)).exit_code, 0);
  dumps.resize(3);
  const CommandResult few = RunTool(With({"leaks", "--per", "requests"}, dumps));
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_THAT(few.err, HasSubstr("counter 'requests' has only 1 values in 1 dumps"));
  // Dumps of another program, or of a restarted one, are not from before.
  course.push_back({2200, -1});
  EXPECT_THAT(RunTool(With({"leaks", "--per", "requests"}, WriteDumps(dir, course))).err,
              HasSubstr("114: has no counter 'requests' (it has none)"));
}

class LeaksOfExamples : public testing::Test {
 protected:
  CommandResult RunExample(const std::string& name, const std::vector<std::string>& arguments) {
    return RunCommand(With({std::string(HBMPROF_EXAMPLES_DIR) + "/" + name}, arguments));
  }
  // Runs `llm_server --dumps 18` with `options` and returns its dumps. The answers are shorter than by default, so that
  // the test is fast. With --leak, each of the 576 requests keeps a page of the KV cache. On a slow
  // machine the program takes 16 s or more, and the ages would be judged instead of the totals. So the uptimes are set
  // to 1 s.
  std::vector<std::string> ServerDumps(const std::vector<std::string>& options) {
    std::ofstream prompts(dir_ + "/prompts");
    for (int i = 0; i < 32; ++i) prompts << (i % 3 == 2 ? "batch:" : "") << static_cast<char>('A' + i) << "\n";
    prompts.close();
    const CommandResult run = RunExample(
        "llm_server",
        With(With({"--dumps", "18", "--dump-dir", dir_, "--max-tokens", "2", "--cancel-every", "1"}, options),
             {dir_ + "/prompts"}));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::vector<std::string> dumps;
    for (int d = 1; d <= 18; ++d) {
      char name[32];
      std::snprintf(name, sizeof(name), "/dump.%04d.pb.gz", d);
      dumps.push_back(dir_ + name);
      auto profile = ReadProfile(dumps.back());
      EXPECT_TRUE(profile.ok()) << profile.status();
      for (std::string& text : *profile->mutable_string_table()) {
        text = std::regex_replace(text, std::regex(" uptime=[0-9]+"), " uptime=1");
      }
      WriteFile(dumps.back(), profile->SerializeAsString());
    }
    return dumps;
  }
  const std::string dir_ = ScratchDir();
};

TEST_F(LeaksOfExamples, FindsTheLeakingServer) {
  const std::vector<std::string> dumps = ServerDumps({"--leak"});
  for (const std::vector<std::string>& per : {std::vector<std::string>{}, {"--per", "requests"}}) {
    const CommandResult result = RunTool(With(With({"leaks", "--fail-over", "1MiB"}, per), dumps));
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(result.out, HasSubstr("18 dumps"));
    if (!per.empty()) {
      EXPECT_THAT(result.out, HasSubstr(", 544 requests"));
    }
    EXPECT_THAT(result.out, HasSubstr("1 leak, 0 perhaps"));
    EXPECT_THAT(result.out, HasSubstr("sure: high"));
    EXPECT_THAT(result.out, HasSubstr("llm::KvCache::AllocatePage"));
    EXPECT_THAT(result.out, HasSubstr("FAILED: the leaks grew by 6"));
  }
}

// The live buffers of each function by birth class.
std::map<std::string, std::map<int, int64_t>> BirthsIn(const std::string& source) {
  std::map<std::string, std::map<int, int64_t>> births;
  const nlohmann::json top = ToolJson({"top", "--by", "birth,function", "-t", "inuse_objects", source});
  for (const auto& row : top["rows"]) {
    const std::string birth = row["labels"]["birth"];
    if (!birth.empty()) births[row["function"]][std::stoi(birth)] = row["flat"];
  }
  return births;
}

TEST_F(LeaksOfExamples, RecordingHasTheAgesOfItsDumps) {
  const std::string prompts = dir_ + "/prompts";
  std::ofstream(prompts) << "A\nbatch:B\nC\n";
  const std::string recording = dir_ + "/run.hbmrec";
  const CommandResult run = RunCommand({std::string(HBMPROF_EXAMPLES_DIR) + "/llm_server", "--leak", "--dumps", "30",
                                        "--dump-dir", dir_, "--max-tokens", "40", prompts},
                                       {"HBMPROF_RECORD=" + recording});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const std::string name : {"dump.0010.pb.gz", "dump.0030.pb.gz"}) {
    const auto taken = BirthsIn(dir_ + "/" + name);
    const auto replayed = BirthsIn(recording + "@mark:" + name);
    ASSERT_EQ(taken.count("llm::KvCache::AllocatePage"), 1u) << name;
    ASSERT_EQ(taken.size(), replayed.size()) << name;
    // The births of the recording count from its start, which on a busy machine is seconds after that of the process.
    const auto is_same = [&](int later) {
      for (const auto& [function, births] : taken) {
        // The number of buffers that were born until a second.
        const auto until = [&function = function](const auto& all, int last) {
          int64_t sum = 0;
          for (const auto& [birth, count] : all.at(function)) sum += birth <= last ? count : 0;
          return sum;
        };
        for (int i = 0; i < 1000; ++i) {
          const int64_t count = until(taken, i + later);
          if (count < until(replayed, i - 1) || count > until(replayed, i + 1)) return false;
        }
      }
      return true;
    };
    bool is_any_same = false;
    for (int later = 0; later <= 20; ++later) is_any_same = is_any_same || is_same(later);
    EXPECT_TRUE(is_any_same) << name;
  }
}

TEST_F(LeaksOfExamples, FindsNoLeakInTheOtherServer) {
  const CommandResult result = RunTool(With({"leaks", "--fail-over", "1", "--fail-on", "growth"}, ServerDumps({})));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("0 leak, 0 perhaps, 0 grew and stopped"));
}

TEST_F(LeaksOfExamples, FailsOnAFullCacheOnlyIfAllGrowthCounts) {
  const std::vector<std::string> dumps = ServerDumps({"--leak", "--kv-pages", "400"});  // full at dump 13
  const std::vector<std::string> command = With({"leaks", "--per", "requests", "--fail-over", "1MiB"}, dumps);
  const CommandResult sure = RunTool(command);
  EXPECT_EQ(sure.exit_code, 0) << sure.out;
  EXPECT_THAT(sure.out, HasSubstr("0 leak, 0 perhaps, 1 grew and stopped"));
  EXPECT_THAT(sure.out, HasSubstr("--fail-over does not count 22."));  // since dump 7, which holds 28 MiB
  const CommandResult growth = RunTool(With(command, {"--fail-on", "growth"}));
  EXPECT_EQ(growth.exit_code, 1) << growth.out;
  EXPECT_THAT(growth.out, HasSubstr("FAILED: all growing call stacks grew by 22."));
}

TEST_F(LeaksOfExamples, FindsTheGrowingList) {
  ASSERT_EQ(RunExample("growing_list", {dir_}).exit_code, 0);
  std::vector<std::string> dumps;
  for (int i = 1; i <= 9; ++i) dumps.push_back(dir_ + "/memory" + std::to_string(i) + ".pb.gz");
  const CommandResult result = RunTool(With({"leaks", "--fail-over", "1MiB"}, dumps));
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.out, HasSubstr("2 sites: 1 leak, 0 perhaps"));
  EXPECT_THAT(result.out, HasSubstr("sure: high"));
  EXPECT_THAT(result.out, HasSubstr("anotherfunc"));
}

}  // namespace
}  // namespace hbmprof_test
