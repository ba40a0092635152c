// Runs each example, checks its profiles, and reads pprof's text output.
//
// Not in this file: the results of the server's model (llm_model_test.cc).

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/program_run.h"

namespace {

using ::hbmprof_test::CommandResult;
using ::hbmprof_test::NewDirectory;
using ::hbmprof_test::PprofTool;
using ::hbmprof_test::PprofTools;
using ::hbmprof_test::Profile;
using ::hbmprof_test::ProfileView;
using ::hbmprof_test::RunCommand;
using ::hbmprof_test::ViewProfile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kExamples = HBMPROF_EXAMPLES_DIR;

CommandResult RunExample(std::vector<std::string> argv) {
  argv[0] = kExamples + "/" + argv[0];
  return RunCommand(argv);
}

// A line of `pprof -top`, its values as printed.
struct TopRow {
  std::string flat;
  std::string cum;
  std::string function;
};

std::vector<TopRow> Top(const PprofTool& pprof, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "-top");
  const CommandResult result = pprof.Run(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<TopRow> rows;
  std::istringstream lines(result.out);
  bool below_head = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    TopRow row;
    std::string flat_percent, sum_percent, cum_percent;
    fields >> row.flat >> flat_percent >> sum_percent >> row.cum >> cum_percent >> std::ws;
    std::getline(fields, row.function);
    if (below_head) rows.push_back(row);
    below_head = below_head || row.flat == "flat";
  }
  EXPECT_TRUE(below_head) << "no table in: " << result.out;
  return rows;
}

// Returns the value of `function` in the cum column; "" if it has no row.
std::string Cum(const std::vector<TopRow>& rows, const std::string& function) {
  for (const TopRow& row : rows) {
    if (row.function == function) return row.cum;
  }
  return "";
}

// Tests with every pprof of this machine.
class ExamplesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (pprofs_.empty()) GTEST_SKIP() << "no pprof here: neither go nor google/pprof is installed";
  }
  const std::vector<PprofTool> pprofs_ = PprofTools();
};

TEST_F(ExamplesTest, TileFunctionsShowsEachFunction) {
  const std::string file = NewDirectory() + "/profile.pb.gz";
  const CommandResult run = RunExample({"tile_functions", file});
  ASSERT_EQ(run.exit_code, 0) << run.err;

  for (const PprofTool& pprof : pprofs_) {
    SCOPED_TRACE(pprof.name);
    const std::vector<TopRow> rows = Top(pprof, {"-cum", file});
    EXPECT_EQ(Cum(rows, "func1"), "38.15MB");
    EXPECT_EQ(Cum(rows, "func2"), "76.29MB");
    EXPECT_EQ(Cum(rows, "main"), "80.11MB");
  }
  const ProfileView view = ViewProfile(file);
  EXPECT_EQ(view.SumUnder("inuse_space", "func1"), 40000000);
  EXPECT_EQ(view.SumUnder("inuse_space", "func2"), 80000000);
  EXPECT_EQ(view.SumUnder("inuse_objects", "func2"), 2);
  EXPECT_EQ(view.Sum("inuse_space"), 84000000);
  // The temporaries: one in each function, of the size of its result.
  EXPECT_EQ(view.SumUnder("alloc_space", "func1"), 80000000);
  EXPECT_EQ(view.SumUnder("alloc_space", "func2"), 160000000);
  // At the peak, only x, both results and func2's temporary are in use.
  EXPECT_EQ(view.Sum("peak_space"), 124000000);
}

TEST_F(ExamplesTest, DiffOfTwoProcessesIsZero) {
  const std::string directory = NewDirectory();
  const std::vector<std::string> files = {directory + "/first.pb.gz", directory + "/second.pb.gz"};
  for (const std::string& file : files) ASSERT_EQ(RunExample({"tile_functions", file}).exit_code, 0);
  for (const PprofTool& pprof : pprofs_) {
    SCOPED_TRACE(pprof.name);
    EXPECT_THAT(Top(pprof, {"-base", files[0], files[1]}), ::testing::IsEmpty());
    // Not only the sum: no sample is left.
    const CommandResult raw = pprof.Run({"-raw", "-base", files[0], files[1]});
    ASSERT_EQ(raw.exit_code, 0) << raw.err;
    EXPECT_THAT(raw.out, ::testing::ContainsRegex("\\[dflt\\]\n *Locations"));
  }
}

TEST_F(ExamplesTest, GrowingListDiffNamesOneFunction) {
  const std::string directory = NewDirectory();
  const CommandResult run = RunExample({"growing_list", directory});
  ASSERT_EQ(run.exit_code, 0) << run.err;

  const std::string first = directory + "/memory1.pb.gz";
  const std::string last = directory + "/memory9.pb.gz";
  for (const PprofTool& pprof : pprofs_) {
    SCOPED_TRACE(pprof.name);
    std::vector<TopRow> rows = Top(pprof, {"-unit=bytes", "-diff_base", first, last});
    EXPECT_EQ(Cum(rows, "anotherfunc"), "1760000B");
    EXPECT_EQ(Cum(rows, "afunction"), "");
    rows = Top(pprof, {"-diff_base", first, last});
    EXPECT_EQ(Cum(rows, "anotherfunc"), "1.68MB");
    rows = Top(pprof, {"-sample_index=inuse_objects", "-diff_base", first, last});
    EXPECT_EQ(Cum(rows, "anotherfunc"), "8");
    EXPECT_EQ(Cum(rows, "afunction"), "");
  }
  for (int i = 1; i <= 9; ++i) {
    const ProfileView view = ViewProfile(directory + "/memory" + std::to_string(i) + ".pb.gz");
    EXPECT_EQ(view.SumUnder("inuse_space", "afunction"), 4000000);
    EXPECT_EQ(view.SumUnder("inuse_space", "anotherfunc"), 40000 * i * (i + 1) / 2);
  }
}

class LlmServerProgramTest : public ExamplesTest {
 protected:
  // Serves the first `count` of the bundled prompts, with short answers; false if that failed.
  bool Serve(int count, std::vector<std::string> options) {
    const std::string prompts = directory_ + "/prompts.txt";
    std::ifstream in(std::string(HBMPROF_SOURCE_DIR) + "/examples/llm_server/prompts.txt");
    std::ofstream out(prompts);
    std::string line;
    for (int i = 0; i < count && std::getline(in, line); ++i) out << line << "\n";
    out.close();

    std::vector<std::string> argv = {"llm_server", "--max-tokens", "24", "--before", before_, "--after", after_};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.push_back(prompts);
    run_ = RunExample(argv);
    EXPECT_EQ(run_.exit_code, 0) << run_.err;
    return run_.exit_code == 0;
  }

  // Returns the integers in the line of the output that begins with `word`.
  std::vector<int64_t> Printed(const std::string& word) const {
    std::istringstream lines(run_.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(word + " ", 0) != 0) continue;
      for (char& c : line) c = c >= '0' && c <= '9' ? c : ' ';
      std::istringstream numbers(line);
      return std::vector<int64_t>(std::istream_iterator<int64_t>(numbers), {});
    }
    ADD_FAILURE() << "no line begins with \"" << word << "\" in: " << run_.out;
    return std::vector<int64_t>(4);
  }

  const std::string directory_ = NewDirectory();
  const std::string before_ = directory_ + "/before.pb.gz";
  const std::string after_ = directory_ + "/after.pb.gz";
  CommandResult run_;
};

TEST_F(LlmServerProgramTest, DiffShowsTheExactLeak) {
  ASSERT_TRUE(Serve(12, {"--leak"}));
  const std::vector<int64_t> leaked = Printed("leaked");
  const int64_t pages = leaked[0];
  ASSERT_GE(pages, 10) << run_.out;
  ASSERT_EQ(leaked[2], pages * leaked[1]);

  for (const PprofTool& pprof : pprofs_) {
    SCOPED_TRACE(pprof.name);
    std::vector<TopRow> rows = Top(pprof, {"-unit=bytes", "-diff_base", before_, after_});
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows[0].function, "llm::KvCache::AllocatePage");
    EXPECT_EQ(rows[0].flat, std::to_string(leaked[2]) + "B");
    EXPECT_EQ(Cum(rows, "main"), std::to_string(leaked[2]) + "B");
    rows = Top(pprof, {"-sample_index=inuse_objects", "-diff_base", before_, after_});
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows[0].flat, std::to_string(pages));
    // No other function holds more or less than before.
    for (size_t i = 1; i < rows.size(); ++i) EXPECT_EQ(rows[i].flat, "0") << rows[i].function;
  }
}

TEST_F(LlmServerProgramTest, DiffWithoutLeakIsZero) {
  ASSERT_TRUE(Serve(12, {}));
  EXPECT_THAT(Printed("leaked"), ElementsAre(0, 131072, 0));
  EXPECT_GT(Printed("requests")[2], 0) << "no request was cancelled";
  for (const PprofTool& pprof : pprofs_) {
    SCOPED_TRACE(pprof.name);
    for (const TopRow& row : Top(pprof, {"-unit=bytes", "-diff_base", before_, after_})) {
      EXPECT_EQ(row.cum, "0") << row.function;
    }
  }
  const ProfileView before = ViewProfile(before_);
  const ProfileView after = ViewProfile(after_);
  EXPECT_GT(before.Sum("inuse_space"), 0);
  EXPECT_EQ(after.Sum("inuse_space"), before.Sum("inuse_space"));
  EXPECT_EQ(after.SumUnder("inuse_space", "llm::KvCache::AllocatePage"), 0);
}

TEST_F(LlmServerProgramTest, ProfilesHaveTags) {
  ASSERT_TRUE(Serve(12, {"--leak"}));
  const ProfileView before = ViewProfile(before_);
  const ProfileView after = ViewProfile(after_);
  // Weights stay; activations come and go.
  EXPECT_GT(before.SumWhere("inuse_space", "allocator", "weights"), 1 << 20);
  EXPECT_EQ(after.SumWhere("inuse_space", "allocator", "weights"),
            before.SumWhere("inuse_space", "allocator", "weights"));
  EXPECT_EQ(after.SumWhere("inuse_space", "allocator", "activations"), 0);
  EXPECT_GT(after.SumWhere("alloc_space", "allocator", "activations"), 1 << 20);

  // Every leaked page has a class and a phase.
  const int64_t leaked = Printed("leaked")[2];
  const auto in_use = [&](const char* label, const char* value) { return after.SumWhere("inuse_space", label, value); };
  EXPECT_EQ(in_use("allocator", "kv_cache"), leaked);
  EXPECT_EQ(in_use("request_class", "chat") + in_use("request_class", "batch"), leaked);
  EXPECT_EQ(in_use("phase", "prefill") + in_use("phase", "decode"), leaked);
  EXPECT_GT(in_use("phase", "prefill"), 0);
  EXPECT_GT(in_use("phase", "decode"), 0);
  EXPECT_GT(after.SumWhere("alloc_space", "request_class", "batch"), 0);
}

TEST_F(LlmServerProgramTest, FullKvCacheEndsOnlyRequests) {
  ASSERT_TRUE(Serve(12, {"--leak", "--kv-pages", "30"}));
  const std::vector<int64_t> requests = Printed("requests");
  EXPECT_EQ(requests[0], 12);
  EXPECT_EQ(requests[1] + requests[2] + requests[3], 12);
  EXPECT_GT(requests[1], 0);
  EXPECT_GT(requests[3], 0);
  EXPECT_LE(Printed("leaked")[0], 30);
}

TEST_F(LlmServerProgramTest, AnswersAreReproducible) {
  const auto sorted_answers = [this] {
    std::vector<std::string> answers;
    std::istringstream lines(run_.out);
    for (std::string line; std::getline(lines, line);) {
      if (line[0] == '#') answers.push_back(line);
    }
    std::sort(answers.begin(), answers.end());
    return answers;
  };
  ASSERT_TRUE(Serve(6, {"--answers"}));
  const std::vector<std::string> expected = sorted_answers();
  EXPECT_EQ(expected.size(), 6u);
  ASSERT_TRUE(Serve(6, {"--answers", "--batch", "1"}));
  EXPECT_EQ(sorted_answers(), expected);
}

TEST_F(LlmServerProgramTest, ServesNoPrompts) {
  ASSERT_TRUE(Serve(0, {}));
  EXPECT_THAT(Printed("requests"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Printed("leaked"), ElementsAre(0, 131072, 0));
}

// A call with wrong arguments prints one line with the error, and its exit status is not 0.
TEST(ExamplesUsageTest, WrongArgumentsFail) {
  const std::string missing = NewDirectory() + "/missing/profile.pb.gz";
  EXPECT_EQ(RunExample({"tile_functions"}).exit_code, 2);
  EXPECT_EQ(RunExample({"growing_list"}).exit_code, 2);
  EXPECT_EQ(RunExample({"llm_server", "--leek"}).exit_code, 2);

  CommandResult run = RunExample({"tile_functions", missing});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr(missing));
  run = RunExample({"growing_list", missing});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr(missing));
  run = RunExample({"llm_server", "--before", missing});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr(missing));
  run = RunExample({"llm_server", missing});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("cannot read " + missing));
  run = RunExample({"llm_server", "--batch", "many"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("\"many\" is not a number from 1 to 1024"));
}

}  // namespace
