// A program that calls Profiler::InitDefault.
//
//   init_program FIELD=VALUE...   calls InitDefault with these fields of DefaultOptions (output_mode in octal digits),
//                                 prints the status, records buffers of 1,000, 2,000 and 3,000 bytes, and prints
//                                 statistics
//   init_program late             uses the profiler, then calls InitDefault and prints the status
//   init_program twice            calls InitDefault twice and prints both statuses
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hbmprof/hbmprof.h"
#include "hbmprof/options.h"

namespace {

char memory[8];

void Print(const char* name, const absl::Status& status) {
  std::printf("%s: %s\n", name, std::string(status.ToString()).c_str());
}

bool Set(const std::string& argument, hbmprof::DefaultOptions* options) {
  const size_t equal = argument.find('=');
  if (equal == std::string::npos) return false;
  const std::string field = argument.substr(0, equal);
  const std::string value = argument.substr(equal + 1);
  const long long number = std::atoll(value.c_str());
  if (field == "enabled") options->enabled = number != 0;
  if (field == "max_stack_depth") options->max_stack_depth = static_cast<int>(number);
  if (field == "unwinder") options->unwinder = hbmprof::Unwinder(number);
  if (field == "python") options->python = number != 0;
  if (field == "max_live_buffers") options->max_live_buffers = number;
  if (field == "max_sites") options->max_sites = number;
  if (field == "max_host_bytes") options->max_host_bytes = number;
  if (field == "output") options->output = value;
  if (field == "output_mode") options->output_mode = static_cast<unsigned>(std::stoul(value, nullptr, 8));
  if (field == "oom_output") options->oom_output = value;
  return true;
}

[[gnu::noinline]] void Record(int i) {
  const hbmprof::ScopedTag tag("round", std::to_string(i));  // a site for each round
  hbmprof::Profiler::Default().RecordAlloc(&memory[i], static_cast<size_t>(1000 * (i + 1)));
  asm volatile("");
}

}  // namespace

int main(int argc, char** argv) {
  hbmprof::DefaultOptions options;
  if (argc == 2 && std::strcmp(argv[1], "late") == 0) {
    Record(0);
    Print("late", hbmprof::Profiler::InitDefault(options));
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "twice") == 0) {
    Print("first", hbmprof::Profiler::InitDefault(options));
    Print("second", hbmprof::Profiler::InitDefault(options));
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    if (!Set(argv[i], &options)) return 2;
  }
  const absl::Status made = hbmprof::Profiler::InitDefault(options);
  Print("init", made);
  if (!made.ok()) return 0;
  for (int i = 0; i < 3; ++i) Record(i);

  const hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::TrackerStats stats = profiler.GetTrackerStats();
  size_t depth = 0;
  for (const auto& stack : profiler.TakeSnapshot().stacks) depth = std::max(depth, stack.return_addresses.size());
  std::printf("live %lld dropped %lld sites %lld max_host_bytes %lld depth %zu unwinder %s oom_output %s\n",
              static_cast<long long>(stats.live_records), static_cast<long long>(stats.dropped_records),
              static_cast<long long>(stats.sites), static_cast<long long>(stats.max_host_bytes), depth,
              stats.unwinder.c_str(), hbmprof::Profiler::OptionsOfDefault().oom_output.c_str());
  return 0;
}
