// llm_server: serves prompts with a small transformer on a simulated device, and profiles the device memory it uses.
// Run it with --help.
//
// This file has the command line, the prompts, the profiles and the numbers that are printed at the end.

#include <getopt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/llm_server/kv_cache.h"
#include "examples/llm_server/model.h"
#include "examples/llm_server/scheduler.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/simulated_device.h"

namespace {

constexpr char kUsage[] =
    R"(usage: llm_server [OPTION]... [PROMPTS]
Serves the prompts in the file PROMPTS (default: standard input), one per line. A line that begins with "batch:" is a
request of class "batch", any other of class "chat". All prompts are read before the first is served, so it serves
nothing until standard input ends. To let it run for minutes, repeat the prompts: --dumps 400 PROMPTS

  --before FILE       save a device memory profile after warm-up, before the prompts are served
  --after FILE        save one after the last answer
  --dumps N           serve the prompts N times (at most 9999), and save a profile after each: dump.0001.pb.gz and so on
  --dump-dir DIR      an existing folder for them (default: the current folder)
  --leak              the bug to be found: cancelled requests keep their KV pages
  --cancel-every N    every Nth client leaves before its answer is complete (default 4; 0: none)
  --batch N           requests served at once (default 8)
  --max-tokens N      longest answer (default 48)
  --temperature T     of the sampling; 0 takes the likeliest token (default 0.8)
  --kv-pages N        most pages of KV cache (default: as many as the device's memory holds)
  --memory-mib N      memory of the device in MiB (default 1024)
  --answers           print every answer
  --help
)";

struct CommandLine {
  std::string prompts;  // empty: standard input
  std::string before;
  std::string after;
  std::string dump_directory = ".";
  int dumps = 0;
  int cancel_every = 4;
  int max_tokens = 48;
  int kv_pages = std::numeric_limits<int>::max();  // the device's memory is the limit
  int memory_mib = 1024;
  bool print_answers = false;
  llm::Scheduler::Options scheduler;
};

[[noreturn]] void Fail(int exit_code, const std::string& message) {
  std::fprintf(stderr, "llm_server: %s\n", message.c_str());
  std::exit(exit_code);
}

double ParseNumber(const char* option, const char* text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least && value <= most)) {
    std::fprintf(stderr, "llm_server: %s: \"%s\" is not a number from %g to %g\n", option, text, least, most);
    std::exit(2);
  }
  return value;
}

int ParseInt(const char* option, const char* text, int least, int most) {
  return static_cast<int>(ParseNumber(option, text, least, most));
}

CommandLine ParseCommandLine(int argc, char** argv) {
  const option options[] = {
      {"before", required_argument, nullptr, 'b'},
      {"after", required_argument, nullptr, 'a'},
      {"dumps", required_argument, nullptr, 'd'},
      {"dump-dir", required_argument, nullptr, 'D'},
      {"leak", no_argument, nullptr, 'l'},
      {"cancel-every", required_argument, nullptr, 'c'},
      {"batch", required_argument, nullptr, 'n'},
      {"max-tokens", required_argument, nullptr, 't'},
      {"temperature", required_argument, nullptr, 'T'},
      {"kv-pages", required_argument, nullptr, 'k'},
      {"memory-mib", required_argument, nullptr, 'm'},
      {"answers", no_argument, nullptr, 'p'},
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  CommandLine result;
  int choice;
  while ((choice = getopt_long(argc, argv, "", options, nullptr)) != -1) {
    switch (choice) {
      case 'b':
        result.before = optarg;
        break;
      case 'a':
        result.after = optarg;
        break;
      case 'd':
        result.dumps = ParseInt("--dumps", optarg, 0, 9999);
        break;
      case 'D':
        result.dump_directory = optarg;
        break;
      case 'l':
        result.scheduler.leak_cancelled = true;
        break;
      case 'c':
        result.cancel_every = ParseInt("--cancel-every", optarg, 0, 1000000);
        break;
      case 'n':
        result.scheduler.max_batch = ParseInt("--batch", optarg, 1, 1024);
        break;
      case 't':
        result.max_tokens = ParseInt("--max-tokens", optarg, 1, 4096);
        break;
      case 'T':
        result.scheduler.temperature = static_cast<float>(ParseNumber("--temperature", optarg, 0, 100));
        break;
      case 'k':
        result.kv_pages = ParseInt("--kv-pages", optarg, 1, 1000000);
        break;
      case 'm':
        result.memory_mib = ParseInt("--memory-mib", optarg, 1, 65536);
        break;
      case 'p':
        result.print_answers = true;
        break;
      case 'h':
        std::fputs(kUsage, stdout);
        std::exit(0);
      default:
        Fail(2, "see --help");
    }
  }
  if (argc - optind > 1) Fail(2, "more than one PROMPTS; see --help");
  if (optind < argc) result.prompts = argv[optind];
  return result;
}

// Reads the prompts as requests, without ids.
std::vector<llm::Request> ReadRequests(const CommandLine& command) {
  std::ifstream file;
  if (!command.prompts.empty()) {
    file.open(command.prompts);
    if (!file) Fail(1, "cannot read " + command.prompts);
  }
  std::istream& in = command.prompts.empty() ? std::cin : file;
  std::vector<llm::Request> requests;
  for (std::string line; std::getline(in, line);) {
    llm::Request request;
    const bool batch = line.rfind("batch:", 0) == 0;
    request.request_class = batch ? "batch" : "chat";
    request.prompt = batch ? line.substr(6) : line;
    request.max_tokens = command.max_tokens;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Serves one request of each class, so that the first profile contains everything that a first request sets up.
void WarmUp(llm::Scheduler& scheduler) {
  for (const char* request_class : {"chat", "batch"}) {
    llm::Request request;
    request.request_class = request_class;
    request.prompt = "warm-up";
    scheduler.Submit(std::move(request));
  }
  scheduler.Run();
}

// Serves each request once. Their ids begin at `first_id`.
std::vector<llm::Answer> Serve(const CommandLine& command, const std::vector<llm::Request>& requests, int first_id,
                               llm::Scheduler& scheduler) {
  for (llm::Request request : requests) {
    request.id = first_id++;
    if (command.cancel_every > 0 && request.id % command.cancel_every == 0) {
      request.client_leaves_after = std::max(1, command.max_tokens / 2);
    }
    scheduler.Submit(std::move(request));
  }
  return scheduler.Run();
}

void SaveProfile(const std::string& path) {
  if (path.empty()) return;
  const absl::Status saved = hbmprof::save_device_memory_profile(path);
  if (!saved.ok()) Fail(1, saved.ToString());
}

void PrintAnswer(const llm::Answer& answer) {
  std::string text;
  for (const char c : answer.text) text += c >= ' ' && c <= '~' ? c : '.';
  std::printf("#%d [%s] %s -> %s\n", answer.request.id, answer.request.request_class.c_str(),
              answer.request.prompt.c_str(), text.c_str());
}

double Mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

int main(int argc, char** argv) {
  const CommandLine command = ParseCommandLine(argc, argv);

  hbmprof::SimulatedDevice::Options options;
  options.capacity = static_cast<size_t>(command.memory_mib) << 20;
  const absl::StatusOr<std::unique_ptr<hbmprof::SimulatedDevice>> device = hbmprof::SimulatedDevice::Create(options);
  if (!device.ok()) Fail(1, device.status().ToString());
  // Three allocators with different names on one device. The name is the label `allocator` of the buffers.
  hbmprof::TrackingAllocator weight_memory(**device, "weights");
  hbmprof::TrackingAllocator activation_memory(**device, "activations");
  hbmprof::TrackingAllocator kv_memory(**device, "kv_cache");

  const llm::Transformer model({}, weight_memory, activation_memory);
  llm::KvCache cache(kv_memory, model.config().layers, model.config().width(), command.kv_pages);
  llm::Scheduler scheduler(model, cache, command.scheduler);
  std::printf("model      %d layers, width %d, %.2f M parameters; KV pages of %d tokens, %zu B\n",
              model.config().layers, model.config().width(), static_cast<double>(model.parameters()) / 1e6,
              llm::KvCache::kPageTokens, cache.page_bytes());

  WarmUp(scheduler);
  SaveProfile(command.before);

  const int64_t warm_up_tokens = scheduler.prompt_tokens() + scheduler.answer_tokens();
  const std::vector<llm::Request> requests = ReadRequests(command);
  const auto start = std::chrono::steady_clock::now();
  std::vector<llm::Answer> answers;
  for (int round = 1; round <= std::max(1, command.dumps); ++round) {
    std::vector<llm::Answer> served = Serve(command, requests, static_cast<int>(answers.size()) + 1, scheduler);
    std::move(served.begin(), served.end(), std::back_inserter(answers));
    if (round > command.dumps) break;
    char name[32];
    std::snprintf(name, sizeof(name), "/dump.%04d.pb.gz", round);
    SaveProfile(command.dump_directory + name);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const int64_t tokens = scheduler.prompt_tokens() + scheduler.answer_tokens() - warm_up_tokens;
  SaveProfile(command.after);

  int ends[3] = {};
  for (const llm::Answer& answer : answers) {
    ++ends[static_cast<int>(answer.end)];
    if (command.print_answers) PrintAnswer(answer);
  }
  const hbmprof::DeviceStats stats = hbmprof::Profiler::Default().Stats(kv_memory.device());
  // Every request is answered, so no page should be left.
  const auto leaked_pages = static_cast<long long>(cache.pages_in_use());
  const auto page_bytes = static_cast<long long>(cache.page_bytes());
  std::printf("requests   %zu: %d finished, %d cancelled, %d out of memory\n", answers.size(), ends[0], ends[1],
              ends[2]);
  std::printf("tokens     %lld in %.2f s: %.0f tokens/s\n", static_cast<long long>(tokens), seconds.count(),
              tokens > 0 ? static_cast<double>(tokens) / seconds.count() : 0.0);
  std::printf("memory     %.2f MiB in use, %.2f MiB peak, %.2f MiB limit, %lld allocations\n",
              Mebibytes(stats.bytes_in_use), Mebibytes(stats.peak_bytes_in_use),
              Mebibytes(stats.bytes_limit.value_or(0)), static_cast<long long>(stats.num_allocs));
  std::printf("leaked     %lld pages x %lld B = %lld B\n", leaked_pages, page_bytes, leaked_pages * page_bytes);
  return 0;
}
