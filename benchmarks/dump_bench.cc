// What does a dump cost, and how long does it delay a thread that records? 1M live buffers, 10,000 stacks of 24 calls
// in 20,000 functions, two devices.
//
// usage: dump_bench [DUMPS]
//
// Prints:
// - the times of the first dump, which also finds the names of the code addresses, and the median times of the next
//   dumps, alone and while a thread records; split into snapshot, names, writing and gzip;
// - the extra memory;
// - the longest event of the thread that records, during dumps and during an equally long control time without dumps.
//   Delays that the control time shows, too, are caused by the system.

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"

// The argument of the functions that generate_functions.py writes. Each of them moves the cursor to the next function
// and calls the function at which the cursor was.
struct Descent {
  void (*const* cursor)(Descent*);
  void* argument;
};
extern "C" void (*const hbmprof_generated_functions[kGeneratedFunctions])(Descent*);

namespace hbmprof::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
double Milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

constexpr int kLive = 1000000;
constexpr int kStacks = 10000;
constexpr int kFrames = 24;

double gzip_milliseconds = 0;

// Calls the library's own Symbolizer and measures the time.
class TimedSymbolizer : public Symbolizer {
 public:
  std::vector<Name> Symbolize(const std::vector<Snapshot::Module>& modules,
                              const std::vector<uint64_t>& addresses) override {
    const Clock::time_point start = Clock::now();
    std::vector<Name> names = ElfSymbolizer().Symbolize(modules, addresses);
    milliseconds += Milliseconds(Clock::now() - start);
    count = addresses.size();
    return names;
  }
  double milliseconds = 0;
  size_t count = 0;
};

int64_t StatusKilobytes(const char* field) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  char line[256];
  int64_t value = -1;
  while (file != nullptr && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) == 0) value = std::atoll(line + std::strlen(field));
  }
  if (file != nullptr) std::fclose(file);
  return value;
}

// Resets VmHWM, the highest resident memory, to the present value.
void ResetHighestMemory() {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (file == nullptr) return;
  std::fputs("5", file);
  std::fclose(file);
}

double ThreadMilliseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

struct Dump {
  double snapshot, names, write, gzip, total;  // milliseconds
  double processor;                            // processor time in the total, in milliseconds
  double extra_mib;                            // greatest extra memory
  size_t bytes, samples, addresses;
};

Dump TakeDump(const Profiler& profiler) {
  Dump dump;
  TimedSymbolizer symbolizer;
  gzip_milliseconds = 0;
  ResetHighestMemory();
  const int64_t before = StatusKilobytes("VmHWM:");
  const double processor_start = ThreadMilliseconds();
  const Clock::time_point start = Clock::now();
  Clock::time_point taken;
  absl::StatusOr<std::string> bytes;
  {
    const Snapshot snapshot = profiler.TakeSnapshot();
    taken = Clock::now();
    bytes = SerializePprof(snapshot, &symbolizer);
    dump.samples = snapshot.samples.size();
  }
  const Clock::time_point end = Clock::now();
  dump.processor = ThreadMilliseconds() - processor_start;
  dump.extra_mib = static_cast<double>(StatusKilobytes("VmHWM:") - before) / 1024;
  if (!bytes.ok()) {
    std::fprintf(stderr, "dump_bench: %s\n", bytes.status().ToString().c_str());
    std::exit(1);
  }
  dump.snapshot = Milliseconds(taken - start);
  dump.total = Milliseconds(end - start);
  dump.names = symbolizer.milliseconds;
  dump.gzip = gzip_milliseconds;
  dump.write = dump.total - dump.snapshot - dump.names - dump.gzip;
  dump.bytes = bytes->size();
  dump.addresses = symbolizer.count;
  return dump;
}

Dump Median(const std::vector<Dump>& dumps) {
  Dump median = dumps.front();
  for (double Dump::*field :
       {&Dump::snapshot, &Dump::names, &Dump::write, &Dump::gzip, &Dump::total, &Dump::processor, &Dump::extra_mib}) {
    std::vector<double> values;
    for (const Dump& dump : dumps) values.push_back(dump.*field);
    std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
    median.*field = values[values.size() / 2];
  }
  return median;
}

void Print(const char* title, const Dump& dump) {
  std::printf("%-26s %8.1f %8.1f %8.1f %8.1f %8.1f %10.1f %10.1f\n", title, dump.snapshot, dump.names, dump.write,
              dump.gzip, dump.total, dump.processor, dump.extra_mib);
}

// A thread that records pairs of a free and an allocation, and measures the time of each pair.
class Recorder {
 public:
  explicit Recorder(Profiler* profiler) : worker_(profiler, 7) {}

  // Records as long as `meanwhile` runs.
  void Around(const std::function<void()>& meanwhile) {
    pairs_ = slow_ = 0;
    longest_ = longest_on_core_ = 0;
    stop_.store(false);
    std::atomic<bool> started{false};
    std::thread thread([&] { Loop(&started); });
    while (!started.load()) std::this_thread::yield();
    meanwhile();
    stop_.store(true);
    thread.join();
  }

  void Print(const char* title) const {
    std::printf("%-26s longest pair %8.3f ms, longest while it kept its core %8.3f ms, above 1 ms %" PRId64
                " of %" PRId64 " pairs\n",
                title, longest_, longest_on_core_, slow_, pairs_);
  }

 private:
  static int64_t Switches() {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
  }

  void Loop(std::atomic<bool>* started) {
    Random random(3);
    uint64_t paths[256];
    for (uint64_t i = 0; i < 256; ++i) paths[i] = PathOf(i);
    // Before the measurement: work that the process and the thread do only once.
    worker_.filling = true;
    for (worker_.slot = 0; worker_.slot < kSlots; ++worker_.slot) {
      without_frame_pointers::Descend(17, paths[worker_.slot % 256], &Worker::Replace, &worker_);
    }
    worker_.filling = false;
    started->store(true);
    int64_t switches = Switches();
    Clock::time_point last = Clock::now();
    while (!stop_.load(std::memory_order_relaxed)) {
      const uint64_t draw = random.Next();
      worker_.slot = (draw >> 32) % kSlots;
      without_frame_pointers::Descend(17, paths[draw % 256], &Worker::Replace, &worker_);
      const Clock::time_point now = Clock::now();
      const double milliseconds = Milliseconds(now - last);
      last = now;
      ++pairs_;
      if (milliseconds > longest_) longest_ = milliseconds;
      if (milliseconds > 1) ++slow_;
      if (milliseconds > 0.02) {
        // A context switch: the system took the core away, or the thread waited for a lock. The count of switches does
        // not distinguish the two.
        const int64_t switches_now = Switches();
        if (switches_now == switches) longest_on_core_ = std::max(longest_on_core_, milliseconds);
        switches = switches_now;
        last = Clock::now();
      }
    }
    for (worker_.slot = 0; worker_.slot < kSlots; ++worker_.slot) worker_.profiler->RecordFree(worker_.id());
  }

  static constexpr uint64_t kSlots = 10000;
  Worker worker_;
  std::atomic<bool> stop_{false};
  int64_t pairs_ = 0, slow_ = 0;
  double longest_ = 0, longest_on_core_ = 0;  // milliseconds
};

// Fills the profiler: each buffer has one of the stacks, chosen at random, and a random device.
struct Filler {
  Profiler* profiler;
  DeviceId devices[2];
  uint64_t next = 1;
  uint64_t draw = 0;
};
void FillOne(Descent* descent) {
  auto* filler = static_cast<Filler*>(descent->argument);
  filler->profiler->RecordAlloc(BufferId((uint64_t{1} << 44) + 512 * filler->next++), 512,
                                {.device = filler->devices[filler->draw >> 63]});
}
void Fill(Profiler* profiler) {
  Random random(1);
  using Function = void (*)(Descent*);
  std::vector<Function> stacks;
  for (int i = 0; i < kStacks; ++i) {
    for (int frame = 0; frame < kFrames; ++frame) {
      stacks.push_back(hbmprof_generated_functions[random.Next() % kGeneratedFunctions]);
    }
    stacks.push_back(&FillOne);
  }
  Filler filler = {profiler, {profiler->Device("GPU:0"), profiler->Device("GPU:1")}};
  for (int i = 0; i < kLive; ++i) {
    filler.draw = random.Next();
    Descent descent = {&stacks[(filler.draw >> 8) % kStacks * (kFrames + 1)] + 1, &filler};
    descent.cursor[-1](&descent);
  }
}

int Main(int dumps) {
  Profiler profiler;
  Fill(&profiler);

  const auto take = [&] {
    std::vector<Dump> taken;
    for (int i = 0; i < dumps; ++i) taken.push_back(TakeDump(profiler));
    return Median(taken);
  };
  const Dump first = TakeDump(profiler);
  const Dump next = take();
  Recorder recorder(&profiler);
  Dump meanwhile{};
  Clock::duration length{};
  const auto timed_dumps = [&] {
    const Clock::time_point start = Clock::now();
    meanwhile = take();
    length = Clock::now() - start;
  };

  std::printf("%d live, %zu samples, %zu code addresses, %.2f MB of gzip\n", kLive, first.samples, first.addresses,
              static_cast<double>(first.bytes) / 1e6);
  std::printf("milliseconds               snapshot    names    write     gzip    total  processor  extra MiB\n");
  Print("first dump", first);
  Print("next dumps", next);
  recorder.Around(timed_dumps);
  Print("while a thread records", meanwhile);
  recorder.Print("thread during dumps");
  recorder.Around([&] { std::this_thread::sleep_for(length); });
  recorder.Print("thread without dumps");
  std::printf(
      "goals: next dumps <= 60 ms and <= 64 MiB; first - next <= 60 ms (%.1f); no pair > 1 ms that the control "
      "does not show\n",
      first.total - next.total);
  return 0;
}

}  // namespace
}  // namespace hbmprof::benchmarks

// The linker redirects the library's calls of internal::Gzip to TimedGzip (--wrap), so that its share of a dump can be
// measured.
absl::StatusOr<std::string> RealGzip(std::string_view bytes) asm("__real_" HBMPROF_GZIP_SYMBOL);
absl::StatusOr<std::string> TimedGzip(std::string_view bytes) asm("__wrap_" HBMPROF_GZIP_SYMBOL);
absl::StatusOr<std::string> TimedGzip(std::string_view bytes) {
  using namespace hbmprof::benchmarks;
  const Clock::time_point start = Clock::now();
  absl::StatusOr<std::string> result = RealGzip(bytes);
  gzip_milliseconds += Milliseconds(Clock::now() - start);
  return result;
}

int main(int argc, char** argv) { return hbmprof::benchmarks::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 9); }
