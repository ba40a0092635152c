// `hbmprof run`: starts a program with the injected library, and says at the end what its profiles hold.
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/tool/command.h"
#include "src/tool/injection.h"
#include "src/tool/profile.h"
#include "src/tool/profile_reader.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  std::string output = "hbmprof-profiles";
  std::string interval;
  std::string library;
  std::vector<std::string> command;
};

constexpr char kSuffix[] = ".pb.gz";

std::set<std::string> ProfilesIn(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const size_t suffix = sizeof(kSuffix) - 1;
    if (name.size() > suffix && name.compare(name.size() - suffix, suffix, kSuffix) == 0) names.insert(name);
  }
  return names;
}

// Names are PROCESS.NUMBER.pb.gz: of each process, the last.
std::map<int64_t, std::pair<int64_t, std::string>> LastOfEachProcess(const std::set<std::string>& names) {
  std::map<int64_t, std::pair<int64_t, std::string>> last;
  for (const std::string& name : names) {
    long process = 0;
    long number = 0;
    if (std::sscanf(name.c_str(), "%ld.%ld.pb.gz", &process, &number) != 2) continue;
    std::pair<int64_t, std::string>& known = last[process];
    if (known.second.empty() || number > known.first) known = {number, name};
  }
  return last;
}

std::string BytesOrUnknown(const Comment& comment, const std::string& key) {
  const std::optional<int64_t> value = comment.Number(key);
  return value.has_value() ? FormatValue(*value, "bytes") : "n/a";
}

// What is unaccounted, of whom, and in words if it has grown.
std::string Unaccounted(const Comment& comment) {
  const std::optional<int64_t> unaccounted = comment.Number("unaccounted");
  if (!unaccounted.has_value()) return "unaccounted n/a (neither NVML nor the driver said what is in use)";
  const auto scope = comment.values.find("driver_scope");
  const bool process = scope != comment.values.end() && scope->second == "process";
  std::string text = Cat("unaccounted ", FormatValue(*unaccounted, "bytes"),
                         process ? " of this process" : " of all processes on the device");
  const std::optional<int64_t> baseline = comment.Number("baseline");
  if (!baseline.has_value()) return text;
  text += Cat(", ", FormatValue(*baseline, "bytes"), " of it from the start");
  if (*unaccounted > *baseline) {
    text += Cat("; ", FormatChange(*unaccounted - *baseline, "bytes"), " since then, outside tracked allocations");
  }
  return text;
}

void Summarize(int64_t process, const std::string& path) {
  std::fprintf(stderr, "hbmprof: process %lld: %s\n", static_cast<long long>(process), path.c_str());
  const absl::StatusOr<RawProfile> profile = ReadProfile(path);
  if (!profile.ok()) {
    std::fprintf(stderr, "  %s\n", std::string(profile.status().message()).c_str());
    return;
  }
  Table table(
      {Table::Align::kLeft, Table::Align::kLeft, Table::Align::kRight, Table::Align::kRight, Table::Align::kLeft});
  bool any = false;
  for (const int64_t index : profile->message().comment()) {
    const Comment comment(profile->text(index));
    if (comment.word == "tracker" && comment.Number("dropped_records").value_or(0) != 0) {
      std::fprintf(stderr, "  %lld allocations were not recorded: a limit was reached\n",
                   static_cast<long long>(*comment.Number("dropped_records")));
    }
    if (comment.word != "device") continue;
    const auto space = comment.values.find("space");
    const bool device = space == comment.values.end() || space->second == "device";
    table.Add({Cat("  ", comment.name), device ? "" : space->second, Cat("peak ", BytesOrUnknown(comment, "peak")),
               Cat("in use ", BytesOrUnknown(comment, "in_use")), device ? Unaccounted(comment) : ""});
    any = true;
  }
  std::fputs(any ? table.Text().c_str() : "  no allocation was seen\n", stderr);
}

// While the program runs, an interrupt from the terminal is for it; so are requests to end.
volatile sig_atomic_t running = 0;
void Forward(int number) { kill(running, number); }

absl::StatusOr<int> RunRun(const RunOptions& options) {
  const absl::StatusOr<std::string> library = FindInjectedLibrary(options.library);
  if (!library.ok()) return library.status();
  const absl::StatusOr<std::string> program = FindProgram(options.command.front());
  if (!program.ok()) return program.status();
  std::error_code error;
  fs::create_directories(options.output, error);
  const std::string folder = fs::canonical(options.output, error);
  if (error || access(folder.c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(Cat(options.output, " is no folder that can be written to"));
  }

  Environment environment{{"LD_PRELOAD", PreloadWith(*library)},
                          {"HBMPROF_CUDA_OUTPUT", Cat(folder, "/%p.%n", kSuffix)}};
  if (!options.interval.empty()) environment["HBMPROF_CUDA_INTERVAL"] = options.interval;
  const std::set<std::string> before = ProfilesIn(folder);
  const absl::StatusOr<int> process = StartProcess(*program, options.command, environment);
  if (!process.ok()) return process.status();
  running = *process;
  // Only now, or the program would ignore them too.
  signal(SIGINT, SIG_IGN);
  signal(SIGQUIT, SIG_IGN);
  for (const int number : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) signal(number, &Forward);
  const int code = WaitForProcess(*process);

  std::set<std::string> written;
  for (const std::string& name : ProfilesIn(folder)) {
    if (before.count(name) == 0) written.insert(name);
  }
  for (const auto& [id, last] : LastOfEachProcess(written)) Summarize(id, Cat(folder, "/", last.second));
  if (code > 128) std::fprintf(stderr, "hbmprof: signal %d ended the program\n", code - 128);
  if (written.empty()) {
    std::fprintf(stderr,
                 "hbmprof: no profile: the program used no CUDA, was killed, or cannot be injected; "
                 "`hbmprof doctor -- %s` says more\n",
                 options.command.front().c_str());
  }
  return code;
}

}  // namespace

Command AddRunCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("run", "Run a program and record all its CUDA allocations");
  auto options = std::make_shared<RunOptions>();
  arguments->add_option("--output", options->output, "Folder for the profiles, PROCESS.NUMBER.pb.gz")
      ->type_name("DIR")
      ->capture_default_str();
  arguments->add_option("--interval", options->interval, "Also write a profile every so many seconds")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e8));
  arguments->add_option("--library", options->library, "Another libhbmprof_cuda.so")->type_name("FILE");
  arguments->add_option("command", options->command, "The program and its arguments, after --")->required();
  arguments->footer(
      "Nothing is rebuilt: a library is preloaded that wraps the CUDA driver's calls, of every process that\n"
      "the program starts. Exits with the program's code, or 128 + the signal that ended it.\n"
      "Example: hbmprof run --interval 60 -- ./server config.json");
  return {arguments, [options] { return RunRun(*options); }};
}

}  // namespace hbmprof::tool
