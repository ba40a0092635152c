// Profiles that are crafted to take time and memory: every command ends within its budget, with a result or with a
// message that gives the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <zlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/tool/profile_maker.h"
#include "tests/tool/tool.h"

extern char** environ;

namespace hbmprof_test {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The budget for a file of up to 10 MB: processor seconds, and bytes of memory.
constexpr double kMaxSeconds = kSanitized ? 100 : 10;
constexpr int64_t kMaxBytes = int64_t{11} << 27;  // 1 GiB of the command's data, and the rest of a process

struct Cost {
  int exit_code = -1;
  double seconds = 0;
  int64_t bytes = 0;
  std::string err;
};

// Runs the command and discards its output.
Cost Measure(const std::vector<std::string>& arguments, const std::string& err_path) {
  // The limit turns a hang into a failure.
  std::vector<std::string> argv = {"bash", "-c", "ulimit -c 0 -t 300; exec \"$@\" >/dev/null 2>\"$0\"", err_path,
                                   ToolPath()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  Cost cost;
  if (posix_spawnp(&child, "bash", nullptr, nullptr, pointers.data(), environ) != 0) return cost;
  int status = 0;
  rusage usage = {};
  if (wait4(child, &status, 0, &usage) != child) return cost;
  cost.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  cost.seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  cost.bytes = int64_t{usage.ru_maxrss} * 1024;
  std::ifstream err(err_path);
  cost.err.assign(std::istreambuf_iterator<char>(err), {});
  return cost;
}

struct Hostile {
  const char* name;
  std::string (*bytes)();
};
void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }

// A profile of one sample type, with a function per name, each with a sample.
ProfileMaker Small() {
  ProfileMaker maker;
  maker.Sample({maker.Frame("f", "/src/f.cc", 1), maker.Frame("main", "/src/main.cc", 2)}, {1, 100},
               {{"device", "GPU:0"}});
  return maker;
}

std::string Expression(const std::string& drop_frames) {
  ProfileMaker maker = Small();
  maker.message().set_drop_frames(maker.Text(drop_frames));
  std::string name;
  for (int i = 0; i < 5000; ++i) {
    name = "f" + std::to_string(i);
    for (int j = 0; j < 60; ++j) name += static_cast<char>('a' + (i * 7 + j * j) % 3);
    maker.Sample({maker.Frame(name)}, {1, 1});
  }
  return maker.Bytes();
}
std::string Repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

std::string CostlyExpression() { return Expression(Repeated("(.*a.{30})?", 700) + ".*"); }
std::string ExpressionOfManyStates() { return Expression(".*a.{200}b.*|" + Repeated("(a|b|c){0,40}", 600)); }

std::string OneDeepStack() {
  ProfileMaker maker = Small();
  const uint64_t frame = maker.Frame("recursion");
  maker.Sample(std::vector<uint64_t>(3'000'000, frame), {1, 1});
  return maker.Bytes();
}
std::string DeepRecursion() {
  ProfileMaker maker = Small();
  for (uint64_t depth = 1; depth < 600; ++depth) {
    maker.Sample(std::vector<uint64_t>(depth, maker.Frame("recursion", "/src/r.cc", static_cast<int64_t>(depth % 7))),
                 {1, 1});
  }
  return maker.Bytes();
}
std::string ManyLinesInManyStacks() {
  ProfileMaker maker = Small();
  std::vector<ProfileMaker::Line> lines;
  for (int i = 0; i < 20000; ++i) lines.push_back({maker.Function("f" + std::to_string(i % 100)), i});
  const uint64_t location = maker.Location(0, 1, lines);
  for (int i = 0; i < 2000; ++i) maker.Sample(std::vector<uint64_t>(50, location), {1, 1});
  return maker.Bytes();
}
std::string ManyTypes() {
  std::vector<std::pair<std::string, std::string>> types;
  for (int i = 0; i < 100'000; ++i) types.emplace_back("type" + std::to_string(i), "bytes");
  ProfileMaker maker(types);
  maker.Sample({maker.Frame("f")}, std::vector<int64_t>(types.size(), 5));
  return maker.Bytes();
}
std::string ManyLabels() {
  ProfileMaker maker = Small();
  auto& sample = maker.Sample({maker.Frame("g")}, {1, 1});
  for (int i = 0; i < 200'000; ++i) maker.NumberLabel(sample, "key" + std::to_string(i), i, "bytes");
  auto& texts = maker.Sample({maker.Frame("h")}, {1, 1});
  for (int i = 0; i < 200'000; ++i) {
    auto* label = texts.add_label();
    label->set_key(maker.Text("key" + std::to_string(i)));
    label->set_str(maker.Text("value" + std::to_string(i)));
  }
  return maker.Bytes();
}
std::string ManyLabelSets() {
  ProfileMaker maker = Small();
  for (int i = 0; i < 100'000; ++i) {
    maker.Sample({maker.Frame("g"), maker.Frame("main")}, {1, 1}, {{"device", "GPU:" + std::to_string(i)}});
  }
  return maker.Bytes();
}
std::string ManyDevices() {
  ProfileMaker maker = Small();
  for (int i = 0; i < 50'000; ++i) {
    const std::string device = "GPU:" + std::to_string(i);
    maker.Sample({maker.Frame("g")}, {1, 1}, {{"device", device}});
    maker.Comment("device " + device + " space=device in_use=2 peak=1 unaccounted=3");
    maker.Mapping(0x1000, 0x2000, 0, "/lib/x" + std::to_string(i), "id" + std::to_string(i));
  }
  return maker.Bytes();
}
// A long text that is stored once and used in every row, label, stack and module.
std::string OneLongTextEverywhere() {
  ProfileMaker maker = Small();
  const std::string text(1 << 20, 'x');
  for (int i = 0; i < 5000; ++i) {
    const uint64_t mapping = maker.Mapping(0x1000, 0x2000, 0, "/lib/" + text, "id" + std::to_string(i));
    const uint64_t location =
        maker.Location(mapping, 0x1000 + static_cast<uint64_t>(i) % 0x1000, {{maker.Function(text, "", text, i), i}});
    maker.Sample({location}, {1, 1});
  }
  return maker.Bytes();
}
std::string OneLongLabelEverywhere() {
  ProfileMaker maker = Small();
  const std::string text(1 << 20, 'x');
  for (int i = 0; i < 5000; ++i) {
    maker.NumberLabel(maker.Sample({maker.Frame("f")}, {1, 1}, {{"device", text}}), "n", i, "bytes");
  }
  return maker.Bytes();
}
std::string ManyPositionsOfOneFunction() {
  ProfileMaker maker = Small();
  for (int i = 0; i < 100'000; ++i) maker.Sample({maker.Frame("f", "/src/f.cc", i), maker.Frame("main")}, {1, 1});
  return maker.Bytes();
}
std::string LongPath() {
  ProfileMaker maker = Small();
  maker.Sample({maker.Frame("f", Repeated("a/../", 1 << 20), 1)}, {1, 1});
  maker.Mapping(0x1000, 0x2000, 0, Repeated("../a/", 1 << 20), "");
  return maker.Bytes();
}
std::string HugeIds() {
  ProfileMaker maker = Small();
  for (uint64_t i = 0; i < 100'000; ++i) {
    auto* function = maker.message().add_function();
    function->set_id(UINT64_MAX - i);
    function->set_start_line(INT64_MIN + static_cast<int64_t>(i));
    auto* location = maker.message().add_location();
    location->set_id(UINT64_MAX - i);
    location->set_address(UINT64_MAX);
    auto* line = location->add_line();
    line->set_function_id(function->id());
    line->set_line(INT64_MIN);
    maker.Sample({location->id()}, {INT64_MAX, INT64_MIN});
  }
  return maker.Bytes();
}
// Nested mappings, mappings that end before they begin, and locations far outside their mappings.
std::string TangledMappings() {
  ProfileMaker maker = Small();
  for (uint64_t i = 0; i < 50'000; ++i) {
    const uint64_t mapping = maker.Mapping(i * 3, UINT64_MAX - i * 5, i * 7, "/lib/a" + std::to_string(i % 7));
    maker.Mapping(UINT64_MAX, 0, UINT64_MAX, "/lib/b");
    maker.Sample({maker.Location(mapping, i * 11, {}), maker.Location(mapping + 1, UINT64_MAX, {})}, {1, 1});
  }
  return maker.Bytes();
}
std::string EmptySamples() { return Repeated(std::string("\x12\0", 2), 4'000'000) + std::string("\x32\0", 2); }
std::string EmptyOfAllKinds() {
  std::string bytes("\x32\0\x0a\0\x0a\0", 6);
  for (int i = 0; i < 700'000; ++i) bytes += std::string("\x12\x02\x12\0\x2a\0\x22\0\x1a\0\x32\0", 12);
  return bytes;
}
// 1 GiB of zeros in 1 MB.
std::string GzipBomb() {
  z_stream stream = {};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string zeros(1 << 20, '\0');
  std::string bytes(4 << 20, '\0');
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  for (int i = 0; i < 1024; ++i) {
    stream.next_in = reinterpret_cast<Bytef*>(zeros.data());
    stream.avail_in = static_cast<uInt>(zeros.size());
    deflate(&stream, i == 1023 ? Z_FINISH : Z_NO_FLUSH);
  }
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

// Mangled names of a few hundred bytes whose demangled form has gigabytes.
std::string DemanglerBombs() {
  ProfileMaker maker = Small();
  for (int width = 2; width < 60; width += 3) {
    for (int levels = 1; levels < 36; ++levels) {
      std::string name = "_Z1f1AIiE";
      for (int level = 0; level < levels; ++level) {
        const std::string before = std::string("S") + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[level] + "_";
        name += "S_I" + Repeated(before, static_cast<size_t>(width)) + "E";
      }
      maker.Sample({maker.Location(0, static_cast<uint64_t>(width * 100 + levels), {{maker.Function("", name)}})},
                   {1, 1});
    }
  }
  return maker.Bytes();
}

// As DemanglerBombs, with Rust names: nested references, and 62^10 lifetimes.
std::string RustDemanglerBombs() {
  ProfileMaker maker = Small();
  // A reference is the position after "_R", in base 62.
  const auto reference = [](size_t position) {
    const std::string digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    std::string text = position == 0 ? "" : std::string(1, digits[(position - 1) % 62]);
    for (size_t rest = position == 0 ? 0 : (position - 1) / 62; rest > 0; rest /= 62)
      text.insert(0, 1, digits[rest % 62]);
    return "B" + text + "_";
  };
  for (int levels = 1; levels < 60; ++levels) {
    std::string name = "INvC1a1f";
    size_t before = name.size();
    name += "TuuE";
    for (int level = 0; level < levels; ++level) {
      const size_t here = name.size();
      name += "T" + Repeated(reference(before), 2) + "E";
      before = here;
    }
    maker.Sample({maker.Location(0, static_cast<uint64_t>(levels), {{maker.Function("", "_R" + name + "E")}})}, {1, 1});
  }
  maker.Sample({maker.Location(0, 60, {{maker.Function("", "_RINvC1a1fFGzzzzzzzzzz_EuE")}})}, {1, 1});
  return maker.Bytes();
}

class HostileProfile : public testing::TestWithParam<Hostile> {};

TEST_P(HostileProfile, StaysWithinTimeAndMemory) {
  const std::string dir = ScratchDir();
  const std::string path = dir + "/p";
  const std::string bytes = GetParam().bytes();
  ASSERT_LT(bytes.size(), size_t{10'000'000});
  WriteFile(path, bytes);
  const std::vector<std::vector<std::string>> commands = {
      {"explain", path},
      {"top", path, "--by", "line,device", "-n", "0"},
      {"top", path, "--json"},
      {"diff", path, path},
      {"top", "--callers", "f", path},
      {"leaks", path, path, path, "--json"},
      {"convert", path, "--to", "csv"},
      {"report", path, path, path, "-o", dir + "/report.html"},
      {"symbolize", path, "-o", dir + "/named"},
  };
  for (const std::vector<std::string>& command : commands) {
    const Cost cost = Measure(command, dir + "/err");
    const std::string what = command[0] + " " + command[command.size() > 3 ? 3 : 1];
    std::printf("%-12s %-14s exit %d, %5.2f s, %5lld MiB %s\n", command[0].c_str(), GetParam().name, cost.exit_code,
                cost.seconds, static_cast<long long>(cost.bytes >> 20), cost.err.substr(0, 160).c_str());
    EXPECT_TRUE(cost.exit_code >= 0 && cost.exit_code <= 2) << what << ": exit code " << cost.exit_code;
    EXPECT_LT(cost.seconds, kMaxSeconds) << what;
    if (!kSanitized) {
      // The budget is per file.
      const auto files = static_cast<int64_t>(std::count(command.begin(), command.end(), path));
      EXPECT_LT(cost.bytes, kMaxBytes + files * static_cast<int64_t>(bytes.size()) * 100) << what;
    }
    // explain also exits with 2 if one profile without ages has no finding.
    if (cost.exit_code == 2 && command[0] != "explain") {
      EXPECT_THAT(cost.err, testing::ContainsRegex(
                                "limit|no real profile|has neither|no sample type|not a pprof|no sample has the label"))
          << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, HostileProfile,
    testing::Values(Hostile{"CostlyExpression", CostlyExpression},
                    Hostile{"ExpressionOfManyStates", ExpressionOfManyStates}, Hostile{"OneDeepStack", OneDeepStack},
                    Hostile{"DeepRecursion", DeepRecursion}, Hostile{"ManyLinesInManyStacks", ManyLinesInManyStacks},
                    Hostile{"ManyTypes", ManyTypes}, Hostile{"ManyLabels", ManyLabels},
                    Hostile{"ManyLabelSets", ManyLabelSets}, Hostile{"ManyDevices", ManyDevices},
                    Hostile{"OneLongTextEverywhere", OneLongTextEverywhere},
                    Hostile{"OneLongLabelEverywhere", OneLongLabelEverywhere},
                    Hostile{"ManyPositionsOfOneFunction", ManyPositionsOfOneFunction}, Hostile{"LongPath", LongPath},
                    Hostile{"HugeIds", HugeIds}, Hostile{"TangledMappings", TangledMappings},
                    Hostile{"EmptySamples", EmptySamples}, Hostile{"EmptyOfAllKinds", EmptyOfAllKinds},
                    Hostile{"GzipBomb", GzipBomb}, Hostile{"DemanglerBombs", DemanglerBombs},
                    Hostile{"RustDemanglerBombs", RustDemanglerBombs}),
    [](const testing::TestParamInfo<Hostile>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hbmprof_test
