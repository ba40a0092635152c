// Sums and differences of profiles, metrics of several processes as one text, and the memory for their answers.
#include "src/tool/profile/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "src/tool/profile/profile.h"
#include "src/tool/serve/metrics_text.h"
#include "src/tool/symbols/profile_symbols.h"
#include "tests/support/profile_checker.h"
#include "tests/support/temporary_directory.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using hbmprof::tool::Ages;
using hbmprof::tool::MergeMetrics;
using hbmprof::tool::ParseWithLines;
using hbmprof::tool::ProfileMerger;
using hbmprof::tool::ProfileSet;
using hbmprof::tool::RawProfile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RawProfile Parsed(const ProfileMaker& maker) { return *hbmprof::tool::ParseProfile(maker.Bytes(), "made"); }

ProfileView Taken(ProfileMerger& merger) {
  const std::string bytes = *merger.Take();
  EXPECT_TRUE(hbmprof::tool::ParseProfile(bytes, "merged").ok());
  const auto profile = ParseProfile(bytes);
  for (int i = 0; i < profile->location_size(); ++i) EXPECT_EQ(profile->location(i).id(), i + 1u);
  for (int i = 0; i < profile->function_size(); ++i) EXPECT_EQ(profile->function(i).id(), i + 1u);
  return ProfileView(*profile);
}

// Bytes at the stacks `leaf` < main, in the order of their names, so that equal frames have different ids.
ProfileMaker Dump(const std::map<std::string, int64_t>& bytes) {
  ProfileMaker maker;
  for (const auto& [leaf, value] : bytes) {
    maker.Sample({maker.Frame(leaf, "/src/" + leaf, 3), maker.Frame("main")}, {value / 10, value},
                 {{"device", "GPU:0"}, {"phase", leaf}});
  }
  return maker;
}

TEST(ProfileMergerTest, EqualStacksBecomeOneSample) {
  ProfileMerger merger;
  EXPECT_TRUE(merger.Add(Parsed(Dump({{"b", 100}, {"c", 10}})), {}).ok());
  EXPECT_TRUE(merger.Add(Parsed(Dump({{"a", 1000}, {"b", 200}})), {}).ok());
  const ProfileView view = Taken(merger);
  EXPECT_EQ(view.samples.size(), 3u);
  EXPECT_EQ(view.SumUnder("inuse_space", "b"), 300);
  EXPECT_EQ(view.SumUnder("inuse_space", "main"), 1310);
  EXPECT_EQ(view.SumUnder("inuse_objects", "main"), 131);
}

// A profile of one sample, whose buffers were born in the given classes, all of 100 bytes.
ProfileMaker DumpWithAges(uint32_t width_log2, uint32_t first, const std::vector<int64_t>& counts,
                          const std::vector<int64_t>& freed) {
  const int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  ProfileMaker maker;
  auto& sample = maker.Sample({maker.Frame("main")}, {count, 100 * count}, {{"device", "GPU:0"}});
  sample.mutable_ages()->set_class_width_log2(width_log2);
  sample.mutable_ages()->set_first_class(first);
  for (const int64_t born : counts) {
    sample.mutable_ages()->add_born_counts(born);
    sample.mutable_ages()->add_born_bytes(100 * born);
  }
  for (const int64_t one : freed) sample.mutable_ages()->add_freed_by_octave(one);
  maker.Comment("hbmprof version=1 uptime=500");
  return maker;
}

TEST(AgesTest, AreAddedUpInTheWiderClasses) {
  ProfileMerger merger;
  EXPECT_TRUE(merger.Add(Parsed(DumpWithAges(3, 5, {1, 2, 3, 0, 4}, {7})), {}).ok());
  EXPECT_TRUE(merger.Add(Parsed(DumpWithAges(4, 1, {10, 20}, {0, 0, 1})), {}).ok());
  EXPECT_TRUE(merger.Add(Parsed(Dump({{"without", 100}})), {}).ok());
  const auto profiles = ParseWithLines({{"merged", *merger.Take()}});
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  const ProfileSet::File& file = profiles->files()[0];
  EXPECT_EQ(file.info.UptimeSeconds(), 500);
  ASSERT_EQ(file.samples.size(), 2u);
  const Ages& ages = profiles->ages(file.samples[0]);
  EXPECT_EQ(ages.class_width_log2, 4);
  EXPECT_EQ(ages.first_class, 1);
  EXPECT_THAT(ages.born_counts, ElementsAre(10, 21, 5, 4));  // 5 to 9 of width 3 are 2, 3, 3, 4, 4 of width 4
  EXPECT_THAT(ages.born_bytes, ElementsAre(1000, 2100, 500, 400));
  EXPECT_THAT(ages.freed_by_octave, ElementsAre(7, 0, 1));
  EXPECT_TRUE(profiles->ages(file.samples[1]).empty());
}

TEST(AgesTest, OutsideOfTheLimitsAreRefused) {
  const auto error_of = [](const ProfileMaker& maker) {
    return std::string(hbmprof::tool::ParseProfile(maker.Bytes(), "made").status().message());
  };
  EXPECT_EQ(error_of(DumpWithAges(40, 63, {1}, std::vector<int64_t>(24, 1))), "");
  EXPECT_THAT(error_of(DumpWithAges(41, 0, {1}, {})), HasSubstr("ages"));
  EXPECT_THAT(error_of(DumpWithAges(0, 64, {1}, {})), HasSubstr("ages"));
  EXPECT_THAT(error_of(DumpWithAges(0, UINT32_MAX, {1}, {})), HasSubstr("ages"));
  EXPECT_THAT(error_of(DumpWithAges(0, 0, std::vector<int64_t>(65, 1), {})), HasSubstr("ages"));
  EXPECT_THAT(error_of(DumpWithAges(0, 0, {1}, std::vector<int64_t>(25, 1))), HasSubstr("ages"));
  ProfileMaker uneven = DumpWithAges(0, 0, {1}, {});
  uneven.message().mutable_sample(0)->mutable_ages()->add_born_counts(1);
  EXPECT_THAT(error_of(uneven), HasSubstr("ages"));
}

// The dump was 500 s after the start; the classes of 16 s begin at 0, 32, 48 and 256 s.
TEST(AgesTest, SelectBuffersInTop) {
  const std::string file = NewDirectory() + "/made.pb.gz";
  std::vector<int64_t> counts(17);
  counts[0] = 5;
  counts[2] = counts[3] = 1;
  counts[16] = 9;
  DumpWithAges(4, 0, counts, {3}).Write(file);
  const auto older = [&](const std::string& limit) {
    return ToolJson({"top", "--older", limit, file})["selected"].get<int>();
  };
  const nlohmann::json top = ToolJson({"top", "--older", "436s", file});
  EXPECT_EQ(top["total"], 1600) << "percentages are of all live buffers";
  EXPECT_EQ(top["selected"], 700);
  EXPECT_EQ(older("1s"), 1600);
  EXPECT_EQ(older("228s"), 1600);
  EXPECT_EQ(older("229s"), 700) << "the limit cuts the class that begins at 256 s";
  EXPECT_EQ(older("437s"), 600);
  EXPECT_EQ(older("500s"), 0);
  const nlohmann::json classes = ToolJson({"top", "--by", "birth", "-t", "inuse_objects", file});
  ASSERT_EQ(classes["rows"].size(), 4u);
  EXPECT_EQ(classes["rows"][0]["labels"]["birth"], "256");
  EXPECT_EQ(classes["rows"][0]["flat"], 9);

  Dump({{"a", 100}}).Write(file);
  for (const std::vector<std::string>& options : {std::vector<std::string>{"--older", "10m"}, {"--by", "birth"}}) {
    const CommandResult result = RunTool({"top", options[0], options[1], file});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(file + ": has no ages of buffers"));
  }
  ProfileMaker named = Dump({{"birth", 100}});
  named.Write(file);
  EXPECT_THAT(RunTool({"top", "--by", "birth", file}).err, HasSubstr("has no ages of buffers"))
      << "the name of a function is not a label";
  ProfileMaker no_uptime = DumpWithAges(4, 0, {5}, {});
  no_uptime.message().clear_comment();
  no_uptime.Write(file);
  EXPECT_THAT(RunTool({"top", "--older", "10m", file}).err, HasSubstr("does not state its process's uptime"));
  DumpWithAges(4, 0, {5}, {}).Write(file);
  EXPECT_THAT(RunTool({"top", "--older", "soon", file}).err, HasSubstr("write a time such as 10m"));
  EXPECT_THAT(RunTool({"top", "--older", "1m", "-t", "alloc_space", file}).err, HasSubstr("alloc_space"));
}

TEST(ProfileMergerTest, AddsLabels) {
  ProfileMerger merger;
  const RawProfile profile = Parsed(Dump({{"a", 1}, {"b", 2}}));
  EXPECT_TRUE(merger.Add(profile, {{"pid", "7"}}).ok());
  EXPECT_TRUE(merger.Add(profile, {{"pid", "8"}}).ok());
  const ProfileView view = Taken(merger);
  EXPECT_EQ(view.samples.size(), 4u);
  EXPECT_EQ(view.SumWhere("inuse_space", "pid", "7"), 3);
}

TEST(ProfileMergerTest, LabelOfTheSameNameIsRenamed) {
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 100}, {{"pid", "inner"}, {"phase", "a"}});
  ProfileMerger merger;
  EXPECT_TRUE(merger.Add(Parsed(maker), {{"pid", "7"}, {"name", "n"}}).ok());
  const ProfileView view = Taken(merger);
  EXPECT_EQ(view.SumWhere("inuse_space", "pid", "7"), 100);
  EXPECT_EQ(view.SumWhere("inuse_space", "exported_pid", "inner"), 100);
  EXPECT_EQ(view.SumWhere("inuse_space", "pid", "inner"), 0) << "one label of each name";
}

TEST(ProfileMergerTest, TypesAreMatchedByName) {
  ProfileMaker one(
      std::vector<std::pair<std::string, std::string>>{{"inuse_objects", "count"}, {"inuse_space", "bytes"}});
  one.Sample({one.Frame("f")}, {1, 100});
  ProfileMaker other(std::vector<std::pair<std::string, std::string>>{{"inuse_space", "bytes"}});
  other.Sample({other.Frame("f")}, {7});
  ProfileMerger merger;
  EXPECT_TRUE(merger.Add(Parsed(one), {}).ok());
  EXPECT_TRUE(merger.Add(Parsed(other), {}).ok());
  const ProfileView view = Taken(merger);
  EXPECT_EQ(view.Sum("inuse_space"), 107);
  EXPECT_EQ(view.Sum("inuse_objects"), 1);
  ProfileMaker pages(std::vector<std::pair<std::string, std::string>>{{"inuse_space", "pages"}});
  ProfileMerger mixed;
  EXPECT_TRUE(mixed.Add(Parsed(one), {}).ok());
  EXPECT_FALSE(mixed.Add(Parsed(pages), {}).ok());
}

hbmprof::tool::ProcessMetrics Of(const std::string& id, const std::string& name, const std::string& text) {
  return {{{"pid", id}, {"name", name}}, text};
}

TEST(MergeMetricsTest, EachFamilyHasOneTypeAndEachSampleItsProcess) {
  const std::string text =
      "# HELP x_bytes Bytes.\n# TYPE x_bytes gauge\nx_bytes{device=\"GPU:0\"} 5\n"
      "# TYPE y_total counter\ny_total{} 7\ny_total 8\n";
  EXPECT_EQ(MergeMetrics({Of("1", "a", text), Of("2.1", "b", text)}),
            "# HELP x_bytes Bytes.\n# TYPE x_bytes gauge\n"
            "x_bytes{pid=\"1\",name=\"a\",device=\"GPU:0\"} 5\nx_bytes{pid=\"2.1\",name=\"b\",device=\"GPU:0\"} 5\n"
            "# TYPE y_total counter\n"
            "y_total{pid=\"1\",name=\"a\"} 7\ny_total{pid=\"1\",name=\"a\"} 8\n"
            "y_total{pid=\"2.1\",name=\"b\"} 7\ny_total{pid=\"2.1\",name=\"b\"} 8\n");
}

TEST(MergeMetricsTest, LabelOfTheSameNameIsRenamed) {
  EXPECT_EQ(MergeMetrics({Of("1", "a", "x{pid=\"9\",name=\"n\"} 1\n")}),
            "x{pid=\"1\",name=\"a\",exported_pid=\"9\",exported_name=\"n\"} 1\n");
}

TEST(MergeMetricsTest, LeavesOutInvalidLines) {
  EXPECT_EQ(
      MergeMetrics({Of("1", "a",
                       "x{l=\"\xff\"} 1\nx{l=\"open} 1\nx{l=1} 1\n1x 1\nx{} one\nx{}\nx 1 2 3\n{} 1\nx{l=\"\\\"} 1\n"
                       "x{l=\"fine \\\" }\"} 1\n")}),
      "x{pid=\"1\",name=\"a\",l=\"fine \\\" }\"} 1\n");
}

TEST(MergeMetricsTest, HostileNamesOfProcessesStayInTheirLabel) {
  const std::string merged = MergeMetrics({Of("1", "a\"} 1\nforged 1\n\\\xff", "x 1\n")});
  EXPECT_EQ(merged, "x{pid=\"1\",name=\"a\\\"} 1\\\\nforged 1\\\\n\\\\\\\\xff\"} 1\n");
}

}  // namespace
}  // namespace hbmprof_test
