// `hbmprof explain` on made profiles, recordings and processes: which findings it has, and its form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/make_recording.h"
#include "tests/support/running_program.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/report_data.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the answer, and checks its form and its exit code.
json Explain(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  std::vector<std::string> command = {"explain", "--json"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const CommandResult result = RunTool(command, environment);
  const json answer = json::parse(result.out, nullptr, false);
  EXPECT_TRUE(answer.is_object()) << result.err;
  if (!answer.is_object()) return nullptr;
  EXPECT_EQ(SchemaProblem(json::parse(std::ifstream(HBMPROF_SCHEMAS "/explain.json")), answer), "") << result.out;
  EXPECT_EQ(result.exit_code == 1, answer["finding_count"] != 0) << result.out;
  EXPECT_LE(result.out.size(), 6000u) << "1500 tokens of four characters";
  for (const json& finding : answer["findings"]) {
    std::string why;
    const json unknown = finding.value("unknown", json::object());
    for (const auto& [names, reason] : unknown.items()) why += "," + names + ",";
    for (const char* name : {"bytes", "per_second", "per_count", "seconds_to_limit"}) {
      EXPECT_EQ(finding[name].is_null(), why.find(std::string(",") + name + ",") != std::string::npos)
          << finding.dump(1);
    }
  }
  return answer;
}

std::vector<std::string> Codes(const json& answer) {
  std::vector<std::string> codes;
  for (const json& finding : answer["findings"]) codes.push_back(finding["code"]);
  return codes;
}

json Find(const json& answer, const std::string& code) {
  for (const json& finding : answer["findings"]) {
    if (finding["code"] == code) return finding;
  }
  ADD_FAILURE() << "no finding " << code << " in " << answer.dump(1);
  return json::object();
}

constexpr char kMiB[] = "048576";  // the last digits of 1 MiB, to write sizes as text

// One profile with ages, of a process that has run for a minute.
ProfileMaker HealthyProfile() {
  ProfileMaker maker(
      {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  maker.Comment("hbmprof version=1 host=h pid=7 uptime=63");
  hbmprof::pprof::Ages& ages =
      *maker.Sample({maker.Frame("LoadWeights"), maker.Frame("main")}, {4, 4000, 4, 4000}, {{"device", "GPU:0"}})
           .mutable_ages();
  ages.add_born_bytes(4000);
  ages.add_born_counts(4);
  return maker;
}

// Adds a function that keeps a buffer of `bytes` each second.
void AddLeak(int64_t bytes, ProfileMaker& maker, const std::string& allocator = "") {
  std::map<std::string, std::string> labels = {{"device", "GPU:0"}};
  if (!allocator.empty()) labels["allocator"] = allocator;
  hbmprof::pprof::Ages& ages = *maker
                                    .Sample({maker.Frame("Keep"), maker.Frame("Serve"), maker.Frame("main")},
                                            {64, 64 * bytes, 64, 64 * bytes}, labels)
                                    .mutable_ages();
  for (int i = 0; i < 64; ++i) {
    ages.add_born_bytes(bytes);
    ages.add_born_counts(1);
  }
}

class ExplainTest : public testing::Test {
 protected:
  std::string Write(ProfileMaker& maker, const std::string& name = "one.pb.gz") {
    maker.Write(dir_ + "/" + name);
    return dir_ + "/" + name;
  }
  const std::string dir_ = ScratchDir();
};

TEST_F(ExplainTest, HealthyProcessHasNoFinding) {
  ProfileMaker maker = HealthyProfile();
  maker.Comment("device GPU:0 space=device in_use=4000 peak=5000 limit=64000 driver_in_use=5000 unaccounted=1000");
  const std::string path = Write(maker);
  const json answer = Explain({path});
  EXPECT_THAT(Codes(answer), IsEmpty());
  EXPECT_EQ(answer["sources"][0]["seconds"], 63);
  EXPECT_EQ(answer["sources"][0]["memories"][0]["in_use"], 5000);
  EXPECT_EQ(answer["sources"][0]["memories"][0]["parts"], json({{"recorded", 4000}, {"not recorded", 1000}}));
  const CommandResult text = RunTool({"explain", path});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.out, path +
                          ", 63.0 s: GPU:0 4.88 KiB of 62.50 KiB in use, peak 4.88 KiB: 3.91 KiB recorded, 1000 B "
                          "not recorded\nnothing is wrong, as far as the data show\n"
                          "trust: complete since the start; 0 dropped; recording on\n");
}

TEST_F(ExplainTest, NamesALeakItsRateAndTheTimeLeft) {
  ProfileMaker maker = HealthyProfile();
  AddLeak(1000, maker);
  maker.Comment("device GPU:0 space=device in_use=68000 peak=68000 limit=168000");
  maker.Comment("counter requests value=128");
  const std::string path = Write(maker);
  const json answer = Explain({path});
  EXPECT_THAT(Codes(answer), ElementsAre("LEAK", "FULL_SOON"));
  const json leak = Find(answer, "LEAK");
  EXPECT_EQ(leak["function"], "Keep");
  EXPECT_EQ(leak["callers"], "Serve < main");
  EXPECT_EQ(leak["memory"], "GPU:0");
  EXPECT_NEAR(leak["per_second"].get<double>(), 1000, 30);
  EXPECT_NEAR(leak["per_count"].get<double>(), 500, 40);
  EXPECT_EQ(leak["counter"], "requests");
  EXPECT_NEAR(leak["seconds_to_limit"].get<double>(), 100, 4);
  EXPECT_EQ(leak["next"], "hbmprof leaks --frames 0 " + path);
  EXPECT_EQ(Find(answer, "FULL_SOON")["bytes"], 100000);
  // One sentence everywhere.
  const std::string sentence = leak["sentence"];
  EXPECT_THAT(RunTool({"explain", path}).out, HasSubstr("1. LEAK  " + sentence + "\n"));
  const CommandResult leaks = RunTool({"leaks", path});
  EXPECT_EQ(leaks.exit_code, 1);
  const json schema = json::parse(std::ifstream(HBMPROF_SCHEMAS "/leaks.json"));
  EXPECT_EQ(SchemaProblem(schema, ToolJson({"leaks", "--all", path})), "");
  EXPECT_THAT(leaks.out, HasSubstr("1. LEAK  " + sentence + "\n"));
  EXPECT_EQ(ReportData(RunTool({"report", path, "-p", "requests", "-o", "-"}).out)["findings"][0]["sentence"],
            sentence);
}

TEST_F(ExplainTest, NumbersAreRoundedAndBounded) {
  ProfileMaker maker = HealthyProfile();
  AddLeak(1, maker);
  maker.Comment("device GPU:0 space=device in_use=4064 limit=9223372036854775807");
  const json leak = Find(Explain({Write(maker)}), "LEAK");
  EXPECT_TRUE(leak["seconds_to_limit"].is_null());
  EXPECT_EQ(leak["unknown"]["seconds_to_limit"], "it is more than 1,000 years");
  EXPECT_EQ(leak["per_second"], 1);
}

TEST_F(ExplainTest, SmallPossibleLeaksAreCounted) {
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) {
    ProfileMaker maker;
    maker.Comment("hbmprof version=1 pid=7 uptime=" + std::to_string(100 + i));
    const int bytes = 1000 * (i + 1);
    maker.Comment("device GPU:0 space=device peak=4000 limit=1000000000 in_use=" + std::to_string(bytes));
    maker.message().set_time_nanos(1700000000000000000 + i * int64_t{1000000000});
    maker.Sample({maker.Frame("Grow")}, {1, bytes}, {{"device", "GPU:0"}});
    paths.push_back(Write(maker, std::to_string(i) + ".pb.gz"));
  }
  const json answer = Explain(paths);
  EXPECT_THAT(Codes(answer), IsEmpty());
  EXPECT_EQ(answer["minor_count"], 1);
  std::vector<std::string> command = {"explain"};
  command.insert(command.end(), paths.begin(), paths.end());
  const CommandResult result = RunTool(command);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("no finding, but 1 possible leak of few bytes: see hbmprof leaks SOURCE\n"));
}

TEST_F(ExplainTest, SaysThatAProcessIsTooYoung) {
  ProfileMaker maker;
  maker.Comment("hbmprof version=1 pid=7 uptime=5");
  maker.Sample({maker.Frame("f")}, {1, 1000});
  const CommandResult result = RunTool({"explain", Write(maker)});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out,
              HasSubstr("growth NOT judged: 1 profile of a process that had run for 5 s, not 17 s, cannot"));
}

TEST_F(ExplainTest, LongNamesOfSourcesAreNotInACommand) {
  std::vector<std::string> paths;
  for (int i = 0; i < 12; ++i) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + i * int64_t{1000000000});
    maker.Sample({maker.Frame("Grow")}, {1, 1000 * i});
    paths.push_back(Write(maker, std::string(90, 'x') + std::to_string(i) + ".pb.gz"));
  }
  EXPECT_EQ(Find(Explain(paths), "LEAK")["next"], "hbmprof leaks --frames 0 SOURCE...");
}

TEST_F(ExplainTest, SpeaksTheWordsOfTheFramework) {
  ProfileMaker maker = HealthyProfile();
  AddLeak(1000, maker, "pytorch");
  maker.Comment(std::string("device GPU:0 space=device in_use=6") + kMiB + " peak=6" + kMiB + " pool=4" + kMiB +
                " idle=1" + kMiB + " limit=8" + kMiB);
  maker.Comment("pool pytorch device=GPU:0 reserved=4048576 allocated=3000000 idle=1048576");
  const json answer = Explain({Write(maker)});
  EXPECT_THAT(Find(answer, "LEAK")["action"].get<std::string>(), HasSubstr("x.detach()"));
  const json idle = Find(answer, "IDLE_POOL");
  EXPECT_EQ(idle["bytes"], 1048576);
  EXPECT_THAT(idle["sentence"].get<std::string>(), HasSubstr("1.00 MiB of the 3.86 MiB in PyTorch on GPU:0 are idle"));
  EXPECT_THAT(idle["action"].get<std::string>(), HasSubstr("expandable_segments:True"));
}

TEST_F(ExplainTest, JudgesTheStateOfTheDevice) {
  ProfileMaker maker = HealthyProfile();
  maker.Comment(
      "device GPU:0 space=device in_use=4000 peak=4000 limit=100000 driver_in_use=34000 unaccounted=30000 "
      "driver_scope=process largest_free_block=10000");
  const json answer = Explain({Write(maker)});
  EXPECT_THAT(Codes(answer), ElementsAre("FRAGMENTED", "NOT_RECORDED"));
  EXPECT_EQ(Find(answer, "FRAGMENTED")["bytes"], 56000);
  EXPECT_EQ(Find(answer, "NOT_RECORDED")["bytes"], 30000);
  EXPECT_EQ(Find(answer, "NOT_RECORDED")["evidence"], "the driver's number minus what is recorded");
  ProfileMaker with_baseline = HealthyProfile();
  with_baseline.Comment(
      "device GPU:0 space=device in_use=4000 peak=4000 limit=100000 driver_in_use=34000 "
      "unaccounted=30000 baseline=29000");
  EXPECT_THAT(Codes(Explain({Write(with_baseline)})), IsEmpty()) << "contexts and code";
}

TEST_F(ExplainTest, SaysThatTheProgramRanOutOfMemory) {
  ProfileMaker maker = HealthyProfile();
  maker.Comment("warning text=PyTorch%20ran%20out%20of%20memory%20on%20GPU:0,%202%20times");
  const json answer = Explain({Write(maker)});
  EXPECT_THAT(Codes(answer), ElementsAre("OUT_OF_MEMORY"));
  EXPECT_EQ(answer["findings"][0]["memory"], "GPU:0");
  EXPECT_EQ(answer["findings"][0]["sentence"], "PyTorch ran out of memory on GPU:0, 2 times");
  EXPECT_EQ(answer["findings"][0]["function"], "LoadWeights");
  EXPECT_EQ(answer["findings"][0]["bytes"], 4000);
}

TEST_F(ExplainTest, DoesNotCallAProgramHealthyThatDoesNotRecord) {
  ProfileMaker maker = HealthyProfile();
  maker.Comment("warning text=Recording%20has%20been%20off%20since%202026-11-22T18:20:04Z:%20missing");
  const json answer = Explain({Write(maker)});
  EXPECT_THAT(Codes(answer), ElementsAre("RECORDING_OFF"));
  EXPECT_EQ(answer["sources"][0]["trust"]["recording"], false);
  EXPECT_EQ(answer["findings"][0]["next"], "hbmprof control 7 tracking on");
  EXPECT_THAT(RunTool({"explain", dir_ + "/one.pb.gz"}).out, HasSubstr("recording OFF"));
}

TEST_F(ExplainTest, SaysWhatIsMissing) {
  ProfileMaker maker = HealthyProfile();
  maker.Comment("tracker live_records=4 dropped_records=3 dropped_bytes=12");
  const json answer = Explain({Write(maker)});
  EXPECT_THAT(Codes(answer), ElementsAre("INCOMPLETE"));
  EXPECT_EQ(answer["sources"][0]["trust"]["dropped"], 3);
  EXPECT_THAT(answer["findings"][0]["sentence"].get<std::string>(), HasSubstr("3 allocations were not recorded"));
}

// Without ages, one or two profiles say nothing on growth: that is no answer, and not a healthy program.
TEST_F(ExplainTest, HasNoAnswerIfGrowthCannotBeJudged) {
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 10});
  const std::string path = Write(maker);
  const CommandResult result = RunTool({"explain", path});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("growth NOT judged: 1 profile without the ages of buffers"));
  EXPECT_THAT(result.out, HasSubstr("no finding, but not all could be judged\n"));
  EXPECT_EQ(Explain({path})["sources"][0]["trust"]["growth_judged"], false);
  EXPECT_EQ(RunTool({"explain", dir_ + "/none.pb.gz"}).exit_code, 2);
}

TEST_F(ExplainTest, NamesTheRankThatDiffers) {
  std::vector<std::string> paths;
  for (int rank = 0; rank < 8; ++rank) {
    ProfileMaker maker(
        {{"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    maker.Comment("hbmprof version=1 host=h pid=" + std::to_string(100 + rank) + " uptime=63");
    maker.Comment("environment RANK=" + std::to_string(rank) + " WORLD_SIZE=8");
    const int64_t bytes = rank == 5 ? 9000 : 4000 + rank;
    hbmprof::pprof::Ages& ages = *maker.Sample({maker.Frame("Load")}, {4, bytes, 4, bytes}).mutable_ages();
    ages.add_born_bytes(bytes);
    ages.add_born_counts(4);
    paths.push_back(Write(maker, std::to_string(rank) + ".pb.gz"));
  }
  const json answer = Explain(paths);
  EXPECT_EQ(answer["source_count"], 8);
  EXPECT_THAT(Codes(answer), ElementsAre("RANK_OUTLIER"));
  EXPECT_THAT(answer["findings"][0]["sentence"].get<std::string>(), HasSubstr("rank 5 has 8.79 KiB"));
  std::string next = "hbmprof diff --ranks";
  for (const std::string& path : paths) next += " " + path;
  EXPECT_EQ(answer["findings"][0]["next"], next);
  std::vector<std::string> ignored = paths;
  ignored.insert(ignored.end(), {"--ignore", "Load"});
  EXPECT_THAT(Codes(Explain(ignored)), IsEmpty());
  const CommandResult with_input = RunTool({"explain", paths[0], "-"});
  EXPECT_EQ(with_input.exit_code, 2);
  EXPECT_THAT(with_input.err, HasSubstr("standard input cannot be one of several sources"));
}

TEST_F(ExplainTest, JudgesARecording) {
  for (const bool leak : {false, true}) {
    const std::string file = dir_ + "/run.hbmrec";
    MadeLoad load;
    load.events = 20000;
    load.leak = leak;
    ASSERT_TRUE(MakeRecording(file, load).ok());
    const json answer = Explain({file});
    const std::vector<std::string> codes = Codes(answer);
    EXPECT_EQ(std::count(codes.begin(), codes.end(), "LEAK"), leak ? 1 : 0) << answer.dump(1);
    EXPECT_EQ(answer["sources"][0]["profiles"], 12);
    if (leak) {
      EXPECT_EQ(Find(answer, "LEAK")["function"], "llm::KvCache::LeakPage");
    }
  }
}

TEST_F(ExplainTest, WaitsForTheAgesOfAYoungProcess) {
  RunningProgram program({HBMPROF_CONTROL_PROGRAM, "steps", "0"}, {"HBMPROF_SOCKET_DIR=" + dir_});
  ASSERT_EQ(program.ReadLine(), "ready");
  // Without a source, all processes are judged.
  const CommandResult result = RunTool({"explain"}, {"HBMPROF_SOCKET_DIR=" + dir_});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr(") has run for "));
  EXPECT_THAT(result.err, HasSubstr("until the ages of its buffers are known"));
  EXPECT_THAT(result.out, HasSubstr("control_program (" + std::to_string(program.pid()) + ")"));
  ASSERT_EQ(RunTool({"control", "control_program", "tracking", "off"}, {"HBMPROF_SOCKET_DIR=" + dir_}).exit_code, 0);
  const CommandResult off = RunTool({"explain", "control_program"}, {"HBMPROF_SOCKET_DIR=" + dir_});
  EXPECT_EQ(off.exit_code, 1);
  EXPECT_THAT(off.out, HasSubstr("1. RECORDING_OFF  Recording has been off since "));
}

TEST_F(ExplainTest, WithoutAnyProcessThereIsNoAnswer) {
  const CommandResult result = RunTool({"explain"}, {"HBMPROF_SOCKET_DIR=" + dir_});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("has a control channel in " + dir_));
}

}  // namespace
}  // namespace hbmprof_test
