// hbmprof diff --ranks: profiles of the ranks of one run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// The profile of one rank: 200 functions, whose bytes differ a little from rank to rank, and `more` bytes in a function
// of its own.
std::string RankProfile(int rank, int64_t more = 0, const std::string& environment = "RANK") {
  ProfileMaker maker;
  const uint64_t main = maker.Frame("main", "/src/train.cc", 10);
  for (int i = 0; i < 200; ++i) {
    const uint64_t layer = maker.Frame("Layer" + std::to_string(i), "/src/layers.cc", i + 1);
    const int64_t noise = (rank * 7919 + i * 104729) % 1001 * 1024;
    maker.Sample({layer, maker.Frame("Model::Load"), main}, {1, 8 * kMiB + noise},
                 {{"device", "GPU:" + std::to_string(rank % 8)}, {"kind", "device"}});
  }
  if (more != 0) maker.Sample({maker.Frame("Cache::Grow"), main}, {1, more}, {{"kind", "device"}});
  if (!environment.empty()) {
    maker.Comment("environment " + environment + "=" + std::to_string(rank) + " WORLD_SIZE=1024");
  }
  maker.Comment("hbmprof version=0.1.0 host=node-" + std::to_string(rank / 8) +
                " pid=" + std::to_string(100 + rank % 8));
  return maker.Bytes();
}

std::vector<std::string> WriteRanks(const std::string& dir, int count, int outlier, int64_t more,
                                    const std::string& environment = "RANK") {
  std::vector<std::string> paths;
  for (int rank = 0; rank < count; ++rank) {
    // The order of the files is not that of the ranks.
    paths.push_back(dir + "/" + std::to_string(rank * 389 % count) + "." + std::to_string(rank) + ".pb.gz");
    WriteFile(paths.back(), RankProfile(rank, rank == outlier ? more : 0, environment));
  }
  return paths;
}

nlohmann::json Ranks(const std::vector<std::string>& paths, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {"diff", "--ranks"});
  arguments.insert(arguments.end(), paths.begin(), paths.end());
  return ToolJson(arguments);
}

TEST(Ranks, FirstRowNamesTheOutlierOf1024) {
  const std::vector<std::string> paths = WriteRanks(ScratchDir(), 1024, 517, 3 * kMiB);
  const auto start = std::chrono::steady_clock::now();
  const nlohmann::json json = Ranks(paths);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  const double processor =
      static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
  RecordProperty("seconds", std::to_string(took.count()));
  RecordProperty("processor_seconds", std::to_string(processor));
  RecordProperty("peak_kib", std::to_string(usage.ru_maxrss));
  ASSERT_EQ(json["ranks"].size(), 1024u);
  EXPECT_EQ(json["ranks"][1023]["rank"], "1023") << "in the order of their numbers";
  ASSERT_EQ(json["rows"].size(), 201u);
  EXPECT_EQ(ToolJson({"diff", "--ranks", "-n", "20", std::filesystem::path(paths[0]).parent_path()})["rows"].size(),
            20u)
      << "a folder";
  const nlohmann::json& first = json["rows"][0];
  EXPECT_EQ(first["function"], "Cache::Grow");
  EXPECT_EQ(first["outlier"]["rank"], "517");
  EXPECT_EQ(first["outlier"]["value"], 3 * kMiB);
  EXPECT_EQ(first["median"], 0);
  EXPECT_EQ(first["rank_count"], 1);
  EXPECT_EQ(json["rows"][1]["rank_count"], 1024);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(usage.ru_maxrss, 256 * 1024) << "KiB";
  EXPECT_LT(processor, 30);
#endif
}

TEST(Ranks, ComparesPeaksIfMostWasFreed) {
  const std::string dir = ScratchDir();
  const auto write = [&](int rank, int64_t in_use, int64_t peak) {
    ProfileMaker maker({{"inuse_objects", "count"}, {"inuse_space", "bytes"}, {"peak_space", "bytes"}});
    maker.Sample({maker.Frame("Cache"), maker.Frame("main")}, {1, in_use, peak});
    maker.Comment("environment RANK=" + std::to_string(rank));
    const std::string path = dir + "/" + std::to_string(rank) + ".pb.gz";
    maker.Write(path);
    return path;
  };
  const auto compare = [&](int64_t in_use) {
    return Ranks({write(0, in_use, 100 * kMiB), write(1, in_use, 300 * kMiB), write(2, in_use, 100 * kMiB)});
  };
  const nlohmann::json freed = compare(2 * kMiB);
  EXPECT_EQ(freed["type"], "peak_space");
  EXPECT_EQ(freed["rows"][0]["outlier"]["rank"], "1");
  EXPECT_EQ(compare(100 * kMiB)["type"], "inuse_space");
  EXPECT_EQ(Ranks({write(0, 1, 10)}, {"--type", "inuse_space"})["type"], "inuse_space");
}

// Failed before: the idle memory of the pool was the row, while top shows the peak.
TEST(Ranks, EndedRanksWithIdlePoolsAreComparedAtTheirPeak) {
  const std::string dir = ScratchDir();
  std::vector<std::string> paths;
  for (int rank = 0; rank < 3; ++rank) {
    ProfileMaker maker({{"inuse_space", "bytes"}, {"peak_space", "bytes"}});
    const int64_t bytes = (rank == 1 ? 160 : 100) * kMiB;
    maker.Sample({maker.Frame("Model.__init__")}, {0, bytes});
    maker.Sample({maker.Frame("[idle memory of pytorch]")}, {bytes, 0}, {{"kind", "pool"}});
    maker.Comment("environment RANK=" + std::to_string(rank));
    paths.push_back(dir + "/" + std::to_string(rank) + ".pb.gz");
    maker.Write(paths.back());
  }
  const nlohmann::json ranks = Ranks(paths);
  EXPECT_EQ(ranks["type"], "peak_space");
  EXPECT_EQ(ranks["rows"][0]["function"], "Model.__init__");
}

// As in the rows of top.
TEST(Ranks, PositionIsThatOfAllRanks) {
  const std::string dir = ScratchDir();
  std::vector<std::string> paths;
  for (int rank = 0; rank < 3; ++rank) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("Same", "/src/a.cc", 7)}, {1, rank * kMiB});
    maker.Sample({maker.Frame("Lines", "/src/a.cc", 10 + rank)}, {1, (1 + rank) * kMiB});
    maker.Sample({maker.Frame("Files", "/src/" + std::to_string(rank) + ".cc", 1)}, {1, (1 + rank) * kMiB});
    maker.Comment("environment RANK=" + std::to_string(rank));
    paths.push_back(dir + "/" + std::to_string(rank) + ".pb.gz");
    maker.Write(paths.back());
  }
  std::map<std::string, std::string> where;
  const nlohmann::json rows = Ranks(paths)["rows"];
  for (const nlohmann::json& row : rows) where[row["function"]] = row["where"];
  const std::map<std::string, std::string> expected = {
      {"Same", "/src/a.cc:7"}, {"Lines", "/src/a.cc"}, {"Files", "several files"}};
  EXPECT_EQ(where, expected);
}

TEST(Ranks, FindsALargerAndASmallerRank) {
  const std::string dir = ScratchDir();
  std::vector<std::string> paths;
  for (int rank = 0; rank < 16; ++rank) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("Weights"), maker.Frame("main")}, {1, 100 * kMiB + rank % 3});
    maker.Sample({maker.Frame("Activations"), maker.Frame("main")}, {1, rank == 5 ? 90 * kMiB : 20 * kMiB});
    maker.Sample({maker.Frame("Optimizer"), maker.Frame("main")}, {1, rank == 9 ? 10 * kMiB : 60 * kMiB});
    maker.Sample({maker.Frame("Constant"), maker.Frame("main")}, {1, kMiB});
    maker.Comment("environment OMPI_COMM_WORLD_RANK=" + std::to_string(rank));
    paths.push_back(dir + "/" + std::to_string(rank) + ".pb.gz");
    maker.Write(paths.back());
  }
  const nlohmann::json json = Ranks(paths);
  EXPECT_EQ(json["rows"][0]["function"], "Activations");
  EXPECT_EQ(json["rows"][0]["outlier"]["rank"], "5");
  EXPECT_EQ(json["rows"][0]["median"], 20 * kMiB);
  EXPECT_EQ(json["rows"][1]["function"], "Optimizer");
  EXPECT_EQ(json["rows"][1]["outlier"]["rank"], "9");
  EXPECT_EQ(json["rows"][1]["smallest"]["value"], 10 * kMiB);
  EXPECT_EQ(json["rows"][1]["largest"]["value"], 60 * kMiB);
  std::vector<std::string> arguments = {"diff", "--ranks", "-n", "2"};
  arguments.insert(arguments.end(), paths.begin(), paths.end());
  const CommandResult text = RunTool(arguments);
  EXPECT_THAT(text.out, HasSubstr("16 ranks: inuse_space from 131.00 MiB (rank 9) to 251.00 MiB (rank 5)\n"));
  EXPECT_THAT(text.out, testing::ContainsRegex(
                            "   5  \\+70.00 MiB  20.00 MiB  20.00 MiB   0  90.00 MiB   5     16  Activations"));
  EXPECT_THAT(text.out, HasSubstr("... and 1 more rows (-n 0 shows all)\n1 row is equal in all ranks\n"));
}

TEST(Ranks, AreNamedByWhatIsKnown) {
  const std::string dir = ScratchDir();
  const auto name = [&](const std::string& comment) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("main")}, {1, 1});
    if (!comment.empty()) maker.Comment(comment);
    maker.Comment("hbmprof host=node-7 pid=1");
    maker.Write(dir + "/p.pb.gz");
    return Ranks({dir + "/p.pb.gz"})["ranks"][0]["rank"].get<std::string>();
  };
  EXPECT_EQ(name("environment RANK=3 LOCAL_RANK=1 SLURM_PROCID=0"), "3");
  EXPECT_EQ(name("environment PMI_RANK=4"), "4");
  EXPECT_EQ(name("environment SLURM_PROCID=5"), "5");
  EXPECT_EQ(name("environment LOCAL_RANK=1"), "node-7/1");
  EXPECT_EQ(name("environment RANK=x"), dir + "/p.pb.gz");
  EXPECT_EQ(name(""), dir + "/p.pb.gz");
}

TEST(Ranks, ProcessesOfARankAreAddedUpAndProfilesOfAProcessAreNot) {
  const std::string dir = ScratchDir();
  const auto write = [&](const std::string& name, int rank, int pid, int64_t seconds, int64_t bytes) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("main")}, {1, bytes});
    maker.Comment("environment RANK=" + std::to_string(rank));
    maker.Comment("hbmprof host=a pid=" + std::to_string(pid));
    maker.message().set_time_nanos(seconds * 1'000'000'000);
    maker.Write(dir + "/" + name);
    return dir + "/" + name;
  };
  const std::vector<std::string> paths = {write("0.pb.gz", 0, 1, 20, 7), write("0.early.pb.gz", 0, 1, 10, 5),
                                          write("1.pb.gz", 1, 2, 20, 3), write("1.worker.pb.gz", 1, 3, 20, 4)};
  std::vector<std::string> arguments = {"diff", "--ranks", "--json"};
  arguments.insert(arguments.end(), paths.begin(), paths.end());
  const nlohmann::json json = nlohmann::json::parse(RunTool(arguments).out);
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][0]["total"], 7);
  EXPECT_EQ(json["ranks"][1]["total"], 7);
  EXPECT_EQ(json["ranks"][1]["files"].size(), 2u);
  arguments.erase(arguments.begin() + 2);  // --json
  const CommandResult text = RunTool(arguments);
  EXPECT_THAT(text.err, HasSubstr("only the last profile of each process counts: 3 of 4"));
  EXPECT_THAT(text.out, HasSubstr("1 row is equal in all ranks\n"));
}

TEST(Ranks, RowsCanBeLabels) {
  const std::string dir = ScratchDir();
  std::vector<std::string> paths;
  for (int rank = 0; rank < 4; ++rank) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("ncclCommInitRank"), maker.Frame("main")}, {1, rank == 2 ? 900 : 100});
    maker.Sample({maker.Frame("main")}, {1, 500});
    maker.Comment("environment RANK=" + std::to_string(rank));
    maker.Comment("device GPU:0 space=device unaccounted=" + std::to_string(rank == 0 ? 5000 : 300) +
                  " driver_scope=process");
    paths.push_back(dir + "/" + std::to_string(rank) + ".pb.gz");
    maker.Write(paths.back());
  }
  const nlohmann::json json = Ranks(paths, {"--by", "library"});
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["equal_rows"], 1) << "own code";
  EXPECT_EQ(json["rows"][0]["labels"]["library"], "unaccounted (contexts, driver, calls not recorded)");
  EXPECT_EQ(json["rows"][0]["outlier"]["rank"], "0");
  EXPECT_EQ(json["rows"][1]["labels"]["library"], "NCCL");
  EXPECT_EQ(json["rows"][1]["outlier"]["rank"], "2");
  EXPECT_FALSE(json["rows"][1].contains("function"));
  EXPECT_EQ(Ranks(paths, {"--by", "function,library"})["rows"][1]["function"], "main");
  // The rank is a label of other commands, too.
  std::vector<std::string> top = {"top", "--by", "rank", "--no-own"};
  top.insert(top.end(), paths.begin(), paths.end());
  const nlohmann::json by_rank = ToolJson(top);
  ASSERT_EQ(by_rank["rows"].size(), 4u);
  EXPECT_EQ(by_rank["rows"][0]["labels"]["rank"], "2");
  EXPECT_EQ(by_rank["rows"][0]["flat"], 1400);
  top.insert(top.end(), {"--where", "rank=2"});
  EXPECT_EQ(ToolJson(top)["total"], 1400);
}

TEST(Ranks, ALabelCanBeInTheLastProfileOnly) {
  const std::string dir = ScratchDir();
  std::vector<std::string> paths;
  constexpr int kRanks = 70;
  for (int rank = 0; rank < kRanks; ++rank) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("main")}, {1, 100}, {{"kind", "device"}});
    if (rank == kRanks - 1) maker.Sample({maker.Frame("Cache::Grow")}, {1, 700}, {{"phase", "decode"}});
    maker.Comment("environment RANK=" + std::to_string(rank));
    paths.push_back(dir + "/" + std::to_string(rank) + ".pb.gz");
    maker.Write(paths.back());
  }
  const nlohmann::json by_label = Ranks(paths, {"--by", "phase"});
  ASSERT_EQ(by_label["rows"].size(), 1u);
  EXPECT_EQ(by_label["rows"][0]["labels"]["phase"], "decode");
  EXPECT_EQ(by_label["rows"][0]["outlier"]["rank"], "69");
  EXPECT_EQ(by_label["rows"][0]["rank_count"], 1);
  const nlohmann::json filtered = Ranks(paths, {"-w", "phase=decode"});
  ASSERT_EQ(filtered["rows"].size(), 1u);
  EXPECT_EQ(filtered["rows"][0]["function"], "Cache::Grow");
  EXPECT_EQ(filtered["rows"][0]["largest"]["value"], 700);
  EXPECT_EQ(RunTool({"diff", "--ranks", paths[0], paths[1], "--by", "phase"}).exit_code, 2) << "no profile has it";
}

TEST(Ranks, RefusesProfilesThatCannotBeCompared) {
  const std::string dir = ScratchDir();
  ProfileMaker bytes;
  bytes.Sample({bytes.Frame("main")}, {1, 1});
  bytes.Write(dir + "/a.pb.gz");
  ProfileMaker other({{"inuse_objects", "count"}, {"inuse_space", "kilobytes"}});
  other.Sample({other.Frame("main")}, {1, 1});
  other.Write(dir + "/b.pb.gz");
  const CommandResult result = RunTool({"diff", "--ranks", dir + "/a.pb.gz", dir + "/b.pb.gz"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("b.pb.gz: inuse_space is in kilobytes, but in"));
  EXPECT_EQ(RunTool({"diff", "--ranks", dir + "/a.pb.gz", "--by", "phase"}).exit_code, 2);
  EXPECT_EQ(RunTool({"diff", "--ranks", dir + "/missing.pb.gz"}).exit_code, 2);
}

}  // namespace
}  // namespace hbmprof_test
