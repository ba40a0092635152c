// top, diff and top --callers against the real pprof: the same rows, the same values to the byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <regex>
#include <sstream>

#include "hbmprof/pprof.h"
#include "tests/export/server_snapshot.h"
#include "tests/support/sanitized.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

struct RowValues {
  int64_t flat = 0;
  int64_t cum = 0;
  bool operator==(const RowValues& other) const { return flat == other.flat && cum == other.cum; }
};
void PrintTo(const RowValues& row, std::ostream* out) { *out << "flat " << row.flat << " cum " << row.cum; }
// Rows by name; several may share one.
using Rows = std::multimap<std::string, RowValues>;

bool operator<(const RowValues& a, const RowValues& b) { return std::tie(a.flat, a.cum) < std::tie(b.flat, b.cum); }
std::multimap<std::string, RowValues> Sorted(const Rows& rows) {
  std::vector<std::pair<std::string, RowValues>> list(rows.begin(), rows.end());
  std::sort(list.begin(), list.end());
  return {list.begin(), list.end()};
}

Rows PprofRows(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"-top", "-nodefraction=0", "-edgefraction=0", "-unit=bytes"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const CommandResult result = GooglePprof().Run(all);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Rows rows;
  std::istringstream lines(result.out);
  std::string line;
  // A share may be "0" or "100%" instead of "12.34%".
  const std::regex row(R"(^ *(-?\d+)[a-zA-Z]* +\S+ +\S+ +(-?\d+)[a-zA-Z]* +\S+ +(.*?)( \((partial-)?inline\))?$)");
  bool head = false;
  while (std::getline(lines, line)) {
    std::smatch match;
    if (head) {
      if (!std::regex_match(line, match, row)) {
        ADD_FAILURE() << "not understood: " << line;
        continue;
      }
      rows.emplace(match[3], RowValues{std::stoll(match[1]), std::stoll(match[2])});
    }
    head = head || line.find("flat%") != std::string::npos;
  }
  EXPECT_TRUE(head) << result.out;
  return Sorted(rows);
}

// The function, line or file.
std::string NameOf(const nlohmann::json& row) {
  for (const char* key : {"function", "line"}) {
    if (row.contains(key)) return row[key];
  }
  return row["file"];
}

Rows ToolRows(std::vector<std::string> arguments) {
  Rows rows;
  arguments.push_back("--no-own");  // pprof shows all frames
  const nlohmann::json json = ToolJson(arguments);
  if (!json.is_object()) return rows;
  for (const auto& row : json["rows"]) {
    rows.emplace(NameOf(row), RowValues{row["flat"].get<int64_t>(), row["cum"].get<int64_t>()});
  }
  return Sorted(rows);
}

// Rows of the command, which may print warnings about filters that match nothing.
Rows FilteredRows(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = arguments;
  all.insert(all.end(), {"--json", "--no-own", "-n", "0"});
  const CommandResult result = RunTool(all);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Rows rows;
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  if (!json.is_object()) return rows;
  for (const auto& row : json["rows"]) {
    rows.emplace(NameOf(row), RowValues{row["flat"].get<int64_t>(), row["cum"].get<int64_t>()});
  }
  return Sorted(rows);
}

// One option of pprof's filters, as pprof and as the command write it.
struct Filter {
  std::string name;
  std::string value;
};
using Filters = std::vector<Filter>;

struct Made {
  std::string name;
  std::string path;
  std::string other;  // a second profile of the same source, to compare with
};

std::string SaveOurs(const std::string& dir, const std::string& name, int64_t pages, uint64_t slide, bool names) {
  FakeSymbolizer symbolizer = ServerSymbolizer();
  const std::string path = dir + "/" + name;
  hbmprof::Snapshot snapshot = ServerSnapshot(pages, slide);
  snapshot.process_id += pages;  // other pages, another process
  const auto bytes = hbmprof::SerializePprof(snapshot, names ? &symbolizer : nullptr);
  WriteFile(path, *bytes);
  return path;
}

// As JAX writes device memory: no mapping, no address, no default.
ProfileMaker Jax(int seed) {
  ProfileMaker maker({{"allocations", "count"}, {"space", "bytes"}});
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int i = 0; i < 60; ++i) {
    std::vector<uint64_t> stack;
    for (unsigned depth = random() % 9 + 1; depth > 0; --depth) {
      const std::string n = std::to_string(random() % 12);
      stack.push_back(maker.Location(
          0, 0, {{maker.Function("layer_" + n, "layer_" + n, "/app/model.py"), static_cast<int64_t>(random() % 50)}}));
    }
    maker.Sample(stack, {static_cast<int64_t>(random() % 4 + 1), static_cast<int64_t>(random() % (1 << 20))},
                 {{"kind", i % 7 == 0 ? "executable" : "buffer"}, {"device", "TPU_" + std::to_string(i % 4)}});
  }
  return maker;
}

// As tcmalloc writes: mangled names, inlined frames, six types, allocator frames to drop and one to keep.
ProfileMaker Tcmalloc(int seed) {
  ProfileMaker maker({{"objects", "count"}, {"space", "bytes"}, {"resident_space", "bytes"}});
  maker.message().set_default_sample_type(maker.Text("space"));
  maker.message().set_drop_frames(maker.Text("(tcmalloc::)?(operator new|tc_malloc|Wrap.*)"));
  maker.message().set_keep_frames(maker.Text("WrapKept"));
  const uint64_t binary = maker.Mapping(0x400000, 0x800000, 0, "/srv/app", "aa11");
  const uint64_t library = maker.Mapping(0x7f0000000000, 0x7f0000200000, 0x1000, "/lib/libx.so", "bb22", false);
  std::vector<uint64_t> functions = {
      maker.Function("_ZN2ns5Class6methodEi", "_ZN2ns5Class6methodEi", "/src/class.cc"),
      maker.Function("ns::Inner<int>::f(std::vector<int> const&)", "ns::Inner<int>::f(std::vector<int> const&)"),
      maker.Function("main", "main", "/src/main.cc"),
      maker.Function("WrapKept", "WrapKept"),
      maker.Function("WrapAlloc(unsigned long)", "_Z9WrapAllocm"),
      maker.Function("operator new", "_Znwm"),
      maker.Function("ns::(anonymous namespace)::Helper(int)", "_ZN2ns12_GLOBAL__N_16HelperEi", "/src/helper.cc"),
      maker.Function("", "_Z5emptyv")};
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<uint64_t> locations;
  for (int i = 0; i < 40; ++i) {
    std::vector<ProfileMaker::Line> lines;
    for (unsigned inlined = random() % 3 + 1; inlined > 0; --inlined) {
      lines.push_back({functions[random() % functions.size()], static_cast<int64_t>(random() % 30)});
    }
    locations.push_back(maker.Location(binary, 0x400000 + static_cast<uint64_t>(i) * 16, lines));
  }
  for (int i = 0; i < 5; ++i) {
    locations.push_back(maker.Location(library, 0x7f0000000000 + static_cast<uint64_t>(i) * 8, {}));
    locations.push_back(maker.Location(0, 0x1234 + static_cast<uint64_t>(i), {}));
  }
  for (int i = 0; i < 200; ++i) {
    std::vector<uint64_t> stack;
    for (unsigned depth = random() % 20; depth > 0; --depth) stack.push_back(locations[random() % locations.size()]);
    auto& sample = maker.Sample(stack, {1, static_cast<int64_t>(random() % 100000), 4096});
    maker.NumberLabel(sample, "bytes", static_cast<int64_t>(random() % 5) * 16, "bytes");
  }
  return maker;
}

// Writes a profile in the text format of gperftools, which the command does not read, and converts it with pprof.
void Gperftools(const std::string& path, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::string text = "heap profile:    100:  100000 [   200:   300000] @ heapprofile\n";
  char line[256];
  for (int i = 0; i < 50; ++i) {
    std::snprintf(line, sizeof(line), "%6u: %8u [%6u: %8u] @", i + 1u, (i + 1u) * 64, i + 2u, (i + 2u) * 64);
    text += line;
    for (unsigned depth = random() % 12 + 1; depth > 0; --depth) {
      std::snprintf(line, sizeof(line), " 0x%x", 0x401000 + static_cast<unsigned>(random() % 64) * 16);
      text += line;
    }
    text += "\n";
  }
  text += "\nMAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 08:01 1234 /nowhere/server\n";
  WriteFile(path + ".heap", text);
  const CommandResult result = GooglePprof().Run({"-proto", "-symbolize=none", "-output=" + path, path + ".heap"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// Writes the heap profile of a real Go program. Returns false if Go is not installed.
bool GoHeap(const std::string& path) {
  return RunCommand({"go", "run", HBMPROF_GO_HEAP, path}, {"GO111MODULE=off"}).exit_code == 0;
}

// Profiles that the format allows but no program writes: recursion, negative values, two equal stacks, no stack, sparse
// ids, code without any name.
ProfileMaker Odd(int seed) {
  ProfileMaker maker({{"b", "bytes"}, {"a", "count"}});
  std::mt19937 random(static_cast<unsigned>(seed));
  const uint64_t mapping = maker.Mapping(0x1000, 0x9000, 0, seed % 2 == 0 ? "" : "/x/some.so");
  std::vector<uint64_t> locations;
  for (int i = 0; i < 8; ++i) {
    const std::string name = i % 4 == 0 ? "" : "f" + std::to_string(i);
    auto lines = std::vector<ProfileMaker::Line>{{maker.Function(name, name, i % 2 == 0 ? "/a/../b/c.cc" : "", i), i}};
    if (i % 3 == 0) lines.push_back({maker.Function("outer", "outer"), 5});
    locations.push_back(maker.Location(i % 3 == 0 ? mapping : 0, 0x1000u + static_cast<uint64_t>(i), lines));
  }
  locations.push_back(maker.Location(77, 0x40, {}));  // of a mapping that does not exist
  for (int i = 0; i < 100; ++i) {
    std::vector<uint64_t> stack;
    for (unsigned depth = random() % 6; depth > 0; --depth) stack.push_back(locations[random() % locations.size()]);
    maker.Sample(stack, {static_cast<int64_t>(random() % 2000) - 1000, static_cast<int64_t>(random() % 50)});
  }
  for (auto& location : *maker.message().mutable_location()) location.set_id(location.id() * 1000003);
  for (auto& sample : *maker.message().mutable_sample()) {
    for (auto& id : *sample.mutable_location_id()) id *= 1000003;
  }
  return maker;
}

class AgainstPprof : public testing::Test {
 protected:
  void SetUp() override {
    if (GooglePprof().command.empty()) GTEST_SKIP() << "google/pprof is not here (golang-github-google-pprof-dev)";
    dir_ = ScratchDir();
    const auto pair = [&](const std::string& name, const ProfileMaker& a, const ProfileMaker& b) {
      a.Write(dir_ + "/" + name);
      b.Write(dir_ + "/" + name + ".other");
      made_.push_back({name, dir_ + "/" + name, dir_ + "/" + name + ".other"});
    };
    for (const bool names : {true, false}) {
      const std::string name = names ? "ours" : "ours_unnamed";
      made_.push_back({name, SaveOurs(dir_, name, 4, 0, names), SaveOurs(dir_, name + ".other", 9, 0x10000000, names)});
    }
    for (int seed = 0; seed < 4; ++seed) {
      const std::string number = std::to_string(seed);
      pair("jax" + number, Jax(seed), Jax(seed + 100));
      pair("tcmalloc" + number, Tcmalloc(seed), Tcmalloc(seed + 100));
      pair("odd" + number, Odd(seed), Odd(seed + 100));
      const std::string path = dir_ + "/gperftools" + number;
      Gperftools(path, seed);
      Gperftools(path + ".other", seed + 100);
      made_.push_back({"gperftools" + number, path, path + ".other"});
    }
    if (GoHeap(dir_ + "/go") && GoHeap(dir_ + "/go.other")) {
      made_.push_back({"go", dir_ + "/go", dir_ + "/go.other"});
      GooglePprof().Run({"-proto", "-output=" + dir_ + "/go_converted", dir_ + "/go"});
      made_.push_back({"go_converted", dir_ + "/go_converted", dir_ + "/go.other"});
    }
  }

  std::string dir_;
  std::vector<Made> made_;
};

TEST_F(AgainstPprof, TopHasTheSameRows) {
  EXPECT_GE(made_.size(), RunCommand({"go", "version"}).exit_code == 0 ? 20u : 18u);
  for (const Made& made : made_) {
    SCOPED_TRACE(made.name);
    const Rows expected = PprofRows({made.path});
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(ToolRows({"top", made.path}), expected);
  }
}

TEST_F(AgainstPprof, DiffHasTheSameRows) {
  for (const Made& made : made_) {
    SCOPED_TRACE(made.name);
    EXPECT_EQ(ToolRows({"diff", made.path, made.other}), PprofRows({"-diff_base", made.path, made.other}));
  }
}

TEST_F(AgainstPprof, LinesAndSampleTypesHaveTheSameRows) {
  for (const Made& made : made_) {
    SCOPED_TRACE(made.name);
    EXPECT_EQ(ToolRows({"top", "--by", "line", made.path}), PprofRows({"-lines", made.path}));
    EXPECT_EQ(ToolRows({"top", made.path, "--type", "0"}), PprofRows({"-sample_index=0", made.path}));
  }
}

TEST_F(AgainstPprof, FrameFiltersHaveTheSameRows) {
  const Filters cases[] = {
      {{"focus", "layer_[0-3]|f[135]|method|KvCache|Decode|Alloc"}},
      {{"focus", "libx|some|app|server$"}},
      {{"ignore", "layer_7|outer|Inner|Decode|libclosed|runtime"}},
      {{"focus", "\\.py$|\\.cc$|libx|nowhere"}},
      {{"ignore", "layer_[0-5]|f[1-4]|ns::|Run|app"}},
      {{"focus", "layer_1|f[1-5]|Class"}, {"ignore", "layer_[89]|f7|Helper"}},
      {{"focus", "main|layer_3|f2"}, {"ignore", "layer_3|f2|method"}},
      {{"focus", "no such function"}},
  };
  for (const Made& made : made_) {
    // The other seeds have the same kinds of frames.
    if (made.name.find_first_of(kSanitized ? "123" : "23") != std::string::npos) continue;
    const Rows whole = PprofRows({made.path});
    size_t changed = 0;
    for (const Filters& filters : cases) {
      std::vector<std::string> ours = {"top", made.path};
      std::vector<std::string> pprofs;
      std::string text;
      for (const Filter& filter : filters) {
        ours.insert(ours.end(), {"--" + filter.name, filter.value});
        pprofs.push_back("-" + filter.name + "=" + filter.value);
        text += pprofs.back() + " ";
      }
      SCOPED_TRACE(made.name + " " + text);
      pprofs.push_back(made.path);
      const Rows expected = PprofRows(pprofs);
      changed += expected != whole ? 1 : 0;
      EXPECT_EQ(FilteredRows(ours), expected);
    }
    EXPECT_GE(changed, 2u) << made.name << ": the filters of this test have no effect";
  }
}

TEST_F(AgainstPprof, FilteredDiffHasTheSameRows) {
  for (const Made& made : made_) {
    if (made.name.find_first_of("123") != std::string::npos) continue;
    SCOPED_TRACE(made.name);
    const std::string focus = "layer_[0-3]|f[135]|method|Decode|main|0x4010";
    EXPECT_EQ(FilteredRows({"diff", made.path, made.other, "--focus", focus, "--ignore", "layer_2|f1|Inner"}),
              PprofRows({"-diff_base", made.path, "-focus=" + focus, "-ignore=layer_2|f1|Inner", made.other}));
  }
}

// Shares are relative to the total of all samples, as in pprof.
TEST(Filters, SharesAreRelativeToTheWholeProfile) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f"), maker.Frame("main")}, {1, 1024});
  maker.Sample({maker.Frame("g"), maker.Frame("main")}, {1, 3072});
  maker.Write(path);
  const CommandResult result = RunTool({"top", path, "--focus", "^f$"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("inuse_space: 1.00 KiB of 4.00 KiB\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1.00 KiB  25.00%  1.00 KiB  25.00%  f"), std::string::npos) << result.out;
  const nlohmann::json json = ToolJson({"top", path, "--focus", "^f$"});
  EXPECT_EQ(json["total"], 4096);
  EXPECT_EQ(json["selected"], 1024);
}

// Two processes on two hosts with the same id, each with a series of profiles. A profile without a process has no
// series.
TEST(Series, OnlyTheLastProfileOfEachProcessCounts) {
  const std::string dir = ScratchDir();
  const auto write = [&](const std::string& name, const std::string& comment, int64_t seconds, int64_t bytes) {
    ProfileMaker maker;
    maker.message().set_time_nanos(int64_t{1700000000 + seconds} * 1000000000);
    if (!comment.empty()) maker.Comment(comment);
    maker.Sample({maker.Frame("f"), maker.Frame("main")}, {1, bytes});
    maker.Write(dir + "/" + name);
    return dir + "/" + name;
  };
  const std::string base = write("base", "hbmprof version=1 host=a pid=7", 0, 1);
  const std::string last = write("a.3", "hbmprof version=1 host=a pid=7", 3, 100);
  const std::vector<std::string> files = {last, write("a.1", "hbmprof version=1 host=a pid=7", 1, 1000),
                                          write("a.2", "hbmprof version=1 host=a pid=7", 2, 1000),
                                          write("b.1", "hbmprof version=1 host=b pid=7", 1, 20), write("c", "", 1, 3)};
  const std::vector<std::string> counted = {files[0], files[3], files[4]};
  const std::string note = ": only the last profile of each process counts: 3 of 5\n";
  for (std::vector<std::string> command :
       {std::vector<std::string>{"top"}, {"top", "--tree"}, {"top", "--callers", "f"}, {"diff", base}}) {
    const std::string name = command[0];
    command.insert(command.end(), files.begin(), files.end());
    EXPECT_EQ(RunTool(command).err, "hbmprof " + name + note);
    command.push_back("--json");
    const nlohmann::json json = nlohmann::json::parse(RunTool(command).out, nullptr, false);
    EXPECT_EQ(json["files"], counted) << name;
    EXPECT_EQ(json[name == "diff" ? "now_total" : "total"], 123) << name;
  }
  EXPECT_EQ(RunTool({"top", last, files[3], files[4]}).err, "") << "one of each";
}

TEST(Top, ValueOfADifferenceIsItsNetSum) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 1024});
  maker.Sample({maker.Frame("g")}, {-1, -3072});
  maker.Write(path);
  const CommandResult result = RunTool({"top", path});
  EXPECT_NE(result.out.find("inuse_space: -2.00 KiB of 4.00 KiB\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("-3.00 KiB  -75.00%"), std::string::npos) << result.out;
}

// Failed before: the line that contributes most stood for all.
TEST(Top, SumOverSeveralLinesHasNoLine) {
  ProfileMaker maker;
  const uint64_t one_line = maker.Frame("one_line", "/src/a.py", 1);
  const uint64_t main = maker.Frame("main", "/src/a.py", 9);
  maker.Sample({maker.Frame("lines", "/src/a.py", 2), one_line, main}, {1, 100});
  maker.Sample({maker.Frame("lines", "/src/a.py", 3), one_line, main}, {1, 10});
  maker.Sample({maker.Frame("files", "/src/a.py", 4), one_line, maker.Frame("main", "/src/a.py", 10)}, {1, 10});
  maker.Sample({maker.Frame("files", "/src/b.py", 4), one_line, main}, {1, 10});
  maker.Sample({maker.Frame("flat", "/src/c.py", 5), main}, {1, 10});
  maker.Sample({one_line, maker.Frame("flat", "/src/c.py", 6), main}, {1, 10});
  const std::string path = ScratchDir() + "/lines.pb.gz";
  maker.Write(path);
  std::map<std::string, std::string> where;
  const nlohmann::json top = ToolJson({"top", path});
  for (const auto& row : top["rows"]) where[row["function"]] = row["where"];
  const std::map<std::string, std::string> expected = {{"one_line", "/src/a.py:1"},
                                                       {"main", "/src/a.py"},
                                                       {"lines", "/src/a.py"},
                                                       {"files", "several files"},
                                                       {"flat", "/src/c.py:5"}};
  EXPECT_EQ(where, expected);
  where.clear();
  const nlohmann::json tree = ToolJson({"top", "--tree", path});
  for (const auto& node : tree["nodes"]) where[node["function"]] = node["where"];
  EXPECT_EQ(where["main"], "/src/a.py");
  EXPECT_EQ(where["files"], "several files");
  EXPECT_EQ(where["one_line"], "/src/a.py:1");
}

// As in the profiles that JAX writes: two classes of a file have a method of the same name.
TEST(Top, FunctionsOfPythonWithOtherFirstLinesHaveRowsOfTheirOwn) {
  ProfileMaker maker;
  const auto method = [&](int64_t first_line) {
    return maker.Location(0, 0, {{maker.Function("__init__", "", "/src/layers.py", first_line), first_line + 1}});
  };
  maker.Sample({method(10)}, {1, 100});
  maker.Sample({method(20)}, {1, 1000});
  maker.Sample({method(20)}, {1, 30});
  const std::string path = ScratchDir() + "/methods.pb.gz";
  maker.Write(path);
  std::map<std::string, int64_t> rows;
  const nlohmann::json top = ToolJson({"top", path});
  for (const auto& row : top["rows"]) rows[row["where"]] = row["flat"];
  EXPECT_EQ(rows, (std::map<std::string, int64_t>{{"/src/layers.py:11", 100}, {"/src/layers.py:21", 1030}}));
}

// Failed before: no function matched, because its first line or its folder was another one.
TEST(Diff, FunctionsOfTwoVersionsInTwoFoldersMatch) {
  const std::string dir = ScratchDir();
  const auto write = [&](const std::string& folder, int64_t moved, int64_t bytes) {
    ProfileMaker maker;
    const auto function = [&](const char* name, int64_t line) {
      return maker.Location(0, 0, {{maker.Function(name, "", folder + "/train.py", line + moved), line + moved + 1}});
    };
    maker.Sample({function("Net.forward", 10)}, {1, 100});
    maker.Sample({function("main", 30)}, {1, bytes});
    std::filesystem::create_directory(dir + "/" + std::to_string(moved));
    maker.Write(dir + "/" + std::to_string(moved) + "/one.pb.gz");
    return dir + "/" + std::to_string(moved);
  };
  const std::string base = write("/src", 0, 1000);
  const std::string now = write("/new/src", 7, 1500);
  const nlohmann::json diff = ToolJson({"diff", base, now});
  ASSERT_EQ(diff["rows"].size(), 1u) << diff;
  EXPECT_EQ(diff["rows"][0]["function"], "main");
  EXPECT_EQ(diff["rows"][0]["cum"], 500);
  EXPECT_EQ(diff["rows"][0]["where"], "/new/src/train.py:38") << "where it is now";
  std::filesystem::copy(base + "/one.pb.gz", base + "/two.pb.gz");
  const CommandResult two = RunTool({"diff", base, now});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_NE(two.err.find(base + ": has 2 profiles; name the one that is compared, such as " + base + "/two.pb.gz"),
            std::string::npos)
      << two.err;
}

TEST(Top, HeadHasTheWarningsAndThePeakOfTheDevice) {
  ProfileMaker maker;
  maker.Sample({maker.Frame("load")}, {1, 100});
  maker.Comment("warning text=the%20arrays%20of%20JAX%20are%20not%20shown");
  maker.Comment("device GPU:0 space=device in_use=1024 peak=2048 driver_peak=4096");
  maker.Comment("device GPU:1 space=device in_use=1024 peak=2048 driver_peak=2049");
  const std::string path = ScratchDir() + "/head.pb.gz";
  maker.Write(path);
  const std::string text = RunTool({"top", path}).out;
  EXPECT_NE(text.find("INCOMPLETE: the arrays of JAX are not shown\n"), std::string::npos) << text;
  EXPECT_NE(text.find("GPU:0: in use 1.00 KiB, peak 2.00 KiB (4.00 KiB with temporaries and other memory that is not "
                      "recorded)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("GPU:1: in use 1.00 KiB, peak 2.00 KiB\n"), std::string::npos) << text;
}

// Failed before: the JSON had no word of dropped allocations, and diff --ranks had nothing on any problem.
TEST(Top, ProblemsAreInTextAndJson) {
  const std::string dir = ScratchDir();
  for (const char* name : {"/a.pb.gz", "/b.pb.gz"}) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("load")}, {1, 100});
    maker.Comment("tracker dropped_records=5 dropped_bytes=2048");
    maker.Comment("warning text=the%20arrays%20of%20JAX%20are%20not%20shown");
    maker.Write(dir + name);
  }
  const std::string a = dir + "/a.pb.gz";
  const std::string b = dir + "/b.pb.gz";
  const std::string warning = "the arrays of JAX are not shown";
  const std::string dropped = "5 allocations of 2.00 KiB were not recorded";
  const std::string lines = "\nINCOMPLETE: " + warning + "\nINCOMPLETE: " + dropped + "\n";
  const nlohmann::json problems = {warning, dropped, warning, dropped};
  const std::vector<std::string> commands[] = {{"top", a, b}, {"diff", a, b}, {"diff", "--ranks", a, b}};
  for (const std::vector<std::string>& command : commands) {
    EXPECT_NE(RunTool(command).out.find(lines), std::string::npos) << RunTool(command).out;
    EXPECT_EQ(ToolJson(command)["problems"], problems);
  }
  EXPECT_NE(RunTool({"diff", "--ranks", a, b}).out.find(a + " and 1 more" + lines + "2 ranks: "), std::string::npos);
}

TEST(Top, HeadSaysThatValuesOfTagsWereNotKept) {
  ProfileMaker maker;
  maker.Comment("tracker dropped_records=0 dropped_tag_values=234");
  maker.Sample({maker.Frame("f")}, {1, 10}, {{"request", "other"}});
  const std::string path = ScratchDir() + "/tags.pb.gz";
  maker.Write(path);
  const std::string text = RunTool({"top", "--by", "request", path}).out;
  const char* const note = "\nnote: 234 tags became `other` or had no effect: a process keeps 1,000 values of a tag\n";
  EXPECT_NE(text.find(note), std::string::npos) << text;
}

TEST(Top, CodeOutsideOfAllBinariesHasNoPosition) {
  ProfileMaker maker;
  const uint64_t in_binary = maker.Location(maker.Mapping(0x1000, 0x2000, 0, "/bin/app"), 0x1010, {});
  const uint64_t outside = maker.Location(0, 0x10, {});
  maker.Sample({outside, in_binary}, {1, 100});
  const std::string path = ScratchDir() + "/outside.pb.gz";
  maker.Write(path);
  const nlohmann::json json = ToolJson({"top", path, "--no-own"});
  for (const auto& row : json["rows"]) EXPECT_EQ(row["where"], row["function"] == "<unknown>" ? "" : "[app]") << row;
  EXPECT_EQ(json["rows"].size(), 2u);
}

TEST(Filters, WarnAboutAnExpressionThatMatchesNothing) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 1024}, {{"device", "GPU:0"}});
  maker.Write(path);
  const CommandResult frames = RunTool({"top", path, "--ignore", "nothing"});
  EXPECT_EQ(frames.exit_code, 0);
  EXPECT_EQ(frames.err, "hbmprof top: warning: --ignore matches nothing\n");
}

TEST_F(AgainstPprof, SeveralFilesAreAddedUp) {
  for (const Made& made : made_) {
    SCOPED_TRACE(made.name);
    EXPECT_EQ(ToolRows({"top", made.path, made.other}), PprofRows({made.path, made.other}));
  }
}

TEST_F(AgainstPprof, PeekHasTheSameCallersAndCallees) {
  const CommandResult pprof = GooglePprof().Run({"-peek=KvCache|Decode|app::", "-unit=bytes", made_[0].path});
  const nlohmann::json json = ToolJson({"top", "--callers", "KvCache|Decode|app::", made_[0].path});
  ASSERT_TRUE(json.is_object());
  size_t edges = 0;
  for (const auto& row : json["rows"]) edges += row["callers"].size() + row["callees"].size();
  // pprof's edges are the lines with a bar and a name set in, and an amount before it.
  std::istringstream lines(pprof.out);
  std::string line;
  size_t expected = 0;
  const std::regex edge(R"(^ {20,}(-?\d+)B +\S+ \|   (.*?)( \(inline\))?$)");
  while (std::getline(lines, line)) {
    std::smatch match;
    if (!std::regex_match(line, match, edge)) continue;
    ++expected;
    bool found = false;
    for (const auto& row : json["rows"]) {
      for (const char* side : {"callers", "callees"}) {
        for (const auto& other : row[side]) {
          found = found || (other["function"] == match[2].str() && other["cum"] == std::stoll(match[1]));
        }
      }
    }
    EXPECT_TRUE(found) << line;
  }
  EXPECT_GT(expected, 0u) << pprof.out;
  EXPECT_EQ(edges, expected) << pprof.out;
}

}  // namespace
}  // namespace hbmprof_test
