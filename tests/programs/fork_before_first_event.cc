// fork_before_first_event DIRECTORY: the parent makes the profiler, names devices, begins tags and takes snapshots, but
// allocates nothing, as a server that loads its code before it forks. Each of 20 children begins like a new process:
// it records, writes DIRECTORY/child.<number>.pb.gz and exits. A child of such a child is off.

#include <sys/wait.h>

#include <string>

#include "tests/programs/program.h"

namespace {

constexpr uint64_t kChild = 100;

void Await(pid_t child) {
  int status = 0;
  CHECK_THAT(child >= 0 && waitpid(child, &status, 0) == child);
  CHECK_THAT(status == 0);
}

[[noreturn]] void RunChild(const std::string& path, hbmprof::DeviceId device) {
  LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  CHECK_THAT(profiler.enabled() && profiler.TakeSnapshot().samples.empty());
  CHECK_THAT(profiler.Device("named by the parent") == device);
  CHECK_THAT(!profiler.Stats(device).bytes_limit.has_value());  // the parent's probe: devices do not survive a fork
  hbmprof::ScopedTag tag("process", "child");
  for (uint64_t i = 0; i < 1000; ++i) CHECK_THAT(profiler.RecordAlloc(Buffer(kChild, i), 10));
  for (uint64_t i = 0; i < 900; ++i) CHECK_THAT(profiler.RecordFree(Buffer(kChild, i)));
  const hbmprof::DeviceStats stats = profiler.Stats(hbmprof::kDefaultDevice);
  CHECK_THAT(stats.bytes_in_use == 1000 && stats.peak_bytes_in_use == 10000);
  const absl::Status status = hbmprof::save_device_memory_profile(path);
  Check(status.ok(), std::string(status.message()).c_str());
  const pid_t child = fork();
  if (child == 0) {
    LimitTime();
    std::_Exit(profiler.RecordAlloc(Buffer(kChild, 0), 10) || profiler.enabled() ? 1 : 0);
  }
  Await(child);
  std::exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::DeviceId device = profiler.Device("named by the parent");
  profiler.SetDeviceProbe(device, [] {
    hbmprof::DeviceProbe probe;
    probe.bytes_limit = 1;
    return probe;
  });
  profiler.SetCounter("of the parent", 1);
  CHECK_THAT(profiler.TakeSnapshot().samples.empty());
  {
    hbmprof::ScopedTag tag("process", "parent");
    for (int i = 0; i < 20; ++i) {
      const pid_t child = fork();
      if (child == 0) RunChild(std::string(argv[1]) + "/child." + std::to_string(i) + ".pb.gz", device);
      Await(child);
    }
  }
  CHECK_THAT(profiler.RecordAlloc(Buffer(kChild, 0), 7));
  std::puts("done");
}
