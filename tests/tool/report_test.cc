// `hbmprof report`: the page in a real browser, with the actions of a user; and checks that need no browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "src/recording/writer.h"
#include "src/tool/reader/reader.h"
#include "tests/support/made_recording.h"
#include "tests/support/make_recording.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/report_data.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using hbmprof::internal::RecordedEvent;
using hbmprof::internal::RecordedKind;
using hbmprof::internal::RecordingReader;
using hbmprof::internal::RecordingWriter;
using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::vector<std::pair<std::string, std::string>> kTypes = {{"alloc_objects", "count"}, {"alloc_space", "bytes"},
                                                                 {"peak_objects", "count"},  {"peak_space", "bytes"},
                                                                 {"inuse_objects", "count"}, {"inuse_space", "bytes"}};

// The weights are the same in every dump; the pages grow with each dump. The values at the peak and the values ever
// allocated are other numbers.
ProfileMaker ServerDump(int dump) {
  ProfileMaker maker(kTypes);
  maker.message().set_default_sample_type(maker.Text("inuse_space"));
  maker.message().set_time_nanos(1700000000000000000 + int64_t{dump} * 1000000000);
  const uint64_t main = maker.Frame("main", "/src/main.cc", 10);
  const int64_t pages = 10 + 5 * dump;
  auto& weights = maker.Sample({maker.Frame("app::LoadWeights", "/src/model.cc", 7), main},
                               {2, 4 << 20, 2, 4 << 20, 2, 4 << 20}, {{"device", "GPU:0"}, {"kind", "device"}});
  maker.NumberLabel(weights, "bytes", 2 << 20, "bytes");
  auto& page = maker.Sample({maker.Frame("app::KvCache::AllocatePage", "/src/cache.cc", 19),
                             maker.Frame("app::Decode<int>", "/src/decode.cc", 33), main},
                            {100, 100 << 16, 40, 40 << 16, pages, pages << 16},
                            {{"device", "GPU:1"}, {"kind", "device"}, {"phase", "decode</script><b>"}});
  maker.NumberLabel(page, "bytes", 1 << 16, "bytes");
  maker.Comment("device GPU:0 space=device in_use=4194304 peak=4194304 limit=8388608 unaccounted=1048576");
  maker.Comment("tracker dropped_records=" + std::to_string(dump == 2 ? 3 : 0) + " dropped_bytes=12");
  return maker;
}

class Report : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = ScratchDir();
    page_ = dir_ + "/report.html";
  }

  std::vector<std::string> Dumps(int count) {
    std::vector<std::string> paths;
    for (int dump = 0; dump < count; ++dump) {
      paths.push_back(dir_ + "/" + std::to_string(dump) + ".pb.gz");
      ServerDump(dump).Write(paths.back());
    }
    return paths;
  }

  void MakeReport(const std::vector<std::string>& files) {
    std::vector<std::string> arguments = {"report", "-o", page_};
    arguments.insert(arguments.end(), files.begin(), files.end());
    const CommandResult result = RunTool(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  // Opens the page in the browser and runs `script` in it. Returns the arguments of its calls of say(), one on a line.
  // `arguments`: more for the browser.
  std::string Browse(const std::string& script, const std::vector<std::string>& arguments = {}) {
    std::string html = ReadAll(page_);
    // The page keeps its policy, which here also allows this script.
    const std::string policy = "script-src ";
    html.insert(html.find(policy) + policy.size(), "'nonce-test' ");
    const std::string end = "</body>";
    html.insert(
        html.rfind(end),
        "<pre id=said></pre><script nonce=test>const said = document.getElementById('said');"
        "const say = text => { said.textContent += text + '\\n'; };"
        "const press = value => document.querySelector(`[data-value=\"${value}\"]`).click();"
        "const box = name => [...document.querySelectorAll('#flame [data-node]')].find(b => b.textContent === name);"
        "onerror = message => say('ERROR ' + message);" +
            script + "</script>");
    WriteFile(dir_ + "/driven.html", html);
    std::vector<std::string> command = {"timeout",
                                        "240",
                                        "chromium",
                                        "--headless=new",
                                        "--no-sandbox",
                                        "--disable-gpu",
                                        "--user-data-dir=" + dir_ + "/chromium",
                                        "--window-size=1200,900",
                                        "--dump-dom"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.push_back("file://" + dir_ + "/driven.html");
    const CommandResult result = RunCommand(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Between(result.out, "<pre id=\"said\">", "</pre>");
  }

  std::string dir_;
  std::string page_;
};

class ReportInBrowser : public Report {
 protected:
  void SetUp() override {
    if (RunCommand({"chromium", "--version"}).exit_code != 0) GTEST_SKIP() << "chromium is not here";
    Report::SetUp();
  }
};

TEST_F(Report, NeedsNoOtherFileAndNoNetwork) {
  MakeReport(Dumps(3));
  const std::string html = ReadAll(page_);
  EXPECT_THAT(html, Not(HasSubstr("http:")));
  EXPECT_THAT(html, Not(HasSubstr("https:")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("{{")));
  // Text of a profile cannot end the script element that contains it.
  EXPECT_THAT(html, Not(HasSubstr("decode</script>")));
}

TEST_F(Report, ParsesNoHtmlAndAllowsOnlyItsOwnScript) {
  MakeReport(Dumps(1));
  const std::string html = ReadAll(page_);
  const std::string script = Between(html, "<script>", "</script>");
  ASSERT_THAT(script, HasSubstr("use strict"));
  for (const char* parser : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser",
                             "createContextualFragment", "srcdoc", "setHTML", "eval(", "Function("}) {
    EXPECT_THAT(script, Not(HasSubstr(parser)));
  }
  const std::string policy = Between(html, "<meta http-equiv=\"Content-Security-Policy\" content=\"", "\">");
  EXPECT_THAT(policy, testing::MatchesRegex("default-src 'none'; script-src 'sha256-[A-Za-z0-9+/]{43}='; "
                                            "style-src 'sha256-[A-Za-z0-9+/]{43}='; base-uri 'none'; "
                                            "form-action 'none'"));
  // The policy comes before everything that it restricts.
  EXPECT_LT(html.find("Content-Security-Policy"), html.find("<style>"));
}

TEST_F(ReportInBrowser, ShowsMarkupInAUnitAsText) {
  const std::vector<std::pair<std::string, std::string>> types = {{"inuse_space", "<img src=x onerror=say('ran')>"}};
  ProfileMaker maker(types);
  maker.Sample({maker.Frame("main")}, {7});
  maker.Write(dir_ + "/unit.pb.gz");
  MakeReport({dir_ + "/unit.pb.gz"});
  const std::string said = Browse(
      "const owned = document.querySelectorAll('img').length; say(owned + ' images');"
      "say(document.getElementById('functions').innerText);");
  EXPECT_THAT(said, HasSubstr("0 images\n"));
  EXPECT_THAT(said, HasSubstr("7 &lt;img src=x onerror=say('ran')&gt;"));
  EXPECT_THAT(said, Not(HasSubstr("ran\n")));
}

TEST_F(ReportInBrowser, PolicyStopsAnInjectedScript) {
  MakeReport(Dumps(1));
  EXPECT_EQ(Browse("const added = document.createElement('script'); added.textContent = 'say(\"ran\")';"
                   "document.body.append(added);"
                   "const image = document.createElement('div');"
                   "image.setAttribute('onclick', 'say(\"ran\")'); document.body.append(image); image.click();"
                   "say('end');"),
            "end\n");
}

TEST_F(ReportInBrowser, ShowsInUsePeakAndAllocated) {
  MakeReport(Dumps(1));
  EXPECT_EQ(Browse("const found = () => say(document.getElementById('found').textContent);"
                   "found(); press('peak'); found(); press('alloc'); found(); press('objects'); found();"
                   "press('inuse'); found();"),
            "4.63 MiB in all\n6.50 MiB in all\n10.25 MiB in all\n102 in all\n12 in all\n");
}

TEST_F(ReportInBrowser, SearchMarksAndSumsMatches) {
  MakeReport(Dumps(1));
  EXPECT_EQ(Browse("const search = document.getElementById('search');"
                   "const type = text => { search.value = text; search.dispatchEvent(new Event('input'));"
                   "  say(document.getElementById('found').textContent);"
                   "  say(document.querySelectorAll('#flame .hit').length + ' hits'); };"
                   "type('kvcache'); type('model.cc:7'); type('('); type('');"),
            "1 functions match, with 640.00 KiB of 4.63 MiB in all (13.5 %)\n1 hits\n"
            "1 functions match, with 4.00 MiB of 4.63 MiB in all (86.5 %)\n1 hits\n"
            "0 functions match, with 0 B of 4.63 MiB in all (0.0 %)\n0 hits\n"
            "4.63 MiB in all\n0 hits\n");
}

TEST_F(ReportInBrowser, ClickZoomsInAndButtonZoomsOut) {
  MakeReport(Dumps(1));
  // Shares of the graph's width, in percent, within one.
  EXPECT_EQ(Browse("const wide = name => box(name).offsetWidth / document.getElementById('flame').offsetWidth * 100;"
                   "const near = (name, percent) => say(box(name) ? Math.abs(wide(name) - percent) < 1 : 'gone');"
                   "near('all', 100); near('app::LoadWeights', 86.5); near('app::Decode<int>', 13.5);"
                   "box('app::Decode<int>').click(); near('app::LoadWeights', 0); near('app::Decode<int>', 100);"
                   "say(document.getElementById('found').textContent);"
                   "document.getElementById('reset').click(); near('app::LoadWeights', 86.5);"),
            "true\ntrue\ntrue\ngone\ntrue\n4.63 MiB in all; zoomed to app::Decode&lt;int&gt;: 640.00 KiB\ntrue\n");
}

TEST_F(ReportInBrowser, ComparesWithTheFirstDump) {
  MakeReport(Dumps(2));
  EXPECT_EQ(Browse("press('change'); say(document.getElementById('found').textContent);"
                   "say(box('app::LoadWeights') ? 'weights' : 'no weights');"
                   "say(box('app::Decode<int>').style.background.includes('--grow') ? 'red' : 'not red');"
                   "say(document.querySelector('#functions td').textContent);"),
            "+320.00 KiB changed\nno weights\nred\n+320.00 KiB\n");
}

TEST_F(ReportInBrowser, ShowsGrowthDevicesLabelsAndWarnings) {
  MakeReport(Dumps(3));
  const std::string said = Browse(
      "for (const id of ['devices', 'verdict', 'labels', 'warning']) "
      "say(document.getElementById(id).innerText.replace(/\\s+/g, ' '));"
      "const device = document.getElementById('device'); device.value = 'GPU:1'; device.dispatchEvent(new "
      "Event('change'));"
      "say(document.getElementById('found').textContent);");
  EXPECT_THAT(said, HasSubstr("GPU:0 4.00 MiB of 8.00 MiB"));
  EXPECT_THAT(said, HasSubstr("unaccounted 1.00 MiB"));
  EXPECT_THAT(said, HasSubstr("GROWS app::KvCache::AllocatePage may leak 320.00 KiB/s (+640.00 KiB)"));
  EXPECT_THAT(said, HasSubstr("decode&lt;/script&gt;&lt;b&gt;"));
  EXPECT_THAT(said, HasSubstr("2.pb.gz is incomplete: 3 allocations of 12 B were not recorded"));
  EXPECT_THAT(said, HasSubstr("\n1.25 MiB in all\n"));
  EXPECT_THAT(said, Not(HasSubstr("ERROR")));
}

TEST_F(ReportInBrowser, SaysThatAFindingIsAdvice) {
  ProfileMaker maker = ServerDump(0);
  maker.Comment("device GPU:1 space=device in_use=1 peak=1 limit=16777216 pool=8388608 idle=2097152");
  maker.Write(dir_ + "/one.pb.gz");
  MakeReport({dir_ + "/one.pb.gz"});
  EXPECT_THAT(Browse("say(document.getElementById('verdict').innerText);"),
              HasSubstr("advice: IDLE_POOL 2.00 MiB of the 8.00 MiB in pools on GPU:1 are idle"));
}

TEST_F(ReportInBrowser, ShowsTheLibrariesAndWhatOnlyTheDriverReports) {
  MakeReport(Dumps(2));
  EXPECT_EQ(Browse("const rows = () => say(document.getElementById('libraries').innerText.replace(/\\s+/g, ' '));"
                   "rows(); press('change'); rows(); press('now');"
                   "const device = document.getElementById('device'); device.value = 'GPU:1'; device.dispatchEvent(new "
                   "Event('change')); rows();"),
            "library own code 4.94 MiB unaccounted (contexts, driver, calls not recorded) 1.00 MiB\n"
            "library own code +320.00 KiB\n"
            "library own code 960.00 KiB\n");
}

TEST_F(Report, WhatOnlyTheDriverReportsHasNoLabels) {
  for (const bool has_where : {false, true}) {
    std::vector<std::string> arguments = Dumps(2);
    if (has_where) arguments.insert(arguments.end(), {"-w", "device=GPU:0"});
    MakeReport(arguments);
    const nlohmann::json data = ReportData(ReadAll(page_));
    EXPECT_EQ(data["unaccounted"], data["base"]["unaccounted"]);
    EXPECT_EQ(data["unaccounted"].size(), has_where ? 0u : 1u);
  }
}

// A profile whose leaf is a function of the CUDA runtime.
std::string WriteLibraryLeaf(const std::string& path) {
  ProfileMaker maker(kTypes);
  const uint64_t cuda = maker.Mapping(0x1000, 0x9000, 0, "/usr/lib/libcudart.so.12");
  const uint64_t app = maker.Mapping(0x10000, 0x90000, 0, "/srv/app");
  const uint64_t leaf = maker.Location(cuda, 0x1100, {{maker.Function("cudaMalloc", "cudaMalloc"), 0}});
  const uint64_t load = maker.Location(app, 0x10100, {{maker.Function("app::Load", "app::Load"), 0}});
  maker.Sample({leaf, load}, {1, 1024, 1, 1024, 1, 1024});
  maker.Write(path);
  return path;
}

constexpr char kSayFrames[] =
    "const frames = () => say((box('cudaMalloc') ? 'cudaMalloc ' : '') + (box('app::Load') ? 'Load ' : '') +"
    "  document.querySelector('#functions td').textContent + ' ' + document.querySelector('#functions "
    "td.name').innerText);";

TEST_F(ReportInBrowser, ShowsOwnCodeOrAllFrames) {
  MakeReport({WriteLibraryLeaf(dir_ + "/library.pb.gz")});
  EXPECT_EQ(Browse(std::string(kSayFrames) + "frames(); press('all'); frames(); press('own'); frames();"),
            "Load 1.00 KiB app::Load\n[app]\ncudaMalloc Load 1.00 KiB cudaMalloc\n[libcudart.so.12]\n"
            "Load 1.00 KiB app::Load\n[app]\n");
}

TEST_F(ReportInBrowser, NoOwnStartsWithAllFrames) {
  const std::string path = WriteLibraryLeaf(dir_ + "/library.pb.gz");
  MakeReport({"--no-own", path});
  EXPECT_THAT(Browse(std::string(kSayFrames) + "frames();"), HasSubstr("cudaMalloc Load 1.00 KiB cudaMalloc"));
  MakeReport({"--known", "/srv/app", path});
  EXPECT_THAT(Browse(std::string(kSayFrames) + "frames();"), HasSubstr("cudaMalloc Load 1.00 KiB cudaMalloc"))
      << "no frame is own code";
}

TEST_F(ReportInBrowser, HasNoChoiceOfFramesWithoutLibraries) {
  MakeReport(Dumps(1));
  EXPECT_EQ(Browse("say(document.getElementById('frames').children.length);"), "0\n");
}

TEST_F(ReportInBrowser, ThemesDiffer) {
  MakeReport(Dumps(1));
  const char script[] = "say(getComputedStyle(document.body).backgroundColor);";
  EXPECT_NE(Browse(script, {"--blink-settings=preferredColorScheme=0"}),
            Browse(script, {"--blink-settings=preferredColorScheme=1"}));
}

TEST_F(Report, BeginsWithAVerdict) {
  const auto verdict = [this] { return ReportData(ReadAll(page_))["verdict"].get<std::string>(); };
  MakeReport(Dumps(1));
  EXPECT_THAT(verdict(), HasSubstr("GPU:0 5.00 MiB of 8.00 MiB in use, recorded peak 4.00 MiB"));
  MakeReport(Dumps(2));
  EXPECT_THAT(verdict(), HasSubstr("Memory in use grew by 320.00 KiB to 4.94 MiB. "));
  MakeReport(Dumps(12));
  EXPECT_EQ(ReportData(ReadAll(page_))["findings"][0]["code"], "LEAK");
  EXPECT_THAT(ReportData(ReadAll(page_))["findings"][0]["sentence"].get<std::string>(),
              HasSubstr("app::KvCache::AllocatePage leaks 320.00 KiB/s (+3.44 MiB)"));
}

TEST_F(Report, AFindingNamesAFunctionOnce) {
  std::vector<std::string> paths;
  for (int dump = 0; dump < 12; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(int64_t{1700000000 + dump} * 1000000000);
    const uint64_t grow = maker.Frame("app::Grow");
    for (const char* caller : {"app::First", "app::Second"}) {
      maker.Sample({grow, maker.Frame(caller)}, {1, 1024 * (1 + dump)});
    }
    paths.push_back(dir_ + "/" + std::to_string(100 + dump) + ".pb.gz");
    maker.Write(paths.back());
  }
  MakeReport(paths);
  const json findings = ReportData(ReadAll(page_))["findings"];
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0]["sentence"], "app::Grow leaks 2.00 KiB/s (+22.00 KiB)");
  EXPECT_EQ(findings[0]["next"], "hbmprof leaks --frames 0 " + dir_ + "/*.pb.gz");
  EXPECT_THAT(findings[0]["evidence"].get<std::string>(), HasSubstr("the largest of 2 call stacks"));
}

TEST_F(Report, ShowsTheBirthsOfASite) {
  ProfileMaker maker;
  hbmprof::pprof::Ages& ages = *maker.Sample({maker.Frame("app::Grow")}, {60, 6000}).mutable_ages();
  ages.set_first_class(4);
  for (int i = 0; i < 60; ++i) {
    ages.add_born_counts(1);
    ages.add_born_bytes(100);
  }
  maker.Comment("hbmprof version=1 pid=7 uptime=63");
  maker.Write(dir_ + "/one.pb.gz");
  MakeReport({dir_ + "/one.pb.gz"});
  const json finding = ReportData(ReadAll(page_))["findings"][0];
  EXPECT_EQ(finding["code"], "LEAK");
  std::vector<int> births(64, 100);
  std::fill(births.begin(), births.begin() + 4, 0);
  EXPECT_EQ(finding["births"], births) << "from the start of the process";
}

TEST_F(Report, SaysIfGrowthWasNotJudged) {
  const std::vector<std::string> paths = {dir_ + "/one.pb.gz", dir_ + "/two.pb.gz"};
  for (const std::string& path : paths) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("Load")}, {1, 1000});
    maker.Write(path);
  }
  MakeReport(paths);
  const std::string trust = ReportData(ReadAll(page_))["trust"];
  EXPECT_THAT(trust, HasSubstr("no finding, but not all could be judged. trust: "));
  EXPECT_THAT(trust, HasSubstr("growth NOT judged: 2 profiles without the ages of buffers"));
}

// Failed before: the peak, which such a profile shows, was judged.
TEST_F(Report, OfAProgramThatHasFreedAllIsNotJudged) {
  ProfileMaker maker(kTypes);
  maker.message().set_default_sample_type(maker.Text("peak_space"));
  maker.Comment("hbmprof version=1 host=h pid=7 uptime=63");
  maker.Sample({maker.Frame("Train")}, {4, 4000, 4, 4000, 0, 0}, {{"device", "GPU:0"}});
  maker.Write(dir_ + "/one.pb.gz");
  MakeReport({dir_ + "/one.pb.gz"});
  const json data = ReportData(ReadAll(page_));
  EXPECT_THAT(data["trust"].get<std::string>(), HasSubstr("growth NOT judged: all memory was freed before"));
  EXPECT_EQ(data["types"][data["default_type"].get<size_t>()]["type"], "peak_space");
}

TEST_F(Report, TheLastDumpIsComparedWithTheEarliest) {
  const std::vector<std::string> dumps = Dumps(4);
  MakeReport({dumps[1], dumps[0]});
  const json data = ReportData(ReadAll(page_));
  EXPECT_EQ(data["base"]["path"], dumps[0]);
  EXPECT_THAT(data["verdict"].get<std::string>(), HasSubstr("Memory in use grew by 320.00 KiB to 4.94 MiB."));
}

TEST_F(Report, VerdictNamesLimitIdlePoolsAndFragmentation) {
  std::vector<std::string> paths;
  for (int dump = 0; dump < 3; ++dump) {
    ProfileMaker maker = ServerDump(dump);
    maker.Comment("device GPU:1 space=device in_use=" + std::to_string((10 + 5 * dump) << 16) +
                  " peak=1310720 limit=11796480 pool=8388608 idle=2097152 driver_in_use=2097152 "
                  "largest_free_block=1048576");
    paths.push_back(dir_ + "/" + std::to_string(dump) + ".pb.gz");
    maker.Write(paths.back());
  }
  MakeReport(paths);
  const std::string findings = ReportData(ReadAll(page_))["findings"].dump();
  // 9,699,328 B are left: 29.6 seconds of 320 KiB.
  EXPECT_THAT(findings, HasSubstr("GPU:1 would be full in 29.6 s"));
  EXPECT_THAT(findings, HasSubstr("2.00 MiB of the 8.00 MiB in pools on GPU:1 are idle"));
  EXPECT_THAT(findings, HasSubstr("the largest block has 1.00 MiB of 9.25 MiB free"));
}

TEST_F(ReportInBrowser, FoldsFramesOfLibrariesBetweenOwnFrames) {
  ProfileMaker maker(kTypes);
  const uint64_t load = maker.Frame("app::Load"), call = maker.Frame("std::invoke"), main = maker.Frame("main");
  maker.Sample({load, call, main}, {1, 1024, 1, 1024, 1, 1024});
  maker.Sample({load, main}, {1, 1024, 1, 1024, 1, 1024});
  maker.Write(dir_ + "/folded.pb.gz");
  MakeReport({dir_ + "/folded.pb.gz"});
  EXPECT_EQ(Browse("const names = () => say([...document.querySelectorAll('#flame [data-node]')].map(b => "
                   "b.textContent).sort().join(' '));"
                   "names(); press('all'); names();"),
            "all app::Load main\nall app::Load app::Load main std::invoke\n");
}

TEST_F(ReportInBrowser, ShowsBarsForFlatAndCum) {
  MakeReport(Dumps(1));
  EXPECT_EQ(
      Browse("say([...document.querySelectorAll('#functions th')].map(h => h.textContent).join('|'));"
             "say([...document.querySelectorAll('#functions tbody tr')].pop().querySelectorAll('.meter').length);"),
      "flat||cum||function\n2\n");
}

// Writes a recording: weights of 1 MiB, a burst of 2 MiB in the second tenth of a second, and a failed allocation.
std::string WriteRecording(const std::string& path) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kMilli = 1000000;
  MadeRecording recording("GPU:0", 4 * kMiB);
  const uint32_t failed = recording.Site({{"cudaMalloc"}, {"app::NeverAllocates"}, {"main"}});
  const uint32_t weights = recording.Site({{"cudaMalloc"}, {"app::LoadWeights"}, {"main"}});
  const uint32_t burst = recording.Site({{"cudaMalloc"}, {"app::Burst<b>"}, {"main"}});
  recording.Alloc(0, 0x1000, kMiB, weights).Alloc(100 * kMilli, 0x2000, 2 * kMiB, burst);
  recording.Failed(150 * kMilli, 8 * kMiB, failed).Free(200 * kMilli, 0x2000).Mark(1000 * kMilli, "end.pb.gz");
  absl::StatusOr<std::unique_ptr<RecordingWriter>> writer = RecordingWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  const absl::Status status = recording.WriteTo(**writer);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

constexpr char kTimelineTools[] =
    "const text = id => document.getElementById(id).textContent;"
    "const canvas = document.getElementById('timeline');"
    "const key = (name, shiftKey) => canvas.dispatchEvent(new KeyboardEvent('keydown', {key: name, shiftKey}));"
    "const pointer = (kind, share) => { const box = canvas.getBoundingClientRect();"
    "  canvas.dispatchEvent(new PointerEvent(kind, {clientX: box.left + box.width * share, clientY: box.top + 50})); "
    "};";

TEST_F(ReportInBrowser, TimelineShowsAnInstantAndASpan) {
  MakeReport({WriteRecording(dir_ + "/run.hbmrec")});
  EXPECT_EQ(Browse(std::string(kTimelineTools) +
                   "say(text('found')); document.getElementById('to-peak').click(); say(text('found')); "
                   "say(text('instant')); say(box('app::Burst') ? 'burst' : 'no burst');"
                   "key('End'); say(text('found')); say(text('instant')); key('ArrowLeft'); say(text('instant'));"
                   "key('ArrowLeft', true); say(text('instant')); key('Home'); say(text('instant'));"
                   "pointer('pointerdown', .05); pointer('pointermove', .15); pointer('pointerup', .15);"
                   "say(text('found')); say(text('instant'));"
                   "say(document.querySelector('#functions tbody tr').innerText.replace(/\\s+/g, ' ').trim());"
                   "press('now'); say(text('found'));"
                   "document.getElementById('whole').click(); say(text('found'));"),
            "1.00 MiB in all\n3.00 MiB in all\n0.100 s: 3.00 MiB in use, the peak\nburst\n"
            "1.00 MiB in all\n1.000 s: 1.00 MiB in use\n1.000 s: 1.00 MiB in use, end.pb.gz\n"
            "0.990 s: 1.00 MiB in use\n0.000 s: 1.00 MiB in use\n"
            "+2.00 MiB changed\n0.050 s to 0.150 s: +2.00 MiB, from 1.00 MiB to 3.00 MiB in use\n"
            "+2.00 MiB +2.00 MiB app::Burst [llm_server]\n3.00 MiB in all\n1.00 MiB in all\n");
}

TEST_F(Report, TimelineIsExactAtEachInstantAndSmall) {
  MadeLoad load;
  load.events = 100000;
  load.leak = true;
  load.burst = true;
  load.pool = true;
  const std::string path = dir_ + "/made.hbmrec";
  const absl::Status status = MakeRecording(path, load);
  ASSERT_TRUE(status.ok()) << status;
  MakeReport({path});
  const std::string page = ReadAll(page_);
  EXPECT_LT(page.size(), 10u << 20);
  const json timeline = ReportData(page)["timeline"];
  const std::vector<int64_t> times = SeriesValues(timeline["times"]);
  const json account = timeline["accounts"][0];
  const std::vector<int64_t> in_use = SeriesValues(account["in_use"]);
  ASSERT_EQ(in_use.size(), times.size());
  ASSERT_GT(times.size(), 1000u);
  std::vector<int64_t> of_rows(times.size());
  for (const json& row : timeline["rows"]) {
    const std::vector<int64_t> values = SeriesValues(row[2]);
    ASSERT_EQ(values.size(), times.size());
    for (size_t i = 0; i < values.size(); ++i) of_rows[i] += values[i];
  }
  EXPECT_EQ(of_rows, in_use);
  // Compares with a simple replay.
  const auto reader = RecordingReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto bytes_at = [&](int64_t time) {
    int64_t sum = 0;
    RecordedEvent event;
    (*reader)->Rewind();
    while ((*reader)->Next(&event) && event.time <= (*reader)->tables().start_time + time) {
      if (event.site < (*reader)->tables().sites.size() && (*reader)->tables().IsOfPool(event.site)) continue;
      if (event.kind == RecordedKind::kAlloc || event.kind == RecordedKind::kMoveTo) sum += event.bytes;
      if (event.kind == RecordedKind::kFree || event.kind == RecordedKind::kMoveFrom) sum -= event.bytes;
    }
    return sum;
  };
  for (size_t i = 0; i < times.size(); i += 97) EXPECT_EQ(in_use[i], bytes_at(times[i])) << i;
  EXPECT_EQ(in_use[account["peak_instant"].get<size_t>()], account["peak"]);
  EXPECT_EQ(account["peak"], *std::max_element(in_use.begin(), in_use.end()));
  EXPECT_THAT(timeline["marks"].dump(), HasSubstr("failed\":true"));
}

// Failed before: the report left out what explain knows besides the samples.
TEST_F(Report, HasTheFindingsOfExplain) {
  const auto codes = [](const json& findings) {
    std::vector<std::string> list;
    for (const json& finding : findings) list.push_back(finding["code"]);
    return list;
  };
  const std::string recording = WriteRecording(dir_ + "/run.hbmrec");
  const std::string profile = dir_ + "/one.pb.gz";
  ProfileMaker maker = ServerDump(0);
  maker.Comment("device GPU:1 space=device in_use=5 peak=5");
  maker.Write(profile);
  for (const std::string& source : {recording, profile}) {
    MakeReport({source});
    const json findings = ReportData(ReadAll(page_))["findings"];
    EXPECT_EQ(codes(findings), codes(ToolJson({"explain", "-n", "0", source})["findings"]));
    EXPECT_THAT(codes(findings), Contains(source == recording ? "OUT_OF_MEMORY" : "INCOMPLETE"));
  }
}

TEST_F(Report, ShowsOneRecordingOrProfiles) {
  const std::string recording = WriteRecording(dir_ + "/run.hbmrec");
  const std::string dump = Dumps(1)[0];
  for (const std::vector<std::string>& sources : {std::vector<std::string>{recording, recording}, {dump, recording}}) {
    std::vector<std::string> arguments = {"report", "-o", page_};
    arguments.insert(arguments.end(), sources.begin(), sources.end());
    const CommandResult result = RunTool(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(recording +
                                      ": a report shows one recording, or profiles; a moment of a "
                                      "recording, such as " +
                                      recording + "@10s, is a profile"));
  }
  MakeReport({recording + "@0s", recording + "@peak"});
}

TEST_F(ReportInBrowser, DrawsTenThousandSites) {
  ProfileMaker maker(kTypes);
  std::vector<uint64_t> frames;
  for (int i = 0; i < 2000; ++i) {
    frames.push_back(
        maker.Frame("app::module" + std::to_string(i % 40) + "::Function" + std::to_string(i), "/src/f.cc", i));
  }
  for (int site = 0; site < 10000; ++site) {
    std::vector<uint64_t> stack;
    for (int depth = 0; depth < 30; ++depth) {
      stack.push_back(
          frames[static_cast<size_t>(depth < 8 ? site * 7 + depth * 13 : (site >> depth / 3) * 31 + depth) % 2000]);
    }
    const int64_t bytes = (site % 97 + 1) << 12;
    maker.Sample(stack, {1, bytes, 1, bytes, 1, bytes}, {{"device", "GPU:" + std::to_string(site % 8)}});
  }
  maker.Write(dir_ + "/many.pb.gz");
  MakeReport({dir_ + "/many.pb.gz"});
  const std::string said = Browse(
      "say(Math.round(performance.now() - performance.timing.responseEnd + performance.timing.navigationStart));"
      "const times = ['peak', 'inuse', 'peak', 'inuse', 'peak'].map(measure => { const start = performance.now();"
      "  press(measure); return performance.now() - start; }); say(Math.round(Math.min(...times)));");
  const int load = std::stoi(said);
  const int redraw = std::stoi(said.substr(said.find('\n') + 1));
  std::printf("10,000 sites: %d ms from the page's last byte to its being drawn, %d ms to draw another measure\n", load,
              redraw);
  // The goal is less than a second. The limit is higher, and that of the fastest of five, because a busy machine is not
  // a defect.
  EXPECT_LT(redraw, 10000);
}

}  // namespace
}  // namespace hbmprof_test
