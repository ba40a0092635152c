// Profiles in both pprof viewers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "hbmprof/pprof.h"
#include "tests/export/server_snapshot.h"
#include "tests/support/pprof_tool.h"
#include "tests/support/profile_checker.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof_test {

void PrintTo(const PprofTool& tool, std::ostream* out) { *out << tool.name; }

namespace {

using hbmprof::Snapshot;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Viewer : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (PprofTool& tool : PprofTools()) {
      if (tool.name == GetParam()) tool_ = tool;
    }
    if (tool_.command.empty()) GTEST_SKIP() << GetParam() << " is not installed (Debian: golang-go)";
  }

  std::string File(const std::string& name) { return directory_ + "/" + name; }

  // The file that holds the profile of `snapshot`.
  std::string Save(const std::string& name, const Snapshot& snapshot, bool with_names = true) {
    FakeSymbolizer symbolizer = ServerSymbolizer();
    const std::string path = File(name);
    const absl::Status status = WritePprof(snapshot, with_names ? &symbolizer : nullptr, path);
    EXPECT_TRUE(status.ok()) << status;
    return path;
  }

  // Returns the output of the viewer, which must succeed.
  std::string View(const std::vector<std::string>& arguments) {
    const CommandResult result = tool_.Run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    last_error_output_ = result.err;
    return result.out;
  }

  PprofTool tool_;
  const std::string directory_ = NewDirectory();
  std::string last_error_output_;
};

// The flat and cumulative values of a function in a -top listing, as printed; "" if it has no line.
std::string TopLine(const std::string& listing, const std::string& function) {
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string flat, flat_share, sum, cumulative, share, name;
    if (!(words >> flat >> flat_share >> sum >> cumulative >> share >> std::ws)) continue;
    if (std::getline(words, name) && name == function) return flat + " " + cumulative;
  }
  return "";
}

// Returns the part of `text` between `before` and `after`.
std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.find(before);
  const size_t end = begin == std::string::npos ? begin : text.find(after, begin + before.size());
  if (end == std::string::npos) return "nothing between in: " + text;
  return text.substr(begin + before.size(), end - begin - before.size());
}

TEST_P(Viewer, TopShowsInUseByFunction) {
  const std::string listing = View({"-top", "-unit=bytes", "-nodefraction=0", Save("a.pb.gz", ServerSnapshot())});
  EXPECT_THAT(listing, HasSubstr("Type: inuse_space\n"));
  EXPECT_THAT(listing, HasSubstr("of 6295552B total"));
  EXPECT_EQ(TopLine(listing, "app::LoadWeights"), "2097152B 2097152B");
  EXPECT_EQ(TopLine(listing, "app::Decode"), "393216B 393216B");
  EXPECT_EQ(TopLine(listing, "app::Server::Run"), "0 393216B");
  EXPECT_EQ(TopLine(listing, "[idle memory of bfc]"), "3801088B 3801088B");
  EXPECT_EQ(TopLine(listing, "[no stack]"), "4096B 4096B");
  EXPECT_EQ(TopLine(listing, "main"), "0 2490368B");
}

TEST_P(Viewer, TopBeginsWithTheComments) {
  const std::string listing = View({"-top", Save("a.pb.gz", ServerSnapshot())});
  EXPECT_THAT(listing, HasSubstr("device GPU:0 space=device in_use=6291456 peak=6291456 num_allocs=18"));
  EXPECT_THAT(listing, HasSubstr("dropped_records=3 dropped_bytes=12288"));
}

TEST_P(Viewer, EverySampleTypeCanBeChosen) {
  const std::string profile = Save("a.pb.gz", ServerSnapshot());
  const auto top = [&](const std::string& type) {
    const bool is_bytes = type.find("space") != std::string::npos;
    return TopLine(View({"-top", is_bytes ? "-unit=bytes" : "-unit=count", "-sample_index=" + type, profile}),
                   "app::Decode");
  };
  EXPECT_EQ(top("alloc_objects"), "18 18");
  EXPECT_EQ(top("alloc_space"), "983340B 983340B");  // 15 pages and 300 bytes
  EXPECT_EQ(top("peak_objects"), "12 12");
  EXPECT_EQ(top("peak_space"), "590124B 590124B");  // 9 pages and 300 bytes
  EXPECT_EQ(top("inuse_objects"), "6 6");
  EXPECT_EQ(top("inuse_space"), "393216B 393216B");
  EXPECT_THAT(View({"-top", "-inuse_objects", profile}), HasSubstr("Type: inuse_objects"));
  EXPECT_THAT(View({"-top", "-alloc_space", profile}), HasSubstr("Type: alloc_space"));
}

TEST_P(Viewer, PeekShowsCallersAndCallees) {
  const std::string text = View({"-peek=app::Server::Run", "-unit=bytes", Save("a.pb.gz", ServerSnapshot())});
  EXPECT_THAT(text, ContainsRegex("393216B +100% +\\| +main"));
  EXPECT_THAT(text, ContainsRegex("393216B +100% +\\| +app::Decode"));
}

TEST_P(Viewer, TagsListsEveryLabel) {
  const std::string text = View({"-tags", "-unit=bytes", Save("a.pb.gz", ServerSnapshot())});
  for (const char* line :
       {"6291456.0B .*: GPU:0", "4096.0B .*: GPU 1=b", "2490368.0B .*: device", "3801088.0B .*: pool",
        "4096.0B .*: managed", "4194304.0B .*: bfc", "262144.0B .*: decode", "131072.0B .*: prefill",
        "393216.0B .*: chat", "2097152.0B .*: 1048576B", "393216.0B .*: 65536B"}) {
    EXPECT_THAT(text, ContainsRegex(line));
  }
}

TEST_P(Viewer, TagfocusSelectsTheTag) {
  const std::string profile = Save("a.pb.gz", ServerSnapshot());
  const auto total = [&](const std::string& focus) {
    return Between(View({"-top", "-unit=bytes", "-tagfocus=" + focus, profile}), "accounting for ", ",");
  };
  EXPECT_EQ(total("phase=decode"), "262144B");
  EXPECT_EQ(total("phase=prefill"), "131072B");
  EXPECT_EQ(total("device=GPU:0"), "6291456B");
  EXPECT_EQ(total("kind=pool"), "3801088B");
  EXPECT_EQ(total("bytes=65536b"), "393216B");
  EXPECT_EQ(total("bytes=512kb:"), "2097152B");
}

TEST_P(Viewer, DiffBaseShowsOnlyGrowth) {
  const std::string before = Save("a.pb.gz", ServerSnapshot(1));
  const std::string after = Save("b.pb.gz", ServerSnapshot(9));
  const std::string listing =
      View({"-top", "-unit=bytes", "-nodefraction=0", "-tagfocus=kind=device", "-diff_base", before, after});
  EXPECT_EQ(TopLine(listing, "app::Decode"), "524288B 524288B");
  EXPECT_EQ(TopLine(listing, "app::LoadWeights"), "");  // viewers leave out rows that are zero
}

// Profiles of earlier versions have no ages. The differences are the same.
TEST_P(Viewer, DiffOfProfilesWithAndWithoutAges) {
  const auto save = [&](const std::string& name, int64_t pages, bool has_ages) {
    Snapshot snapshot = ServerSnapshot(pages);
    if (!has_ages) snapshot.uptime_seconds.reset();
    return Save(name, snapshot);
  };
  const auto diff = [&](bool before_has, bool after_has) {
    const std::string before = save("before.pb.gz", 1, before_has);
    const std::string after = save("after.pb.gz", 9, after_has);
    // Lines with equal values have no fixed order. The comments at the begin differ.
    std::multiset<std::string> lines;
    for (const char* base : {"-base", "-diff_base"}) {
      for (const char* report : {"-top", "-tags"}) {
        std::istringstream all(View({report, "-unit=bytes", "-nodefraction=0", base, before, after}));
        for (std::string line; std::getline(all, line);) {
          if (line.rfind("hbmprof ", 0) != 0) lines.insert(line);
        }
      }
    }
    return lines;
  };
  const std::multiset<std::string> without = diff(false, false);
  EXPECT_THAT(without, testing::Contains(HasSubstr("524288B")));
  EXPECT_EQ(diff(false, true), without);
  EXPECT_EQ(diff(true, true), without);
}

TEST_P(Viewer, DiffOfEqualProfilesIsZero) {
  const std::string before = Save("a.pb.gz", ServerSnapshot());
  const std::string after = Save("b.pb.gz", ServerSnapshot());
  EXPECT_THAT(View({"-top", "-unit=bytes", "-diff_base", before, after}),
              HasSubstr("Showing nodes accounting for 0, 0%"));
  EXPECT_THAT(View({"-top", "-unit=bytes", "-base", before, after}), HasSubstr("Showing nodes accounting for 0, 0%"));
}

// With and without names: unchanged samples cancel out although the modules were loaded at other addresses.
TEST_P(Viewer, BaseCancelsAcrossLoadAddresses) {
  for (const bool with_names : {true, false}) {
    const std::string before = Save("a.pb.gz", ServerSnapshot(1), with_names);
    const std::string after = Save("b.pb.gz", ServerSnapshot(9, 0x7654000), with_names);
    const std::string difference = File("diff.pb.gz");
    View({"-proto", "-symbolize=none", "-output=" + difference, "-base", before, after});
    const absl::StatusOr<Profile> profile = ReadProfile(difference);
    ASSERT_TRUE(profile.ok()) << profile.status();
    const ProfileView view(*profile);
    ASSERT_EQ(view.samples.size(), 2u) << DescribeProfile(*profile);
    EXPECT_EQ(view.SumWhere("inuse_space", "phase", "decode"), 8 * kPageBytes);
    EXPECT_EQ(view.SumWhere("inuse_space", "kind", "pool"), -8 * kPageBytes);
  }
}

TEST_P(Viewer, ReadsAProfileWithoutNames) {
  const std::string listing =
      View({"-top", "-unit=bytes", "-symbolize=none", Save("a.pb.gz", ServerSnapshot(), false)});
  EXPECT_THAT(listing, HasSubstr("of 6295552B total"));
  EXPECT_THAT(listing, HasSubstr("[libmodel.so]"));
}

TEST_P(Viewer, ReadsAnEmptyProfile) {
  Snapshot snapshot;
  snapshot.time_unix_nanos = 1;
  EXPECT_THAT(View({"-top", Save("a.pb.gz", snapshot)}), HasSubstr("Showing nodes accounting for 0, 0% of 0 total"));
}

TEST_P(Viewer, SumsProfilesOfProcesses) {
  const std::string a = Save("a.pb.gz", ServerSnapshot());
  const std::string b = Save("b.pb.gz", ServerSnapshot(4, 0x1000));
  EXPECT_EQ(TopLine(View({"-top", "-unit=bytes", a, b}), "app::LoadWeights"), "4194304B 4194304B");
}

TEST_P(Viewer, HidesOnlyOwnFrames) {
  FakeSymbolizer symbolizer;
  const char* const names[] = {"hbmprof::internal::ProfilerImpl::Record", "hbmprof::Profiler::RecordAlloc",
                               "hbmprof_app::Profiler::Run", "app::hbmprof::internal::Run", "main"};
  Snapshot snapshot;
  snapshot.modules = {{0x10000, 0x11000, 0, 0x10000, "/bin/app", ""}};
  snapshot.stacks.resize(1);
  uint64_t address = 0x10;
  for (const char* name : names) {
    symbolizer.Add("/bin/app", address, address + 0x10, std::string("_Z") + name, name);
    snapshot.stacks[0].return_addresses.push_back(0x10000 + address + 1);
    address += 0x10;
  }
  snapshot.devices.resize(1);
  snapshot.devices[0].name = "GPU:0";
  snapshot.allocators = {""};
  snapshot.samples.resize(1);
  snapshot.samples[0].inuse_bytes = 64;
  snapshot.time_unix_nanos = 1;
  const std::string path = File("a.pb.gz");
  ASSERT_TRUE(WritePprof(snapshot, &symbolizer, path).ok());
  const std::string listing = View({"-top", path});
  EXPECT_EQ(TopLine(listing, "hbmprof_app::Profiler::Run"), "64B 64B") << listing;
  EXPECT_EQ(TopLine(listing, "app::hbmprof::internal::Run"), "0 64B") << listing;
  EXPECT_THAT(listing, Not(HasSubstr("RecordAlloc")));
  EXPECT_THAT(listing, Not(HasSubstr("ProfilerImpl")));
}

TEST_P(Viewer, SvgShowsTheLeak) {
  if (RunCommand({"dot", "-V"}).exit_code != 0) GTEST_SKIP() << "graphviz is not installed";
  const std::string before = Save("a.pb.gz", ServerSnapshot(1));
  const std::string after = Save("b.pb.gz", ServerSnapshot(9));
  const std::string picture = File("diff.svg");
  View({"-svg", "-output=" + picture, "-diff_base", before, after});
  std::ifstream file(picture);
  const std::string svg{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(svg, HasSubstr("<svg"));
  EXPECT_THAT(svg, HasSubstr("Decode"));
}

TEST_P(Viewer, PrintsNoWarnings) {
  View({"-top", "-symbolize=none", Save("a.pb.gz", ServerSnapshot())});
  EXPECT_EQ(last_error_output_, "");
}

INSTANTIATE_TEST_SUITE_P(Pprof, Viewer, testing::Values("go_tool_pprof", "google_pprof"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hbmprof_test
