// The output of the command: no text of a profile controls the terminal, JSON is valid, and lost output is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/tool/util/text.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Sets a window's title, rings, clears the screen with a C1 character, reverses text, begins a line, and is not UTF-8.
constexpr char kHostile[] =
    "a\x1b]0;owned\x07\xc2\x9b"
    "2J\xe2\x80\xae\xd8\x9c\r\n0 B forged\x7f\xff\xed\xa0\x80z";
constexpr char kShown[] = R"(a\x1b]0;owned\x07\u009b2J\u202e\u061c\r\n0 B forged\x7f\xff\xed\xa0\x80z)";

// Returns the first byte that could control a terminal, with the text around it; "" if there is none.
std::string FirstEffect(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::string two = text.substr(i, 2);
    const std::string three = text.substr(i, 3);
    const bool is_c1 = two.size() == 2 && byte == 0xC2 && static_cast<unsigned char>(two[1]) < 0xA0;
    if ((byte < 0x20 && byte != '\n') || byte == 0x7F || byte == 0xFF || byte == 0xED || is_c1 || two == "\xd8\x9c" ||
        three == "\xe2\x80\xae") {
      return "byte " + std::to_string(byte) + " in " + text.substr(i < 40 ? 0 : i - 40, 80);
    }
  }
  return "";
}

// A profile in which every string is hostile.
ProfileMaker HostileDump(int64_t dump) {
  const std::string hostile = kHostile;
  ProfileMaker maker({{"inuse_space" + hostile, "bytes" + hostile}});
  maker.message().set_default_sample_type(maker.Text("inuse_space" + hostile));
  maker.message().set_time_nanos(1700000000000000000 + dump * 1000000000);
  maker.message().set_doc_url(maker.Text("doc" + hostile));
  const uint64_t mapping = maker.Mapping(0x1000, 0x2000, 0, "/lib/" + hostile, "id" + hostile);
  const uint64_t named = maker.Location(
      mapping, 0x1100, {{maker.Function("name" + hostile, "system" + hostile, "/src/" + hostile, 3), 7}});
  const uint64_t unnamed = maker.Location(mapping, 0x1200, {});
  auto& sample = maker.Sample({named, unnamed}, {100 + dump * 1000}, {{"device" + hostile, "GPU" + hostile}});
  maker.NumberLabel(sample, "bytes" + hostile, 8, "bytes" + hostile);
  maker.Comment("device GPU" + hostile + " space=s" + hostile + " in_use=1 peak=2 unaccounted=3");
  maker.Comment("counter requests value=" + std::to_string(dump + 1));
  return maker;
}

class Terminal : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = ScratchDir();
    for (int64_t dump = 0; dump < 3; ++dump) {
      files_.push_back(dir + "/" + std::to_string(dump) + "\x1b[2J.pb.gz");
      HostileDump(dump).Write(files_.back());
    }
    bad_ = dir + "/bad\x1b[2J";
    WriteFile(bad_, "nonsense");
  }

  std::vector<std::vector<std::string>> Commands() {
    const std::string device = std::string("device") + kHostile;
    return {{"top", files_[0]},
            {"top", files_[0], "--by", "line," + device},
            {"top", files_[0], "--by", "file", "--exact"},
            {"diff", files_[0], files_[2], "--fail-over", "1"},
            {"top", "--callers", "name", files_[0]},
            {"leaks", files_[0], files_[1], files_[2], "--fail-over", "1"},
            {"explain", files_[0], files_[1], files_[2]},
            {"convert", files_[0], "--to", "csv"},
            {"symbolize", files_[0], "-o", files_[0] + ".out"},
            {"report", files_[0], "-o", files_[0] + ".html"}};
  }

  std::vector<std::string> files_;
  std::string bad_;
};

TEST_F(Terminal, TextHasNoEffectOnIt) {
  for (const std::vector<std::string>& command : Commands()) {
    const CommandResult result = RunTool(command);
    EXPECT_LE(result.exit_code, 1) << result.err;
    EXPECT_NE(result.out, "");
    EXPECT_EQ(FirstEffect(result.out), "") << command[0];
    EXPECT_EQ(FirstEffect(result.err), "") << command[0];
    EXPECT_THAT(result.out, Not(HasSubstr("\n0 B forged"))) << command[0] << " has a line that the profile made";
  }
  EXPECT_THAT(RunTool({"top", files_[0]}).out, HasSubstr(std::string("name") + kShown));
}

TEST_F(Terminal, ErrorsHaveNoEffectOnIt) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"top", bad_},
                                                  {"explain", bad_},
                                                  {"top", files_[0], "--type", "none"},
                                                  {"top", files_[0], "--\x1b[2J"},
                                                  {"nonsense\x1b[2J"},
                                                  {"leaks", files_[0], files_[1], files_[2], "--per", "x"},
                                                  {"symbolize", bad_, "-o", bad_},
                                                  {"report", files_[0], "-o", "/nowhere\x1b[2J/x"}}) {
    const CommandResult result = RunTool(command);
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_NE(result.out + result.err, "");
    EXPECT_EQ(FirstEffect(result.out + result.err), "") << command[0];
  }
}

TEST_F(Terminal, JsonIsValidUtf8WithoutEffectAndKeepsTheNames) {
  for (std::vector<std::string> command : Commands()) {
    if (command[0] == "symbolize" || command[0] == "report") continue;
    command.push_back("--json");
    if (command[0] == "convert") command.insert(command.end(), {"-o", files_[0] + ".csv"});
    const CommandResult result = RunTool(command);
    EXPECT_EQ(FirstEffect(result.out), "") << command[0];
    const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << result.out;
  }
  const std::string name = ToolJson({"top", files_[0]})["rows"][0]["function"];
  EXPECT_EQ(name.substr(0, 24), std::string("name") + std::string(kHostile).substr(0, 20));
}

TEST(Visible, KeepsTextAndEscapesTheRest) {
  using hbmprof::tool::Visible;
  EXPECT_EQ(Visible("std::vector<int>::_M_realloc [libfoo.so] \\ ~"), "std::vector<int>::_M_realloc [libfoo.so] \\ ~");
  EXPECT_EQ(Visible("größe 大きさ 🚀 → \xc2\xa0"), "größe 大きさ 🚀 → \xc2\xa0");
  EXPECT_EQ(Visible(kHostile), kShown);
  EXPECT_EQ(Visible(std::string("\0\t", 2)), "\\x00\\t");
  EXPECT_EQ(Visible("\xe2\x80\xa8\xe2\x80\x8f\xe2\x81\xa6"), "\\u2028\\u200f\\u2066");
  // Overlong, a surrogate, beyond Unicode, and cut off.
  EXPECT_EQ(Visible("\xc0\x9b\xe0\x80\x9b"), R"(\xc0\x9b\xe0\x80\x9b)");
  EXPECT_EQ(Visible("\xf4\x90\x80\x80\xe2\x80"), R"(\xf4\x90\x80\x80\xe2\x80)");
}

class FullDisk : public Terminal {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
    Terminal::SetUp();
  }

  // Runs the command in a shell with the redirection `redirection`.
  static CommandResult RunRedirected(const std::vector<std::string>& command, const std::string& redirection) {
    std::vector<std::string> argv = {"bash", "-c", "\"$@\" " + redirection, "bash", ToolPath()};
    argv.insert(argv.end(), command.begin(), command.end());
    return RunCommand(argv);
  }
};

TEST_F(FullDisk, EveryCommandReportsIt) {
  std::vector<std::vector<std::string>> commands = Commands();
  commands.insert(commands.end(), {{"top", files_[0], "--json"},
                                   {"leaks", files_[0], files_[1], files_[2], "--json"},
                                   {"convert", files_[0], "--to", "csv"},
                                   {"--reference", "bash"},
                                   {"--help"},
                                   {"--version"},
                                   {"doctor"}});
  for (const std::vector<std::string>& command : commands) {
    const CommandResult result = RunRedirected(command, ">/dev/full");
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_THAT(result.err, testing::AllOf(HasSubstr("standard output: "), HasSubstr("No space left on device")))
        << command[0];
  }
}

TEST_F(FullDisk, ClosedPipeIsAnError) {
  // By default, SIGPIPE ends the command, as it ends other programs. If it is ignored, the command prints the error.
  for (const std::vector<std::string>& command : {std::vector<std::string>{"top"}, {"convert", "--to", "csv"}}) {
    std::vector<std::string> arguments = {"bash", "-c", "{ sleep 1; exec \"$@\"; } | true; exit ${PIPESTATUS[0]}",
                                          "bash", ToolPath()};
    arguments.insert(arguments.end(), command.begin(), command.end());
    arguments.push_back(files_[0]);
    const CommandResult killed = RunCommand(arguments);
    EXPECT_EQ(killed.exit_code, 128 + SIGPIPE) << command[0];
    EXPECT_EQ(killed.err, "") << command[0];
  }
  const CommandResult ignored =
      RunCommand({"bash", "-c", "trap '' PIPE; { sleep 1; \"$@\"; } | true; exit ${PIPESTATUS[0]}", "bash", ToolPath(),
                  "top", files_[0]});
  EXPECT_EQ(ignored.exit_code, 2);
  EXPECT_THAT(ignored.err, HasSubstr("Broken pipe"));
}

TEST_F(FullDisk, ClosedStandardOutputIsAnError) {
  for (const char* closed : {">&-", "<&- >&-", "<&- >&- 2>&-"}) {
    EXPECT_EQ(RunRedirected({"top", files_[0]}, closed).exit_code, 2) << closed;
    const std::string page = files_[0] + ".html";
    RunRedirected({"report", files_[0], "-o", page}, closed);
    std::ifstream file(page);
    const std::string html{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(html, HasSubstr("</html>"));
    EXPECT_THAT(html, Not(HasSubstr("open it in a browser"))) << closed;
  }
}

}  // namespace
}  // namespace hbmprof_test
