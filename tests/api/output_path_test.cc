// Patterns in the paths of profiles.

#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "src/api/output/output_file.h"

namespace hbmprof::internal {
namespace {

std::string Expand(const std::string& pattern, int number = 0) { return OutputPattern(pattern).Path(number); }

TEST(OutputPath, IsUnchangedWithoutPercentSigns) {
  EXPECT_EQ(Expand(""), "");
  EXPECT_EQ(Expand("/tmp/a b.pb.gz"), "/tmp/a b.pb.gz");
}

TEST(OutputPath, ReplacesProcessIdNumberAndPercentSign) {
  const std::string process = std::to_string(getpid());
  EXPECT_EQ(Expand("/d/%p.%p.pb.gz"), "/d/" + process + "." + process + ".pb.gz");
  EXPECT_EQ(Expand("%n-%p-%n", 12), "12-" + process + "-12");
  EXPECT_EQ(Expand("100%%p"), "100%p");
  EXPECT_EQ(Expand("%%%%"), "%%");
}

TEST(OutputPath, OtherPercentSignsStay) { EXPECT_EQ(Expand("%x 5% %"), "%x 5% %"); }

TEST(OutputPath, ReportsTheFieldsOfThePattern) {
  EXPECT_TRUE(OutputPattern("%p").has_process());
  EXPECT_FALSE(OutputPattern("%p").has_number());
  EXPECT_TRUE(OutputPattern("%n").has_number());
  EXPECT_FALSE(OutputPattern("%%n").has_number());
  EXPECT_FALSE(OutputPattern("%%p").has_process());
}

TEST(OutputPath, NumberGoesBeforeTheSuffix) {
  EXPECT_EQ(BeforeEnding("/d/a.pb.gz", ".2"), "/d/a.2.pb.gz");
  EXPECT_EQ(BeforeEnding("/d/a", ".2"), "/d/a.2");
  EXPECT_EQ(BeforeEnding(".pb.gz", ".2"), ".pb.gz.2");
  EXPECT_EQ(RecordingBeside("/d/a.pb.gz"), "/d/a.hbmrec");
  EXPECT_EQ(RecordingBeside("/d/a"), "/d/a.hbmrec");
}

TEST(OutputPath, NoTwoThreadsGetTheSameNumber) {
  std::vector<std::vector<int>> numbers(4);
  std::vector<std::thread> threads;
  for (std::vector<int>& own : numbers) {
    threads.emplace_back([&own] {
      for (int i = 0; i < 500; ++i) own.push_back(NextOutputNumber());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int> distinct;
  for (const std::vector<int>& own : numbers) distinct.insert(own.begin(), own.end());
  EXPECT_EQ(distinct.size(), 2000u);
}

}  // namespace
}  // namespace hbmprof::internal
