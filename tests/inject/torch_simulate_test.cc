// `hbmprof simulate` says what PyTorch's allocator does with other settings. A program runs with each of them, with the
// real libc10_cuda.so of several releases on doubles of runtime and driver, and says its own peaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kCapacity = int64_t{16} << 30;
constexpr int64_t kContext = 3 * kMiB;  // that the double of the driver takes
constexpr const char* kSettings[] = {"default", "expandable_segments:True", "max_split_size_mb:128",
                                     "garbage_collection_threshold:0.6", "roundup_power2_divisions:16"};

class SimulateTest : public ::testing::TestWithParam<std::string> {
 protected:
  struct Peaks {
    int64_t allocated = 0;
    int64_t reserved = 0;
    bool operator==(const Peaks& other) const { return allocated == other.allocated && reserved == other.reserved; }
  };

  void SetUp() override {
    if (!std::filesystem::exists(Library())) {
      GTEST_SKIP() << "no PyTorch " << GetParam() << " in build/torch: scripts/test.sh reads it from PyPI";
    }
  }
  static std::string Folder() { return std::string(HBMPROF_TORCH_LIBRARIES "/") + GetParam(); }
  static std::string Library() { return Folder() + "/libc10_cuda.so"; }

  static CommandResult Run(std::vector<std::string> program, const std::string& settings, int64_t capacity,
                           std::vector<std::string> environment = {}) {
    environment.insert(environment.end(), {"LD_LIBRARY_PATH=" HBMPROF_DOUBLES ":" HBMPROF_TORCH_CUDART,
                                           "PYTORCH_CUDA_ALLOC_CONF=" + (settings == "default" ? "" : settings),
                                           "FAKE_CUDA_CAPACITY=" + std::to_string(capacity)});
    return RunCommand(program, environment, {"", 200});
  }
  // Runs the program, which writes a snapshot. Returns its own peaks.
  Peaks Trace(const std::string& settings, int64_t capacity = kCapacity) {
    const CommandResult run =
        Run({"python3", HBMPROF_WRITE_SNAPSHOT, file_, HBMPROF_TORCH_PROGRAM, Library(), "trace"}, settings, capacity);
    has_failed_ = run.exit_code != 0;
    const Json stats = has_failed_ ? Json() : Json::parse(run.out, nullptr, false);
    return has_failed_ ? Peaks() : Peaks{stats["allocated_peak"], stats["reserved_peak"]};
  }
  CommandResult Simulate(std::vector<std::string> options) const {
    options.insert(options.begin(), {"simulate", file_, "--torch", Folder()});
    return RunTool(options, {"LD_LIBRARY_PATH=" HBMPROF_TORCH_CUDART});
  }
  Json SimulateJson(std::vector<std::string> options) const {
    options.push_back("--json");
    const CommandResult result = Simulate(options);
    EXPECT_LT(result.exit_code, 2) << result.err;
    const Json answer = Json::parse(result.out, nullptr, false);
    EXPECT_EQ(SchemaProblem(Json::parse(std::ifstream(HBMPROF_SCHEMAS "/simulate.json")), answer), "") << result.out;
    return answer;
  }
  static Peaks PeaksOf(const Json& row) { return {row["allocated_peak"], row["reserved_peak"]}; }
  static std::vector<std::string> AllSettings() {
    std::vector<std::string> options;
    for (const char* const settings : kSettings) options.insert(options.end(), {"--alloc-conf", settings});
    return options;
  }

  std::string file_ = ScratchDir() + "/recorded";
  bool has_failed_ = false;  // the last program
};

TEST_P(SimulateTest, SaysWhatTheProgramItselfSaysWithEachSetting) {
  std::map<std::string, Peaks> peaks;
  for (const char* const settings : kSettings) peaks[settings] = Trace(settings);
  EXPECT_FALSE(peaks["default"] == peaks["expandable_segments:True"]);
  EXPECT_FALSE(peaks["default"] == peaks["max_split_size_mb:128"]);
  EXPECT_FALSE(peaks["default"] == peaks["roundup_power2_divisions:16"]);
  for (const char* const recorded : kSettings) {
    SCOPED_TRACE(recorded);
    Trace(recorded);
    const Json answer = SimulateJson(AllSettings());
    EXPECT_EQ(answer["exact"], true) << answer;
    EXPECT_EQ(answer["recorded"]["settings"], recorded);
    EXPECT_EQ(answer["recorded"]["reserved_peak"], peaks[recorded].reserved);
    EXPECT_EQ(answer["recorded"]["streams"], 2);
    ASSERT_EQ(answer["rows"].size(), 1 + std::size(kSettings));
    for (const Json& row : answer["rows"]) EXPECT_TRUE(PeaksOf(row) == peaks[row["settings"]]) << row;
  }
}

TEST_P(SimulateTest, RunsOutOfMemoryWhereTheProgramDoes) {
  const Peaks peaks = Trace("default");
  const std::string recorded = file_;
  const int64_t most = peaks.reserved / kMiB;
  const int64_t least = peaks.allocated / kMiB;
  int failures = 0;
  int returns = 0;
  for (int64_t size = least - 20; size <= most + 20; size += (most - least) / 8) {
    SCOPED_TRACE(size);
    file_ = recorded + ".other";
    Trace("default", size * kMiB + kContext);
    if (!has_failed_) {
      // What it returned because the device was full, it keeps on a larger one.
      const Json answer = SimulateJson({"--alloc-conf", "default"});
      EXPECT_EQ(answer["exact"], true) << answer;
      EXPECT_TRUE(PeaksOf(answer["rows"][1]) == peaks) << answer;
      if (answer["recorded"]["reserved_peak"] < peaks.reserved) ++returns;
    }
    file_ = recorded;
    const Json answer = SimulateJson({"--device", std::to_string(size) + "MiB"});
    EXPECT_EQ(answer["exact"], true);
    const Json& row = answer["rows"][1];
    EXPECT_EQ(row["fits"], !has_failed_) << row;
    if (!has_failed_) continue;
    ++failures;
    EXPECT_GT(row["out_of_memory"]["bytes"], 0);
    EXPECT_LE(row["reserved_peak"], size * kMiB);
    EXPECT_EQ(row["out_of_memory"]["idle"].get<int64_t>() > 0, row["out_of_memory"]["pieces"].get<int64_t>() > 0);
  }
  EXPECT_GT(failures, 0);
  EXPECT_GT(returns, 0);
  const CommandResult text = Simulate({"--device", std::to_string(least - 20) + "MiB"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out, ::testing::ContainsRegex("\ndefault .* out of memory at [0-9.]+ s: [0-9.]+ [KM]iB for .*; "
                                                 "[0-9.]+ [KM]iB idle in [0-9]+ pieces"));
  EXPECT_THAT(text.out, HasSubstr("equal to the recording\n"));
}

TEST_P(SimulateTest, RepeatsARecording) {
  for (const std::string settings : {"default", "expandable_segments:True", "max_split_size_mb:128"}) {
    SCOPED_TRACE(settings);
    const auto record = [&](const std::string& name) {
      std::filesystem::remove(file_);
      const CommandResult run =
          Run({HBMPROF_TORCH_PROGRAM, Library(), name}, settings, kCapacity,
              {"LD_PRELOAD=" HBMPROF_INJECTED, "HBMPROF_GPU_OUTPUT=" + file_ + ".pb.gz", "HBMPROF_RECORD=" + file_});
      EXPECT_EQ(run.exit_code, 0) << run.err;
      const Json stats = Json::parse(run.out, nullptr, false)["stats"];
      return Peaks{stats["allocated_peak"], stats["reserved_peak"]};
    };
    const Peaks peaks = record("trace");
    const Json answer = SimulateJson({"--recorded-conf", settings, "--alloc-conf", settings});
    EXPECT_EQ(answer["exact"], true) << answer;
    EXPECT_EQ(answer["recorded"]["reserved_peak"], peaks.reserved);
    EXPECT_EQ(answer["recorded"]["allocated_peak"], peaks.allocated);
    EXPECT_EQ(answer["recorded"]["streams"], 2);
    for (const Json& row : answer["rows"]) EXPECT_TRUE(PeaksOf(row) == peaks) << row;
    EXPECT_EQ(answer["limit"], kCapacity);
    if (settings != "default") continue;
    // The settings of a recording are not known.
    const CommandResult text = Simulate({"--recorded-conf", "max_split_size_mb:128"});
    EXPECT_THAT(text.out, HasSubstr("not equal to the recording\n"));
    EXPECT_THAT(text.out, HasSubstr("\nThe replay is not what was recorded, so the rows are estimates: its reserved "
                                    "peak is "));
  }
}

TEST_P(SimulateTest, SaysWhyThereIsNoAnswer) {
  Trace("default");
  EXPECT_THAT(Simulate({"--alloc-conf", "no_such_key:1"}).err,
              ::testing::ContainsRegex("^hbmprof simulate: no_such_key:1: PyTorch's allocator: .*no_such_key"));
  EXPECT_THAT(Simulate({"--alloc-conf", "backend:cudaMallocAsync"}).err, HasSubstr("the driver decides then"));
  EXPECT_THAT(Simulate({"--device", "large"}).err, HasSubstr("--device large: write a size: 24GiB\n"));
  EXPECT_THAT(Simulate({"--memory", "GPU:7"}).err, HasSubstr("GPU:7: has no blocks of PyTorch's allocator\n"));
  EXPECT_THAT(RunTool({"simulate", file_, "--torch", "/usr"}).err, HasSubstr("/usr: has no libc10_cuda.so"));
  EXPECT_THAT(RunTool({"simulate", file_}, {"PATH=/nowhere"}).err,
              HasSubstr("the python3 in $PATH has no package torch; name its folder: --torch FOLDER\n"));
  EXPECT_THAT(RunTool({"simulate", file_ + ".gone"}).err, StartsWith("hbmprof simulate: " + file_ + ".gone: there is"));
}

INSTANTIATE_TEST_SUITE_P(Torch, SimulateTest, ::testing::Values("2.1.2", "2.5.1", "2.8.0", "2.11.0", "newest"),
                         [](const auto& info) {
                           std::string name = "release_" + info.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace hbmprof_test
