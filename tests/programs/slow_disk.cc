// slow_disk DIRECTORY: the disk takes eight seconds for each file and each change of a folder. Meanwhile hbmprof writes
// a recording, profiles at intervals, at the program's request and of failed allocations, and the events of the flight
// recorder. The main thread forks and calls everything else: no call waits for the disk.

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <string>
#include <thread>

#include "hbmprof/out_of_memory.h"
#include "hbmprof/recording.h"
#include "tests/programs/program.h"

namespace {

std::atomic<bool> is_slow{false};
std::atomic<int> waits{0};

int Wait() {
  if (!is_slow.load()) return 0;
  waits.fetch_add(1);
  std::this_thread::sleep_for(std::chrono::seconds(8));
  return 0;
}

}  // namespace

// Take the places of the C library's functions.
extern "C" {
int fsync(int) { return Wait(); }
int flock(int, int) { return Wait(); }
int statvfs(const char*, struct statvfs* info) {
  *info = {};
  info->f_frsize = 1 << 20;
  info->f_bavail = 1 << 20;
  return Wait();
}
int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  Wait();
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  if (std::strncmp(path, "/proc/", 6) != 0) Wait();
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int unlink(const char* path) {
  Wait();
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
}

namespace {

using Clock = std::chrono::steady_clock;

// Calls call(), which must return soon.
template <typename Call>
void Soon(const char* name, const Call& call) {
  const Clock::time_point start = Clock::now();
  call();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (seconds < 2) return;
  std::fprintf(stderr, "%s took %.1f s\n", name, seconds);
  std::_Exit(9);
}

void CallEverything(uint64_t number) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  Soon("fork", [] {
    const pid_t child = fork();
    if (child == 0) std::_Exit(0);
    int status = 0;
    CHECK_THAT(waitpid(child, &status, 0) == child && status == 0);
  });
  Soon("RecordAlloc", [&] { CHECK_THAT(profiler.RecordAlloc(Buffer(1, number), 100)); });
  Soon("RecordFree", [&] { CHECK_THAT(profiler.RecordFree(Buffer(1, number)) == 100); });
  Soon("Device", [&] { profiler.Device("device " + std::to_string(number % 30)); });
  Soon("SetCounter", [&] { profiler.SetCounter("number", static_cast<int64_t>(number)); });
  Soon("ScopedTag", [&] { hbmprof::ScopedTag tag("number", std::to_string(number % 900)); });
  Soon("Stats", [&] { profiler.Stats(hbmprof::kDefaultDevice); });
  Soon("GetTrackerStats", [&] { profiler.GetTrackerStats(); });
  Soon("TakeSnapshot", [&] { profiler.TakeSnapshot(); });
  Soon("a new Profiler", [] { hbmprof::Profiler another; });
}

}  // namespace

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  const std::string directory = argv[1];
  hbmprof::DefaultOptions options;
  options.output = directory + "/exit.pb.gz";
  options.output_interval = 0.05;
  options.oom_output = directory + "/oom.%n.pb.gz";
  options.flight_events = 1000;
  CHECK_THAT(hbmprof::Profiler::InitDefault(options).ok());
  CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(2, 0), 1));
  is_slow.store(true);
  std::thread([&] { static_cast<void>(hbmprof::save_device_memory_profile(directory + "/saved.pb.gz")); }).detach();
  std::thread([&] { static_cast<void>(hbmprof::SaveFlightRecording(directory + "/saved.hbmrec")); }).detach();
  std::thread([] { hbmprof::ReportOutOfMemory({"Allocate", 1000, "a"}); }).detach();
  const Clock::time_point end = Clock::now() + std::chrono::seconds(4);
  for (uint64_t number = 0; Clock::now() < end || waits.load() < 3; ++number) CallEverything(number);
  CHECK_THAT(hbmprof::Profiler::Default().Stats(hbmprof::kDefaultDevice).bytes_in_use == 1);
  std::puts("done");
  std::fflush(stdout);
  std::_Exit(0);
}
