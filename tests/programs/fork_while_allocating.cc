// fork_while_allocating DIRECTORY [dump]: forks 50 times while four threads allocate (and one writes profiles). Each
// child is off: whatever it calls returns at once, and nothing is recorded. It would write DIRECTORY/child.<number>.

#include <sys/wait.h>

#include <cstring>
#include <string>
#include <thread>

#include "hbmprof/out_of_memory.h"
#include "hbmprof/recording.h"
#include "tests/programs/program.h"

namespace {

constexpr int kForks = 50;
constexpr uint64_t kChild = 100;

bool IsRefused(const absl::Status& status) { return status.code() == absl::StatusCode::kFailedPrecondition; }

[[noreturn]] void RunChild(const std::string& path) {
  LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.SetEnabled(true);
  CHECK_THAT(!profiler.enabled());
  hbmprof::ScopedTag tag("process", path);
  for (uint64_t i = 0; i < 1000; ++i) CHECK_THAT(!profiler.RecordAlloc(Buffer(kChild, i), 10));
  CHECK_THAT(!profiler.RecordFree(Buffer(kChild, 0)));
  CHECK_THAT(!profiler.FindBuffer(Buffer(kChild, 0)).has_value());
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).num_allocs == 0);
  CHECK_THAT(profiler.GetTrackerStats().live_records == 0);
  profiler.Device("of the child");
  profiler.SetCounter("of the child", 1);
  profiler.SetDeviceProbe(hbmprof::kDefaultDevice, [] { return hbmprof::DeviceProbe(); });
  profiler.DropDevice(hbmprof::kDefaultDevice);
  profiler.ResetPeak(hbmprof::kDefaultDevice);
  const hbmprof::Snapshot snapshot = profiler.TakeSnapshot();
  CHECK_THAT(snapshot.samples.empty());
  CHECK_THAT(snapshot.warnings.size() == 1 && snapshot.warnings[0].find("was forked") != std::string::npos);
  CHECK_THAT(IsRefused(hbmprof::save_device_memory_profile(path + ".pb.gz")));
  CHECK_THAT(IsRefused(hbmprof::device_memory_profile().status()));
  CHECK_THAT(IsRefused(hbmprof::StartRecording(path + ".hbmrec")));
  CHECK_THAT(IsRefused(hbmprof::StopRecording()));
  CHECK_THAT(!hbmprof::ReportOutOfMemory({"Allocate", 1000, "GPU:0"}));
  {
    hbmprof::Profiler another;
    CHECK_THAT(!another.enabled() && !another.RecordAlloc(Buffer(kChild, 0), 10));
  }
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
    if (child == 0) RunChild(std::string(argv[1]) + "/child." + std::to_string(i));
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
