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
#include <numeric>
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

constexpr int kRequests[] = {10, 1000, 700, 1300, 850, 900, 1100, 650, 1000, 1200, 800, 950, 1050};

// Returns the paths of thirteen dumps, with a different number of requests between them.
std::vector<std::string> ServerDumps(const std::string& dir) {
  Server server;
  std::vector<std::string> paths;
  for (const int requests : kRequests) {
    server.Serve(requests);
    if (paths.size() == 1) server.WarmUp();
    paths.push_back(server.Dump(dir + "/" + std::to_string(100 + paths.size()) + ".pb.gz"));
  }
  return paths;
}

std::vector<std::string> With(std::vector<std::string> first, const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// The answer of `hbmprof leaks` with all sites that grew.
nlohmann::json Answer(const std::vector<std::string>& arguments) {
  return ToolJson(With({"leaks", "--all", "-n", "0"}, arguments));
}

// Returns the verdict on each function that grew.
std::map<std::string, std::string> VerdictsIn(const nlohmann::json& answer) {
  std::map<std::string, std::string> verdicts;
  for (const auto& finding : answer["findings"]) {
    verdicts[finding["function"]] = finding["code"] == "LEAK" ? "leak" : "perhaps";
  }
  for (const auto& site : answer["others"]) verdicts[site["function"]] = site["verdict"];
  return verdicts;
}
std::map<std::string, std::string> Verdicts(const std::vector<std::string>& arguments) {
  return VerdictsIn(Answer(arguments));
}
std::string VerdictOf(const std::string& function, const std::vector<std::string>& arguments) {
  const std::map<std::string, std::string> verdicts = Verdicts(arguments);
  const auto found = verdicts.find(function);
  return found == verdicts.end() ? "flat" : found->second;
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

TEST(Leaks, RanksTheOnlyLeakFirstWithItsRate) {
  const nlohmann::json json = Answer(ServerDumps(ScratchDir()));
  ASSERT_EQ(json["findings"].size(), 1u) << json.dump(1);
  const nlohmann::json& leak = json["findings"][0];
  EXPECT_EQ(leak["code"], "LEAK");
  EXPECT_EQ(leak["sure"], "high");
  EXPECT_THAT(leak["evidence"].get<std::string>(), HasSubstr("grew permanently in 12 of 12 intervals; freed nothing"));
  EXPECT_THAT(leak["function"].get<std::string>(), HasSubstr("Site"));
  EXPECT_NEAR(leak["per_count"].get<double>(), 8192, 82) << "the program has one counter";
  EXPECT_EQ(leak["counter"], "requests");
  EXPECT_NEAR(leak["per_second"].get<double>(), 819200, 8192);
  EXPECT_EQ(leak["bytes"], 8192 * (std::accumulate(std::begin(kRequests), std::end(kRequests), 0) - kRequests[0]));
  EXPECT_TRUE(leak["seconds_to_limit"].is_null());
  EXPECT_EQ(leak["unknown"], nlohmann::json({{"seconds_to_limit", "the limit of the memory is not known"}}));
}

TEST(Leaks, ExplainsTheOtherVerdicts) {
  std::map<std::string, std::string> verdicts;
  for (const auto& [name, verdict] : Verdicts(ServerDumps(ScratchDir()))) {
    verdicts[name.substr(name.rfind(':') + 1)] = verdict;
  }
  EXPECT_EQ(verdicts["CacheInsert"], "stopped");
  EXPECT_EQ(verdicts["PoolGrow"], "stopped");
  EXPECT_EQ(verdicts["Batch"], "up and down");
}

TEST(Leaks, ALeakSetsTheExitCode) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const CommandResult leak = RunTool(With({"leaks", "--per", "requests"}, dumps));
  EXPECT_EQ(leak.exit_code, 1);
  EXPECT_THAT(leak.out, HasSubstr("1. LEAK  "));
  EXPECT_THAT(leak.out, HasSubstr(" leaks 800.00 KiB/s, 8.00 KiB a request (+"));
  const CommandResult over = RunTool(With({"leaks", "--fail-over", "1MiB"}, dumps));
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.out, HasSubstr("FAILED"));
  const CommandResult under = RunTool(With({"leaks", "--fail-over", "1GiB"}, dumps));
  EXPECT_EQ(under.exit_code, 0);
  EXPECT_THAT(under.out, Not(HasSubstr("FAILED")));
  EXPECT_EQ(RunTool({"leaks", dumps[2], dumps[2], dumps[2]}).exit_code, 0);
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
    dumps.push_back(dir + "/" + std::to_string(100 + dump) + ".pb.gz");
    maker.Write(dumps.back());
  }
  EXPECT_EQ(Verdicts(dumps), (std::map<std::string, std::string>{{"Grows", "perhaps"}}));
}

TEST(Leaks, LeaveOutIdleMemoryOfPools) {
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps;
  for (int dump = 0; dump < 12; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(int64_t{1700000000 + dump} * 1000000000);
    maker.Sample({maker.Frame("[idle memory of cache]")}, {1, 1000000 * (dump + 1)}, {{"kind", "pool"}});
    maker.Sample({maker.Frame("LoadBatch")}, {1, 5000}, {{"kind", "device"}});
    maker.Sample({maker.Frame("Keep")}, {1, 1000 * (dump + 1)}, {{"kind", "device"}});
    dumps.push_back(dir + "/" + std::to_string(100 + dump) + ".pb.gz");
    maker.Write(dumps.back());
  }
  EXPECT_EQ(Verdicts(dumps), (std::map<std::string, std::string>{{"Keep", "leak"}}));
  const std::string page = dir + "/page.html";
  ASSERT_EQ(RunTool(With({"report", "-o", page}, dumps)).exit_code, 0);
  std::ifstream file(page);
  const std::string html{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const nlohmann::json findings = ReportData(html)["findings"];
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0]["sentence"].get<std::string>(), HasSubstr("Keep leaks"));
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
  const nlohmann::json site = ToolJson(With({"leaks", "--type", "inuse_space"}, dumps))["findings"][0];
  EXPECT_EQ(site["code"], "LEAK");
  EXPECT_NEAR(site["per_second"].get<double>(), 1000, 60);
  EXPECT_NEAR(site["bytes"].get<double>(), 20000, 1200) << "in 20 s";
}

TEST(Leaks, OrdersDumpsByTime) {
  std::vector<std::string> dumps = ServerDumps(ScratchDir());
  std::swap(dumps[0], dumps[7]);
  std::swap(dumps[3], dumps[11]);
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, dumps));
  EXPECT_EQ(json["findings"][0]["code"], "LEAK");
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
    return RunTool({"leaks", "--all", dump});
  };
  const std::string comment = "hbmprof version=1 pid=7 uptime=63";
  const CommandResult found = leaks(std::vector<int64_t>(64, 1000), comment);
  EXPECT_EQ(found.exit_code, 1) << found.err;
  EXPECT_THAT(found.out, HasSubstr("1. LEAK  Keep leaks "));
  EXPECT_THAT(found.out, HasSubstr("ago until now were never freed; this call stack freed none ("));
  std::vector<int64_t> start(64);
  start[0] = 64000;
  const CommandResult none = leaks(start, comment);
  EXPECT_EQ(none.exit_code, 0) << none.out << none.err;
  EXPECT_THAT(none.out, HasSubstr("no leak in 1 call stacks"));
  EXPECT_EQ(leaks(start, "hbmprof version=1 pid=7 uptime=15").exit_code, 2) << "too young";
  std::vector<int64_t> stopped(64, 1000);
  std::fill(stopped.begin() + 40, stopped.end(), 0);
  EXPECT_THAT(leaks(stopped, comment).out, HasSubstr("last kept a buffer 24.0 s ago"));
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
  std::vector<std::vector<std::string>> rewritten = {without};
  for (const PprofTool& pprof : PprofTools()) {
    std::vector<std::string>& dumps = rewritten.emplace_back();
    for (const std::string& dump : own) {
      dumps.push_back(dump + "." + pprof.name);
      ASSERT_EQ(pprof.Run({"-proto", "-output=" + dumps.back(), dump}).exit_code, 0);
    }
  }
  EXPECT_THAT(RunTool({"leaks", own.back()}).out, HasSubstr("1. LEAK"));
  for (const std::vector<std::string>& dumps : rewritten) {
    SCOPED_TRACE(dumps.back());
    const CommandResult one = RunTool({"leaks", dumps.back()});
    EXPECT_EQ(one.exit_code, 2) << one.out;
    EXPECT_THAT(one.err, HasSubstr("without the ages of buffers"));
    EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out, HasSubstr("1. LEAK"));
    const std::string page = dir + "/page.html";
    ASSERT_EQ(RunTool(With({"report", "-o", page}, dumps)).exit_code, 0);
    std::ifstream file(page);
    const std::string html{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    EXPECT_EQ(ReportData(html)["findings"][0]["code"], "LEAK");
  }
  // The sample of one dump that has no ages does not count as one without buffers.
  ProfileMaker maker({{"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  maker.Comment("hbmprof version=1 pid=7 uptime=63");
  maker.Sample({maker.Frame("Young")}, {1, 10}).mutable_ages()->add_born_counts(1);
  maker.message().mutable_sample(0)->mutable_ages()->add_born_bytes(10);
  maker.Sample({maker.Frame("Added")}, {5, 50});
  maker.Write(own[0]);
  EXPECT_THAT(RunTool({"leaks", "--all", own[0]}).out, HasSubstr("no leak in 2 call stacks"));
  // A process without any memory has no ages, and nothing that can be judged.
  ProfileMaker idle({{"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  idle.Comment("hbmprof version=1 pid=7 uptime=63");
  idle.Write(own[0]);
  const CommandResult none = RunTool({"leaks", own[0]});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("no memory was recorded: a linked library records only"));
}

TEST(Leaks, LabelsOfBirthsAreInSeconds) {
  const std::string dir = ScratchDir();
  ProfileMaker maker;
  maker.Comment("hbmprof version=1 pid=7 uptime=63");
  hbmprof::pprof::Ages& ages = *maker.Sample({maker.Frame("Keep")}, {64, 64}).mutable_ages();
  for (auto* born : {ages.mutable_born_bytes(), ages.mutable_born_counts()}) born->Resize(64, 1);
  maker.Write(dir + "/dump");
  EXPECT_EQ(ToolJson({"top", "--by", "birth", "--where", "birth=9", dir + "/dump"})["selected"], 1);
}

TEST(Leaks, JudgeWhatWasKeptUntilAllWasFreed) {
  std::vector<Dump> course;
  for (int d = 0; d < 14; ++d) course.push_back({d < 12 ? 1000 * d : 0, 100 * d});
  const nlohmann::json json = ToolJson(With({"leaks"}, WriteDumps(ScratchDir(), course)));
  EXPECT_EQ(json["findings"][0]["code"], "LEAK");
  EXPECT_EQ(json["source"]["profiles"], 12);
}

TEST(Leaks, ExplainsMissingInput) {
  const std::string dir = ScratchDir();
  const std::vector<std::string> dumps = ServerDumps(dir);
  const CommandResult two = RunTool({"leaks", dumps[0], dumps[1]});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err, HasSubstr("give at least three"));
  const CommandResult unknown = RunTool(With({"leaks", "--per", "tokens"}, dumps));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("112.pb.gz: has no counter 'tokens' (it has requests)"));
  const CommandResult stuck = RunTool({"leaks", "--per", "requests", dumps[0], dumps[1], dumps[1]});
  EXPECT_EQ(stuck.exit_code, 2);
  EXPECT_THAT(stuck.err, HasSubstr("counter 'requests' has only 2 values in 3 dumps"));
  const CommandResult label = RunTool(With({"leaks", "--by", "phase"}, dumps));
  EXPECT_EQ(label.exit_code, 2);
  EXPECT_THAT(label.err, HasSubstr("no sample has the label 'phase'; the labels are: bytes, device, kind"));
}

TEST(Leaks, RefusesTypesThatCountFreedBuffers) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  for (const char* type : {"alloc_space", "alloc_objects"}) {
    const CommandResult result = RunTool(With({"leaks", "-t", type, "--fail-over", "1TiB"}, dumps));
    EXPECT_EQ(result.exit_code, 2) << type;
    EXPECT_THAT(result.err, HasSubstr(std::string("live buffers are judged, not ") + type)) << type;
  }
  for (const char* type : {"inuse_space", "inuse_objects", "peak_space"}) {
    EXPECT_EQ(RunTool(With({"leaks", "-t", type}, dumps)).exit_code, 1) << type;
  }
}

// Sites as bytes over twelve dumps, judged one by one.
struct Course {
  const char* name;
  std::vector<int64_t> values;
  const char* verdict;
};
TEST(Leaks, JudgesTypicalCourses) {
  const Course courses[] = {
      {"steady", {100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200}, "leak"},
      {"noisy", {1000, 1900, 3100, 4000, 5200, 5900, 7100, 8000, 8900, 10100, 10900, 12200}, "leak"},
      {"warm_up_then_leak", {0, 900, 920, 940, 960, 980, 1000, 1020, 1040, 1060, 1080, 1100}, "perhaps"},
      {"warm_up", {0, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500, 500}, "stopped"},
      {"decaying", {0, 300, 520, 690, 810, 900, 970, 1020, 1060, 1090, 1110, 1125}, "perhaps"},
      {"sawtooth", {100, 900, 200, 800, 300, 900, 100, 900, 200, 800, 300, 400}, "up and down"},
      {"two_steps", {0, 0, 0, 0, 0, 500, 500, 500, 500, 500, 500, 1500}, "perhaps"},
      {"late_start", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5000}, "perhaps"},
      {"constant", {700, 700, 700, 700, 700, 700, 700, 700, 700, 700, 700, 700}, "flat"},
      {"shrinking", {700, 600, 500, 400, 300, 300, 300, 300, 300, 300, 300, 300}, "flat"},
  };
  std::vector<std::string> arguments;
  const std::string dir = ScratchDir();
  for (size_t dump = 0; dump < 12; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + static_cast<int64_t>(dump) * 1000000000);
    for (const Course& course : courses) {
      maker.Sample({maker.Frame(course.name), maker.Frame("main")}, {1, course.values[dump]});
    }
    arguments.push_back(dir + "/" + std::to_string(100 + dump));
    maker.Write(arguments.back());
  }
  std::map<std::string, std::string> verdicts = Verdicts(arguments);
  for (const Course& course : courses) {
    EXPECT_EQ(verdicts.count(course.name) == 0 ? "flat" : verdicts[course.name], course.verdict) << course.name;
  }
  const std::string few = RunTool(With({"leaks", "--rows", "0"}, {arguments.begin(), arguments.begin() + 6})).out;
  EXPECT_THAT(few, Not(HasSubstr("steady"))) << "it is little";
  EXPECT_THAT(RunTool(With({"leaks", "--all"}, {arguments.begin(), arguments.begin() + 6})).out,
              HasSubstr("GROWS  steady may leak 100 B/s"));
  EXPECT_THAT(few, HasSubstr("6 dumps cannot distinguish a leak from a cache that fills, 12 can"));
  EXPECT_THAT(few, Not(HasSubstr("LEAK")));
  EXPECT_THAT(few, Not(HasSubstr("although they grew")));
  EXPECT_THAT(RunTool(With({"leaks", "--all"}, arguments)).out, HasSubstr("last grew at dump 2 of 12"));
  EXPECT_THAT(RunTool(With({"leaks", "--all", "-n", "1"}, arguments)).out,
              HasSubstr("... and 1 more rows (-n 0 shows all)\n"));
  const nlohmann::json all = ToolJson(With({"leaks", "--all"}, arguments));
  EXPECT_EQ(all["others"].size(), 2u) << all.dump(1);
  EXPECT_EQ(SchemaProblem(nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS "/leaks.json")), all), "");
}

// The list of JAX's manual: twelve dumps, and what it adds in each has a label value of its own.
TEST(Leaks, JudgesAStackOverAllItsLabels) {
  const std::string dir = ScratchDir();
  std::vector<std::string> arguments = {"leaks", "--fail-over", "1KiB"};
  for (int d = 1; d <= 12; ++d) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + d * int64_t{1000000000});
    for (int i = 1; i <= d; ++i) {
      maker.Sample({maker.Frame("anotherfunc"), maker.Frame("main")}, {1, 40000 * i},
                   {{"shape", "(" + std::to_string(i) + ", 10000)"}, {"kind", i % 2 == 0 ? "even" : "odd"}});
    }
    maker.Sample({maker.Frame("afunction"), maker.Frame("main")}, {1, 4000000}, {{"shape", "(1, 1000000)"}});
    arguments.push_back(dir + "/" + std::to_string(100 + d));
    maker.Write(arguments.back());
  }
  const CommandResult result = RunTool(arguments);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("1. LEAK  anotherfunc leaks"));
  EXPECT_THAT(result.out, Not(HasSubstr("2. ")));

  arguments.insert(arguments.end(), {"--by", "kind"});
  arguments.erase(arguments.begin() + 1, arguments.begin() + 3);
  const nlohmann::json json = ToolJson(arguments);
  ASSERT_EQ(json["findings"].size(), 2u);
  EXPECT_EQ(json["findings"][0]["labels"], nlohmann::json({{"kind", "even"}}));
  EXPECT_EQ(json["findings"][1]["labels"], nlohmann::json({{"kind", "odd"}}));
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
  EXPECT_EQ(failed.exit_code, 0) << "a sum of unrelated call stacks is no leak";
  EXPECT_THAT(failed.out, HasSubstr("1. GROWS  site25 and 37 other call stacks together may leak 2.00 MiB/s"));
  EXPECT_THAT(failed.out, HasSubstr("none of these call stacks is a leak by itself"));
  EXPECT_GT(ToolJson(With({"leaks", "--all", "-n", "0"}, dumps))["findings"].size(), 1u)
      << "the last sites are perhaps leaks";
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
              HasSubstr("1. LEAK  Grow leaks 1.00 MiB/s (+11.00 MiB); GPU:0 would be full in 100.0 s\n"));
  const nlohmann::json json = ToolJson(With({"explain"}, dumps));
  EXPECT_EQ(json["findings"][0]["seconds_to_limit"], 100);
}

TEST(Leaks, PossibleLeaksFailInExplainOnly) {
  // Slows down: perhaps.
  std::vector<Dump> course;
  for (int d = 0; d < 12; ++d) course.push_back({std::llround((100 - 100 * std::exp(-d / 5.0)) * (1 << 20)), 100 * d});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  const nlohmann::json json = ToolJson(With({"leaks"}, dumps));
  ASSERT_EQ(json["findings"][0]["code"], "GROWS") << json.dump(1);
  EXPECT_THAT(json["findings"][0]["evidence"].get<std::string>(), HasSubstr("is slowing down"));
  EXPECT_EQ(RunTool(With({"leaks"}, dumps)).exit_code, 0);
  EXPECT_EQ(RunTool(With({"explain"}, dumps)).exit_code, 1);
}

TEST(Leaks, RequiresGrowthAtTheEnd) {
  const auto verdict = [](int count, const std::function<double(int)>& bytes) {
    std::vector<Dump> course;
    for (int d = 0; d < count; ++d) course.push_back({std::llround(1e6 * bytes(d)), 100 * d});
    return VerdictOf("site", WriteDumps(ScratchDir(), course));
  };
  EXPECT_EQ(verdict(18, [](int d) { return d; }), "leak");
  EXPECT_EQ(verdict(11, [](int d) { return d; }), "perhaps") << "too few dumps";
  // Approaches a limit with a time constant of 0.6 of the whole time: it grows more and more slowly, but never stops.
  EXPECT_EQ(verdict(8, [](int d) { return 10 * (1 - std::exp(-d / (0.6 * 7))); }), "perhaps");
  // A warm-up, and a leak all the time.
  EXPECT_EQ(verdict(18, [](int d) { return 10 * (1 - std::exp(-d / 2.0)) + d; }), "leak");
  EXPECT_EQ(verdict(18, [](int d) { return std::min(d, 8); }), "stopped");
  // Equal jumps.
  EXPECT_EQ(verdict(18, [](int d) { return (d >= 2) + (d >= 16); }), "perhaps");
}

TEST(Leaks, JudgesOneProcessAfterARestart) {
  // Three dumps, a restart, then fifteen dumps of a leak.
  std::vector<Dump> course = {{5000, 100, 7}, {5100, 200, 7}, {5200, 300, 7}};
  for (int d = 0; d < 15; ++d) course.push_back({1000 + 100 * d, 50 + 100 * d, 8});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  for (const std::vector<std::string>& per : {std::vector<std::string>{}, {"--per", "requests"}}) {
    std::vector<std::string> arguments = With({"leaks"}, per);
    const nlohmann::json json = ToolJson(With(arguments, dumps));
    EXPECT_EQ(json["source"]["profiles"], 15);
    EXPECT_EQ(json["findings"][0]["code"], "LEAK");
    EXPECT_EQ(json["findings"][0]["bytes"], 1400);
    EXPECT_EQ(json["findings"][0]["per_count"], 1);
  }
  EXPECT_THAT(RunTool(With({"leaks"}, dumps)).out,
              HasSubstr("the program was restarted once: only dumps 4 to 18 are judged"));
}

TEST(Leaks, IgnoresPausesOfTheCounter) {
  // Grows with each request. There are no requests in the second half of the time.
  std::vector<Dump> course;
  for (int d = 0; d < 28; ++d) course.push_back({1000 * std::min(d, 14), 100 * std::min(d, 14)});
  const std::vector<std::string> dumps = WriteDumps(ScratchDir(), course);
  const nlohmann::json json = ToolJson(With({"leaks"}, dumps));
  EXPECT_EQ(json["findings"][0]["code"], "LEAK") << "the only counter counts by itself";
  EXPECT_EQ(json["findings"][0]["per_count"], 10);
}

TEST(Leaks, JudgeFromTheFirstDumpWithTheCounter) {
  // A run that continues at request 1000000, after two dumps without the counter.
  std::vector<Dump> course = {{500, -1}, {1000, -1}};
  for (int d = 0; d < 12; ++d) course.push_back({1000 + 100 * d, 1000000 + 10 * d});
  const std::string dir = ScratchDir();
  std::vector<std::string> dumps = WriteDumps(dir, course);
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, dumps));
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["source"]["profiles"], 12);
  EXPECT_EQ(json["findings"][0]["code"], "LEAK");
  EXPECT_EQ(json["findings"][0]["bytes"], 1100);
  EXPECT_EQ(json["findings"][0]["per_count"], 10);
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
    EXPECT_THAT(result.out, HasSubstr("1. LEAK  llm::KvCache::AllocatePage leaks "));
    EXPECT_THAT(result.out, HasSubstr(" a request (+6"));
    EXPECT_THAT(result.out, HasSubstr("(sure)"));
    EXPECT_THAT(result.out, HasSubstr("FAILED: they grew by 6"));
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
  const CommandResult result = RunTool(With({"leaks"}, ServerDumps({})));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("no leak in "));
}

TEST_F(LeaksOfExamples, FindsTheGrowingList) {
  ASSERT_EQ(RunExample("growing_list", {dir_}).exit_code, 0);
  std::vector<std::string> dumps;
  for (int i = 1; i <= 9; ++i) dumps.push_back(dir_ + "/memory" + std::to_string(i) + ".pb.gz");
  const CommandResult result = RunTool(With({"leaks"}, dumps));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("1. GROWS  "), HasSubstr("anotherfunc")));
}

}  // namespace
}  // namespace hbmprof_test
