// PyTorch's snapshots as a user reads them: each subcommand, with the numbers that the maker of the snapshot counted.
#include "src/tool/torch/torch_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "src/tool/recording/stacks.h"
#include "tests/support/make_recording.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using BytesByName = std::map<std::string, int64_t>;

// A snapshot, and what its maker says about it: a list of devices.
struct Made {
  std::string path;
  Json devices;

  int64_t Sum(const std::string& key) const {
    int64_t sum = 0;
    for (const Json& device : devices) sum += device[key].get<int64_t>();
    return sum;
  }
};

// Returns the folder of the test that runs. ScratchDir removes the files of an earlier call.
const std::string& Folder() {
  static const testing::TestInfo* test = nullptr;
  static std::string folder;
  if (const testing::TestInfo* now = testing::UnitTest::GetInstance()->current_test_info(); now != test) {
    test = now;
    folder = ScratchDir();
  }
  return folder;
}

Made Make(const std::string& release, const std::vector<std::string>& options = {}) {
  static int number = 0;
  Made made;
  made.path = Folder() + "/snapshot" + std::to_string(number++) + ".pickle";
  std::vector<std::string> command = {"python3", HBMPROF_TOOL_TESTS "/make_torch_snapshot.py", made.path, release};
  command.insert(command.end(), options.begin(), options.end());
  const CommandResult result = RunCommand(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  made.devices = Json::parse(result.out, nullptr, false);
  return made;
}

int64_t TotalOf(const std::string& source, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"top", source});
  return ToolJson(options)["total"].get<int64_t>();
}

// The bytes of blocks on GPU:0 by innermost function.
BytesByName HoldersOf(const std::string& source) {
  BytesByName holders;
  const Json json = ToolJson({"top", source, "-w", "kind=device", "-w", "device=GPU:0", "--no-own", "-n", "0"});
  for (const Json& row : json["rows"]) {
    if (row["flat"] != 0) holders[row["function"]] += row["flat"].get<int64_t>();
  }
  return holders;
}

// Runs the command and returns its output.
std::string OutputOf(const std::vector<std::string>& arguments) {
  const CommandResult result = RunTool(arguments);
  EXPECT_LE(result.exit_code, 1) << arguments[0] << ": " << result.err;
  return result.out + result.err;
}

// By release, whether segments are expandable, and protocol.
using Layout = std::tuple<std::string, bool, int>;
class TorchLayouts : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    const auto [release, expandable, protocol] = GetParam();
    options_ = {"expandable=" + std::to_string(expandable), "protocol=" + std::to_string(protocol)};
    made_ = Make(release, options_);
  }
  std::vector<std::string> options_;
  Made made_;
};
INSTANTIATE_TEST_SUITE_P(All, TorchLayouts,
                         testing::Values(Layout("2.1", false, 4), Layout("2.1", true, 2), Layout("2.2", false, 3),
                                         Layout("2.2", true, 4), Layout("2.8", false, 4), Layout("2.8", true, 5),
                                         Layout("2.15", false, 5), Layout("2.15", true, 4)),
                         [](const auto& info) {
                           std::string name = "release" + std::get<0>(info.param);
                           name[name.find('.')] = '_';
                           return name + (std::get<1>(info.param) ? "expandable" : "") + "protocol" +
                                  std::to_string(std::get<2>(info.param));
                         });

TEST_P(TorchLayouts, EndAndPeakAreThoseOfTheSnapshot) {
  const Json& device = made_.devices[0];
  EXPECT_EQ(TotalOf(made_.path), device["reserved"]);
  EXPECT_EQ(TotalOf(made_.path, {"-w", "kind=device"}), device["requested"]);
  EXPECT_EQ(TotalOf(made_.path, {"-w", "kind=device", "-t", "inuse_objects"}), device["live"]);
  EXPECT_EQ(TotalOf(made_.path, {"-w", "allocator=pytorch"}), device["reserved"]);
  EXPECT_EQ(HoldersOf(made_.path), device["holders"].get<BytesByName>());
  EXPECT_EQ(TotalOf(made_.path + "@peak"), device["peak_reserved"]);
  EXPECT_EQ(TotalOf(made_.path + "@peak", {"-w", "kind=device"}), device["peak_requested"])
      << "the last segment has its block";
  EXPECT_THAT(OutputOf({"top", made_.path}), AllOf(HasSubstr("GPU:0: in use "), HasSubstr("/srv/model.py:31")));
  const std::string problems = TrustIn(made_.path)["problems"].dump();
  EXPECT_THAT(problems, Not(HasSubstr("does not lead to its state")));
  EXPECT_EQ(problems.find("has no times") != std::string::npos, std::get<0>(GetParam()) == "2.1") << problems;
}

// Releases before 2.2 do not write the settings.
TEST_P(TorchLayouts, ASettingThatIsOnIsNotAdvised) {
  const auto [release, is_expandable, protocol] = GetParam();
  const std::string answer = OutputOf({"explain", made_.path});
  EXPECT_THAT(answer, HasSubstr("IDLE_POOL"));
  EXPECT_EQ(answer.find("CONF=expandable_segments:True") == std::string::npos, is_expandable && release != "2.1")
      << answer;
}

// PyTorch's own reader says the same. It prints sizes with one digit after the point.
TEST_P(TorchLayouts, PyTorchsScriptPrintsTheSameTotals) {
  const std::string script = HBMPROF_TORCH "/newest/_memory_viz.py";
  if (!std::filesystem::exists(script)) GTEST_SKIP() << "PyTorch's _memory_viz.py is not in build/torch/newest";
  const CommandResult stats = RunCommand({"python3", script, "stats", made_.path});
  ASSERT_EQ(stats.exit_code, 0) << stats.err;
  const auto line = [](const char* name, int64_t bytes) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s: %.1fMiB\n", name, static_cast<double>(bytes) / (1 << 20));
    return std::string(text);
  };
  EXPECT_THAT(stats.out, HasSubstr(line("total_reserved", TotalOf(made_.path))));
  EXPECT_THAT(stats.out, HasSubstr(line("total_allocated", TotalOf(made_.path, {"-w", "kind=device"}))));
}

// The ring of the trace loses its oldest entries.
TEST_P(TorchLayouts, TheStartOfTheTraceCanBeMissing) {
  options_.emplace_back("lost=450");
  const Made lost = Make(std::get<0>(GetParam()), options_);
  EXPECT_EQ(TotalOf(lost.path), lost.devices[0]["reserved"]);
  EXPECT_EQ(HoldersOf(lost.path), lost.devices[0]["holders"].get<BytesByName>());
  EXPECT_EQ(TotalOf(lost.path + "@peak"), lost.devices[0]["peak_reserved"]);
  const BytesByName start = HoldersOf(lost.path + "@0s");
  EXPECT_GT(start.at("[before the trace]"), 0) << "blocks that are freed in the trace";
  EXPECT_GT(start.size(), 1u) << "blocks that are live at the end have their call stack";
  EXPECT_EQ(HoldersOf(lost.path).count("[before the trace]"), 0u);
  EXPECT_THAT(TrustIn(lost.path)["problems"].dump(), Not(HasSubstr("does not lead to its state")));
}

TEST_P(TorchLayouts, WithoutATraceThereIsTheState) {
  options_.emplace_back("trace=0");
  const Made state = Make(std::get<0>(GetParam()), options_);
  EXPECT_EQ(TotalOf(state.path), state.devices[0]["reserved"]);
  EXPECT_EQ(TotalOf(state.path + "@peak"), state.devices[0]["reserved"]);
  EXPECT_EQ(HoldersOf(state.path), state.devices[0]["holders"].get<BytesByName>());
  EXPECT_THAT(OutputOf({"timeline", state.path}), HasSubstr("GPU:0"));
  EXPECT_THAT(TrustIn(state.path)["not_judged"],
              "the snapshot has no trace; torch.cuda.memory._record_memory_history() begins one");
}

// Failed before: it was said to be complete since the start.
TEST(TorchSnapshot, ItGoesAsFarAsItsTrace) {
  const Made made = Make("2.15");
  for (const std::string& source : {made.path, made.path + "@peak"}) {
    EXPECT_EQ(TrustIn(source)["since_start"], false) << source;
    EXPECT_THAT(RunTool({"explain", source}).out,
                HasSubstr("trust: as far as the trace of the snapshot goes; 0 dropped"));
  }
}

// Our own file in PyTorch's format has the same numbers as the snapshot that it is made of.
TEST_P(TorchLayouts, ConvertingToMemoryVizKeepsTheNumbers) {
  const std::string again = made_.path + ".again.pickle";
  EXPECT_EQ(OutputOf({"convert", "--to", "memory-viz", made_.path, "-o", again}), "");
  EXPECT_EQ(TotalOf(again), made_.devices[0]["reserved"]);
  EXPECT_EQ(HoldersOf(again), made_.devices[0]["holders"].get<BytesByName>());
  EXPECT_EQ(TotalOf(again + "@peak"), made_.devices[0]["peak_reserved"]);
  EXPECT_EQ(HoldersOf(again + "@peak"), HoldersOf(made_.path + "@peak"));
  EXPECT_THAT(TrustIn(again)["problems"].dump(), Not(HasSubstr("does not lead to its state")));
  // Going backwards through the events, as the viewer does, no block is outside of the segments.
  const CommandResult viewed = RunCommand({"python3", HBMPROF_TOOL_TESTS "/memory_viz_check.py", again});
  ASSERT_EQ(viewed.exit_code, 0) << viewed.err;
  const Json device = Json::parse(viewed.out)[0];
  EXPECT_EQ(device["start"], Json({0, 0}));
  EXPECT_EQ(device["end"], Json({made_.devices[0]["requested"], made_.devices[0]["reserved"]}));
  EXPECT_EQ(device["peak_reserved"], made_.devices[0]["peak_reserved"]);
}

TEST(TorchSnapshot, ARecordingAsMemoryVizHasTheNumbersOfTheRecording) {
  for (const bool pool : {false, true}) {
    const std::string recording = Folder() + "/load.hbmrec";
    MadeLoad load;
    load.events = 4000;
    load.leak = true;
    load.burst = true;
    load.pool = pool;
    ASSERT_TRUE(MakeRecording(recording, load).ok());
    const std::string snapshot = recording + ".pickle";
    EXPECT_EQ(OutputOf({"convert", "--to", "memory-viz", recording, "-o", snapshot}), "");
    const std::vector<std::string> device = {"-w", "device=GPU:0"};
    for (const char* moment : {"@end", "@peak/GPU:0"}) {
      EXPECT_EQ(TotalOf(snapshot + moment, device), TotalOf(recording + moment, device)) << moment;
      EXPECT_EQ(HoldersOf(snapshot + moment), HoldersOf(recording + moment)) << moment;
      if (!pool) continue;
      const std::vector<std::string> idle = {"-w", "device=GPU:0", "-w", "kind=pool"};
      EXPECT_EQ(TotalOf(snapshot + moment, idle), TotalOf(recording + moment, idle)) << moment;
    }
  }
}

TEST(TorchSnapshot, AllDevicesAreShown) {
  const Made made = Make("2.8", {"devices=3", "events=900"});
  for (int i : {0, 2}) {
    const std::string device = "device=GPU:" + std::to_string(i);
    EXPECT_EQ(TotalOf(made.path, {"-w", device}), made.devices[i]["reserved"]);
    EXPECT_EQ(TotalOf(made.path, {"-w", device, "-w", "kind=device"}), made.devices[i]["requested"]);
  }
}

TEST(TorchSnapshot, TimelineShowsThePeakAndTheFailedAllocation) {
  const Made made = Make("2.15");
  const Json json = ToolJson({"timeline", made.path});
  ASSERT_EQ(json["memories"].size(), 1u);
  EXPECT_EQ(json["memories"][0]["name"], "GPU:0");
  EXPECT_EQ(json["memories"][0]["peak"], made.devices[0]["peak_reserved"]);
  EXPECT_GT(TotalOf(made.path + "@oom"), 0);
  EXPECT_EQ(TotalOf(made.path + "@mark:snapshot"), made.devices[0]["reserved"]);
}

TEST(TorchSnapshot, ReportLeaksAndExplainReadIt) {
  const Made made = Make("2.15", {"events=3000"});
  const std::string page = made.path + ".html";
  EXPECT_EQ(RunTool({"report", made.path, "-o", page}).exit_code, 0);
  EXPECT_GT(std::filesystem::file_size(page), 50'000u);
  const Json leaks = Json::parse(RunTool({"leaks", made.path, "--json"}).out, nullptr, false);
  ASSERT_FALSE(leaks.is_discarded());
  EXPECT_GE(leaks["source"]["profiles"], 12);
  EXPECT_THAT(RunTool({"explain", made.path}).out, HasSubstr("GPU:0"));
}

TEST(TorchSnapshot, DiffComparesTwo) {
  const Made before = Make("2.15");
  const Made after = Make("2.15", {"events=500"});
  const Json json = ToolJson({"diff", before.path, after.path, "-w", "kind=device", "--no-own", "-n", "0"});
  int64_t change = 0;
  for (const Json& row : json["rows"]) change += row["flat"].get<int64_t>();
  EXPECT_EQ(change, after.Sum("requested") - before.Sum("requested"));
}

TEST(TorchSnapshot, MetadataIsATag) {
  const Made made = Make("2.8");
  const Json json = ToolJson({"top", made.path, "--by", "user_metadata", "-t", "alloc_objects"});
  std::vector<std::string> steps;
  for (const Json& row : json["rows"]) steps.push_back(row["labels"]["user_metadata"]);
  EXPECT_THAT(steps, testing::Contains("step 2"));
}

TEST(TorchSnapshot, FramesOfBinariesBelongToLibraries) {
  const Made made = Make("2.15", {"cpp=1"});
  std::vector<std::string> names;
  const Json json = ToolJson({"top", made.path, "-w", "kind=device"});
  for (const Json& row : json["rows"]) {
    if (row["flat"] != 0) names.push_back(row["function"]);
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("attention", "forward", "load_weights", "recurse",
                                                   "backward: MulBackward0 [PyTorch]"));
  EXPECT_THAT(OutputOf({"top", made.path, "--no-own", "-n", "0"}),
              AllOf(HasSubstr("  libtorch_cuda.so+0x41cb28e "), HasSubstr("  torch::CapturedTraceback::gather "),
                    HasSubstr("  _PyEval_EvalFrameDefault "), Not(HasSubstr("_start"))));
}

TEST(TorchSnapshot, CanBeGzipped) {
  const Made made = Make("2.15");
  ASSERT_EQ(RunCommand({"gzip", "-k", made.path}).exit_code, 0);
  EXPECT_EQ(TotalOf(made.path + ".gz"), made.devices[0]["reserved"]);
}

TEST(TorchSnapshot, OtherSegmentsFormsOfConvertWork) {
  const Made made = Make("2.15");
  for (const char* format : {"perfetto", "csv"}) {
    const std::string output = made.path + "." + format;
    EXPECT_EQ(RunTool({"convert", "--to", format, made.path, "-o", output}).exit_code, 0) << format;
    EXPECT_GT(std::filesystem::file_size(output), 100u) << format;
  }
}

// --- Hostile files ---

// One process reads all of them, because there are more than a thousand.
TEST(HostileSnapshots, AreRefusedWithTheReason) {
  const std::string folder = Folder() + "/hostile";
  std::filesystem::create_directory(folder);
  const CommandResult result = RunCommand({"python3", HBMPROF_TOOL_TESTS "/hostile_torch_snapshots.py", folder});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json expected = Json::parse(result.out);
  ASSERT_GT(expected.size(), 1000u);
  for (const auto& [name, text] : expected.items()) {
    std::string path = folder;
    path += "/" + name;
    const auto opened = hbmprof::tool::OpenRecordingFile(path);
    if (text == "") {
      EXPECT_TRUE(opened.ok()) << name << ": " << opened.status();
    } else {
      ASSERT_FALSE(opened.ok()) << name;
      EXPECT_THAT(std::string(opened.status().message()), HasSubstr(text.get<std::string>())) << name;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/executed"));
  const CommandResult top = RunTool({"top", folder + "/reduce4"});
  EXPECT_EQ(top.exit_code, 2);
  EXPECT_THAT(top.err, AllOf(HasSubstr("reduce4: is not readable as a snapshot of PyTorch: byte "),
                             HasSubstr("a pickle can execute any code")));
  EXPECT_FALSE(std::filesystem::exists(folder + "/executed"));
}

TEST(HostileSnapshots, AnObjectThatIsListedManyTimesCountsOnce) {
  const std::string folder = Folder() + "/shared";
  std::filesystem::create_directory(folder);
  const CommandResult result =
      RunCommand({"python3", HBMPROF_TOOL_TESTS "/hostile_torch_snapshots.py", folder, "shared"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json expected = Json::parse(result.out);
  for (const auto& [name, bytes] : expected.items()) {
    SCOPED_TRACE(name);
    const std::string path = folder + "/" + std::string(name);
    const auto start = std::chrono::steady_clock::now();
    const CommandResult top = RunTool({"top", path, "--json"}, {"HBMPROF_TOOL_MEMORY=512MiB"});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    RecordProperty(name, std::to_string(took.count()));
    ASSERT_EQ(top.exit_code, 0) << top.err;
    EXPECT_EQ(Json::parse(top.out)["total"], bytes[0]);
    EXPECT_EQ(TotalOf(path, {"-w", "kind=device"}), bytes[1]);
    EXPECT_LT(took.count(), 60);
  }
}

TEST(TorchSnapshot, CanBeEmpty) {
  const std::string path = Folder() + "/empty.pickle";
  const std::string program =
      "import pickle, sys\n"
      "pickle.dump({'segments': [], 'device_traces': [[]]}, open(sys.argv[1], 'wb'))";
  ASSERT_EQ(RunCommand({"python3", "-c", program, path}).exit_code, 0);
  const std::pair<std::vector<std::string>, int> commands[] = {{{"top", path}, 0},
                                                               {{"timeline", path}, 0},
                                                               {{"convert", path, "--to", "csv"}, 0},
                                                               {{"explain", path}, 2},  // it is too short
                                                               {{"who", path, "0x1000"}, 1}};
  for (const auto& [command, exit_code] : commands) {
    const CommandResult result = RunTool(command);
    EXPECT_EQ(result.exit_code, exit_code) << command[0] << ": " << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("not consistent"))) << command[0];
  }
}

TEST(RecordedStacks, ErrorNamesTheRecording) {
  hbmprof::internal::RecordingTables tables;
  tables.names.stacks.emplace_back();
  tables.names.allocators.emplace_back();
  tables.names.modules.push_back({0x2000, 0x1000, 0, 0, "/bin/x", ""});
  const auto stacks = hbmprof::tool::RecordedStacks::Make("x.hbmrec", tables, {}, false);
  EXPECT_THAT(std::string(stacks.status().message()), testing::StartsWith("x.hbmrec: cannot write the profile: "));
}

// The file has 80 MiB.
TEST(TorchSnapshot, ALargeTraceNeedsLittleMemory) {
  const std::string path = Folder() + "/large.pickle";
  ASSERT_EQ(RunCommand({"python3", HBMPROF_TOOL_TESTS "/large_torch_snapshot.py", path, "80"}).exit_code, 0);
  const CommandResult result = RunTool({"top", path}, {"HBMPROF_TOOL_MEMORY=64MiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("in use 1.95 GiB"));
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_THAT(RunTool({"top", path}, {"HBMPROF_TOOL_MEMORY=16MiB"}).err, HasSubstr("16.00 MiB, the limit for 80."));
#endif
}

}  // namespace
}  // namespace hbmprof_test
