// Patterns in the paths of profiles.

#include "src/api/output_path.h"

#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

TEST(OutputPath, WithoutPercentSignsStaysAsItIs) {
  EXPECT_EQ(ExpandOutputPath(""), "");
  EXPECT_EQ(ExpandOutputPath("/tmp/a b.pb.gz"), "/tmp/a b.pb.gz");
}

TEST(OutputPath, ProcessIdAndPercentSignAreFilledIn) {
  EXPECT_EQ(ExpandOutputPath("/d/%p.%p.pb.gz"),
            "/d/" + std::to_string(getpid()) + "." + std::to_string(getpid()) + ".pb.gz");
  EXPECT_EQ(ExpandOutputPath("100%%p"), "100%p");
  EXPECT_EQ(ExpandOutputPath("%%%%"), "%%");
}

TEST(OutputPath, OtherPercentSignsStay) { EXPECT_EQ(ExpandOutputPath("%x 5% %"), "%x 5% %"); }

TEST(OutputPath, TheNumberCountsUpWithEachPatternThatHoldsOne) {
  const int first = std::stoi(ExpandOutputPath("%n"));
  ExpandOutputPath("no number %p %%n");
  EXPECT_EQ(ExpandOutputPath("%n-%n"), std::to_string(first + 1) + "-" + std::to_string(first + 1));
  EXPECT_EQ(ExpandOutputPath("%n"), std::to_string(first + 2));
}

TEST(OutputPath, NoTwoThreadsGetTheSameNumber) {
  std::vector<std::vector<std::string>> paths(4);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& own : paths) {
    threads.emplace_back([&own] {
      for (int i = 0; i < 500; ++i) own.push_back(ExpandOutputPath("%n"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> distinct;
  for (const std::vector<std::string>& own : paths) distinct.insert(own.begin(), own.end());
  EXPECT_EQ(distinct.size(), 2000u);
}

}  // namespace
}  // namespace hbmprof::internal
