// A program with a control channel, which gives profiles while it runs.
//
//   control_program hold THREADS   holds 3,000,000 bytes on "sim:0" by LoadWeights, while THREADS threads allocate and
//                                  free 4,096 bytes each; prints "ready", and ends at the end of standard input
//   control_program slowest THREADS  the same, and prints the longest time of one allocation and its free, of those
//                                  during which the thread kept its core
//   control_program fork           the same without threads, and a forked child that outlives it by two seconds
//   control_program full           the same without threads, but before "ready" opens files up to a limit of 100;
//                                  before "done" prints the processor time since then in milliseconds
//   control_program children       the same without threads, and forks a child for each line of its standard input. The
//                                  child prints its process id, and ends after a minute or with this program
//   control_program close          the same without threads, but before "ready" closes all its descriptors from 3 on
//                                  and opens 400 pipes
//   control_program steps BYTES STEP  the same without threads. At each request ("info" and "profile") it allocates
//                                  BYTES more by GrowOneStep, sets the counter "steps" to the number of requests, and
//                                  prints "step NUMBER". At request STEP it then waits for a line of standard input
//   control_program lines          the same without threads, with line feeds in the names of the process and a device
//   control_program samples NUMBER the same without threads, and holds NUMBER blocks with different tags. Each call of
//                                  send takes at most 64 bytes
// With the variable STOPS_BEFORE_LISTEN it prints "stopped" before it listens at the socket, and continues after the
// first byte of standard input.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/tag.h"

// The library calls this function to listen at its socket.
extern "C" int listen(int fd, int backlog) noexcept {
  if (std::getenv("STOPS_BEFORE_LISTEN") != nullptr) {
    std::puts("stopped");
    std::fflush(stdout);
    char byte;
    if (read(STDIN_FILENO, &byte, 1) != 1) std::abort();
  }
  return static_cast<int>(syscall(SYS_listen, fd, backlog));
}

namespace {

std::atomic<size_t> most_bytes_of_send{SIZE_MAX};

}  // namespace

// Likewise.
extern "C" ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  return syscall(SYS_sendto, fd, bytes, std::min(size, most_bytes_of_send.load()), flags, nullptr, 0);
}

namespace {

hbmprof::Attributes OnDevice() { return {hbmprof::Profiler::Default().Device("sim:0"), {}, {}}; }

[[gnu::noinline]] void LoadWeights() {
  hbmprof::Profiler::Default().RecordAlloc(hbmprof::BufferId(0x1000), 3'000'000, OnDevice());
  asm volatile("" ::: "memory");
}

[[gnu::noinline]] void AllocateUntil(const std::atomic<bool>& end, uint64_t address) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::Attributes attributes = OnDevice();
  while (!end.load(std::memory_order_relaxed)) {
    profiler.RecordAlloc(hbmprof::BufferId(address), 4096, attributes);
    profiler.RecordFree(hbmprof::BufferId(address));
  }
}

long SwitchesOfThread() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

void MeasureUntil(const std::atomic<bool>& end, uint64_t address, std::atomic<int64_t>* slowest_ns) {
  using Clock = std::chrono::steady_clock;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::Attributes attributes = OnDevice();
  while (!end.load(std::memory_order_relaxed)) {
    const long switches = SwitchesOfThread();
    const Clock::time_point start = Clock::now();
    profiler.RecordAlloc(hbmprof::BufferId(address), 4096, attributes);
    profiler.RecordFree(hbmprof::BufferId(address));
    const int64_t time = std::chrono::nanoseconds(Clock::now() - start).count();
    int64_t slowest = slowest_ns->load(std::memory_order_relaxed);
    if (time <= slowest || SwitchesOfThread() != switches) continue;
    while (time > slowest && !slowest_ns->compare_exchange_weak(slowest, time)) continue;
  }
}

void HoldSamples(int count) {
  for (int i = 0; i < count; ++i) {
    const hbmprof::ScopedTag low("low", std::to_string(i % 1000));
    const hbmprof::ScopedTag high("high", std::to_string(i / 1000));
    hbmprof::Profiler::Default().RecordAlloc(hbmprof::BufferId(0x10000000 + static_cast<uint64_t>(i) * 16), 16,
                                             OnDevice());
  }
  most_bytes_of_send = 64;
}

void UseNamesWithLineFeeds() {
  prctl(PR_SET_NAME, "a\npid 1");
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.RecordAlloc(hbmprof::BufferId(0x2000), 5, {profiler.Device("x\nmemory device 1 2 3 forged"), {}, {}});
}

void ReplaceDescriptors() {
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  for (int i = 0; i < 400; ++i) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) std::abort();
  }
}

void TakeAllDescriptors() {
  const rlimit limit{100, 100};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) std::abort();
  while (open("/dev/null", O_RDONLY) >= 0) continue;
}

// Calls GrowOneStep for each request. A thread of its own does it, so that its stacks do not contain the request.
class Steps {
 public:
  // `waits_at` is the step that waits for Continue.
  Steps(size_t bytes, int waits_at) : bytes_(bytes), waits_at_(waits_at) {
    if (pipe(continue_) != 0) std::abort();
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    const auto grow = [this] {
      std::thread(&Steps::GrowOneStep, this).join();
      return hbmprof::DeviceProbe{};
    };
    profiler.SetDeviceProbe(profiler.Device("sim:0"), grow, this);
  }
  ~Steps() {
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    profiler.RemoveDeviceProbe(profiler.Device("sim:0"), this);
    close(continue_[0]);
    close(continue_[1]);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  void Continue() const {
    if (write(continue_[1], "\n", 1) != 1) std::abort();
  }

 private:
  [[gnu::noinline]] void GrowOneStep() {
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    ++step_;
    const uint64_t address = 0x1000000 + 0x1000000 * static_cast<uint64_t>(step_);
    if (bytes_ > 0) profiler.RecordAlloc(hbmprof::BufferId(address), bytes_, OnDevice());
    profiler.SetCounter("steps", step_);
    std::printf("step %d\n", step_);
    std::fflush(stdout);
    char byte;
    if (step_ == waits_at_ && read(continue_[0], &byte, 1) != 1) std::abort();
  }

  const size_t bytes_;
  const int waits_at_;
  int step_ = 0;
  int continue_[2];
};

void ForkAChildThatPrintsItsId() {
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  sleep(60);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int count = argc > 2 ? std::atoi(argv[2]) : 0;
  LoadWeights();
  if (mode == "fork" && fork() == 0) {
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    sleep(2);
    _exit(0);
  }
  std::optional<Steps> steps;
  if (mode == "steps") steps.emplace(static_cast<size_t>(count), argc > 3 ? std::atoi(argv[3]) : 0);
  std::atomic<bool> end{false};
  std::atomic<int64_t> slowest_ns{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < (steps.has_value() || mode == "samples" ? 0 : count); ++i) {
    const uint64_t address = 0x100000 + 0x10000 * static_cast<uint64_t>(i);
    threads.emplace_back([&, address] {
      if (mode == "slowest") return MeasureUntil(end, address, &slowest_ns);
      AllocateUntil(end, address);
    });
  }
  if (mode == "close") ReplaceDescriptors();
  if (mode == "lines") UseNamesWithLineFeeds();
  if (mode == "samples") HoldSamples(count);
  if (mode == "full") TakeAllDescriptors();
  const std::clock_t processor_time = std::clock();
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
    if (mode == "children" && byte == '\n') ForkAChildThatPrintsItsId();
    if (steps.has_value() && byte == '\n') steps->Continue();
  }
  end.store(true);
  for (std::thread& thread : threads) thread.join();
  if (mode == "slowest") std::printf("slowest %.3f ms\n", static_cast<double>(slowest_ns.load()) / 1e6);
  if (mode == "full") {
    std::printf("used %ld ms\n", (std::clock() - processor_time) / (CLOCKS_PER_SEC / 1000));
    close(STDIN_FILENO);  // the leak sanitizer needs a descriptor
  }
  std::puts("done");
  return 0;
}
