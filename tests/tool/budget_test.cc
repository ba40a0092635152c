// hbmprof budget, and diff --budget: what is over a budget, and what is not, in profiles of other builds.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>

#include "hbmprof/device_allocator.h"
#include "hbmprof/leak_check.h"
#include "hbmprof/simulated_device.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The bytes at the peak of a call stack, written as in a budget: "Function < Caller".
struct Stack {
  std::string functions;
  int64_t bytes;
  std::string kind = "device";
  std::string allocator = "";
  int64_t pool_bytes = 0;
};

class BudgetTest : public testing::Test {
 protected:
  // Writes a profile. `line`: where the first function is in its file.
  std::string Profile(const std::string& name, const std::vector<Stack>& stacks, int64_t line = 10,
                      const std::string& comment = "") {
    ProfileMaker maker({{"peak_space", "bytes"}, {"pool_peak_space", "bytes"}});
    if (!comment.empty()) maker.Comment(comment);
    for (const Stack& stack : stacks) {
      std::vector<uint64_t> frames;
      static const std::regex kCaller(" < ");
      for (std::sregex_token_iterator function(stack.functions.begin(), stack.functions.end(), kCaller, -1), end;
           function != end && function->length() > 0; ++function) {
        frames.push_back(maker.Location(0, 0, {{maker.Function(*function, *function, "/src/cache.cc"), line++}}));
      }
      std::map<std::string, std::string> labels = {{"device", "GPU:0"}, {"kind", stack.kind}};
      if (!stack.allocator.empty()) labels["allocator"] = stack.allocator;
      maker.Sample(frames, {stack.bytes, stack.pool_bytes}, labels);
    }
    maker.Write(dir_ + "/" + name);
    return dir_ + "/" + name;
  }
  // Makes the budget of such a profile.
  void MakeBudget(const std::vector<Stack>& stacks) {
    const CommandResult result = RunTool({"budget", Profile("base.pb.gz", stacks), "-o", budget_});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  CommandResult Diff(const std::string& profile, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"diff", "--budget", budget_, profile};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunTool(arguments);
  }
  // The functions over their limits, the largest growth first, with "+growth" in MiB.
  std::vector<std::string> Over(const std::vector<Stack>& stacks) {
    const nlohmann::json json = ToolJson({"diff", "--budget", budget_, Profile("now.pb.gz", stacks, 500)});
    std::vector<std::string> over;
    for (const auto& row : json["rows"]) {
      if (row["now"] <= row.value("limit", INT64_MAX)) continue;
      over.push_back(row["function"].get<std::string>() + " +" + std::to_string(row["growth"].get<int64_t>() / kMiB));
    }
    return over;
  }

  const std::string dir_ = ScratchDir();
  const std::string budget_ = dir_ + "/memory.budget";
};
using Names = std::vector<std::string>;

TEST_F(BudgetTest, IsASortedTextWithExactSizes) {
  MakeBudget({{"Weights < main", 10 * kMiB}, {"Cache::Page < Cache::Extend < main", 1536}, {"Cache::Page < main", 1}});
  const std::string text = ReadText(budget_);
  EXPECT_THAT(text, StartsWith("# Device memory at the peak, by call stack"));
  EXPECT_THAT(text, HasSubstr("\ntolerance 5% 64KiB\n"
                              "new-code 1MiB\n"
                              "total 10487297B\n"
                              "\n"
                              "     1536B Cache::Page < Cache::Extend < main\n"
                              "        1B Cache::Page < main\n"
                              "     10MiB Weights < main\n"));
  EXPECT_EQ(RunTool({"budget", dir_ + "/base.pb.gz"}).out, text) << "standard output is the default";
}

TEST_F(BudgetTest, NewBudgetKeepsTheTolerancesOfTheFile) {
  const std::string profile = Profile("base.pb.gz", {{"Load < main", 10 * kMiB}, {"Grow < main", 2 * kMiB}});
  WriteFile(budget_, "tolerance 2% 1KiB\nnew-code 3MiB\ntotal 1MiB\n5MiB 25% Load < main\n1MiB 7% Old < main\n");
  EXPECT_THAT(RunTool({"budget", profile, "-o", budget_}).out, HasSubstr("memory.budget: 12.00 MiB in 2 call stacks"));
  EXPECT_THAT(ReadText(budget_), AllOf(HasSubstr("tolerance 2% 1KiB\nnew-code 3MiB\ntotal 12MiB\n"),
                                       HasSubstr("2MiB Grow < main\n"), HasSubstr("10MiB 25% Load < main\n")));
}

TEST_F(BudgetTest, OnlyABudgetIsReplaced) {
  const std::string profile = Profile("base.pb.gz", {{"Load < main", kMiB}});
  WriteFile(dir_ + "/notes.txt", "call me\n");
  const CommandResult result = RunTool({"budget", profile, "-o", dir_ + "/notes.txt"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("notes.txt:1: 'call me': write 4MiB Function < Caller"));
  EXPECT_EQ(ReadText(dir_ + "/notes.txt"), "call me\n");
  EXPECT_EQ(RunTool({"budget", profile, "-o", profile}).exit_code, 2);
}

TEST_F(BudgetTest, BadLineIsNamed) {
  const std::string profile = Profile("now.pb.gz", {{"Load < main", kMiB}});
  const std::pair<std::string, std::string> cases[] = {
      {"total 1MiB\n\n# comment\nnonsense", "memory.budget:4: 'nonsense': write 4MiB Function"},
      {"total much", "memory.budget:1: 'total much': write total 16MiB"},
      {"total", "memory.budget:1: 'total': write total 16MiB"},
      {"total 2000TiB", "memory.budget:1: "},
      {"total -1", "memory.budget:1: "},
      {"tolerance 5", "memory.budget:1: 'tolerance 5': write tolerance 5% 64KiB"},
      {"tolerance nan%", "memory.budget:1: "},
      {"tolerance -5%", "memory.budget:1: "},
      {"tolerance 5% much", "memory.budget:1: "},
      {"new-code", "memory.budget:1: 'new-code': write new-code 1MiB"},
      {"4MiB", "memory.budget:1: '4MiB': a function has no name"},
      {"4MiB 5%", "memory.budget:1: '4MiB 5%': a function has no name"},
      {std::string("4MiB f <  < \0", 13), "memory.budget:1: "},
      {"", "memory.budget: not a budget: it has neither a total nor a function"},
      {"# only a comment\n", "memory.budget: not a budget"},
      {ReadText(profile), "memory.budget:1: "}};
  for (const auto& [text, message] : cases) {
    WriteFile(budget_, text);
    const CommandResult result = Diff(profile);
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_THAT(result.err, HasSubstr(message)) << text;
    EXPECT_EQ(result.out, "") << text;
  }
  EXPECT_EQ(RunTool({"diff", "--budget", dir_ + "/none", profile}).exit_code, 2);
}

TEST_F(BudgetTest, DamagedBudgetIsReadOrRefused) {
  MakeBudget({{"Weights < main", 10 * kMiB}, {"Cache::Page < Cache::Extend < main", 1536}});
  const std::string whole = ReadText(budget_);
  std::mt19937 random(51);
  for (int i = 0; i < 60; ++i) {
    std::string damaged = whole.substr(0, random() % whole.size());
    for (unsigned count = random() % 5; count > 0 && !damaged.empty(); --count) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    WriteFile(budget_, damaged);
    const CommandResult result = Diff(dir_ + "/base.pb.gz");
    EXPECT_THAT(result.exit_code, testing::AnyOf(0, 1, 2)) << damaged;
    EXPECT_EQ(result.err.empty(), result.exit_code != 2) << damaged;
  }
}

TEST_F(BudgetTest, HandWrittenFileHasCommentsAndAnySizes) {
  WriteFile(budget_, "# what we agreed on\n\n  total\t3MiB\r\n2.5MiB  20%   Load  <  main \r\n512K Keep < main\n");
  EXPECT_EQ(Over({{"Load < main", 3 * kMiB}, {"Keep < main", kMiB / 2}}), Names{});
  EXPECT_EQ(Over({{"Load < main", 5 * kMiB}, {"Keep < main", kMiB / 2}}), Names{"Load +2"});
}

// Each case has the stacks of the budget, those of the profile, and what is over.
TEST_F(BudgetTest, StacksMatchAcrossBuilds) {
  const struct {
    const char* what;
    std::vector<Stack> base;
    std::vector<Stack> now;
    Names over;
  } cases[] = {
      {"the same", {{"f < main", 10 * kMiB}}, {{"f < main", 10 * kMiB}}, {}},
      {"within the tolerance", {{"f < main", 100 * kMiB}}, {{"f < main", 104 * kMiB}}, {}},
      {"beyond the tolerance", {{"f < main", 100 * kMiB}}, {{"f < main", 107 * kMiB}}, {"f +7"}},
      {"other template arguments",
       {{"ns::Pool<int>::Get(int) < ns::Run<4ul>() < main", 10 * kMiB}},
       {{"ns::Pool<long>::Get(long) < ns::Run<8ul>() < main", 10 * kMiB}},
       {}},
      {"code without symbols has moved",
       {{"libpool.so+0x1234 < main", 10 * kMiB}},
       {{"libpool.so+0x1f04 < main", 10 * kMiB}},
       {}},
      {"the function is inlined",
       {{"Page < Extend < main", 10 * kMiB}, {"Extend < main", kMiB}},
       {{"Extend < main", 11 * kMiB}},
       {}},
      {"two functions are inlined", {{"Page < Extend < Step < main", 10 * kMiB}}, {{"Step < main", 10 * kMiB}}, {}},
      {"the function was inlined", {{"Extend < main", 11 * kMiB}}, {{"Page < Extend < main", 11 * kMiB}}, {}},
      {"a caller is inlined", {{"Page < Extend < main", 10 * kMiB}}, {{"Page < main", 10 * kMiB}}, {}},
      {"inlined in one of two callers",
       {{"Page < A < main", 10 * kMiB}, {"Page < B < main", 10 * kMiB}},
       {{"A < main", 10 * kMiB}, {"Page < B < main", 10 * kMiB}},
       {}},
      {"was inlined in one of two callers",
       {{"A < main", 10 * kMiB}, {"Page < B < main", 10 * kMiB}},
       {{"Page < A < main", 10 * kMiB}, {"Page < B < main", 10 * kMiB}},
       {}},
      {"the function and a part of its caller were inlined",
       {{"Page < Load < main", 2 * kMiB}, {"Load < main", 8 * kMiB}},
       {{"Make < Page < Load < main", 10 * kMiB}},
       {}},
      {"grown in new code while another function shrank",
       {{"Step < Run < main", kMiB}, {"Load < main", 20 * kMiB}},
       {{"Grow < Step < Run < main", 10 * kMiB}, {"Load < main", 11 * kMiB}},
       {"Grow +9"}},
      {"each build inlines one of two", {{"Page < Run < main", 9 * kMiB}}, {{"Step < Run < main", 9 * kMiB}}, {}},
      {"renamed", {{"Load < main", 10 * kMiB}}, {{"LoadWeights < main", 10 * kMiB}}, {}},
      {"deeper recursion", {{"f < g < f < main", 10 * kMiB}}, {{"f < g < f < g < f < main", 10 * kMiB}}, {}},
      {"inlined, and grown", {{"Page < Extend < main", 10 * kMiB}}, {{"Extend < main", 19 * kMiB}}, {"Extend +9"}},
      {"was inlined, and has grown",
       {{"Extend < main", 10 * kMiB}},
       {{"Page < Extend < main", 19 * kMiB}},
       {"Page +9"}},
      {"a caller is inlined, and the function has grown",
       {{"Page < Extend < main", 10 * kMiB}},
       {{"Page < main", 19 * kMiB}},
       {"Page +9"}},
      {"grown while another one of the same caller shrank",
       {{"f < main", 10 * kMiB}, {"g < main", 20 * kMiB}},
       {{"f < main", 19 * kMiB}, {"g < main", 5 * kMiB}},
       {"f +9"}},
      {"the largest growth is first",
       {{"f < main", 10 * kMiB}, {"g < main", 10 * kMiB}},
       {{"f < main", 13 * kMiB}, {"g < main", 19 * kMiB}},
       {"g +9", "f +3"}},
      {"new code below the threshold", {{"f < main", 10 * kMiB}}, {{"f < main", 10 * kMiB}, {"g < main", kMiB}}, {}},
      {"new code", {{"f < main", 100 * kMiB}}, {{"f < main", 100 * kMiB}, {"g < main", 2 * kMiB}}, {"g +2"}},
      {"less", {{"f < main", 10 * kMiB}}, {{"f < main", kMiB}}, {}},
      {"without a stack", {{"", 10 * kMiB}}, {{"", 13 * kMiB}}, {"[no stack] +3"}},
  };
  for (const auto& test : cases) {
    std::remove(budget_.c_str());
    MakeBudget(test.base);
    EXPECT_EQ(Over(test.now), test.over) << test.what;
  }
}

// What a pool has reserved depends on its history.
TEST_F(BudgetTest, AllocatedMemoryCounts) {
  MakeBudget({{"Train < main", kMiB, "device", "pytorch", 10 * kMiB}, {"Buffer < main", 3 * kMiB}});
  const std::vector<Stack> others = {{"[idle memory of pytorch]", 50 * kMiB, "pool", "pytorch"},
                                     {"Launch < main", 50 * kMiB, "executable"},
                                     {"Pin < main", 50 * kMiB, "pinned_host"},
                                     {"Share < main", 50 * kMiB, "managed"}};
  std::vector<Stack> now = others;
  now.push_back({"Train < main", 4 * kMiB, "device", "pytorch", 10 * kMiB});
  now.push_back({"Buffer < main", 3 * kMiB});
  // Live at the peak of the device, and not at that of the pool.
  now.push_back({"Test < main", 20 * kMiB, "device", "pytorch", 0});
  const nlohmann::json json = ToolJson({"diff", "--budget", budget_, Profile("now.pb.gz", now)});
  EXPECT_EQ(json["total"], 13 * kMiB);
  EXPECT_EQ(json["total_budget"], 13 * kMiB);
  EXPECT_EQ(json["rows"], nlohmann::json::array());
}

TEST_F(BudgetTest, TotalCanStandAlone) {
  WriteFile(budget_, "total 10MiB\n");
  const std::vector<Stack> stacks = {{"f < main", 6 * kMiB}, {"g < main", 4 * kMiB}};
  EXPECT_THAT(Diff(Profile("now.pb.gz", stacks)).out, HasSubstr("total 10.00 MiB at the peak, budget 10.00 MiB"));
  EXPECT_EQ(Diff(Profile("now.pb.gz", stacks)).exit_code, 0);
  const CommandResult over = Diff(Profile("now.pb.gz", {{"f < main", 6 * kMiB}, {"g < main", 5 * kMiB}}));
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.out, AllOf(HasSubstr("OVER the budget\n"), HasSubstr("+6.00 MiB")));
}

TEST_F(BudgetTest, SmallGrowthOfManyFunctionsIsOverTheTotal) {
  std::vector<Stack> stacks;
  for (int i = 0; i < 100; ++i) stacks.push_back({"f" + std::to_string(i) + " < main", 100 << 10});
  MakeBudget(stacks);
  for (Stack& stack : stacks) stack.bytes += 20 << 10;
  const CommandResult result = Diff(Profile("now.pb.gz", stacks));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("OVER the budget\n"), HasSubstr("within tolerance"),
                                HasSubstr("... and 80 more rows (-n 0 shows all)")));
}

TEST_F(BudgetTest, NoAnswerIsExitCodeTwo) {
  MakeBudget({{"f < main", 10 * kMiB}});
  const std::pair<std::string, std::string> cases[] = {
      {Profile("empty.pb.gz", {}), "empty.pb.gz: no device memory was in use at the peak"},
      {Profile("dropped.pb.gz", {{"f < main", kMiB}}, 10, "tracker dropped_records=3"),
       "dropped.pb.gz: some allocations were not recorded"},
      {Profile("off.pb.gz", {{"f < main", kMiB}}, 10,
               "warning text=Recording%20was%20off%20from%202026-01-02%20to%202026-01-03"),
       "off.pb.gz: Recording was off from 2026-01-02 to 2026-01-03"},
      {dir_ + "/none.pb.gz", "none.pb.gz"}};
  for (const auto& [profile, message] : cases) {
    for (const CommandResult& result : {Diff(profile), RunTool({"budget", profile})}) {
      EXPECT_EQ(result.exit_code, 2) << message;
      EXPECT_THAT(result.err, HasSubstr(message));
    }
  }
  ProfileMaker go;
  go.Sample({go.Frame("f")}, {1, 2});
  go.Write(dir_ + "/go.pb.gz");
  EXPECT_THAT(Diff(dir_ + "/go.pb.gz").err, HasSubstr("peak_space"));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--by", "device"}, {"--tree"}, {"--fail-over", "1MiB"}, {"--type", "inuse_space"}}) {
    EXPECT_THAT(Diff(dir_ + "/base.pb.gz", wrong).err, HasSubstr(" excludes ")) << wrong[0];
  }
  EXPECT_THAT(RunTool({"diff", dir_ + "/base.pb.gz", dir_ + "/base.pb.gz", "--format", "junit"}).err,
              HasSubstr("--format requires --budget"));
}

// A name that is hostile in each of the formats.
TEST_F(BudgetTest, FormatsHaveTheSameAnswer) {
  MakeBudget({{"Cache::Page < main", 10 * kMiB}, {"Load < main", 40 * kMiB}});
  const std::string profile = Profile("now.pb.gz",
                                      {{"Cache::Page < Cache::Extend < main", 19 * kMiB},
                                       {"Load < main", 41 * kMiB},
                                       {"a]]>\"&|`\x1b[31m < main", 9000}},
                                      39);
  const CommandResult text = Diff(profile);
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out,
              testing::ContainsRegex("^ *growth +now +budget +verdict +function +where\n"
                                     "\\+9.00 MiB +19.00 MiB +10.00 MiB +OVER +Cache::Page +/src/cache.cc:39\n"));
  EXPECT_THAT(text.out,
              testing::ContainsRegex("in Cache::Page, most in this call stack:\n +Cache::Page +/src/cache.cc:39\n"
                                     " +Cache::Extend +/src/cache.cc:40\n +main +/src/cache.cc:41\n"));
  EXPECT_THAT(text.out, HasSubstr("\ntotal 60.01 MiB at the peak, budget 50.00 MiB, limit 52.50 MiB\n"
                                  "OVER the budget\n"));

  const CommandResult json = Diff(profile, {"--json"});
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(Diff(profile, {"--format", "json"}).out, json.out);
  const nlohmann::json answer = nlohmann::json::parse(json.out, nullptr, false);
  const nlohmann::json schema = nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS "/budget.json"));
  EXPECT_EQ(SchemaProblem(schema, answer), "");
  EXPECT_EQ(answer["rows"][0]["function"], "Cache::Page");
  EXPECT_EQ(answer["rows"][0]["growth"], 9 * kMiB);
  EXPECT_EQ(answer["rows"][0]["verdict"], "OVER");
  EXPECT_EQ(answer["rows"][0]["stack"][1]["where"], "/src/cache.cc:40");
  EXPECT_EQ(answer["rows"][1]["verdict"], "within tolerance");
  EXPECT_EQ(answer["rows"][2]["verdict"], "new code");
  EXPECT_EQ(answer["failed"], true);

  const CommandResult junit = Diff(profile, {"--format", "junit"});
  EXPECT_EQ(junit.exit_code, 1);
  WriteFile(dir_ + "/junit.xml", junit.out);
  const CommandResult read = RunCommand({"python3", "-c",
                                         "import sys, xml.etree.ElementTree as tree\n"
                                         "suite = tree.parse(sys.argv[1]).getroot()\n"
                                         "print(suite.get('tests'), suite.get('failures'))\n"
                                         "for case in suite.iter('testcase'):\n"
                                         "  failure = case.find('failure')\n"
                                         "  print(case.get('name'), '-' if failure is None else failure.get('message') "
                                         "+ ' ' + ' '.join(failure.text.split()))\n",
                                         dir_ + "/junit.xml"});
  EXPECT_EQ(read.out,
            "4 2\n"
            "total OVER: 60.01 MiB, budget 50.00 MiB \n"
            "Cache::Page OVER: 19.00 MiB, budget 10.00 MiB Cache::Page /src/cache.cc:39 Cache::Extend /src/cache.cc:40 "
            "main /src/cache.cc:41\n"
            "Load -\n"
            "a]]>\"&|`\\x1b[31m -\n")
      << read.err << junit.out;

  const CommandResult markdown = Diff(profile, {"--format", "markdown"});
  EXPECT_EQ(markdown.exit_code, 1);
  EXPECT_THAT(markdown.out, StartsWith("### Device memory: OVER the budget\n\n```text\n"));
  EXPECT_THAT(markdown.out, AllOf(HasSubstr("Cache::Page"), HasSubstr("/src/cache.cc:40"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(markdown.out.substr(markdown.out.size() - 5), "\n```\n");

  const CommandResult within = Diff(dir_ + "/base.pb.gz", {"--format", "markdown"});
  EXPECT_EQ(within.exit_code, 0);
  EXPECT_THAT(within.out, StartsWith("### Device memory: within the budget\n"));
  EXPECT_THAT(Diff(dir_ + "/base.pb.gz", {"--format", "junit"}).out, HasSubstr("failures=\"0\""));
}

// Builds of llm_server: "" is optimised, "_o0" is not, "_inlined" has few calls, "_grown" allocates 9 MiB more in
// KvCache::Extend.
class BudgetOfServer : public BudgetTest {
 protected:
  std::string Serve(const std::string& build) {
    const std::string prompts = dir_ + "/prompts";
    WriteFile(prompts, "one\nbatch:two\nthree\nfour\n");
    const std::string profile = dir_ + "/server" + build + ".pb.gz";
    const CommandResult run =
        RunCommand({HBMPROF_BUDGET_SERVER + build, "--max-tokens", "4", "--after", profile, prompts});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return profile;
  }
};

TEST_F(BudgetOfServer, BuildsOfDifferentOptimisationMatch) {
  const std::string profiles[] = {Serve(""), Serve("_o0"), Serve("_inlined")};
  for (const std::string& base : profiles) {
    std::remove(budget_.c_str());
    ASSERT_EQ(RunTool({"budget", base, "-o", budget_}).exit_code, 0);
    for (const std::string& now : profiles) {
      const CommandResult result = Diff(now);
      EXPECT_EQ(result.exit_code, 0) << base << " " << now << "\n" << result.out << ReadText(budget_);
      EXPECT_THAT(result.out, testing::EndsWith("\nwithin the budget\n"));
    }
  }
}

TEST_F(BudgetOfServer, GrowthIsTheFirstRowWithItsLine) {
  ASSERT_EQ(RunTool({"budget", Serve("_o0"), "-o", budget_}).exit_code, 0);
  const std::string grown = dir_ + "/named.pb.gz";
  ASSERT_EQ(RunTool({"symbolize", Serve("_grown"), "-o", grown}).exit_code, 0);
  const CommandResult result = Diff(grown);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out,
              testing::ContainsRegex("^ *growth [^\n]*\n\\+9.00 MiB [^\n]* OVER, new code +llm::KvCache::Extend "
                                     "[^\n]*grown_kv_cache.cc:6\n"));
  EXPECT_THAT(result.out, HasSubstr("OVER the budget\n"));
}

// The script of docs/budget.md finds the commit that brought the growth, and skips one that does not build.
TEST_F(BudgetOfServer, BisectFindsTheCommit) {
  if (RunCommand({"git", "--version"}).exit_code != 0) GTEST_SKIP() << "git is not installed";
  ASSERT_EQ(RunTool({"budget", Serve(""), "-o", budget_}).exit_code, 0);
  const std::string page = ReadText(HBMPROF_SOURCE_DIR "/docs/budget.md");
  const size_t begin = page.find("#!/bin/sh\n");
  ASSERT_NE(begin, std::string::npos);
  WriteFile(dir_ + "/check.sh", page.substr(begin, page.find("```", begin) - begin));
  WriteFile(dir_ + "/commits.sh",
            "set -e\n"
            "mkdir repository\n"
            "cd repository\n"
            "git init -q .\n"
            "for commit in 1 2 3 4 5 6 7 8; do\n"
            "  build=\n"
            "  test $commit -lt 6 || build=_grown\n"
            "  case $commit in\n"
            "    4) echo 'exit 1' ;;\n"
            "    *) echo \"" HBMPROF_BUDGET_SERVER
            "$build --max-tokens 4 --after peak.pb.gz ../prompts\" ;;\n"
            "  esac > run_server.sh\n"
            "  git add run_server.sh\n"
            "  git -c user.name=a -c user.email=a@b commit -q --allow-empty -m \"commit $commit\"\n"
            "done\n"
            "git bisect start HEAD HEAD~7\n"
            "BUDGET=../memory.budget git bisect run sh ../check.sh\n");
  const CommandResult result =
      RunCommand({"env", "-C", dir_, "sh", "commits.sh"},
                 {"PATH=" + ToolPath().substr(0, ToolPath().rfind('/')) + ":" + std::getenv("PATH")});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("is the first bad commit(.|\n)*commit 6\n"));
}

// A test with PeakCheck, in this process.
TEST_F(BudgetTest, PeakCheckReadsTheFile) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", (ToolPath().substr(0, ToolPath().rfind('/')) + ":" + path).c_str(), 1);
  hbmprof::Profiler profiler;
  const auto device = hbmprof::SimulatedDevice::Create({}).value();
  hbmprof::TrackingAllocator allocator(*device, "pages", profiler);
  const auto work = [&](size_t bytes) { ASSERT_TRUE(allocator.Free(allocator.Allocate(bytes).value()).ok()); };
  work(64 << 20);  // before the check
  WriteFile(budget_, "total 2MiB\n");
  {
    const hbmprof::PeakCheck peak(budget_, profiler);
    work(2 << 20);
  }
  { const hbmprof::PeakCheck peak(budget_, profiler); }  // nothing was in use meanwhile
  EXPECT_NONFATAL_FAILURE(
      {
        const hbmprof::PeakCheck peak(budget_, profiler);
        work(3 << 20);
      },
      "total 3.00 MiB at the peak, budget 2.00 MiB, limit 2.10 MiB\nOVER the budget\n");
  EXPECT_NONFATAL_FAILURE(
      {
        const hbmprof::PeakCheck peak(dir_ + "/it's none", profiler);
        work(1 << 20);
      },
      "the budget could not be checked: hbmprof diff: ");
  setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace hbmprof_test
