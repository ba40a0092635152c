// Recordings on the command line: their moments, `who`, `leaks`, and tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "src/recording/writer.h"
#include "src/tool/reader/reader.h"
#include "tests/support/made_recording.h"
#include "tests/support/make_recording.h"
#include "tests/support/profile_checker.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/report_data.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using hbmprof::internal::RecordingWriter;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kSecond = 1000000000;

// A page of 8 MiB from 1 s on, a temporary buffer of 16 MiB from 2 s to 3 s, a mark at 3.5 s, a failure at 4 s, the
// page is freed at 5 s.
std::string SmallRecording() {
  MadeRecording recording;
  const uint32_t page = recording.Site({{"llm::KvCache::AllocatePage"}, {"main"}},
                                       {0, hbmprof::MemoryKind::kDevice, "kv", {{"model", "base"}}});
  const uint32_t temporary = recording.Site({{"llm::Attention"}, {"main"}});
  recording.Alloc(kSecond, 0x7F0000000000, 8 * kMiB, page)
      .Alloc(2 * kSecond, 0x7F0001000000, 16 * kMiB, temporary)
      .Free(3 * kSecond, 0x7F0001000000)
      .Mark(7 * kSecond / 2, "/profiles/warm.pb.gz")
      .Failed(4 * kSecond, 100 * kMiB, page)
      .Free(5 * kSecond, 0x7F0000000000);
  const std::string path = ScratchDir() + "/small.hbmrec";
  auto writer = RecordingWriter::Create(path);
  const absl::Status status = writer.ok() ? recording.WriteTo(**writer) : writer.status();
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

// The bytes in use by function at a moment.
nlohmann::json InUseAt(const std::string& recording, const std::string& moment) {
  nlohmann::json values = nlohmann::json::object();
  const nlohmann::json top = ToolJson({"top", recording + "@" + moment, "-t", "inuse_space"});
  for (const auto& row : top["rows"]) {
    if (row["flat"] != 0) values[row["function"].get<std::string>()] = row["flat"];
  }
  return values;
}

TEST(Moment, IsTheStateAtThatTime) {
  const std::string file = SmallRecording();
  const nlohmann::json page = {{"llm::KvCache::AllocatePage", 8 * kMiB}};
  const nlohmann::json both = {{"llm::KvCache::AllocatePage", 8 * kMiB}, {"llm::Attention", 16 * kMiB}};
  EXPECT_EQ(InUseAt(file, "0.5"), nlohmann::json::object());
  EXPECT_EQ(InUseAt(file, "1500ms"), page);
  EXPECT_EQ(InUseAt(file, "2s"), both);
  EXPECT_EQ(InUseAt(file, "peak"), both);
  EXPECT_EQ(InUseAt(file, "peak/GPU:0"), both);
  EXPECT_EQ(InUseAt(file, "oom"), page);
  EXPECT_EQ(InUseAt(file, "oom/GPU:0"), page);
  EXPECT_EQ(InUseAt(file, "mark:warm.pb.gz"), page);
  EXPECT_EQ(InUseAt(file, "mark:profiles/warm.pb.gz"), page);
  EXPECT_EQ(InUseAt(file, "end"), nlohmann::json::object());
  EXPECT_EQ(TrustIn(file + "@peak")["problems"], nlohmann::json::array());
}

// The recording begins at 2023-11-14T22:13:20Z.
TEST(Moment, CanBeATimeOfDay) {
  const std::string file = SmallRecording();
  EXPECT_THAT(InUseAt(file, "22:13:20"), nlohmann::json::object());
  EXPECT_EQ(InUseAt(file, "22:13:22")["llm::Attention"], 16 * kMiB);
  EXPECT_EQ(InUseAt(file, "2023-11-14T22:13:22Z"), InUseAt(file, "2s"));
  EXPECT_EQ(InUseAt(file, "2023-11-14T23:13:22.5+01:00"), InUseAt(file, "2500ms"));
  for (const char* outside : {"22:13:18", "22:13:26", "2023-11-14T22:13:10Z", "2023-11-15T22:13:22Z"}) {
    EXPECT_THAT(RunTool({"top", file + "@" + outside}).err,
                HasSubstr("the recording begins at 0.000000 s after the start, 2023-11-14T22:13:20Z, and ends"))
        << outside;
  }
  EXPECT_THAT(RunTool({"timeline", file}).out, testing::StartsWith("start 2023-11-14T22:13:20Z\n"));
}

// All blocks are in one segment, so that only they show the parts of the program.
TEST(Moment, PeakOfATagIsThatOfTheBlocks) {
  MadeRecording recording;
  const auto block = [&](const std::string& function, const std::string& phase) {
    MadeRecording::SiteOptions options;
    options.tags = {{"phase", phase}};
    options.from = "";
    return recording.Site({{function}, {"main"}}, options);
  };
  MadeRecording::SiteOptions segment;
  segment.kind = hbmprof::MemoryKind::kPool;
  const uint32_t warm = block("Warm", "warm");
  recording.Alloc(kSecond, 0x7F0000000000, 64 * kMiB, recording.Site({{"Grow"}, {"main"}}, segment))
      .Alloc(2 * kSecond, MadeRecording::BlockId(0x7F0000000000), 8 * kMiB, block("Load", "load"))
      .Alloc(3 * kSecond, MadeRecording::BlockId(0x7F0000800000), 30 * kMiB, warm)
      .Free(4 * kSecond, MadeRecording::BlockId(0x7F0000800000))
      .Alloc(5 * kSecond, MadeRecording::BlockId(0x7F0000800000), 20 * kMiB, warm)
      .Alloc(6 * kSecond, MadeRecording::BlockId(0x7F0002000000), 1 * kMiB, block("Serve", "serve"));
  const std::string file = ScratchDir() + "/tags.hbmrec";
  auto writer = RecordingWriter::Create(file);
  ASSERT_TRUE(writer.ok() && recording.WriteTo(**writer).ok());
  const auto bytes_at = [&](const std::string& moment) {
    std::map<std::string, int64_t> bytes = InUseAt(file, moment);
    for (const auto& [function, count] : bytes) bytes[function] = count / kMiB;
    return bytes;
  };
  using Bytes = std::map<std::string, int64_t>;
  EXPECT_EQ(bytes_at("peak:phase=load"), (Bytes{{"Load", 8}, {"[idle memory of a pool]", 56}}));
  EXPECT_EQ(bytes_at("peak:phase=warm"), (Bytes{{"Load", 8}, {"Warm", 30}, {"[idle memory of a pool]", 26}}));
  EXPECT_EQ(bytes_at("peak:phase=serve"),
            (Bytes{{"Load", 8}, {"Warm", 20}, {"Serve", 1}, {"[idle memory of a pool]", 35}}));
  EXPECT_EQ(bytes_at("pool_peak"), bytes_at("peak:phase=warm"));
  const CommandResult none = RunTool({"top", file + "@peak:phase=train"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("nothing was allocated with the tag 'phase=train'"));
}

// Failed before: the peak of pinned host memory was shown.
TEST(Moment, PeakIsThatOfDeviceMemory) {
  const auto moments = [](bool has_device) {
    MadeRecording recording;
    MadeRecording::SiteOptions options;
    options.tags = {{"phase", "load"}};
    const uint32_t load = recording.Site({{"Load"}, {"main"}}, options);
    options.kind = hbmprof::MemoryKind::kPinnedHost;
    const uint32_t stage = recording.Site({{"Stage"}, {"main"}}, options);
    if (has_device) recording.Alloc(kSecond, 0x1000000, 500 * kMiB, load).Free(2 * kSecond, 0x1000000);
    recording.Alloc(3 * kSecond, 0x90000000, 800 * kMiB, stage);
    const std::string file = ScratchDir() + "/pinned.hbmrec";
    EXPECT_TRUE(recording.WriteTo(**RecordingWriter::Create(file)).ok());
    nlohmann::json shown = nlohmann::json::array();
    for (const char* moment : {"peak", "pool_peak", "peak:phase=load"}) shown.push_back(InUseAt(file, moment));
    return shown;
  };
  const nlohmann::json device = {{"Load", 500 * kMiB}};
  const nlohmann::json host = {{"Stage", 800 * kMiB}};
  EXPECT_EQ(moments(true), nlohmann::json::array({device, device, device}));
  EXPECT_EQ(moments(false), nlohmann::json::array({host, host, host}));
}

TEST(Moment, IsReadByEveryCommandThatReadsAProfile) {
  const std::string file = SmallRecording();
  const std::string one = file + "@1500ms";
  const std::string two = file + "@2500ms";
  EXPECT_EQ(ToolJson({"diff", one, two, "-t", "inuse_space"})["change"], 16 * kMiB);
  EXPECT_THAT(RunTool({"top", "--callers", "Attention", two}).out, HasSubstr("16.00 MiB"));
  EXPECT_THAT(RunTool({"convert", "--to", "csv", two}).out, HasSubstr("main;llm::Attention"));
  EXPECT_THAT(RunTool({"convert", "--to", "csv", two}).out, HasSubstr(two + ","))
      << "a table of samples, not of events";
  EXPECT_EQ(RunTool({"report", one, two, "-o", file + ".html"}).exit_code, 0);
  EXPECT_EQ(RunTool({"symbolize", two, "-o", file + ".named"}).exit_code, 0);
  EXPECT_EQ(ToolJson({"leaks", file + "@0.5", one, two, "--fail-over", "1GiB"})["source"]["profiles"], 3);
  const CommandResult dump = RunTool({"dump", two, "-o", file + ".pb.gz"});
  EXPECT_EQ(dump.exit_code, 0) << dump.err;
  EXPECT_EQ(ToolJson({"top", file + ".pb.gz"})["rows"], ToolJson({"top", two})["rows"]);
}

// The ages of the only sample at a moment: the logarithm of the class width, the live bytes of each class, and the
// freed buffers of each octave.
std::string AgesAt(const std::string& recording, const std::string& moment) {
  const std::string dump = recording + ".pb.gz";
  EXPECT_EQ(RunTool({"dump", recording + "@" + moment, "-o", dump}).exit_code, 0);
  const auto profile = ReadProfile(dump);
  if (!profile.ok() || profile->sample_size() != 1) return "no profile of one sample";
  const hbmprof::pprof::Ages& ages = profile->sample(0).ages();
  std::ostringstream text;
  text << "2^" << ages.class_width_log2() << " s,";
  for (int i = 0; i < ages.born_bytes_size(); ++i) {
    const auto birth_class = static_cast<int>(ages.first_class()) + i;
    if (ages.born_counts(i) != 0) text << " " << birth_class << ": " << ages.born_bytes(i);
  }
  text << ", freed";
  for (const int64_t count : ages.freed_by_octave()) text << " " << count;
  return text.str();
}

TEST(Moment, HasTheAgesOfBuffers) {
  MadeRecording recording;
  const auto at = [](int64_t tenths) { return tenths * kSecond / 10; };
  const uint32_t site = recording.Site({{"Keep"}, {"main"}});
  recording.Live(0x1000, 1, site);
  recording.Alloc(at(19), 0x2000, 10, site)
      .Free(at(25), 0x1000)
      .Alloc(at(41), 0x3000, 100, site)
      .Alloc(at(1299), 0x4000, 1000, site)
      .Free(at(1305), 0x4000)
      .Free(at(1306), 0x2000);
  const std::string file = ScratchDir() + "/ages.hbmrec";
  auto writer = RecordingWriter::Create(file);
  ASSERT_TRUE(writer.ok() && recording.WriteTo(**writer).ok());
  EXPECT_EQ(AgesAt(file, "2.0s"), "2^0 s, 0: 1 1: 10, freed");
  EXPECT_EQ(AgesAt(file, "4.5s"), "2^0 s, 1: 10 4: 100, freed 0 1");
  EXPECT_EQ(AgesAt(file, "7s"), "2^0 s, 1: 10 4: 100, freed 0 1");
  EXPECT_EQ(AgesAt(file, "130s"), "2^2 s, 0: 10 1: 100 32: 1000, freed 0 1");
  EXPECT_EQ(AgesAt(file, "end"), "2^2 s, 1: 100, freed 0 1 0 0 0 0 0 1");
}

TEST(Moment, ErrorSaysWhatThereIs) {
  const std::string file = SmallRecording();
  const auto error = [&](const std::string& moment) {
    const CommandResult result = RunTool({"dump", file + "@" + moment, "-o", file + ".pb.gz"});
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error("mark:cold"), HasSubstr("the marks are: /profiles/warm.pb.gz"));
  EXPECT_THAT(error("6"), HasSubstr("ends 5.000000 s after the start"));
  for (const char* wrong : {"noon", "", "peakk", "-1", "mark"}) {
    EXPECT_THAT(error(wrong), HasSubstr(file + ": '" + wrong + "' is no moment; write @end, @peak, @pool_peak"));
  }
  EXPECT_THAT(error("peak/GPU:7"), HasSubstr("the recording has no memory 'GPU:7'; it has: GPU:0"));
  EXPECT_THAT(error("oom/GPU:7"), HasSubstr("the recording has no memory 'GPU:7'"));
  for (const char* wrong : {"peak/", "end/GPU:0", "1s/GPU:0"}) {
    EXPECT_THAT(error(wrong), HasSubstr("write @peak/MEMORY or @oom/MEMORY")) << wrong;
  }
  EXPECT_FALSE(std::filesystem::exists(file + ".pb.gz"));
  WriteFile(file + ".txt", "no recording");
  EXPECT_THAT(RunTool({"top", file + ".txt@peak"}).err, HasSubstr("small.hbmrec.txt: is not a recording"));
  EXPECT_THAT(RunTool({"top", file + ".none@peak"}).err, HasSubstr("small.hbmrec.none@peak: cannot be opened"));
}

TEST(Moment, FileWithAnAtInItsNameIsRead) {
  const std::string file = SmallRecording();
  const std::string folder = std::filesystem::path(file).parent_path().string() + "/user@host";
  std::filesystem::create_directories(folder);
  const std::string other = folder + "/a@peak";
  std::filesystem::copy_file(file, other);
  WriteFile(folder + "/a", "no recording");
  const CommandResult top = RunTool({"top", "--json", other, "-t", "inuse_space"});
  EXPECT_EQ(nlohmann::json::parse(top.out)["total"], 8 * kMiB) << "before the last free, not the peak of a file 'a'";
  EXPECT_EQ(InUseAt(other, "oom").size(), 1u);
}

TEST(Moment, IsRefusedWhereAWholeRecordingIsNeeded) {
  const std::string file = ScratchDir() + "/load.hbmrec";
  ASSERT_TRUE(MakeRecording(file, MadeLoad()).ok());
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"timeline"}, {"convert", "--to", "perfetto", "-o", file + ".out"}}) {
    for (const std::string& source : {file + "@peak", std::string("-")}) {
      std::vector<std::string> arguments = command;
      arguments.push_back(source);
      const CommandResult result = RunTool(arguments);
      EXPECT_EQ(result.exit_code, 2);
      EXPECT_THAT(result.err, HasSubstr(source + ": there is no such file; here, the file of a whole recording"));
    }
  }
}

TEST(Moment, DamageIsReported) {
  const std::string file = ScratchDir() + "/damaged.hbmrec";
  MadeLoad load;
  load.events = 30000;
  ASSERT_TRUE(MakeRecording(file, load).ok());
  // The recording without its last block, which marks the end.
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 32);
  const CommandResult killed = RunTool({"dump", file + "@end", "-o", file + ".pb.gz"});
  EXPECT_EQ(killed.exit_code, 0);
  EXPECT_THAT(
      killed.err,
      HasSubstr(file + ": the recording is incomplete: the process still writes it, or ended before it closed the "
                       "file; the last events may be missing"));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const CommandResult explain = RunTool({"explain", file});
  EXPECT_THAT(explain.err, HasSubstr(file + ": the last "));
  EXPECT_THAT(explain.out, HasSubstr("INCOMPLETE  the data are not complete: the last "));
  // Failed before: a check passed, and JSON did not say that data are missing.
  EXPECT_EQ(RunTool({"diff", "--fail-over", "1GiB", file + "@0s", file}).exit_code, 2);
  EXPECT_EQ(RunTool({"budget", file, "-o", file + ".budget"}).exit_code, 2);
  for (const char* command : {"top", "timeline"}) {
    const nlohmann::json json = nlohmann::json::parse(RunTool({command, file, "--json"}).out, nullptr, false);
    EXPECT_EQ(json["problems"].size(), 2u) << json;
  }
  const CommandResult result = RunTool({"dump", file, "-o", file + ".pb.gz"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("do not begin with a whole block, so the recording ends at byte"));
  EXPECT_THAT(result.err, HasSubstr(file + ": the recording is incomplete; the last events may be missing"));
}

TEST(Moment, RecordingAloneIsItsEnd) {
  const std::string file = ScratchDir() + "/load.hbmrec";
  MadeLoad load;
  load.events = 5000;
  load.leak = true;
  ASSERT_TRUE(MakeRecording(file, load).ok());
  const nlohmann::json direct = ToolJson({"top", file});
  EXPECT_EQ(direct["rows"], ToolJson({"top", file + "@end"})["rows"]);
  EXPECT_GT(direct["total"], 0);
}

// The interpreter frees the variables of a Python program at its end.
TEST(Leaks, PythonProgramIsJudgedBeforeItsEnd) {
  for (const bool goes_on : {false, true}) {
    MadeRecording recording;
    const uint32_t keep = recording.Site({{"keep"}, {"main"}});
    for (int i = 1; i <= 40; ++i) recording.Alloc(i * kSecond, static_cast<uint64_t>(i) << 20, kMiB, keep);
    recording.Mark(41 * kSecond, "end of Python");
    if (goes_on) recording.Alloc(41 * kSecond, uint64_t{99} << 20, kMiB, keep).Free(42 * kSecond, uint64_t{99} << 20);
    for (int i = 1; i <= 40; ++i) recording.Free(43 * kSecond, static_cast<uint64_t>(i) << 20);
    const std::string file = ScratchDir() + "/python.hbmrec";
    ASSERT_TRUE(recording.WriteTo(**RecordingWriter::Create(file)).ok());
    const nlohmann::json top = nlohmann::json::parse(RunTool({"top", "--json", file}).out);
    EXPECT_EQ(top["type"], "inuse_space");
    const CommandResult explain = RunTool({"explain", file});
    EXPECT_EQ(explain.exit_code, 1);
    EXPECT_THAT(explain.out, HasSubstr("1. LEAK  keep leaks "));
    if (goes_on) continue;
    EXPECT_EQ(top["total"], 40 * kMiB);
    EXPECT_EQ(ToolJson({"top", file + "@end"})["type"], "peak_space");
    EXPECT_THAT(explain.out, HasSubstr(file + "@mark:end of Python, 41.0 s: GPU:0 40.00 MiB of 64.00 MiB in use"));
    const std::string said = file +
                             ": shows @mark:end of Python, because the interpreter then frees the program's "
                             "variables; @end is the state after that\n";
    const std::vector<std::string> commands[] = {
        {"explain", file}, {"leaks", file}, {"top", file}, {"report", file, "-o", file + ".html"}};
    for (const std::vector<std::string>& command : commands) {
      EXPECT_THAT(RunTool(command).err, HasSubstr(said)) << command[0];
    }
    const CommandResult leaks = RunTool({"leaks", file});
    EXPECT_EQ(leaks.exit_code, 1);
    EXPECT_THAT(leaks.out, HasSubstr("1. LEAK  keep leaks "));
  }
}

// main() has freed its variables before the interpreter ends, except 4 bytes, as tensor.item() leaves them.
TEST(Leaks, PythonProgramIsJudgedBeforeTheEndOfItsMain) {
  MadeRecording recording;
  MadeRecording::SiteOptions pinned;
  pinned.kind = hbmprof::MemoryKind::kPinnedHost;
  const uint32_t keep = recording.Site({{"keep"}, {"main"}});
  recording.Alloc(kSecond, 0x100, 4, recording.Site({{"item"}, {"main"}}, pinned));
  for (int i = 1; i <= 40; ++i) recording.Alloc(i * kSecond, static_cast<uint64_t>(i) << 20, kMiB, keep);
  for (int i = 1; i <= 40; ++i) recording.Free(41 * kSecond, static_cast<uint64_t>(i) << 20);
  recording.Mark(41 * kSecond + 1000, "end of Python");
  const std::string file = ScratchDir() + "/main.hbmrec";
  ASSERT_TRUE(recording.WriteTo(**RecordingWriter::Create(file)).ok());
  const CommandResult leaks = RunTool({"leaks", file});
  EXPECT_EQ(leaks.exit_code, 1);
  EXPECT_THAT(leaks.out, HasSubstr("1. LEAK  keep leaks "));
  EXPECT_EQ(nlohmann::json::parse(RunTool({"top", "--json", file}).out)["total"], 40 * kMiB + 4);
  // A profile of the end shows the peak, and its growth is not judged.
  ASSERT_EQ(RunTool({"dump", file + "@end", "-o", file + ".pb.gz"}).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(RunTool({"top", "--json", file + ".pb.gz"}).out)["type"], "peak_space");
  EXPECT_EQ(RunTool({"explain", file + ".pb.gz"}).exit_code, 2);
}

TEST(Leaks, JudgesTheStatesOfARecording) {
  const std::string file = ScratchDir() + "/leak.hbmrec";
  MadeLoad load;
  load.events = 20000;
  load.leak = true;
  ASSERT_TRUE(MakeRecording(file, load).ok());
  const CommandResult text = RunTool({"leaks", file, "--fail-over", "1MiB"});
  EXPECT_EQ(text.exit_code, 1) << text.err;
  EXPECT_THAT(text.out, HasSubstr("llm::KvCache::LeakPage leaks "));
  const nlohmann::json json = nlohmann::json::parse(RunTool({"leaks", file, "--json"}).out);
  EXPECT_EQ(json["source"]["profiles"], 12);
}

TEST(Leaks, ReportAndExplainGiveTheSameVerdict) {
  for (const bool leak : {false, true}) {
    const std::string file = ScratchDir() + "/verdict.hbmrec";
    MadeLoad load;
    load.events = 20000;
    load.leak = leak;
    load.burst = true;  // it is the peak, so the leak is a small part of it
    ASSERT_TRUE(MakeRecording(file, load).ok());
    const std::string words = leak ? "llm::KvCache::LeakPage leaks" : "leaks";
    const CommandResult leaks = RunTool({"leaks", file});
    const std::string rest = Between(leaks.out, words, "\n");
    ASSERT_EQ(!rest.empty(), leak) << leaks.out;
    const std::string report = ReportData(RunTool({"report", file, "-o", "-"}).out)["findings"].dump();
    const std::string explain = RunTool({"explain", file}).out;
    for (const std::string& text : {report, explain}) {
      EXPECT_EQ(text.find(leak ? words + rest : "LEAK") != std::string::npos, leak) << text;
    }
  }
}

TEST(Who, FindsTheBufferOfAnInteriorAddress) {
  const std::string file = SmallRecording();
  const CommandResult result = RunTool({"who", file, "0x7f0001000123"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0x7f0001000000 to 0x7f0002000000  16.00 MiB  GPU:0 device  llm::Attention"));
  EXPECT_THAT(result.out, HasSubstr("offset    291 of 16777216 bytes"));
  EXPECT_THAT(result.out, HasSubstr("allocated 2.000000 s after the start"));
  EXPECT_THAT(result.out, HasSubstr("freed     3.000000 s after the start"));
  EXPECT_THAT(result.out, HasSubstr("by thread 4242 llm_server"));
  EXPECT_THAT(result.out, HasSubstr("main"));
}

TEST(Who, ShowsTheBufferOfATime) {
  const std::string file = SmallRecording();
  CommandResult result = RunTool({"who", file + "@2.5s", "0x7f0001000123"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0x7f0001000000 to 0x7f0002000000  16.00 MiB  GPU:0 device  llm::Attention"));
  result = RunTool({"who", file + "@4.5s", "0x7f0001000123"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out,
              HasSubstr("At this time, no buffer had the address. Number of buffers that had it at other times: 1."));
  result = RunTool({"who", file, "0x10"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("No recorded buffer had the address."));
  EXPECT_THAT(RunTool({"who", file, "page"}).err, HasSubstr("'page' is not an address"));
}

// Failed before: it was shown as two buffers, of which one was freed and the other allocated at the move.
TEST(Who, BufferThatMovesIsOne) {
  MadeRecording recording;
  const uint32_t driver = recording.Site({{"cuMemAlloc"}, {"main"}});
  const uint32_t pool = recording.Site({{"Pool::Grow"}, {"main"}});
  recording.Alloc(kSecond, 0x1000, 100, driver)
      .Move(2 * kSecond, 0x1000, 400, pool)
      .Move(3 * kSecond, 0x1000, 200, pool);
  const std::string file = ScratchDir() + "/moved.hbmrec";
  ASSERT_TRUE(recording.WriteTo(**RecordingWriter::Create(file)).ok());
  const auto owners = [&](const std::string& source, const char* address) {
    const nlohmann::json json = nlohmann::json::parse(RunTool({"who", source, address, "--json"}).out);
    std::vector<std::string> found = {std::to_string(json["owner_count"].get<int>())};
    for (const nlohmann::json& owner : json["owners"]) {
      for (const char* key : {"function", "bytes", "allocated_seconds", "freed_seconds"}) {
        found.push_back(owner[key].is_string() ? owner[key].get<std::string>() : owner[key].dump());
      }
    }
    return absl::StrJoin(found, " ");
  };
  EXPECT_EQ(owners(file, "0x1010"), "1 Pool::Grow 200 1.0 null");
  EXPECT_EQ(owners(file + "@1.5s", "0x1010"), "1 main 100 1.0 null");
  EXPECT_EQ(owners(file + "@2.5s", "0x1010"), "1 Pool::Grow 400 1.0 null");
  EXPECT_EQ(owners(file, "0x1100"), "1 Pool::Grow 400 2.0 3.0") << "it contained the address between two changes";
  EXPECT_EQ(owners(file + "@1.5s", "0x1100"), "1");
}

TEST(Who, CountsSuccessiveBuffersAtAnAddress) {
  MadeRecording recording;
  const uint32_t site = recording.Site({{"llm::Attention"}, {"main"}});
  constexpr int kBuffers = 30000;
  for (int i = 0; i < kBuffers; ++i) {
    recording.Alloc(i * 1000, 0x7F0000000000, 4096 + i, site).Free(i * 1000 + 500, 0x7F0000000000);
  }
  const std::string file = ScratchDir() + "/many.hbmrec";
  ASSERT_TRUE(recording.WriteTo(**RecordingWriter::Create(file)).ok());
  const CommandResult last = RunTool({"who", file, "0x7f0000000010"});
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("offset    16 of 34095 bytes"));
  EXPECT_THAT(last.out, HasSubstr("... and 29990 earlier buffers; RECORDING@TIME shows the one of an instant"));
  const CommandResult then = RunTool({"who", file + "@0.0070002", "0x7f0000000010"});
  EXPECT_THAT(then.out, HasSubstr("offset    16 of 11096 bytes"));
  EXPECT_THAT(then.out, Not(HasSubstr("of 11097 bytes")));
  const CommandResult between = RunTool({"who", file + "@0.0070007", "0x7f0000000010"});
  EXPECT_THAT(between.out, HasSubstr("Number of buffers that had it at other times: 30000."));
}

TEST(ControlCommand, TakesALimitForStartOnly) {
  const CommandResult result = RunTool({"control", "server", "record", "flight", "--max-bytes", "1048576"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--max-bytes is for record start, not for record flight"));
}

TEST(ControlCommand, RefusesAWrongSize) {
  for (const char* size : {"1.5", "-1", "many", "1048575"}) {
    const CommandResult result = RunTool({"control", "server", "record", "start", "--max-bytes", size});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(std::string("--max-bytes ") + size + ": write a size of 1MiB or more")) << size;
  }
}

// Returns the rows of a CSV file as objects. An empty cell is null; whole numbers are numbers.
std::vector<nlohmann::json> Rows(const std::string& csv) {
  std::vector<std::vector<std::string>> lines = {{""}};
  bool is_quoted = false;
  for (size_t i = 0; i < csv.size(); ++i) {
    if (csv[i] == '"' && is_quoted && csv.substr(i + 1, 1) == "\"") {
      lines.back().back() += csv[i++];
    } else if (csv[i] == '"') {
      is_quoted = !is_quoted;
    } else if (csv[i] == ',' && !is_quoted) {
      lines.back().emplace_back();
    } else if (csv[i] == '\n') {
      lines.push_back({""});
    } else {
      lines.back().back() += csv[i];
    }
  }
  lines.pop_back();
  std::vector<nlohmann::json> rows;
  for (size_t line = 1; line < lines.size(); ++line) {
    EXPECT_EQ(lines[line].size(), lines[0].size()) << line;
    nlohmann::json& row = rows.emplace_back();
    for (const std::string& column : lines[0]) row[column] = nullptr;
    for (size_t i = 0; i < std::min(lines[line].size(), lines[0].size()); ++i) {
      const std::string& cell = lines[line][i];
      const bool is_number = cell.find_first_not_of("0123456789", cell[0] == '-' ? 1 : 0) == std::string::npos;
      if (cell.empty()) continue;
      if (is_number) row[lines[0][i]] = std::stoll(cell);
      if (!is_number) row[lines[0][i]] = cell;
    }
  }
  return rows;
}

TEST(Tables, HaveEachEventOnce) {
  const std::string file = ScratchDir() + "/load.hbmrec";
  MadeLoad load;
  load.events = 3000;
  load.burst = true;
  ASSERT_TRUE(MakeRecording(file, load).ok());
  const CommandResult csv = RunTool({"convert", file, "--to", "csv"});
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  auto reader = *hbmprof::internal::RecordingReader::Open(file);
  int64_t events = 0;
  int64_t in_use = 0;
  int64_t last_in_use = 0;
  int64_t failed = 0;
  for (const nlohmann::json& row : Rows(csv.out)) {
    if (row["thread"].is_null()) continue;  // of the driver or a counter
    ++events;
    if (row["event"] == "failed") failed += row["bytes"].get<int64_t>();
    if (!row["change"].is_null() && row["pool"].is_null()) in_use += row["change"].get<int64_t>();
    if (row["device"] == "GPU:0") last_in_use = row["in_use"].get<int64_t>();
  }
  EXPECT_EQ(events, reader->event_count());
  EXPECT_EQ(in_use, last_in_use);
  EXPECT_EQ(failed, int64_t{40} << 30);

  EXPECT_EQ(csv.out.substr(0, csv.out.find('\n')),
            "time_ns,unix_ns,event,bytes,change,in_use,id,thread,device,space,kind,site,allocator,pool,name,tags,host,"
            "process");
  const CommandResult to_file = RunTool({"convert", file, "--to", "csv", "-o", file + ".csv"});
  EXPECT_EQ(to_file.exit_code, 0) << to_file.err;
  std::ifstream written(file + ".csv");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(written), {}), csv.out);
}

// read_recording.py has only docs/spec/recording.md as its source.
TEST(Tables, EqualThoseOfAnIndependentReader) {
  const std::string file = ScratchDir() + "/load.hbmrec";
  MadeLoad load;
  load.events = 9000;
  load.pool = true;
  load.burst = true;
  ASSERT_TRUE(MakeRecording(file, load).ok());
  const CommandResult independent = RunCommand({"python3", HBMPROF_READ_RECORDING, file});
  ASSERT_EQ(independent.exit_code, 0) << independent.err;
  std::string lines = "time_ns,event,bytes,id,thread,site\n";
  const CommandResult table = RunTool({"convert", file, "--to", "csv"});
  for (const nlohmann::json& row : Rows(table.out)) {
    if (row["thread"].is_null()) continue;  // of the driver or a counter
    const auto cell = [&](const char* column) {
      return row[column].is_null() ? "" : row[column].is_string() ? row[column].get<std::string>() : row[column].dump();
    };
    lines += cell("time_ns") + "," + cell("event") + "," + cell("bytes") + "," + cell("id") + "," + cell("thread") +
             "," + cell("site") + "\n";
  }
  EXPECT_TRUE(lines == independent.out);
}

TEST(Tables, HaveTheSamplesOfProfiles) {
  const std::string dir = ScratchDir();
  std::vector<std::string> files;
  for (int i = 0; i < 2; ++i) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000123456789 + i * kSecond);
    maker.Comment("hbmprof host=node-" + std::to_string(i) + " pid=42");
    maker.Sample({maker.Frame("f,\"quoted\"", "/src/f.cc", 3), maker.Frame("main")}, {1, 1000 + i},
                 {{"device", "GPU:0"}, {"model", "base"}});
    files.push_back(dir + "/" + std::to_string(i) + ".pb.gz");
    maker.Write(files.back());
  }
  const CommandResult both = RunTool({"convert", files[0], files[1], "--to", "csv"});
  ASSERT_EQ(both.exit_code, 0) << both.err;
  const std::vector<nlohmann::json> rows = Rows(both.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["host"], "node-1");
  EXPECT_EQ(rows[1]["process"], 42);
  EXPECT_EQ(rows[1]["unix_ns"], 1700000001123456789);
  EXPECT_EQ(rows[1]["stack"], "main;f,\"quoted\"");
  EXPECT_EQ(rows[1]["name"], "f,\"quoted\"");
  EXPECT_EQ(rows[1]["labels"], "{\"model\":\"base\"}");
  EXPECT_EQ(rows[1]["inuse_space"], 1001);
  const CommandResult csv = RunTool({"convert", files[0], "--to", "csv"});
  EXPECT_THAT(csv.out,
              HasSubstr("file,unix_ns,host,process,device,kind,allocator,name,where,stack,labels,inuse_objects,"
                        "inuse_space\n"));
  EXPECT_THAT(csv.out, HasSubstr(",\"main;f,\"\"quoted\"\"\",\"{\"\"model\"\":\"\"base\"\"}\",1,1000\n"));
}

// Writes samples.csv, of profiles of `hosts` hosts with `dumps` profiles each, and events.csv of load.hbmrec. The first
// half of the profiles of a host is of process 41 with the release 1.4, the others are of 42 with 1.5.
void WriteTables(const std::string& dir, int hosts, int dumps) {
  std::vector<std::string> arguments = {"convert", "--to", "csv", "-o", dir + "/samples.csv"};
  for (int host = 0; host < hosts; ++host) {
    for (int dump = 0; dump < dumps; ++dump) {
      ProfileMaker maker({{"peak_space", "bytes"}, {"inuse_space", "bytes"}});
      maker.message().set_time_nanos((1700000000 + dump * 60) * kSecond);
      const bool is_new = dump >= dumps / 2;
      const std::pair<std::string, std::string> release = {"release", is_new ? "1.5" : "1.4"};
      maker.Comment("hbmprof host=node-" + std::to_string(host) + " pid=" + (is_new ? "42" : "41"));
      maker.Sample({maker.Frame("Leak"), maker.Frame("main")}, {5000, 1000 + dump * 10}, {{"model", "base"}, release});
      maker.Sample({maker.Frame("Steady"), maker.Frame("main")}, {7000, 500}, {{"model", "large"}, release});
      // A site that only the last profile of each fifth host has, and one that few hosts have.
      if (dump == dumps - 1 && host % 5 == 0) {
        maker.Sample({maker.Frame("Late"), maker.Frame("main")}, {0, 300}, {release});
      }
      if (host % 500 == 7) maker.Sample({maker.Frame("Hoard"), maker.Frame("main")}, {0, 100000 + dump}, {release});
      arguments.push_back(dir + "/" + std::to_string(host) + "." + std::to_string(dump) + ".pb.gz");
      maker.Write(arguments.back());
    }
  }
  const CommandResult samples = RunTool(arguments);
  EXPECT_EQ(samples.exit_code, 0) << samples.err;
  MadeLoad load;
  load.events = 3000;
  load.leak = true;
  EXPECT_TRUE(MakeRecording(dir + "/load.hbmrec", load).ok());
  const CommandResult events = RunTool({"convert", dir + "/load.hbmrec", "--to", "csv", "-o", dir + "/events.csv"});
  EXPECT_EQ(events.exit_code, 0) << events.err;
}

constexpr char kPythonPath[] = "PYTHONPATH=" HBMPROF_PYPI;

// Runs a Python program with the SQL of docs/tables.md as the list `queries`. It prints a JSON array for each query.
std::vector<nlohmann::json> Answers(const std::string& dir, const std::string& program) {
  const std::string all =
      "import json, re, sys\n"
      "queries = re.findall(r'```sql\\n(.*?)```', open(sys.argv[1]).read(), re.S)\n"
      "def answer(rows): print(json.dumps([list(row) for row in rows], default=str))\n" +
      program;
  const CommandResult result = RunCommand({"python3", "-c", all, HBMPROF_TABLES_PAGE}, {kPythonPath}, {dir, 100});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> answers;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) answers.push_back(nlohmann::json::parse(line, nullptr, false));
  return answers;
}

constexpr char kInDuckDb[] = R"(
import duckdb
for query in queries:
  relation = duckdb.sql(query)
  answer(relation.fetchall() if relation else [])
)";

TEST(Tables, AnswerTheDocumentedQueries) {
  if (RunCommand({"python3", "-c", "import duckdb"}, {kPythonPath}).exit_code != 0) {
    GTEST_SKIP() << "DuckDB is not in build/pypi: scripts/test.sh installs it";
  }
  const std::string dir = ScratchDir();
  constexpr int kHosts = 50;
  constexpr int kDumps = 20;
  WriteTables(dir, kHosts, kDumps);
  const std::vector<nlohmann::json> answers = Answers(dir, kInDuckDb);
  ASSERT_EQ(answers.size(), 5u);  // the first one makes the names, the last one a file
  EXPECT_EQ(answers[2], nlohmann::json({{"main;Leak", kHosts * kDumps / 2 * 10, kHosts},
                                        {"main;Late", kHosts / 5 * 300, kHosts / 5},
                                        {"main;Hoard", kDumps / 2, 1},
                                        {"main;Steady", 0, kHosts}}));
  // The last profiles of both processes of the host; failed before, which counted one process.
  constexpr int kLast = kDumps - 1 + kDumps / 2 - 1;
  const nlohmann::json outlier = nlohmann::json::array({"node-7", 2 * (1000 + 500 + 100000) + kLast * 11});
  EXPECT_EQ(answers[3], nlohmann::json::array({outlier}));
  // Of the recording: the leaked pages are still in use.
  const nlohmann::json top = ToolJson({"top", dir + "/load.hbmrec"});
  for (const auto& row : top["rows"]) {
    if (row["function"] != "llm::KvCache::LeakPage") continue;
    const auto bytes = row["flat"].get<int64_t>();
    EXPECT_THAT(answers[1].dump(), HasSubstr("[\"llm::KvCache::LeakPage\"," + std::to_string(bytes / (2 * kMiB)) + "," +
                                             std::to_string(bytes) + "]"));
  }
  EXPECT_TRUE(std::filesystem::exists(dir + "/samples.parquet"));
}

// The first query counts each buffer that begins or ends.
TEST(Tables, QueryOfBuffersInUseKnowsMoves) {
  if (RunCommand({"python3", "-c", "import duckdb"}, {kPythonPath}).exit_code != 0) {
    GTEST_SKIP() << "DuckDB is not in build/pypi: scripts/test.sh installs it";
  }
  const std::string dir = ScratchDir();
  WriteTables(dir, 1, 1);
  MadeRecording recording;
  const uint32_t before = recording.Site({{"Before"}});
  const uint32_t kept = recording.Site({{"Kept"}});
  const uint32_t left = recording.Site({{"Left"}});
  const uint32_t arrived = recording.Site({{"Arrived"}});
  recording.Live(0x1000, 1, before).Free(5, 0x1000);
  recording.Alloc(10, 0x2000, 100, kept);
  recording.Alloc(40, 0x3000, 10, left).Move(50, 0x3000, 20, arrived);
  const std::string file = dir + "/made.hbmrec";
  ASSERT_TRUE(recording.WriteTo(**RecordingWriter::Create(file)).ok());
  ASSERT_EQ(RunTool({"convert", file, "--to", "csv", "-o", dir + "/events.csv"}).exit_code, 0);
  const std::vector<nlohmann::json> answers = Answers(dir, kInDuckDb);
  ASSERT_EQ(answers.size(), 5u);
  EXPECT_EQ(answers[1], nlohmann::json({{"Kept", 1, 100}, {"Arrived", 1, 20}, {"Left", 0, 0}, {"Before", -1, -1}}));
}

TEST(Tables, SparkAnswersTheQueriesAsDuckDb) {
  if (RunCommand({"python3", "-c", "import duckdb, pyspark"}, {kPythonPath}).exit_code != 0 ||
      RunCommand({"java", "-version"}).exit_code != 0) {
    GTEST_SKIP() << "PySpark, DuckDB or Java is not installed: scripts/test.sh installs them";
  }
  const std::string dir = ScratchDir();
  WriteTables(dir, 1000, 10);
  constexpr char kInSpark[] = R"(
block = re.search(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.S)
exec(block.group(1))
for query in queries[1:4]:
  answer(spark.sql(query.rstrip().rstrip(";")).collect())
)";
  std::vector<nlohmann::json> expected = Answers(dir, kInDuckDb);
  std::vector<nlohmann::json> answers = Answers(dir, kInSpark);
  ASSERT_EQ(expected.size(), 5u);
  ASSERT_EQ(answers.size(), 3u);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_GE(answers[i].size(), 2u);
    // Rows with equal values are in no order.
    std::sort(answers[i].begin(), answers[i].end());
    std::sort(expected[i + 1].begin(), expected[i + 1].end());
    EXPECT_EQ(answers[i], expected[i + 1]);
  }
}

}  // namespace
}  // namespace hbmprof_test
