// What does tracking cost on a real program's allocations? Replays a recording (docs/recording.md), tracked and
// untracked.
//
// usage: replay_bench benchmarks/llm_server.hbmrec [ROUNDS]
//
// Only allocations and frees are replayed, in one thread and without pauses. Buffers from before the recording, and
// segments and blocks of pools, are left out.
//
// Each allocation descends a call chain as deep as its recorded stack. Each stack has a different path; paths differ in
// their innermost calls. Buffers have the recorded sizes, and reuse addresses as they did in the program.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/call_chain.h"
#include "hbmprof/profiler.h"
#include "src/tool/reader/reader.h"

namespace hbmprof::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// The allocations and frees of a recording.
struct Trace {
  struct Event {
    uint32_t buffer;
    int32_t stack;  // index of `depths`; -1: a free
    int64_t bytes;  // of an allocation
  };
  std::vector<size_t> depths;  // of the stacks, in frames
  std::vector<Event> events;
};

// Errors: those of RecordingReader::Open; kInvalidArgument if there is no event to replay.
absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  using internal::RecordedKind;
  using internal::RecordingTables;
  const absl::StatusOr<std::unique_ptr<internal::RecordingReader>> recording = internal::RecordingReader::Open(path);
  if (!recording.ok()) return recording.status();
  const RecordingTables& tables = (*recording)->tables();
  Trace trace;
  for (const Snapshot::Stack& stack : tables.names.stacks) trace.depths.push_back(stack.return_addresses.size());
  std::unordered_map<uint64_t, uint32_t> numbers;  // of the buffers, by id
  std::unordered_map<uint64_t, bool> is_live;
  internal::RecordedEvent event;
  while ((*recording)->Next(&event)) {
    if (event.kind != RecordedKind::kAlloc && event.kind != RecordedKind::kFree) continue;
    if (tables.site_pools[event.site] != 0 || tables.sites[event.site].kind == MemoryKind::kPool) continue;
    const bool is_alloc = event.kind == RecordedKind::kAlloc;
    bool& live = is_live[event.id];
    if (live == is_alloc) continue;
    live = is_alloc;
    const uint32_t buffer = numbers.try_emplace(event.id, static_cast<uint32_t>(numbers.size())).first->second;
    trace.events.push_back(
        {buffer, is_alloc ? static_cast<int32_t>(tables.sites[event.site].stack) : -1, is_alloc ? event.bytes : 0});
  }
  if (trace.events.empty()) return absl::InvalidArgumentError(path + ": holds no allocation that can be replayed");
  return trace;
}

BufferId IdOf(uint32_t buffer) { return BufferId((uint64_t{1} << 40) + uint64_t{buffer} * 512); }

struct Call {
  Profiler* profiler;  // null: untracked
  BufferId id;
  int64_t bytes;
  volatile int64_t allocated = 0;

  static void Allocate(void* argument) {
    auto* self = static_cast<Call*>(argument);
    if (self->profiler != nullptr) self->profiler->RecordAlloc(self->id, static_cast<size_t>(self->bytes));
    self->allocated = self->allocated + self->bytes;
  }
};

struct Path {
  int depth;
  uint64_t bits;
};

// Returns the number of frames of a stack that the calls in Replay make with Descend(1, ...), without Descend's frame.
int FramesAbove(const Profiler& profiler) {
  return static_cast<int>(profiler.TakeSnapshot().stacks.front().return_addresses.size()) - 1;
}

[[gnu::noinline]] void Replay(const std::vector<Trace::Event>& events, const std::vector<Path>& paths,
                              Profiler* profiler) {
  Call call{profiler, {}, 0};
  for (const Trace::Event& event : events) {
    call.id = IdOf(event.buffer);
    if (event.stack >= 0) {
      const Path& path = paths[static_cast<size_t>(event.stack)];
      call.bytes = event.bytes;
      without_frame_pointers::Descend(path.depth, path.bits, &Call::Allocate, &call);
    } else if (profiler != nullptr) {
      profiler->RecordFree(call.id);
    }
  }
  asm volatile("");
}

// Returns the nanoseconds of a replay. Then frees the buffers that are live at the end of the trace; this is not
// measured.
double TimedReplay(const Trace& trace, const std::vector<Path>& paths, Profiler* profiler) {
  const Clock::time_point start = Clock::now();
  Replay(trace.events, paths, profiler);
  const double elapsed = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  if (profiler != nullptr) profiler->DropDevice(kDefaultDevice);
  return elapsed;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int Main(const std::string& path, int rounds) {
  const absl::StatusOr<Trace> read = ReadTrace(path);
  if (!read.ok()) {
    std::fprintf(stderr, "replay_bench: %s\n", std::string(read.status().message()).c_str());
    return 1;
  }
  const Trace& trace = *read;

  auto measuring = std::make_unique<Profiler>();
  TimedReplay({{0}, {{0, 0, 1}}}, {{1, 0}}, measuring.get());
  const int frames_above = FramesAbove(*measuring);
  measuring.reset();

  std::vector<Path> paths;
  int stack_bits = 1;
  while (trace.depths.size() >> stack_bits != 0) ++stack_bits;
  for (size_t i = 0; i < trace.depths.size(); ++i) {
    const int depth = std::max(1, static_cast<int>(trace.depths[i]) - frames_above);
    // Descend takes one bit for each call except the last, the outermost call first.
    const int shift = std::clamp(depth - 1 - stack_bits, 0, 63);
    paths.push_back({depth, static_cast<uint64_t>(i) << shift});
  }
  int64_t allocations = 0;
  int64_t live = 0;
  int64_t highest = 0;
  size_t frames = 0;
  for (const Trace::Event& event : trace.events) {
    live += event.stack >= 0 ? 1 : -1;
    highest = std::max(highest, live);
    if (event.stack < 0) continue;
    ++allocations;
    frames += trace.depths[static_cast<size_t>(event.stack)];
  }
  std::printf(
      "%zu events, %lld allocations at %zu stacks, %.1f frames on average, %lld live at most, %lld at the end\n",
      trace.events.size(), static_cast<long long>(allocations), trace.depths.size(),
      static_cast<double>(frames) / static_cast<double>(allocations), static_cast<long long>(highest),
      static_cast<long long>(live));

  Profiler profiler;
  const double first = TimedReplay(trace, paths, &profiler);
  std::vector<double> untracked;
  std::vector<double> tracked;
  std::vector<double> added;
  for (int round = 0; round < rounds; ++round) {
    untracked.push_back(TimedReplay(trace, paths, nullptr));
    tracked.push_back(TimedReplay(trace, paths, &profiler));
    added.push_back(tracked.back() - untracked.back());
  }
  const auto pairs = static_cast<double>(allocations);
  std::printf(
      "ns per pair, medians of %d rounds: untracked %.1f, tracked %.1f, added %.1f; added in the first replay "
      "%.1f\n",
      rounds, Median(untracked) / pairs, Median(tracked) / pairs, Median(added) / pairs,
      (first - Median(untracked)) / pairs);
  return 0;
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: replay_bench RECORDING [ROUNDS]\n");
    return 2;
  }
  return hbmprof::benchmarks::Main(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 21);
}
