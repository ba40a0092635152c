// The command line itself: help, manual page, completion, usage errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "src/recording/writer.h"
#include "tests/support/made_recording.h"
#include "tests/support/sanitized.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Subcommands() {
  std::vector<std::string> names;
  std::istringstream help(RunTool({"--help"}).out);
  bool in_list = false;
  for (std::string line; std::getline(help, line);) {
    std::smatch match;
    if (in_list && std::regex_search(line, match, std::regex("^  ([a-z]+) "))) names.push_back(match[1]);
    in_list = in_list || line == "Record:";
  }
  return names;
}

std::set<std::string> LongOptions(const std::string& command) {
  std::set<std::string> options;
  const std::string help = RunTool({command, "--help"}).out;
  const std::regex option("--[a-z][a-z-]+");
  for (std::sregex_iterator i(help.begin(), help.end(), option), end; i != end; ++i) options.insert(i->str());
  options.erase("--help");
  return options;
}

TEST(Help, FitsAScreen) {
  ASSERT_THAT(Subcommands(), testing::Contains("symbolize"));
  EXPECT_EQ(RunTool({"help"}).out, RunTool({"--help"}).out);
  EXPECT_EQ(RunTool({"help", "top"}).out, RunTool({"top", "--help"}).out);
  EXPECT_THAT(RunTool({"help", "tpo"}).err, HasSubstr("there is no command 'tpo'; did you mean 'top'?"));
  for (const std::string& command : Subcommands()) {
    const CommandResult result = RunTool({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 24) << result.out;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << command << ": " << line;
    // Failed before: names of CLI11's types, and "--record{true}".
    EXPECT_FALSE(std::regex_search(result.out, std::regex("[{}]|TEXT|INT|REQUIRED|Excludes|Env:"))) << result.out;
  }
  EXPECT_THAT(RunTool({"run", "--help"}).out, HasSubstr("\n  --record [FILE]  "));
}

TEST(Manual, HasEveryCommandAndOption) {
  const std::string manual = RunTool({"--reference", "man", HBMPROF_MANUAL}).out;
  EXPECT_THAT(manual, testing::AllOf(HasSubstr(".SH NAME"), HasSubstr(".SH EXIT STATUS"), Not(HasSubstr("@COMM"))));
  for (const std::string& command : Subcommands()) {
    EXPECT_THAT(manual, HasSubstr(".SS hbmprof " + command));
    for (const std::string& option : LongOptions(command)) {
      EXPECT_THAT(manual, HasSubstr(std::regex_replace(option, std::regex("-"), "\\-"))) << command;
    }
  }
}

TEST(Manual, NeedsAPlaceForTheReference) {
  const std::string frame = ScratchDir() + "/frame";
  WriteFile(frame, "no such line\n");
  const CommandResult result = RunTool({"--reference", "man", frame});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr(frame + ": has no line @COMMANDS@"));
}

// docs/command.md has what the command prints.
TEST(Manual, ThePageOfTheCommandHasTheReference) {
  std::ifstream file(HBMPROF_COMMAND_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string reference = RunTool({"--reference", "markdown"}).out;
  EXPECT_GT(reference.size(), 1000u);
  EXPECT_TRUE(page.find(reference) != std::string::npos)
      << "the section Reference is made by hbmprof --reference markdown; put this there:\n"
      << reference;
}

// The JSON of every command is as docs/schema says, and short with the default options.
TEST(Json, IsAsItsSchemaSays) {
  const std::string dir = ScratchDir();
  std::vector<std::string> files;
  for (int dump = 0; dump < 4; ++dump) {
    ProfileMaker maker;
    maker.message().set_time_nanos(1700000000000000000 + int64_t{dump} * 1000000000);
    maker.Comment("hbmprof pid=" + std::to_string(dump < 1 ? 1 : 2));
    maker.Comment("counter requests value=" + std::to_string(dump * 10));
    maker.Sample({maker.Frame("f", "/src/f.cc", 3), maker.Frame("main")}, {1, 1000 + dump * 1000},
                 {{"device", "GPU:0"}});
    files.push_back(dir + "/" + std::to_string(dump));
    maker.Write(files.back());
  }
  ProfileMaker with_ages;
  with_ages.Comment("hbmprof version=1 pid=7 uptime=63");
  hbmprof::pprof::Ages& ages =
      *with_ages.Sample({with_ages.Frame("f"), with_ages.Frame("main")}, {64, 64000}, {{"device", "GPU:0"}})
           .mutable_ages();
  ages.mutable_born_bytes()->Resize(64, 1000);
  ages.mutable_born_counts()->Resize(64, 1);
  with_ages.Write(dir + "/ages");
  ProfileMaker with_code;
  const uint64_t binary = with_code.Mapping(0x1000, 0x2000, 0, "/gone/app", "abcdef12");
  with_code.Sample({with_code.Location(binary, 0x1010, {})}, {1, 2});
  with_code.Write(dir + "/code");
  MadeRecording made;
  made.Alloc(1000, 0x1000, 4096, made.Site({{"f"}})).Mark(2000, "profile.pb.gz");
  const std::string recording = dir + "/made.hbmrec";
  ASSERT_TRUE(made.WriteTo(**hbmprof::internal::RecordingWriter::Create(recording)).ok());
  ProfileMaker with_peak({{"peak_objects", "count"}, {"peak_space", "bytes"}});
  with_peak.Sample({with_peak.Frame("f"), with_peak.Frame("main")}, {1, 2 << 20});
  with_peak.Write(dir + "/peak");
  WriteFile(dir + "/budget", "total 1MiB\n");
  const std::pair<const char*, std::vector<std::string>> commands[] = {
      {"top", {"top", files[0], "--by", "device,function"}},
      {"top", {"top", files[0], "--by", "line"}},
      {"top", {"top", files[0], "--by", "file"}},
      {"top", {"top", files[0], "--tree"}},
      {"top", {"top", "--callers", "f|main", files[0]}},
      {"top", {"top", dir + "/ages", "--by", "birth,function", "--older", "10s"}},
      {"diff", {"diff", "--tree", files[0], files[1]}},
      {"diff", {"diff", files[0], files[1], "--by", "device"}},
      {"diff", {"diff", files[0], files[1]}},
      {"ranks", {"diff", "--ranks", files[0], dir + "/ages"}},
      {"ranks", {"diff", "--ranks", files[0], dir + "/ages", "--by", "device"}},
      {"budget", {"diff", "--budget", dir + "/budget", dir + "/peak"}},
      {"top", {"top", files[0], "--by", "rank,function"}},
      {"symbolize", {"symbolize", dir + "/code", "-o", dir + "/named"}},
      {"timeline", {"timeline", recording}},
      {"convert", {"convert", "--to", "csv", recording, "-o", dir + "/made.csv"}},
      {"convert", {"convert", "--to", "csv", files[0], "-o", dir + "/samples.csv"}},
      {"convert", {"convert", "--to", "memory-viz", recording, "-o", dir + "/made.pickle"}},
      {"who", {"who", recording, "0x1010"}},
      {"who", {"who", recording, "0x10"}},
      {"doctor", {"doctor"}},
      {"dump", {"dump", files[0], "-o", dir + "/dumped.pb.gz"}},
      {"report", {"report", files[0], "-o", dir + "/report.html"}},
      {"ps", {"ps"}}};
  for (const auto& [name, command] : commands) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--json");
    const CommandResult result = RunTool(arguments);
    const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << name << result.err;
    EXPECT_EQ(json["version"], 1) << name;
    const nlohmann::json schema =
        nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS + std::string("/") + name + ".json"));
    EXPECT_EQ(SchemaProblem(schema, json), "") << testing::PrintToString(command);
  }
  EXPECT_EQ(nlohmann::json::parse(RunTool({"top", files[0], "-n", "1", "--json"}).out)["left_out"], 1);
  EXPECT_EQ(nlohmann::json::parse(RunTool({"dump", files[0], "-o", dir + "/named", "--json"}).out)["file"],
            dir + "/named");
}

// Each command with --json that reads a source, with default options.
TEST(Json, OfTheExampleIsShort) {
  const std::string example = HBMPROF_EXAMPLE_RECORDING;
  const std::string dir = ScratchDir();
  const std::vector<std::vector<std::string>> commands = {{"explain", example},
                                                          {"top", example},
                                                          {"diff", example + "@0.1s", example},
                                                          {"report", example, "-o", dir + "/report.html"},
                                                          {"timeline", example},
                                                          {"who", example, "0x7f0000200000"},
                                                          {"dump", example, "-o", dir + "/end.pb.gz"}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--json");
    const CommandResult result = RunTool(command);
    EXPECT_TRUE(nlohmann::json::accept(result.out)) << command[0] << result.err;
    EXPECT_LE(result.out.size(), 6000u) << command[0] << ": 1,500 tokens of four characters, for an agent";
  }
}

TEST(ConvertCommand, DescribesItsFileAsJson) {
  const std::string dir = ScratchDir();
  MadeRecording made;
  made.Alloc(1000, 0x1000, 4096, made.Site({{"f"}})).Lost(10, 20, 5);
  const std::string recording = dir + "/made.hbmrec";
  ASSERT_TRUE(made.WriteTo(**hbmprof::internal::RecordingWriter::Create(recording)).ok());
  const std::string file = dir + "/made.csv";
  const nlohmann::json json = ToolJson({"convert", "--to", "csv", recording, "-o", file});
  EXPECT_EQ(json["file"], file);
  EXPECT_EQ(json["format"], "csv");
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(file));
  EXPECT_EQ(json["events"], 1);
  EXPECT_THAT(json["problems"].dump(), HasSubstr("events are missing in 1 intervals (5)"));
  const CommandResult to_output = RunTool({"convert", "--to", "csv", recording, "--json"});
  EXPECT_EQ(to_output.exit_code, 2);
  EXPECT_THAT(to_output.err, HasSubstr("--json and -o -: both write to standard output; name a file"));
}

TEST(Completion, CompletesCommandsOptionsAndFilesInBash) {
  const std::string dir = ScratchDir();
  WriteFile(dir + "/hbmprof.bash", RunTool({"--reference", "bash"}).out);
  const auto complete = [&](const std::string& words) {
    const std::string script = "cd '" + dir + "' && source ./hbmprof.bash && COMP_WORDS=(" + words +
                               ") && COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && { _hbmprof; echo \"${COMPREPLY[*]}\"; }";
    const CommandResult result = RunCommand({"bash", "-c", script});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(complete("hbmprof le"), "leaks\n");
  EXPECT_EQ(complete("hbmprof leaks --fa"), "--fail-over\n");
  EXPECT_EQ(complete("hbmprof top --fo"), "--focus\n");
  EXPECT_EQ(complete("hbmprof top --tr"), "--tree\n");
  EXPECT_EQ(complete("hbmprof diff --o"), "--own\n");
  EXPECT_EQ(complete("hbmprof symbolize --deb"), "--debug-dir\n");
  EXPECT_EQ(complete("hbmprof top hbm"), "hbmprof.bash\n");
  EXPECT_EQ(complete("hbmprof top --fail"), "\n");
  EXPECT_EQ(complete("hbmprof top --kn"), "--known\n") << "an option that the help has in a line with others";
  EXPECT_EQ(complete("hbmprof --"), "--help --version\n") << "no options of subcommands";
  EXPECT_EQ(complete("hbmprof doctor --cov"), "\n") << "an option for the command itself";
}

TEST(Completion, SupportsEachShell) {
  EXPECT_THAT(RunTool({"--reference", "zsh"}).out, HasSubstr("#compdef hbmprof"));
  EXPECT_EQ(RunTool({"--reference", "tcsh"}).exit_code, 2);
}

TEST(Usage, WrongUsageExitsWithTwoAndAMessage) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"nonsense"}, {"top"}, {"top", "--nonsense", "x"}, {"diff", "only_one"}}) {
    const CommandResult result = RunTool(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err, "");
    EXPECT_EQ(result.out, "");
  }
  EXPECT_THAT(RunTool({"--version"}).out, HasSubstr("hbmprof 0."));
}

TEST(Usage, UnknownCommandSuggestsASimilarOne) {
  const std::pair<std::string, std::string> cases[] = {
      {"laeks", "leaks"}, {"tpo", "top"}, {"dif", "diff"}, {"sym", "symbolize"}, {"reports", "report"}};
  for (const auto& [typed, meant] : cases) {
    const CommandResult result = RunTool({typed, "file"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("there is no command '" + typed + "'; did you mean '" + meant + "'?"));
    EXPECT_THAT(result.err, HasSubstr("run, attach, doctor, explain, top, diff, leaks, report, "));
  }
  EXPECT_THAT(RunTool({"nonsense"}).err, HasSubstr("there is no command 'nonsense'\n"));
}

TEST(Usage, OutputHasADefault) {
  const std::string dir = ScratchDir();
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 2});
  maker.Write(dir + "/p.pb.gz");
  MadeRecording made;
  made.Alloc(1000, 0x1000, 4096, made.Site({{"f"}}));
  ASSERT_TRUE(made.WriteTo(**hbmprof::internal::RecordingWriter::Create(dir + "/r.hbmrec")).ok());
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"report", "p.pb.gz"}, "p.html"},
      {{"dump", "r.hbmrec@peak"}, "r_peak.pb.gz"},
      {{"dump", "r.hbmrec@peak"}, "r_peak.1.pb.gz"},
      {{"symbolize", "p.pb.gz"}, "p.symbolized.pb.gz"},
      {{"convert", "--to", "perfetto", "r.hbmrec"}, "r.perfetto-trace"}};
  for (const auto& [arguments, file] : cases) {
    std::vector<std::string> command = {"env", "-C", dir, ToolPath()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const CommandResult result = RunCommand(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(file)) << file;
    EXPECT_TRUE(std::filesystem::exists(dir + "/" + file)) << file;
  }
}

TEST(Usage, AFolderIsTheProfilesInIt) {
  const std::string dir = ScratchDir();
  for (int i = 0; i < 3; ++i) {
    ProfileMaker maker;
    maker.Sample({maker.Frame("f")}, {1, 100});
    maker.Write(dir + "/" + std::to_string(i) + ".pb.gz");
  }
  WriteFile(dir + "/notes.txt", "no profile");
  EXPECT_EQ(ToolJson({"top", dir})["total"], 300);
  EXPECT_EQ(ToolJson({"top", dir})["files"].size(), 3u);
  std::filesystem::create_directory(dir + "/empty");
  const CommandResult empty = RunTool({"top", dir + "/empty"});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("empty: the folder has no profiles (*.pb.gz)"));
}

// The profile at the end of a Python program has nothing in use: its tensors were freed before.
TEST(Usage, PeakIsShownIfNothingIsInUse) {
  const std::string dir = ScratchDir();
  std::vector<std::string> files;
  for (int i = 0; i < 2; ++i) {
    ProfileMaker maker(
        {{"peak_objects", "count"}, {"peak_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}});
    maker.Sample({maker.Frame("Load"), maker.Frame("main")}, {1, 4096, 0, 0});
    maker.Comment("hbmprof host=a pid=" + std::to_string(i));
    files.push_back(dir + "/" + std::to_string(i) + ".pb.gz");
    maker.Write(files.back());
  }
  for (const std::vector<std::string>& command : {std::vector<std::string>{"top", files[0]},
                                                  {"top", files[0], files[1]},
                                                  {"top", "--tree", files[0], files[1]},
                                                  {"diff", files[0], files[1]},
                                                  {"top", "--callers", "Load", files[0]}}) {
    const CommandResult result = RunTool(command);
    EXPECT_THAT(result.out, HasSubstr("nothing is in use any more: this is the memory at the peak")) << command[0];
    const nlohmann::json json = ToolJson(command);
    EXPECT_EQ(json["type"], "peak_space");
    EXPECT_EQ(json["all_freed"], true);
  }
  EXPECT_EQ(ToolJson({"top", files[0], files[1]})["total"], 8192);
  EXPECT_EQ(ToolJson({"top", files[0], "--type", "inuse_space"})["total"], 0);
}

// The function main of the program has ended before its last profile: PyTorch's cache still has the memory.
TEST(Usage, PeakOfAPoolIsShownIfItIsIdle) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker({{"peak_space", "bytes"}, {"pool_peak_space", "bytes"}, {"inuse_space", "bytes"}});
  maker.Sample({maker.Frame("Train"), maker.Frame("main")}, {2000, 3000, 0}, {{"kind", "device"}});
  maker.Sample({maker.Frame("[idle memory of pytorch]")}, {2000, 0, 4000}, {{"kind", "pool"}});
  maker.Sample({maker.Frame("Launch")}, {500, 0, 500}, {{"kind", "executable"}});
  maker.Write(path);
  const nlohmann::json json = ToolJson({"top", path});
  EXPECT_EQ(json["type"], "pool_peak_space");
  EXPECT_EQ(json["all_freed"], true);
  EXPECT_EQ(json["rows"][0]["function"], "Train");
  EXPECT_EQ(json["total"], 3000);
  EXPECT_THAT(RunTool({"top", path}).out, HasSubstr("nothing is in use any more but idle memory of pools: this is the "
                                                    "memory at the peak (--type inuse_space shows what is left)\n"));
  EXPECT_EQ(ToolJson({"top", path, "--type", "inuse_space"})["total"], 4500);
}

TEST(Usage, RecordingThatIsOffIsAFinding) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 2});
  maker.Comment("warning text=Recording%20has%20been%20off%20since%202026-11-22T08:00:00Z:%20allocations");
  maker.Write(path);
  const std::vector<std::string> commands[] = {
      {"top", path}, {"top", "--callers", "f", path}, {"diff", path, path}, {"diff", "--ranks", path}};
  for (const std::vector<std::string>& command : commands) {
    const CommandResult result = RunTool(command);
    EXPECT_EQ(result.exit_code, 1) << testing::PrintToString(command);
    EXPECT_THAT(result.out, HasSubstr("RECORDING OFF since 2026-11-22T08:00:00Z"));
    std::vector<std::string> as_json = command;
    as_json.emplace_back("--json");
    EXPECT_EQ(RunTool(as_json).exit_code, 1) << testing::PrintToString(command);
  }
  EXPECT_EQ(ToolJson({"top", path})["recording_off"], true);
}

TEST(Usage, TopSaysWhatIsMissing) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Comment("device GPU:0 space=device peak=0 in_use=0");
  maker.Write(path);
  EXPECT_THAT(RunTool({"top", path}).out,
              HasSubstr("no memory was recorded: a linked library records only the calls "));
  maker.Sample({maker.Frame("f", "f.cc", 0)}, {1, 2});
  maker.Write(path);
  const std::string hint = "the profile has no lines: `hbmprof symbolize FILE` adds them";
  EXPECT_THAT(RunTool({"top", path, "--by", "line"}).out, HasSubstr(hint));
  EXPECT_THAT(RunTool({"top", path}).out, Not(HasSubstr("no memory was recorded")));
  maker.Sample({maker.Frame("g", "g.cc", 3)}, {1, 2});
  maker.Write(path);
  EXPECT_THAT(RunTool({"top", path, "--by", "line"}).out, Not(HasSubstr(hint)));
}

// A process without a control channel.
TEST(Usage, AProcessWithoutAControlChannelCanLinkHbmprof) {
  const std::string id = std::to_string(getpid());
  const CommandResult top = RunTool({"top", id}, {"HBMPROF_SOCKET_DIR=" + ScratchDir()});
  EXPECT_EQ(top.exit_code, 2);
  EXPECT_THAT(top.err, HasSubstr("process " + id + " has no control channel: it has not used CUDA yet; or it links"));
}

// An option has one meaning in all commands.
TEST(Help, LettersOfOptionsMeanTheSameEverywhere) {
  const std::map<std::string, std::string> names = {{"-d", "--device"}, {"-n", "--rows"},   {"-b", "--by"},
                                                    {"-w", "--where"},  {"-o", "--output"}, {"-t", "--type"},
                                                    {"-p", "--per"},    {"-j", "--jobs"},   {"-h", "--help"}};
  for (const std::string& command : Subcommands()) {
    const std::string help = RunTool({command, "--help"}).out;
    const std::regex both("\n  (-[a-z]),(--[a-z-]+)");
    for (std::sregex_iterator i(help.begin(), help.end(), both), end; i != end; ++i) {
      ASSERT_TRUE(names.count((*i)[1])) << command << " " << i->str();
      EXPECT_EQ(names.at((*i)[1]), (*i)[2]) << command;
    }
  }
}

class OptionsOfPprof : public ::testing::TestWithParam<const char*> {};

TEST_P(OptionsOfPprof, MissingValueNamesTheOption) {
  const std::string option = GetParam();
  for (const std::string command : {"top", "diff", "report"}) {
    const CommandResult result = RunTool({command, "a", "b", option});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, ::testing::StartsWith("hbmprof " + command + ": " + option + ": "));
  }
  EXPECT_THAT(RunTool({"top", "--help"}).out, Not(HasSubstr("\n  " + option))) << "the help has one line for all";
}

INSTANTIATE_TEST_SUITE_P(All, OptionsOfPprof, ::testing::Values("--focus", "--ignore"), [](const auto& info) {
  std::string name = info.param;
  name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
  return name;
});

TEST(Usage, UnknownOptionSuggestsASimilarOne) {
  const CommandResult result = RunTool({"top", "--fucos=main", "file"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "hbmprof top: there is no option '--fucos'; did you mean '--focus'?\n"
            "Run hbmprof top --help for more information.\n");
  EXPECT_THAT(RunTool({"report", "--hlep"}).err, HasSubstr("there is no option '--hlep'; did you mean '--help'?"));
  EXPECT_THAT(RunTool({"diff", "--version"}).err, HasSubstr("there is no option '--version'\n"));
  EXPECT_THAT(RunTool({"top", "--nonsense", "file"}).err, HasSubstr("there is no option '--nonsense'\n"));
  EXPECT_THAT(RunTool({"run", "--nonsense", "--", "true"}).err, HasSubstr("no option '--nonsense'"));
  EXPECT_THAT(RunTool({"diff", "only_one"}).err, Not(HasSubstr("no option")));
  EXPECT_THAT(RunTool({"top", "-json", "file"}).err, HasSubstr("there is no option '-json'; did you mean '--json'?"));
  EXPECT_THAT(RunTool({"--hepl"}).err, HasSubstr("there is no option '--hepl'; did you mean '--help'?"));
}

TEST(Usage, LongPathsAreShortenedSoThatTheReasonIsShown) {
  const std::string path(100'000, 'a');
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"top", path}, ": cannot be opened: File name too long\n"},
      {{"explain", path}, ": cannot be opened: File name too long\n"},
      {{"run", "--", path}, ": no such program\n"},
      {{"run", "-o", path, "true"}, ": File name too long\n"},
      {{"doctor", "--", path}, ": no such program\n"},
      {{"dump", path}, ": cannot be opened: File name too long\n"},
      {{"serve", "--token-file", path}, ": cannot be opened: File name too long\n"},
      {{"top", "--" + path}, "'\nRun hbmprof top --help for more information.\n"},
      {{path}, " Run hbmprof --help for more information.\n"}};
  for (const auto& [arguments, end] : cases) {
    if (kSanitized && arguments[0] == "run") continue;  // there is no injected library
    const CommandResult result = RunTool(arguments);
    EXPECT_THAT(result.out + result.err, testing::EndsWith(end)) << arguments[0].substr(0, 20);
    EXPECT_LT((result.out + result.err).size(), 3000) << arguments[0].substr(0, 20);
  }
}

TEST(Usage, WrongMemoryLimitIsAnError) {
  const std::string file = ScratchDir() + "/a.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("Load")}, {1, 4096});
  maker.Write(file);
  for (const char* size : {"banana", "-1", "0"}) {
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"top", file}, {"symbolize", file, "-o", file}, {"serve", "--address", "0.0.0.0"}}) {
      const CommandResult result = RunTool(command, {std::string("HBMPROF_TOOL_MEMORY=") + size});
      EXPECT_EQ(result.exit_code, 2) << command[0];
      EXPECT_THAT(result.err, HasSubstr(std::string("HBMPROF_TOOL_MEMORY=") + size + ": write a size such as 8GiB"));
    }
  }
  EXPECT_EQ(RunTool({"top", file}, {"HBMPROF_TOOL_MEMORY="}).exit_code, 0);
}

TEST(Usage, WrongValuesAreExplained) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 2}, {{"device", "GPU:0"}});
  maker.Write(path);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"top", path, "--type", "nonsense"}, "use one of: inuse_objects, inuse_space"},
      {{"top", path, "--by", "devise"}, "--by devise: no sample has the label 'devise'; the labels are: device"},
      {{"top", path, "--where", "devise=GPU:0"}, "the labels are: device"},
      {{"top", path, "--focus", "("}, "--focus (: not a regular expression"},
      {{"top", path, "--own", "--known", "("}, "--known (: not a regular expression"},
      {{"top", "http://127.0.0.1:1/debug/pprof/heap"}, "a URL is no source: download the profile first"},
      {{"top", "https://example.com/after.pb.gz"}, "a URL is no source"},
      {{"top", path, "--by", "line,function"}, "only one of function, line and file"},
      {{"top", path, "--where", "device"}, "KEY=VALUE"},
      {{}, "hbmprof: a command is missing\nThe commands are: run, "},
      {{"top"}, "hbmprof top: SOURCE is required\nRun hbmprof top --help for more information.\n"},
      {{"run"}, "hbmprof run: PROGRAM is required\n"},
      {{"timeline", path}, "is not a recording; `hbmprof run --record` and HBMPROF_RECORD write recordings"},
      {{"diff", path, path, "--fail-over", "much"}, "write a size such as 1MiB"},
      {{"top", "--callers", "(", path}, "not a regular expression"},
      {{"top", "--callers", "nonsense", path}, "no function matches 'nonsense'"},
      {{"convert", path, "--to", "xml"}, "xml"},
      {{"report", path, "-o", "/nowhere/at/all.html"}, "/nowhere/at/all.html"},
      {{"symbolize", path, "-o", "/tmp/x", "--debug-dir", "/nowhere"}, "/nowhere: no such folder"},
  };
  for (const auto& [arguments, message] : cases) {
    const CommandResult result = RunTool(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
  const nlohmann::json all = ToolJson({"top", path, "--where", "device=GPU:0", "--by", "device,function"});
  ASSERT_EQ(all["rows"].size(), 1u);
  EXPECT_EQ(all["rows"][0]["labels"]["device"], "GPU:0");
  EXPECT_EQ(RunTool({"top", path, "--where", "device=GPU:1"}).err, "hbmprof top: warning: --where matches nothing\n");
  EXPECT_EQ(RunTool({"top", path, "--where", "device=GPU:0"}).err, "");
}

TEST(Usage, WrongNumbersAreExplained) {
  const std::string dir = ScratchDir();
  const std::string path = dir + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 2});
  maker.Write(path);
  MadeRecording made;
  made.Alloc(1000, 0x1000, 4096, made.Site({{"f"}}));
  const std::string recording = dir + "/made.hbmrec";
  ASSERT_TRUE(made.WriteTo(**hbmprof::internal::RecordingWriter::Create(recording)).ok());
  struct Option {
    std::vector<std::string> command;
    std::string option;
    std::string least_and_most;
  };
  const Option counts[] = {{{"top", path}, "--rows", "0 to 1000000000"},
                           {{"diff", path, path}, "--rows", "0 to 1000000000"},
                           {{"top", "--callers", "f", path}, "--rows", "0 to 1000000000"},
                           {{"leaks", path, path, path}, "--rows", "0 to 1000000000"},
                           {{"leaks", path, path, path}, "--frames", "0 to 1000000000"},
                           {{"timeline", recording}, "--sites", "0 to 1000000000"},
                           {{"serve"}, "--port", "0 to 65535"},
                           {{"serve"}, "--max-samples", "0 to 1000000000"}};
  for (const Option& count : counts) {
    for (const char* const value :
         {"-1", "+1", "0x10", " 1", "1 ", "1e3", "1.5", "2k", "many", "99999999999999999999"}) {
      std::vector<std::string> arguments = count.command;
      arguments.insert(arguments.end(), {count.option, value});
      const CommandResult result = RunTool(arguments);
      EXPECT_EQ(result.exit_code, 2) << count.option << " " << value;
      EXPECT_EQ(result.err, "hbmprof " + count.command[0] + ": " + count.option + ": '" + value +
                                "' is not a whole number from " + count.least_and_most + "\nRun hbmprof " +
                                count.command[0] + " --help for more information.\n");
    }
  }
  const std::pair<std::vector<std::string>, std::string> sizes[] = {
      {{"diff", path, path, "--fail-over"}, ": write a size such as 1MiB"},
      {{"leaks", path, path, path, "--fail-over"}, ": write a size such as 1MiB"},
      {{"serve", "--max-bytes"}, ": write a size such as 4MiB"},
      {{"control", "1", "record", "start", "--max-bytes"},
       ": write a size of 1MiB or more, such as 4GiB, or 0 for no limit"},
      {{"diff", path, path, "--after"}, ": write a time such as 60s or 5m, up to 24h"},
      {{"serve", "--interval"}, ": write a time from 100ms to 1h"},
      {{"run", "--interval"}, ": write a time such as 60s or 5m, from 1ms to 1e8 seconds"}};
  for (const auto& [command, message] : sizes) {
    for (const std::string value : {"-1", "+1", "0x10", "1e3", " 1", "inf", "nan", "1..5", "much"}) {
      std::vector<std::string> arguments = command;
      arguments.push_back(value);
      if (command[0] == "run") arguments.insert(arguments.end(), {"--", "true"});
      const CommandResult result = RunTool(arguments);
      EXPECT_EQ(result.exit_code, 2) << command[0] << " " << value;
      EXPECT_EQ(result.err, "hbmprof " + command[0] + ": " + command.back() + " " + value + message + "\n");
    }
  }
  for (const std::string value : {"-1", "+16", " 16", "banana", "0x", "16MiB", "0x10000000000000000"}) {
    const CommandResult result = RunTool({"who", recording, value});
    EXPECT_EQ(result.exit_code, 2) << value;
    EXPECT_EQ(result.err, "hbmprof who: '" + value + "' is not an address such as 0x7f0000200000\n");
  }
  // A leading zero does not make a number octal.
  EXPECT_EQ(RunTool({"top", path, "--rows", "010"}).out, RunTool({"top", path, "--rows", "10"}).out);
  EXPECT_EQ(RunTool({"who", recording, "04096"}).out, RunTool({"who", recording, "0x1000"}).out);
  for (const char* const size : {"0", "1 MiB", "1.5k", "007", "1b"}) {
    EXPECT_EQ(RunTool({"diff", path, path, "--fail-over", size}).exit_code, 0) << size;
  }
}

TEST(Usage, OptionsWithoutEffectAreErrors) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 2}, {{"device", "GPU:0"}});
  maker.Write(path);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"top", path, "-n", "5", "--rows", "6"}, "--rows: "},
      {{"convert", path, "--to", "csv", "--to", "csv"}, "--to: "},
      {{"dump", path, "-o", "-", "--json"}, "--json and -o -: both write to standard output; name a file\n"},
      {{"top", path, "--tree", "--cum"}, "--cum excludes --tree"},
      {{"diff", path, path, "--tree", "--cum"}, "--cum excludes --tree"},
      {{"control", "1", "record"}, "record needs an argument: start, stop or flight\n"},
      {{"control", "1", "tag"}, "tag needs an argument: KEY=VALUE\n"},
      {{"control", "1", "stats", "all"}, "stats takes no argument\n"},
      {{"control", "1", "tag", "a=b\nreset-peak"}, "the argument has a line feed\n"},
      {{"control", "1", "record", "stop", "-o", "x"}, "--output is for record start and record flight, not for"},
      {{"serve", "--address", "nonsense"}, "--address nonsense: write an IP address such as 127.0.0.1 or ::1\n"},
      {{"serve", "--token-file", "/nowhere"}, "--token-file /nowhere: cannot be opened"},
      {{"serve", "--metrics-tags", "a, b"}, "--metrics-tags 'a, b': write KEY,KEY,... without spaces\n"},
  };
  for (const auto& [arguments, message] : cases) {
    const CommandResult result = RunTool(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, ::testing::StartsWith("hbmprof " + arguments[0] + ": "));
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  }
}

// Failed before: only explain, leaks and report counted the size of a recording, or of a snapshot of PyTorch.
TEST(Usage, SizeOfARecordingCountsForTheMemoryLimit) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own memory would count, so there is no limit";
#endif
  MadeRecording made;
  for (uint64_t i = 0; i < 1000; ++i) made.Alloc(1000 + i, 0x1000 * (i + 1), 4096, made.Site({{"f"}}));
  const std::string path = ScratchDir() + "/r.hbmrec";
  ASSERT_TRUE(made.WriteTo(**hbmprof::internal::RecordingWriter::Create(path)).ok());
  const CommandResult result = RunTool({"timeline", path}, {"HBMPROF_TOOL_MEMORY=1KiB"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, ::testing::MatchesRegex("hbmprof timeline: needs more memory than 1.00 KiB, the limit for "
                                                  "[0-9.]+ KiB of input; HBMPROF_TOOL_MEMORY=8GiB in the environment "
                                                  "sets another limit\n"));
}

TEST(Usage, PsHasOneExitCodeWithAndWithoutItsFolder) {
  const std::string folder = ScratchDir();
  for (const std::string& path : {folder, folder + "/none"}) {
    const CommandResult ps = RunTool({"ps"}, {"HBMPROF_SOCKET_DIR=" + path});
    EXPECT_EQ(ps.exit_code, 0) << path;
    EXPECT_THAT(ps.err, HasSubstr("no process has a control channel in " + path));
  }
}

// A recording that is cut off has the state of an earlier instant, which no reader of it must take for the end.
TEST(Usage, DamagedRecordingIsReported) {
  const std::string dir = ScratchDir();
  MadeRecording made;
  for (uint64_t i = 0; i < 1000; ++i) made.Alloc(1000 + i, 0x1000 * (i + 1), 4096, made.Site({{"f"}}));
  const std::string whole = dir + "/whole.hbmrec";
  ASSERT_TRUE(made.WriteTo(**hbmprof::internal::RecordingWriter::Create(whole)).ok());
  EXPECT_EQ(TrustIn(whole)["problems"], nlohmann::json::array());
  EXPECT_EQ(RunTool({"top", whole}).err, "");
  const std::string cut = dir + "/cut.hbmrec";
  std::filesystem::copy_file(whole, cut);
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 20);
  const std::vector<std::string> commands[] = {{"top", cut},
                                               {"top", "--callers", "f", cut},
                                               {"diff", whole, cut},
                                               {"diff", cut, whole},
                                               {"leaks", whole, whole, cut},
                                               {"convert", cut, "--to", "csv"},
                                               {"report", cut, "-o", dir + "/report.html"},
                                               {"symbolize", cut, "-o", dir + "/symbolized.pb.gz"},
                                               {"timeline", cut},
                                               {"explain", cut}};
  for (const std::vector<std::string>& command : commands) {
    EXPECT_THAT(RunTool(command).err, HasSubstr(cut + ": the last ")) << command[0];
  }
  const std::vector<std::string> judging[] = {{"explain", cut},
                                              {"explain", cut + "@end"},
                                              {"leaks", cut},
                                              {"leaks", whole, whole, cut},
                                              {"report", cut, "-o", "-"}};
  for (const std::vector<std::string>& command : judging) {
    const std::string out = RunTool(command).out;
    EXPECT_THAT(out, HasSubstr("the recording is incomplete")) << testing::PrintToString(command);
    EXPECT_THAT(out, Not(HasSubstr("complete since"))) << testing::PrintToString(command);
  }
  const CommandResult explained = RunTool({"explain", cut});
  EXPECT_EQ(explained.exit_code, 1);
  EXPECT_THAT(explained.out, HasSubstr("INCOMPLETE  the data are not complete: the last "));
}

TEST(Usage, EmptyValueIsAnError) {
  const std::string path = ScratchDir() + "/p.pb.gz";
  ProfileMaker maker;
  maker.Sample({maker.Frame("f")}, {1, 2}, {{"device", "GPU:0"}});
  maker.Write(path);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"diff", path, path, "--fail-over", ""}, "--fail-over"},
      {{"diff", path, path, "--fail-over="}, "--fail-over"},
      {{"diff", path, path, "--after", ""}, "--after"},
      {{"leaks", path, path, path, "--per", ""}, "--per"},
      {{"top", path, "-w", ""}, "--where"},
      {{"top", path, "--by", ""}, "--by"},
      {{"top", path, "--type", ""}, "--type"},
      {{"top", path, "--focus", ""}, "--focus"},
      {{"convert", path, "--to", "csv", "-o", ""}, "--output"},
      {{"run", "-o", "", "--", "true"}, "--output"},
      {{"run", "--library=", "--", "true"}, "--library"},
      {{"serve", "--token-file", ""}, "--token-file"},
      {{"top", ""}, "SOURCE"},
      {{"control", "1", "tag", ""}, "ARGUMENT"},
      {{"top", "--callers", "", path}, "--callers"},
      {{"diff", "", path}, "BASE"},
      {{"dump", ""}, "SOURCE"},
  };
  for (const auto& [arguments, option] : cases) {
    const CommandResult result = RunTool(arguments);
    EXPECT_EQ(result.exit_code, 2) << option;
    EXPECT_EQ(result.err, "hbmprof " + arguments[0] + ": " + option + ": the value is empty\nRun hbmprof " +
                              arguments[0] + " --help for more information.\n");
  }
}

// --- The option -o ---

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class OutputOption : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = ScratchDir();
    for (const std::string& path : {first_ = dir_ + "/first.pb.gz", second_ = dir_ + "/second.pb.gz"}) {
      ProfileMaker maker;
      maker.Sample({maker.Frame("app::Load")}, {1, 4096});
      maker.Write(path);
    }
    MadeRecording recording;
    recording.Alloc(1000, 0x1000, 4096, recording.Site({{"app::Load"}}));
    recording_ = dir_ + "/made.hbmrec";
    ASSERT_TRUE(recording.WriteTo(**hbmprof::internal::RecordingWriter::Create(recording_)).ok());
  }

  std::string dir_;
  std::string first_;
  std::string second_;
  std::string recording_;
};

TEST_F(OutputOption, InputIsNotReplaced) {
  const std::string symbolic = dir_ + "/symbolic";
  const std::string hard = dir_ + "/hard";
  const std::string snapshot = dir_ + "/snapshot.pickle";
  std::ofstream(snapshot, std::ios::binary) << "\x80\x04.";
  std::filesystem::create_symlink(first_, symbolic);
  std::filesystem::create_hard_link(second_, hard);
  struct Case {
    std::string output;
    std::string input;
    std::vector<std::string> command;
  };
  for (const Case& one :
       {Case{first_, first_, {"report", first_, second_}}, Case{second_, second_, {"report", second_, first_}},
        Case{recording_, recording_, {"report", recording_}},
        Case{symbolic, first_, {"convert", "--to", "csv", second_, first_}},
        Case{hard, second_, {"convert", "--to", "csv", second_}},
        Case{recording_, recording_, {"convert", "--to", "perfetto", recording_}},
        Case{recording_, recording_, {"dump", recording_ + "@end"}},
        Case{recording_, recording_, {"symbolize", recording_}},
        Case{recording_, recording_, {"symbolize", recording_ + "@peak"}},
        Case{snapshot, snapshot, {"symbolize", snapshot}}}) {
    const std::string before = ReadAll(one.input);
    std::vector<std::string> command = one.command;
    command.insert(command.end(), {"-o", one.output});
    const CommandResult result = RunTool(command);
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_THAT(result.err, HasSubstr("-o " + one.output + ": this is the input " + one.input)) << command[0];
    EXPECT_EQ(ReadAll(one.input), before) << command[0];
  }
  EXPECT_EQ(RunTool({"symbolize", first_, "-o", first_}).exit_code, 0) << "the output has all that the input has";
}

TEST_F(OutputOption, DumpWritesOnlyProfiles) {
  const std::string good = ReadAll(first_);
  const std::pair<const char*, std::string> wrong[] = {{"empty", ""},
                                                       {"short", good.substr(0, good.size() - 10)},
                                                       {"random", "\xff\x13\x8a\x01\xe5"},
                                                       {"page", "<!DOCTYPE html><html></html>\n"},
                                                       {"metrics", "# TYPE hbmprof_bytes gauge\nhbmprof_bytes 1\n"},
                                                       {"recording", ReadAll(recording_)}};
  for (const auto& [name, bytes] : wrong) {
    const std::string input = dir_ + "/" + name;
    std::ofstream(input, std::ios::binary) << bytes;
    // Bytes of a recording are no profile on a pipe.
    const CommandResult result =
        RunCommand({"bash", "-c", "cat \"$0\" | \"$1\" dump - -o \"$2\"", input, ToolPath(), first_});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_THAT(result.err, testing::StartsWith("hbmprof dump: -: ")) << name;
    EXPECT_EQ(ReadAll(first_), good) << name;
  }
  EXPECT_EQ(RunTool({"dump", first_, "-o", second_}).exit_code, 0);
  EXPECT_EQ(ReadAll(second_), good) << "the bytes of the source";
}

TEST_F(OutputOption, MinusIsStandardOutput) {
  EXPECT_THAT(RunTool({"report", first_, "-o", "-"}).out, testing::EndsWith("</html>\n"));
  EXPECT_EQ(RunTool({"convert", "--to", "csv", first_, "-o", "-"}).out,
            RunTool({"convert", "--to", "csv", first_}).out);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"dump", recording_ + "@end"},
                                                  {"symbolize", first_},
                                                  {"convert", "--to", "perfetto", recording_},
                                                  {"convert", "--to", "memory-viz", recording_}}) {
    std::vector<std::string> to_file = command;
    to_file.insert(to_file.end(), {"-o", dir_ + "/output"});
    EXPECT_EQ(RunTool(to_file).exit_code, 0) << command[0];
    std::vector<std::string> to_pipe = command;
    to_pipe.insert(to_pipe.end(), {"-o", "-"});
    EXPECT_EQ(RunTool(to_pipe).out, ReadAll(dir_ + "/output")) << command[0];
  }
  EXPECT_FALSE(std::filesystem::exists("-"));
  const CommandResult xplane = RunTool({"convert", "--to", "xplane", recording_, "-o", "-"});
  EXPECT_EQ(xplane.exit_code, 2);
  EXPECT_THAT(xplane.err, HasSubstr("--to xplane cannot be written to standard output: name a file with -o FILE"));
}

TEST_F(OutputOption, CanBeADeviceOrAPipe) {
  EXPECT_EQ(RunTool({"convert", "--to", "csv", first_, "-o", "/dev/null"}).exit_code, 0);
  EXPECT_EQ(RunTool({"convert", "--to", "xplane", recording_, "-o", "/dev/null"}).exit_code, 0);
  EXPECT_EQ(RunTool({"report", first_, "-o", "/dev/null"}).exit_code, 0);
  EXPECT_EQ(RunTool({"dump", recording_ + "@end", "-o", "/dev/null"}).exit_code, 0);
  const std::string pipe = dir_ + "/pipe";
  const CommandResult result =
      RunCommand({"bash", "-c", "mkfifo $0 && { timeout 20 cat $0 & } && timeout 20 \"$@\"; wait", pipe, ToolPath(),
                  "convert", "--to", "csv", first_, "-o", pipe});
  EXPECT_EQ(result.out, RunTool({"convert", "--to", "csv", first_}).out);
}

}  // namespace
}  // namespace hbmprof_test
