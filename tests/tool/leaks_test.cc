// leaks: a server's dumps, in which one thing leaks and others only look like it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <utility>

#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A server that records buffers without having any memory: forty call sites, each a function of its own.
class Server {
 public:
  // Serves `requests` more.
  void Serve(int requests) {
    for (int i = 0; i < requests; ++i) {
      ++served_;
      // 8 KiB at one of the sites that all requests pass is forgotten; the others free what they take.
      ServeOne(std::make_index_sequence<40>());
      // A pool that grows until it is large enough, ever more slowly.
      if (served_ <= 1600 && served_ % 16 == 0) PoolGrow(256 << 10);
      // Takes for a while, then lets go of everything.
      Batch();
    }
    profiler_.SetCounter("requests", served_);
  }

  // Weights and a cache that is filled by the first requests.
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

// Five dumps, unevenly many requests apart.
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

TEST(Leaks, RanksTheOneLeakFirstWithItsRateAndNothingElse) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, dumps));
  ASSERT_TRUE(json.is_object());
  std::vector<nlohmann::json> leaks;
  for (const auto& site : json["sites"]) {
    if (site["verdict"] == "leak" || site["verdict"] == "perhaps") leaks.push_back(site);
  }
  ASSERT_EQ(leaks.size(), 1u) << json.dump(1);
  EXPECT_EQ(leaks[0]["verdict"], "leak");
  EXPECT_EQ(leaks[0]["sure"], "high");
  EXPECT_THAT(leaks[0]["stack"][0]["name"].get<std::string>(), HasSubstr("Site"));
  EXPECT_NEAR(leaks[0]["per_count"].get<double>(), 8192, 82);
  EXPECT_NEAR(leaks[0]["per_second"].get<double>(), 819200, 8192);
  EXPECT_EQ(leaks[0]["growth"], 8192 * (1000 + 700 + 1300 + 850));
  EXPECT_EQ(json["sites"].size(), 40u + 3u);
}

TEST(Leaks, SaysWhyTheOthersAreNone) {
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

TEST(Leaks, GiveCiItsExitCode) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const CommandResult over = RunTool(With({"leaks", "--fail-over", "1MiB", "--per", "requests"}, dumps));
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.out, HasSubstr("1. LEAK  +8.00 KiB/request"));
  EXPECT_THAT(over.out, HasSubstr("FAILED"));
  const CommandResult under = RunTool(With({"leaks", "--fail-over", "1GiB"}, dumps));
  EXPECT_EQ(under.exit_code, 0);
  EXPECT_THAT(under.out, Not(HasSubstr("FAILED")));
}

TEST(Leaks, TakesDumpsInTheOrderOfTheirTime) {
  const std::vector<std::string> dumps = ServerDumps(ScratchDir());
  const std::vector<std::string> shuffled = {dumps[3], dumps[0], dumps[4], dumps[2], dumps[1]};
  const nlohmann::json json = ToolJson(With({"leaks", "--per", "requests"}, shuffled));
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["files"], dumps);
  EXPECT_EQ(json["sites"][0]["verdict"], "leak");
}

TEST(Leaks, SaysWhatIsMissingForAnAnswer) {
  const std::string dir = ScratchDir();
  const std::vector<std::string> dumps = ServerDumps(dir);
  const CommandResult two = RunTool({"leaks", dumps[0], dumps[1]});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err, HasSubstr("three or more"));
  const CommandResult unknown = RunTool(With({"leaks", "--per", "tokens"}, dumps));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("0.pb.gz: has no counter 'tokens' (it has requests)"));
  const CommandResult stuck = RunTool({"leaks", "--per", "requests", dumps[0], dumps[1], dumps[1], dumps[2]});
  EXPECT_EQ(stuck.exit_code, 2);
  EXPECT_THAT(stuck.err, HasSubstr("no more than in the dump before"));
}

// Sites as bytes over dumps, judged one by one.
struct Course {
  const char* name;
  std::vector<int64_t> values;
  const char* verdict;
};
TEST(Leaks, JudgesTheCoursesThatProgramsShow) {
  const Course courses[] = {
      {"steady", {100, 200, 300, 400, 500}, "leak"},
      {"noisy_but_steady", {1000, 1900, 3100, 4000, 5200}, "leak"},
      {"warm_up_then_leak", {0, 90000, 90100, 90200, 90300}, "leak"},
      {"warm_up", {0, 500, 500, 500, 500}, "stopped"},
      {"slow_warm_up", {0, 300, 450, 500, 500}, "stopped"},
      {"plateau", {0, 100, 200, 210, 210}, "stopped"},
      {"decaying", {0, 800, 1200, 1400, 1500}, "perhaps"},
      {"sawtooth", {100, 900, 200, 800, 300}, "up and down"},
      {"sawtooth_that_ends_high", {100, 900, 200, 900, 950}, "up and down"},
      {"bursts", {0, 500, 500, 1100, 1500}, "perhaps"},
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
  }
  EXPECT_EQ(sites["warm_up_then_leak"]["growth"], 300);
  EXPECT_EQ(sites["warm_up_then_leak"]["per_interval"], 100);
}

}  // namespace
}  // namespace hbmprof_test
