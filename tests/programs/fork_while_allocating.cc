// fork_while_allocating DIRECTORY [dump]: forks 50 times while four threads allocate (and one writes profiles). Each
// child starts with nothing recorded, records, writes DIRECTORY/child.<number>.pb.gz and exits.

#include <sys/wait.h>

#include <cstring>
#include <string>
#include <thread>

#include "tests/programs/program.h"

namespace {

constexpr int kForks = 50;
constexpr uint64_t kChild = 100;

[[noreturn]] void RunChild(const std::string& path) {
  LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::DeviceStats before = profiler.Stats(hbmprof::kDefaultDevice);
  CHECK_THAT(before.bytes_in_use == 0);
  CHECK_THAT(before.peak_bytes_in_use == 0);
  CHECK_THAT(before.num_allocs == 0);
  CHECK_THAT(profiler.TakeSnapshot().samples.empty());
  CHECK_THAT(profiler.GetTrackerStats().live_records == 0);
  CHECK_THAT(!profiler.FindBuffer(Buffer(kChild, 0)).has_value());
  CHECK_THAT(!profiler.RecordFree(Buffer(kChild, 0)));  // the parent's buffer is unknown here
  CHECK_THAT(profiler.GetTrackerStats().foreign_frees == 1);

  hbmprof::ScopedTag tag("process", "child");
  for (uint64_t i = 0; i < 1000; ++i) CHECK_THAT(profiler.RecordAlloc(Buffer(kChild, i), 10));
  for (uint64_t i = 0; i < 900; ++i) CHECK_THAT(profiler.RecordFree(Buffer(kChild, i)));
  const hbmprof::DeviceStats after = profiler.Stats(hbmprof::kDefaultDevice);
  CHECK_THAT(after.bytes_in_use == 1000);
  CHECK_THAT(after.peak_bytes_in_use == 10000);
  const absl::Status status = hbmprof::save_device_memory_profile(path);
  Check(status.ok(), std::string(status.message()).c_str());
  std::exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  CHECK_THAT(profiler.RecordAlloc(Buffer(kChild, 0), 12345));
  for (uint64_t i = 0; i < 4; ++i) std::thread(AllocateForEver, i, 1000).detach();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // A fork during a call of a sanitizer's malloc would break the child.
  while (settled_threads < 4) std::this_thread::yield();
#endif
  if (argc > 2 && std::strcmp(argv[2], "dump") == 0) {
    std::thread([] {
      for (;;) CHECK_THAT(hbmprof::device_memory_profile().ok());
    }).detach();
  }
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    CHECK_THAT(child >= 0);
    if (child == 0) RunChild(std::string(argv[1]) + "/child." + std::to_string(i) + ".pb.gz");
    int status = 0;
    CHECK_THAT(waitpid(child, &status, 0) == child);
    CHECK_THAT(WIFEXITED(status));
    CHECK_THAT(WEXITSTATUS(status) == 0);
  }
  // The parent has lost nothing.
  CHECK_THAT(profiler.RecordFree(Buffer(kChild, 0)) == 12345);
  std::puts("done");
  std::fflush(stdout);
  std::_Exit(0);
}
