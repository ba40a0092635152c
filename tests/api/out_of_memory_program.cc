// A program that runs out of memory on simulated devices of 64 MiB.
//
//   out_of_memory_program full        fills the device, after a profile in "before.pb.gz" at half of it
//   out_of_memory_program again N     the same, then fails N times more, and once on a second device
//   out_of_memory_program threads N   fills the device; then N threads fail at the same time
//   out_of_memory_program fragments   frees every second buffer and requests the size of two
//   out_of_memory_program host BYTES  fills the device; fails while the process may map no more than BYTES more
//   out_of_memory_program devices     holds memory by the same call stack on two devices, saves a profile, and fails on
//                                     one
//   out_of_memory_program child       fills the device, fails, and fails in a forked child
//   out_of_memory_program verdict CASE  fails for the cause CASE
//   out_of_memory_program many N      fails on each of N devices
//   out_of_memory_program nameless    reports failures without a device: one while no device holds anything, which a
//                                     scrape follows, two while the first of two devices holds most, then one while
//                                     the second does
//   out_of_memory_program cancelled   fails in a thread that has a pending request of pthread_cancel
//   out_of_memory_program mapped      fails once; the process must not map 1 MiB more
// Its last word is "done" if each failed allocation returned upstream's own status.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/http.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/simulated_device.h"
#include "tests/api/out_of_memory_programs.h"

// Takes the place of the C library's function: the disk takes as many milliseconds as the variable says.
extern "C" int fsync(int file) {
  if (const char* const millis = std::getenv("SLOW_DISK_MILLIS")) usleep(1000 * std::atoi(millis));
  return fdatasync(file);
}

namespace {

constexpr size_t kCapacity = size_t{64} << 20;

std::unique_ptr<hbmprof::SimulatedDevice> NewDevice(const char* name) {
  hbmprof::SimulatedDevice::Options options;
  options.name = name;
  options.capacity = kCapacity;
  auto device = hbmprof::SimulatedDevice::Create(options);
  if (!device.ok()) std::abort();
  return *std::move(device);
}

[[gnu::noinline]] void* LoadWeights(hbmprof::DeviceAllocator& allocator, size_t bytes) {
  auto memory = allocator.Allocate(bytes);
  if (!memory.ok()) std::abort();
  return *memory;
}
// Its code differs from that of LoadWeights, so that the compiler does not merge the two functions.
[[gnu::noinline]] void* GrowCache(hbmprof::DeviceAllocator& allocator, size_t bytes) {
  auto memory = allocator.Allocate(bytes);
  if (!memory.ok()) std::_Exit(4);
  return *memory;
}

// Fails, as the device without hbmprof does.
[[gnu::noinline]] void Fail(hbmprof::DeviceAllocator& allocator, size_t bytes) {
  const hbmprof::ScopedTag tag("phase", "decode");
  const auto memory = allocator.Allocate(bytes);
  if (memory.ok() || memory.status().message().find("out of memory: requested") == absl::string_view::npos) {
    std::fprintf(stderr, "the status of the device was lost\n");
    std::_Exit(3);
  }
}

// Fails in a thread with a pending cancellation. The thread must not end before its own cancellation point.
void FailInCancelledThread(hbmprof::DeviceAllocator& allocator) {
  bool has_failed = false;
  const std::function<void()> fail = [&] {
    pthread_cancel(pthread_self());
    Fail(allocator, kCapacity / 2);
    has_failed = true;
    pthread_testcancel();
  };
  const auto call = [](void* function) -> void* {
    (*static_cast<const std::function<void()>*>(function))();
    return nullptr;
  };
  pthread_t thread;
  void* result = nullptr;
  CHECK_THAT(pthread_create(&thread, nullptr, call, const_cast<void*>(static_cast<const void*>(&fail))) == 0);
  CHECK_THAT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && has_failed);
}

void Fill(hbmprof::DeviceAllocator& allocator) {
  LoadWeights(allocator, kCapacity / 4);
  GrowCache(allocator, kCapacity / 4);
  if (!hbmprof::save_device_memory_profile("before.pb.gz").ok()) std::abort();
  GrowCache(allocator, kCapacity / 4);
}

void Fragment(hbmprof::DeviceAllocator& allocator) {
  std::vector<void*> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(GrowCache(allocator, kCapacity / 16));
  for (size_t i = 0; i < pieces.size(); i += 2) {
    if (!allocator.Free(pieces[i]).ok()) std::abort();
  }
  Fail(allocator, kCapacity / 8);
}

// The report must show the growth of a call stack on the device that is full.
void FailOnOneOfTwo(hbmprof::DeviceAllocator& one, hbmprof::DeviceAllocator& other) {
  hbmprof::DeviceAllocator* const both[] = {&one, &other};
  for (volatile int i = 0; i < 2; i = i + 1) LoadWeights(*both[i], kCapacity / 4);  // one call, not unrolled
  if (!hbmprof::save_device_memory_profile("before.pb.gz").ok()) std::abort();
  Fail(one, kCapacity);
}

// A device that has other numbers than the simulated one, or refuses every request.
class OtherDevice : public hbmprof::DeviceAllocator {
 public:
  OtherDevice(hbmprof::SimulatedDevice& device, std::function<void(hbmprof::DeviceProbe*)> change, bool refuses = false,
              hbmprof::MemoryKind kind = hbmprof::MemoryKind::kDevice)
      : device_(device), change_(std::move(change)), refuses_(refuses), kind_(kind) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (refuses_) return absl::ResourceExhaustedError("out of memory: requested more than the limit");
    return device_.Allocate(bytes);
  }
  absl::Status Free(void* ptr) override { return device_.Free(ptr); }
  std::string device_name() const override { return device_.device_name(); }
  hbmprof::MemoryKind kind() const override { return kind_; }
  hbmprof::DeviceProbe Probe() const override {
    hbmprof::DeviceProbe probe = device_.Probe();
    change_(&probe);
    return probe;
  }

 private:
  hbmprof::SimulatedDevice& device_;
  const std::function<void(hbmprof::DeviceProbe*)> change_;
  const bool refuses_;
  const hbmprof::MemoryKind kind_;
};

void FailFor(const std::string& cause, hbmprof::SimulatedDevice& device) {
  const auto nothing = [](hbmprof::DeviceProbe*) {};
  if (cause == "limit") {
    OtherDevice limited(device, nothing, true);
    hbmprof::TrackingAllocator allocator(limited);
    Fail(allocator, kCapacity / 8);
  } else if (cause == "locked_memory") {
    const oom_program::LockedMemoryLimit limit(kCapacity / 16);
    OtherDevice pinned(device, nothing, true, hbmprof::MemoryKind::kPinnedHost);
    hbmprof::TrackingAllocator allocator(pinned);
    Fail(allocator, kCapacity / 8);
  } else if (cause == "other_processes") {
    OtherDevice shared(
        device,
        [](hbmprof::DeviceProbe* probe) {
          probe->driver_scope = hbmprof::DriverScope::kProcess;
          probe->bytes_free = 0;
        },
        false);
    hbmprof::TrackingAllocator allocator(shared);
    GrowCache(allocator, kCapacity / 4);
    Fail(allocator, 3 * kCapacity / 4 + 1);
  } else if (cause == "unknown") {
    OtherDevice silent(device, [](hbmprof::DeviceProbe* probe) { *probe = {}; });
    hbmprof::TrackingAllocator allocator(silent);
    Fail(allocator, 2 * kCapacity);
  } else {
    hbmprof::TrackingAllocator allocator(device);
    if (cause == "too_large") return Fail(allocator, 2 * kCapacity);
    if (cause == "fragmented") return Fragment(allocator);
    if (cause == "unaccounted") {
      GrowCache(allocator, kCapacity / 8);
      LoadWeights(device, kCapacity / 2);  // not recorded
      return Fail(allocator, kCapacity / 2);
    }
    void* const memory = GrowCache(allocator, 3 * kCapacity / 4);
    if (cause == "idle_pool") {
      hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
      const hbmprof::Pool pool = {profiler.Device(device.device_name()), profiler.Allocator("cache")};
      if (!profiler.RecordSegment(pool, hbmprof::BufferId(memory), 3 * kCapacity / 4)) std::abort();
    }
    Fail(allocator, kCapacity / 2);  // "full"
  }
}

void FailOnMany(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const std::unique_ptr<hbmprof::SimulatedDevice> device = NewDevice(("sim:" + std::to_string(i + 1)).c_str());
    hbmprof::TrackingAllocator allocator(*device);
    Fail(allocator, 2 * kCapacity);
  }
}

void InChild(const std::function<void()>& run) {
  const pid_t child = fork();
  if (child == 0) {
    run();
    std::_Exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) std::abort();
}

void ReportNameless(hbmprof::DeviceAllocator& one, hbmprof::DeviceAllocator& other) {
  const auto report = [] { return hbmprof::ReportOutOfMemory({"Nameless", std::nullopt, ""}); };
  if (!report() || hbmprof::AnswerHttpGet("/metrics").status != 200) std::_Exit(7);
  GrowCache(one, kCapacity / 4);
  if (!report() || report()) std::_Exit(5);
  GrowCache(other, kCapacity / 2);
  if (!report() || report()) std::_Exit(6);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const size_t number = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const std::unique_ptr<hbmprof::SimulatedDevice> device = NewDevice("sim:0");
  if (mode == "verdict") {
    FailFor(argv[2], *device);
    std::puts("done");
    return 0;
  }
  hbmprof::TrackingAllocator allocator(*device);
  if (mode == "devices") {
    const std::unique_ptr<hbmprof::SimulatedDevice> second = NewDevice("sim:1");
    hbmprof::TrackingAllocator other(*second);
    FailOnOneOfTwo(allocator, other);
  } else if (mode == "nameless") {
    const std::unique_ptr<hbmprof::SimulatedDevice> second = NewDevice("sim:1");
    hbmprof::TrackingAllocator other(*second);
    ReportNameless(allocator, other);
  } else if (mode == "many") {
    FailOnMany(number);
  } else if (mode == "fragments") {
    Fragment(allocator);
  } else {
    Fill(allocator);
    if (mode == "threads" || mode == "host") {
      oom_program::FailAs(mode, argv[2], [&] { Fail(allocator, kCapacity / 2); });
    } else if (mode == "cancelled") {
      FailInCancelledThread(allocator);
    } else {
      Fail(allocator, kCapacity / 2);
    }
  }
  if (mode == "again") {
    for (size_t i = 0; i < number; ++i) Fail(allocator, kCapacity / 2);
    const std::unique_ptr<hbmprof::SimulatedDevice> second = NewDevice("sim:1");
    hbmprof::TrackingAllocator other(*second);
    Fail(other, 2 * kCapacity);
  }
  if (mode == "child") InChild([&] { Fail(allocator, kCapacity / 2); });
  std::puts("done");
  return 0;
}
