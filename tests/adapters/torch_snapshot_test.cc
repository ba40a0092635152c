// hbmprof reads the snapshot of PyTorch's real allocator, which runs on a substitute for the driver: its sums are those
// of the allocator's own statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// By release and the settings of the allocator.
using Variant = std::tuple<std::string, std::string>;
class RealTorchSnapshot : public testing::TestWithParam<Variant> {
 protected:
  // Returns the statistics of the allocator by device.
  Json Make(const std::string& entries) {
    const auto [program, settings] = GetParam();
    snapshot_ = ScratchDir() + "/snapshot.pickle";
    const CommandResult made = RunCommand({"python3", HBMPROF_WRITE_SNAPSHOT, snapshot_, program, entries},
                                          {"PYTORCH_CUDA_ALLOC_CONF=" + settings}, {"", 120});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return Json::parse(made.out, nullptr, false);
  }

  int64_t Total(size_t device, std::vector<std::string> options = {}, const std::string& moment = "") const {
    options.insert(options.begin(), {"top", snapshot_ + moment, "-w", "device=GPU:" + std::to_string(device)});
    return ToolJson(options)["total"].get<int64_t>();
  }
  std::map<std::string, int64_t> Holders(size_t device) const {
    std::map<std::string, int64_t> holders;
    const Json json = ToolJson(
        {"top", snapshot_, "-w", "kind=device", "-w", "device=GPU:" + std::to_string(device), "--no-own", "-n", "0"});
    for (const Json& row : json["rows"]) {
      if (row["flat"] != 0) holders[row["function"]] += row["flat"].get<int64_t>();
    }
    return holders;
  }
  void ExpectStatisticsOfTheAllocator(const Json& stats) const {
    for (size_t device = 0; device < stats.size(); ++device) {
      SCOPED_TRACE(device);
      const Json& expected = stats[device];
      EXPECT_EQ(Total(device), expected["reserved"]);
      // Memory that waits for a stream is idle.
      EXPECT_EQ(Total(device, {"-w", "kind=device"}),
                expected["requested"].get<int64_t>() - expected["pending"].get<int64_t>());
      EXPECT_EQ(Total(device, {"-w", "kind=device", "-t", "inuse_objects"}), expected["live"]);
      EXPECT_EQ(Holders(device), (expected["holders"].get<std::map<std::string, int64_t>>()));
    }
    EXPECT_THAT(TrustIn(snapshot_)["problems"].dump(), Not(HasSubstr("does not lead to its state")));
  }

  std::string snapshot_;
};
INSTANTIATE_TEST_SUITE_P(All, RealTorchSnapshot,
                         testing::Combine(testing::Values(HBMPROF_SNAPSHOT_PROGRAMS),
                                          testing::Values("expandable_segments:False", "expandable_segments:True")),
                         [](const auto& info) {
                           const bool is_expandable = std::get<1>(info.param).find("True") != std::string::npos;
                           return std::to_string(info.index) + (is_expandable ? "expandable" : "");
                         });

TEST_P(RealTorchSnapshot, HasTheStatisticsOfTheAllocator) {
  const Json stats = Make("1000000");
  ASSERT_EQ(stats.size(), 2u);
  ExpectStatisticsOfTheAllocator(stats);
  for (size_t device = 0; device < stats.size(); ++device) {
    const std::string peak = "@peak/GPU:" + std::to_string(device);
    EXPECT_EQ(Total(device, {}, peak), stats[device]["peak_reserved"]) << device;
  }
  EXPECT_GT(Total(0, {}, "@oom"), 0);
}

// Also memory that waits for a stream, and a failed allocation.
TEST_P(RealTorchSnapshot, SimulateRepeatsIt) {
  const Json stats = Make("1000000");
  const std::string program = std::get<0>(GetParam());
  const std::string release = program.find("newest") != std::string::npos ? "newest" : "2.8.0";
  for (size_t device = 0; device < stats.size(); ++device) {
    const CommandResult result =
        RunTool({"simulate", snapshot_, "--json", "--alloc-conf", "max_split_size_mb:128", "--memory",
                 "GPU:" + std::to_string(device), "--torch", HBMPROF_TORCH_LIBRARIES "/" + release},
                {"LD_LIBRARY_PATH=" HBMPROF_TORCH_CUDART});
    const Json answer = Json::parse(result.out, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << result.err;
    EXPECT_EQ(answer["exact"], true) << answer;
    EXPECT_EQ(answer["rows"][0]["reserved_peak"], stats[device]["peak_reserved"]);
    EXPECT_EQ(answer["rows"][0]["allocated_peak"], stats[device]["peak_allocated"]);
  }
}

TEST_P(RealTorchSnapshot, HasThemIfTheTraceHasLostItsStart) { ExpectStatisticsOfTheAllocator(Make("500")); }

TEST_P(RealTorchSnapshot, ConvertingToMemoryVizKeepsThem) {
  const Json stats = Make("1000000");
  const std::string again = snapshot_ + ".again";
  EXPECT_EQ(RunTool({"convert", "--to", "memory-viz", snapshot_, "-o", again}).exit_code, 0);
  snapshot_ = again;
  ExpectStatisticsOfTheAllocator(stats);
  const CommandResult viewed = RunCommand({"python3", HBMPROF_MEMORY_VIZ_CHECK, again}, {}, {"", 120});
  ASSERT_EQ(viewed.exit_code, 0) << viewed.err;
  const Json devices = Json::parse(viewed.out);
  for (size_t device = 0; device < stats.size(); ++device) {
    EXPECT_EQ(devices[device]["peak_reserved"], stats[device]["peak_reserved"]) << device;
  }
}

}  // namespace
}  // namespace hbmprof_test
