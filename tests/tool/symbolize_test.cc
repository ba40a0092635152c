// symbolize: records a stripped program in one folder, adds names from another, and compares with addr2line.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "src/symbolize/demangle.h"
#include "src/tool/symbols/debug_info.h"
#include "tests/support/profile_checker.h"
#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void MustRun(const std::vector<std::string>& command) {
  const CommandResult result = RunCommand(command);
  ASSERT_EQ(result.exit_code, 0) << command[0] << ": " << result.err;
}

// The virtual address of a byte of the file.
uint64_t AddressInFile(const std::string& path, uint64_t offset) {
  static std::map<std::string, std::string> files;
  std::string& bytes = files[path];
  if (bytes.empty()) bytes = ReadAll(path);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes.data() + header.e_phoff + static_cast<size_t>(i) * header.e_phentsize, sizeof(segment));
    if (segment.p_type == PT_LOAD && offset >= segment.p_offset && offset < segment.p_offset + segment.p_filesz) {
      return offset - segment.p_offset + segment.p_vaddr;
    }
  }
  return 0;
}

struct Frame {
  std::string function;
  std::string position;  // file:line
  bool operator==(const Frame& other) const { return function == other.function && position == other.position; }
};
void PrintTo(const Frame& frame, std::ostream* out) { *out << frame.function << " at " << frame.position; }

// The frames of addr2line, innermost first.
std::vector<Frame> Addr2line(const std::string& file, uint64_t address) {
  std::ostringstream hex;
  hex << "0x" << std::hex << address;
  std::istringstream out(RunCommand({"addr2line", "-f", "-i", "-e", file, hex.str()}).out);
  std::vector<Frame> frames;
  for (Frame frame; std::getline(out, frame.function) && std::getline(out, frame.position);) {
    frame.position = frame.position.substr(0, frame.position.find(" ("));  // no discriminator
    const size_t colon = frame.position.rfind(':');
    frame.position =
        fs::path(frame.position.substr(0, colon)).lexically_normal().string() + frame.position.substr(colon);
    frames.push_back(frame);
  }
  return frames;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Differences that are correct: for functions that the linker does not see (lambdas, anonymous namespaces), addr2line
// prints the plain name, and we print the name with its scopes or the name in the symbol table. For the innermost
// frame, addr2line prints the symbol around it.
bool IsSameFunction(const std::vector<Frame>& ours, const std::vector<Frame>& addr2lines, size_t i) {
  const std::string& a = ours[i].function;
  const std::string& b = addr2lines[i].function;
  using hbmprof::internal::ShortenDemangled;
  using hbmprof::internal::ShortFunctionName;
  const bool is_plain = b.find("_Z") != 0;
  if (a == b || (is_plain && EndsWith("::" + ShortFunctionName(a.c_str()), "::" + ShortenDemangled(b)))) {
    return true;
  }
  return i == 0 && a.find("_Z") != 0 && ShortFunctionName(b.c_str()) == ShortFunctionName(ours.back().function.c_str());
}

class Symbolize : public testing::Test {
 protected:
  // Runs the stripped program in a folder that is removed afterwards. The unstripped files are in another folder.
  void SetUp() override {
    for (const char* program : {"addr2line", "strip", "objcopy"}) {
      if (RunCommand({program, "--version"}).exit_code != 0) GTEST_SKIP() << program << " is not here (binutils)";
    }
    dir_ = ScratchDir();
    const std::string container = dir_ + "/container";
    fs::create_directories(container);
    fs::create_directories(dir_ + "/symbols/deep/er");
    const fs::path program = HBMPROF_SYMBOLIZE_PROGRAM;
    const fs::path library = HBMPROF_SYMBOLIZE_LIBRARY;
    unstripped_[program.filename()] = dir_ + "/symbols/" + program.filename().string();
    unstripped_[library.filename()] = dir_ + "/symbols/deep/er/renamed";
    for (const fs::path& file : {program, library}) {
      fs::copy(file, unstripped_[file.filename()]);
      fs::copy(file, container);
      MustRun({"strip", container + "/" + file.filename().string()});
    }
    raw_ = dir_ + "/raw.pb.gz";
    MustRun({container + "/" + program.filename().string(), raw_});
    fs::remove_all(container);
    named_ = dir_ + "/named.pb.gz";
  }

  static CommandResult Symbolized(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "symbolize");
    return RunTool(arguments);
  }

  std::string BuildId(const std::string& name) {
    const Profile profile = *ReadProfile(raw_);
    for (const auto& mapping : profile.mapping()) {
      if (fs::path(profile.string_table(static_cast<int>(mapping.filename()))).filename() == name) {
        return profile.string_table(static_cast<int>(mapping.build_id()));
      }
    }
    return "";
  }

  // Compares every location of the program and its library with addr2line.
  void ExpectAsAddr2line() {
    const auto profile = ReadProfile(named_);
    ASSERT_TRUE(profile.ok()) << profile.status();
    const auto text = [&](int64_t index) { return profile->string_table(static_cast<int>(index)); };
    int compared = 0;
    int inlined = 0;
    for (const auto& location : profile->location()) {
      if (location.mapping_id() == 0) continue;
      const auto& mapping = profile->mapping(static_cast<int>(location.mapping_id()) - 1);
      const auto file = unstripped_.find(fs::path(text(mapping.filename())).filename().string());
      if (file == unstripped_.end()) continue;
      const uint64_t offset = location.address() - mapping.memory_start() + mapping.file_offset();
      std::vector<Frame> frames;
      for (const auto& line : location.line()) {
        const auto& function = profile->function(static_cast<int>(line.function_id()) - 1);
        const std::string source = text(function.filename());
        frames.push_back({text(function.system_name() != 0 ? function.system_name() : function.name()),
                          source.empty()
                              ? "??:0"
                              : fs::path(source).lexically_normal().string() + ":" + std::to_string(line.line())});
      }
      std::vector<Frame> expected = Addr2line(file->second, AddressInFile(file->second, offset));
      ASSERT_EQ(frames.size(), expected.size()) << testing::PrintToString(frames) << testing::PrintToString(expected);
      for (size_t i = 0; i < frames.size(); ++i) {
        // If the line is unknown, addr2line guesses the file from the symbol table.
        const bool unknown = EndsWith(expected[i].position, ":?");
        EXPECT_TRUE(unknown ? EndsWith(frames[i].position, ":0") : frames[i].position == expected[i].position)
            << frames[i].position << " instead of " << expected[i].position;
        EXPECT_TRUE(IsSameFunction(frames, expected, i))
            << "frame " << i << " of " << testing::PrintToString(frames) << testing::PrintToString(expected);
      }
      ++compared;
      inlined += frames.size() > 1 ? 1 : 0;
    }
    EXPECT_GE(compared, 12);
    EXPECT_GE(inlined, 3);
  }

  std::string dir_;
  std::string raw_;
  std::string named_;
  std::map<std::string, std::string> unstripped_;
};

TEST_F(Symbolize, AgreesWithAddr2line) {
  const CommandResult result = Symbolized({raw_, "-o", named_, "--debug-dir", dir_ + "/symbols"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ExpectAsAddr2line();
  const auto profile = ReadProfile(named_);
  EXPECT_EQ(CheckProfile(*profile), "");
  const ProfileView view(*profile);
  EXPECT_EQ(view.SumUnder("inuse_space", "engine::(anonymous namespace)::Deeper"), 256);
  EXPECT_EQ(view.SumUnder("inuse_space", "app::Sorted"), 3 * 256);
  EXPECT_EQ(view.Sum("inuse_space"), ProfileView(*ReadProfile(raw_)).Sum("inuse_space"));
  for (const auto& function : profile->function()) {
    const auto text = [&](int64_t index) { return profile->string_table(static_cast<int>(index)); };
    if (function.filename() != 0) {
      EXPECT_NE(text(function.system_name()), "") << text(function.name());
    }
  }
}

// The functions and their sums do not depend on it, so that a profile can be compared with one whose binary is gone.
TEST_F(Symbolize, AnswersHaveLinesWhereTheBinaryIs) {
  const fs::path here = dir_ + "/here";
  fs::create_directories(here);
  const fs::path program = HBMPROF_SYMBOLIZE_PROGRAM;
  const fs::path library = HBMPROF_SYMBOLIZE_LIBRARY;
  for (const fs::path& file : {program, library}) fs::copy(file, here);
  const std::string profile = dir_ + "/here.pb.gz";
  MustRun({(here / program.filename()).string(), profile});
  const auto rows = [&](int* with_lines) {
    std::vector<std::pair<std::string, int64_t>> functions;
    *with_lines = 0;
    const nlohmann::json top = ToolJson({"top", "--no-own", profile});
    for (const auto& row : top["rows"]) {
      functions.emplace_back(row["function"], row["flat"]);
      *with_lines += row["where"].get<std::string>().find(".cc:") != std::string::npos ? 1 : 0;
    }
    return functions;
  };
  int with_lines = 0;
  const auto present = rows(&with_lines);
  EXPECT_GE(with_lines, 3);
  fs::remove_all(here);
  const auto gone = rows(&with_lines);
  EXPECT_EQ(with_lines, 0);
  EXPECT_EQ(present, gone);
}

TEST_F(Symbolize, JsonSaysWhatWasFound) {
  const CommandResult result = Symbolized({raw_, "-o", named_, "--debug-dir", dir_ + "/symbols", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_EQ(SchemaProblem(nlohmann::json::parse(std::ifstream(HBMPROF_SCHEMAS "/symbolize.json")), json), "");
  EXPECT_EQ(json["file"], named_);
  int with_lines = 0;
  for (const nlohmann::json& module : json["modules"]) {
    const auto file = unstripped_.find(fs::path(module["module"].get<std::string>()).filename());
    if (file == unstripped_.end()) continue;
    EXPECT_EQ(module["found_count"], module["address_count"]) << module;
    EXPECT_EQ(module["from"], file->second);
    with_lines += module["has_lines"] ? 1 : 0;
  }
  EXPECT_EQ(with_lines, 2);
  EXPECT_EQ(Symbolized({raw_, "-o", "-", "--json"}).exit_code, 2) << "both would be standard output";
}

TEST_F(Symbolize, SecondTimeChangesNothing) {
  ASSERT_EQ(Symbolized({raw_, "-o", named_, "--debug-dir", dir_ + "/symbols"}).exit_code, 0);
  const std::string first = ReadAll(named_);
  ASSERT_EQ(Symbolized({named_, "-o", named_}).exit_code, 0);
  EXPECT_EQ(DescribeProfile(*ReadProfile(named_)), DescribeProfile(*ParseProfile(first)));
}

TEST_F(Symbolize, ReadsSeparateDebugFilesInPackageLayouts) {
  for (const char* layout : {"build-id", "debuginfod"}) {
    SCOPED_TRACE(layout);
    const std::string debug = dir_ + "/" + layout;
    for (const auto& [name, file] : unstripped_) {
      const std::string id = BuildId(name);
      ASSERT_GT(id.size(), 8u);
      const std::string path = layout == std::string("debuginfod")
                                   ? debug + "/" + id + "/debuginfo"
                                   : debug + "/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug";
      fs::create_directories(fs::path(path).parent_path());
      MustRun({"objcopy", "--only-keep-debug", file, path});
    }
    const CommandResult result = Symbolized({raw_, "-o", named_, "--debug-dir", debug});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    ExpectAsAddr2line();
    fs::remove(named_);
  }
}

TEST_F(Symbolize, ReportsMissingFilesAndDoesNotGuess) {
  const std::string program = fs::path(HBMPROF_SYMBOLIZE_PROGRAM).filename();
  const std::string library = fs::path(HBMPROF_SYMBOLIZE_LIBRARY).filename();
  // A different build at the same place.
  fs::create_directories(dir_ + "/container");
  fs::copy("/bin/true", dir_ + "/container/" + library);
  const CommandResult result = Symbolized({raw_, "-o", named_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("container/" + library + " has the build id "));
  EXPECT_THAT(result.out, HasSubstr(", not " + BuildId(library)));
  EXPECT_THAT(result.out, HasSubstr("no file with the build id " + BuildId(program)));
  const ProfileView before(*ReadProfile(raw_));
  const ProfileView after(*ReadProfile(named_));
  ASSERT_EQ(before.samples.size(), after.samples.size());
  for (size_t i = 0; i < before.samples.size(); ++i) {
    std::vector<std::string> names = after.samples[i].functions;
    for (size_t frame = 0; frame < names.size(); ++frame) {
      if (before.samples[i].functions[frame].find(program) == 0 ||
          before.samples[i].functions[frame].find(library) == 0) {
        EXPECT_EQ(names[frame], before.samples[i].functions[frame]);
      }
    }
  }
}

TEST_F(Symbolize, ReadsClangWithoutAranges) {
  if (RunCommand({"clang++", "--version"}).exit_code != 0) GTEST_SKIP() << "clang is not here";
  // The addresses of everything that the library's code calls, as if they had been recorded.
  const std::string library = dir_ + "/libclang_built.so";
  MustRun({"clang++", "-std=c++17", "-O2", "-gdwarf-4", "-shared", "-fPIC", "-Wl,--build-id", HBMPROF_SYMBOLIZE_SOURCE,
           "-o", library});
  std::istringstream code(RunCommand({"objdump", "-d", "--no-show-raw-insn", "-j", ".text", library}).out);
  ProfileMaker maker;
  const std::string notes = RunCommand({"readelf", "-n", library}).out;
  const size_t at = notes.find("Build ID: ");
  ASSERT_NE(at, std::string::npos);
  const std::string id = notes.substr(at + 10, notes.find('\n', at) - at - 10);
  const uint64_t start = 0x7f0000000000;
  const uint64_t mapping = maker.Mapping(start, start + (1 << 20), 0, "/gone/libclang_built.so", id, false);
  std::string line;
  while (std::getline(code, line)) {
    if (line.find("call") == std::string::npos) continue;
    const uint64_t address = std::stoull(line, nullptr, 16);
    // The inverse of the rule: the position in the file.
    uint64_t offset = 0;
    for (uint64_t guess = address > 0x4000 ? address - 0x4000 : 0; guess <= address && offset == 0; ++guess) {
      if (AddressInFile(library, guess) == address) offset = guess;
    }
    ASSERT_NE(offset, 0u) << line;
    maker.Sample({maker.Location(mapping, start + offset, {})}, {1, 256});
  }
  ASSERT_GT(maker.message().sample_size(), 5);
  raw_ = dir_ + "/clang.pb.gz";
  maker.Write(raw_);
  unstripped_ = {{"libclang_built.so", library}};
  const CommandResult result = Symbolized({raw_, "-o", named_, "--debug-dir", dir_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ExpectAsAddr2line();
}

TEST(DebugFiles, ReportFoldersNotSearchedCompletely) {
  using hbmprof::tool::DebugFiles;
  const std::string dir = ScratchDir();
  for (int i = 0; i < 20; ++i) WriteFile(dir + "/" + std::to_string(i), "");
  EXPECT_THAT(DebugFiles({dir}, 20).problems(), testing::IsEmpty());
  EXPECT_THAT(DebugFiles({dir}, 19).problems(),
              testing::ElementsAre(HasSubstr("--debug-dir " + dir + ": not searched to the end")));
}

}  // namespace
}  // namespace hbmprof_test
