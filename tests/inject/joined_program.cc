// A program that links hbmprof, records with it, and allocates from the driver. argv[1] selects what it does; each
// value is a case of joined_test. Also built as a library that is loaded late (JOINED_LIBRARY), with the entry point
// `joined_case`.
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "hbmprof/c_api.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/recording.h"
#include "tests/inject/driver_program.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

using driver_program::Allocate;
using driver_program::UseDevice;
using hbmprof::Attributes;
using hbmprof::BufferId;
using hbmprof::Profiler;
using hbmprof::ScopedTag;

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;

void Free(CUdeviceptr ptr) { CHECK_THAT(cuMemFree_v2(ptr) == kSuccess); }

BufferId Id(uint64_t address) { return BufferId(address); }

// An allocation of an unchanged library, and records of the program's own code.
extern "C" [[gnu::noinline]] CUdeviceptr vendor_allocates(size_t bytes) { return Allocate(bytes); }
extern "C" [[gnu::noinline]] bool user_records(uint64_t address, size_t bytes, const Attributes& attributes) {
  return Profiler::Default().RecordAlloc(Id(address), bytes, attributes);
}
extern "C" [[gnu::noinline]] bool user_records_block(uint64_t address, size_t bytes) {
  return Profiler::Default().RecordBlock({}, Id(address), bytes);
}

class Driver : public hbmprof::DeviceAllocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(vendor_allocates(bytes)));
  }
  absl::Status Free(void* ptr) override {
    const CUresult result = fails ? 1 : cuMemFree_v2(reinterpret_cast<uintptr_t>(ptr));
    return result == kSuccess ? absl::OkStatus() : absl::InvalidArgumentError("refused");
  }
  std::string device_name() const override { return "GPU:0"; }
  hbmprof::DeviceProbe Probe() const override {
    hbmprof::DeviceProbe probe;
    probe.bytes_limit = 4711;
    return probe;
  }

  bool fails = false;
};
extern "C" [[gnu::noinline]] void* user_allocates(hbmprof::DeviceAllocator& allocator, size_t bytes) {
  return *allocator.Allocate(bytes);
}

int64_t InUse(const char* device = "GPU:0") {
  return Profiler::Default().Stats(Profiler::Default().Device(device)).bytes_in_use;
}
// Returns the bytes in use as the driver counts them.
int64_t DriverInUse() {
  return static_cast<int64_t>(fake_cuda_bytes_in_use(0)) - static_cast<int64_t>(fake_cuda_context_bytes());
}

// Tags of the thread also label allocations of other libraries.
void Tags() {
  const ScopedTag phase("phase", "load");
  vendor_allocates(kMiB);
  {
    const ScopedTag layer("layer", "3");
    vendor_allocates(2 * kMiB);
    hbmprof_tag_push("phase", "decode");
    vendor_allocates(4 * kMiB);
    hbmprof_tag_pop();
  }
  vendor_allocates(8 * kMiB);
  std::thread([] {
    UseDevice(0);
    vendor_allocates(16 * kMiB);
  }).join();
}

// A wrapper of the user, whose frame is in no stack. `wrapper_takes` makes no record itself.
extern "C" [[gnu::noinline]] CUdeviceptr wrapper_takes(size_t bytes) {
  const hbmprof::ScopedCaller scope;
  return vendor_allocates(bytes);
}
extern "C" [[gnu::noinline]] void user_of_wrapper() {
  wrapper_takes(kMiB);
  const CUdeviceptr slab = wrapper_takes(2 * kMiB);
  const hbmprof::ScopedCaller scope(hbmprof::Caller::OfThisFunction());
  CHECK_THAT(user_records_block(slab, kKiB));
}
extern "C" [[gnu::noinline]] void scope_case() {
  UseDevice(0);
  user_of_wrapper();
  vendor_allocates(4 * kMiB);
}

void AllOfIt(int round) {
  UseDevice(0);
  Profiler& profiler = Profiler::Default();
  const ScopedTag thread("worker", std::to_string(round));
  static Driver driver;
  static hbmprof::TrackingAllocator tracking(driver, "pages");
  // Whole allocations, recorded by both.
  std::vector<void*> pages;
  for (int i = 0; i < 40; ++i) {
    pages.push_back(user_allocates(tracking, 8 * kKiB));
    if (i % 4 == 3) {
      CHECK_THAT(tracking.Free(pages.back()).ok());
      pages.pop_back();
    }
  }
  // A pool with a declared segment, and one without.
  const CUdeviceptr segment = vendor_allocates(kMiB);
  CHECK_THAT(profiler.RecordSegment({{}, profiler.Allocator("pool")}, Id(segment), kMiB));
  for (size_t i = 0; i < 16; ++i) CHECK_THAT(user_records_block(segment + i * 16 * kKiB, 16 * kKiB));
  for (size_t i = 0; i < 16; i += 2) CHECK_THAT(profiler.RecordBlockFree({}, Id(segment + i * 16 * kKiB)));
  const CUdeviceptr slab = vendor_allocates(kMiB);
  for (size_t i = 0; i < 16; ++i) CHECK_THAT(user_records(slab + i * 4 * kKiB, 4 * kKiB, {}));
  for (size_t i = 0; i < 16; i += 3) CHECK_THAT(profiler.RecordFree(Id(slab + i * 4 * kKiB)));
  // Pools that end, with all their blocks.
  const CUdeviceptr ended = vendor_allocates(kMiB);
  CHECK_THAT(profiler.RecordSegment({}, Id(ended), kMiB));
  CHECK_THAT(user_records_block(ended, kKiB));
  CHECK_THAT(profiler.RecordSegmentFree({}, Id(ended)));
  Free(ended);
  const CUdeviceptr dropped = vendor_allocates(kMiB);
  CHECK_THAT(user_records(dropped + kKiB, kKiB, {}));
  CHECK_THAT(user_records(dropped, kKiB, {}));
  Free(dropped);
  // Stream-ordered memory, and a cache that keeps its memory.
  CUdeviceptr ordered = 0;
  CHECK_THAT(cuMemAllocAsync(&ordered, 32 * kKiB, nullptr) == kSuccess);
  CHECK_THAT(user_records(ordered, 32 * kKiB, {}));
  const CUdeviceptr kept = vendor_allocates(64 * kKiB);
  for (int i = 0; i < 3; ++i) {
    CHECK_THAT(user_records(kept, 64 * kKiB, {}));
    CHECK_THAT(profiler.RecordFree(Id(kept)));
  }
  // Mapped physical memory and host memory: only the driver's records count.
  const MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
  CUdeviceptr mapped = 0;
  CUmemGenericAllocationHandle handle = 0;
  CHECK_THAT(cuMemAddressReserve(&mapped, 2 * kMiB, 0, 0, 0) == kSuccess);
  CHECK_THAT(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == kSuccess);
  CHECK_THAT(cuMemMap(mapped, 2 * kMiB, 0, handle, 0) == kSuccess);
  CHECK_THAT(user_records(mapped + kKiB, kKiB, {}));
  CHECK_THAT(user_records_block(mapped, kKiB));
  CHECK_THAT(profiler.RecordFree(Id(mapped + kKiB)));
  CHECK_THAT(profiler.RecordBlockFree({}, Id(mapped)));
  void* pinned = nullptr;
  CHECK_THAT(cuMemHostAlloc(&pinned, kMiB, 0) == kSuccess);
  CHECK_THAT(!user_records(reinterpret_cast<uintptr_t>(pinned) + kKiB, kKiB, {}));
  CHECK_THAT(!user_records_block(reinterpret_cast<uintptr_t>(pinned), kKiB));
  CHECK_THAT(!profiler.RecordBlockFree({}, pinned));
  // Memory that the driver has not allocated.
  Attributes simulated;
  simulated.device = profiler.Device("sim:0");
  CHECK_THAT(user_records((uint64_t{1} << 46) + static_cast<unsigned>(round) * kMiB, 3 * kKiB, simulated));
  hbmprof_set_counter("requests", 17);
}

void EightThreads() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([i] { AllOfIt(i); });
  for (std::thread& thread : threads) thread.join();
}

// Each function of the profiler, in a program that has joined.
void Functions() {
  Profiler& profiler = Profiler::Default();
  CHECK_THAT(profiler.enabled());
  Driver driver;
  {
    // Also before the injected library has named the device.
    hbmprof::TrackingAllocator tracking(driver, "pages");
    void* page = user_allocates(tracking, kMiB);
    CHECK_THAT(profiler.Stats(tracking.device()).bytes_limit.value_or(4711) != 4711);  // of the driver
    // A free that is refused.
    driver.fails = true;
    CHECK_THAT(!tracking.Free(page).ok() && profiler.GetTrackerStats().refused_frees == 1);
    CHECK_THAT(InUse() == kMiB);  // the driver's record
    driver.fails = false;
    CHECK_THAT(tracking.Free(page).ok() && InUse() == 0);
  }
  const hbmprof::DeviceId gpu = profiler.Device("GPU:0");
  profiler.ResetPeak(gpu);
  CHECK_THAT(profiler.Stats(gpu).peak_bytes_in_use == 0);

  // A pool without a declared segment: a block is counted once, and ends with its memory.
  const CUdeviceptr slab = vendor_allocates(kMiB);
  CHECK_THAT(user_records(slab, kKiB, {}) && user_records(slab + kKiB, kKiB, {}));
  CHECK_THAT(InUse() == kMiB && profiler.Stats(gpu).idle_bytes == kMiB - 2 * kKiB);
  CHECK_THAT(profiler.RecordFree(Id(slab)) && profiler.Stats(gpu).idle_bytes == kMiB - kKiB);
  CHECK_THAT(user_records(slab, kKiB, {}));
  CHECK_THAT(InUse() == kMiB && profiler.Stats(gpu).idle_bytes == kMiB - 2 * kKiB);
  // A view of the whole changes nothing, one of a part counts nothing.
  CHECK_THAT(!profiler.RecordAlloc(Id(slab), 1, {gpu, hbmprof::MemoryKind::kAlias, {}}));
  CHECK_THAT(profiler.RecordAlloc(Id(slab + 2 * kKiB), kKiB, {gpu, hbmprof::MemoryKind::kAlias, {}}));
  CHECK_THAT(InUse() == kMiB && profiler.RecordFree(Id(slab + 2 * kKiB)));
  // A number that is no allocator's is no name. The block is found again.
  CHECK_THAT(user_records(slab + 4 * kKiB, kKiB, {gpu, {}, hbmprof::AllocatorId{300}}));
  CHECK_THAT(profiler.RecordFree(Id(slab + 4 * kKiB)) && profiler.Stats(gpu).idle_bytes == kMiB - 2 * kKiB);
  // Blocks can be resized; the driver's memory keeps its size, and is one segment.
  CHECK_THAT(profiler.RecordResize(Id(slab + kKiB), 3 * kKiB) && profiler.RecordBlockResize({}, Id(slab), kKiB / 2));
  CHECK_THAT(profiler.Stats(gpu).idle_bytes == kMiB - 7 * kKiB / 2 && InUse() == kMiB);
  // A block can become the segment of a pool inside the first one; other memory in it cannot.
  const hbmprof::Pool inner = {gpu, profiler.Allocator("inner")};
  CHECK_THAT(!profiler.RecordSegment(inner, Id(slab + 8 * kKiB), kKiB));
  CHECK_THAT(profiler.RecordSegment(inner, Id(slab + kKiB), 3 * kKiB) && InUse() == kMiB);
  CHECK_THAT(profiler.RecordBlock(inner, Id(slab + kKiB), kKiB) && InUse() == kMiB);
  CHECK_THAT(profiler.Stats(gpu).idle_bytes == kMiB - 3 * kKiB / 2);
  CHECK_THAT(profiler.RecordBlockFree(inner, Id(slab + kKiB)));
  CHECK_THAT(profiler.RecordSegmentFree(inner, Id(slab + kKiB)));
  CHECK_THAT(profiler.Stats(gpu).idle_bytes == kMiB - 7 * kKiB / 2 && InUse() == kMiB);
  Free(slab);
  CHECK_THAT(InUse() == 0 && profiler.Stats(gpu).idle_bytes == 0);

  // The blocks in mapped memory end when it is unmapped, also if the memory itself stays.
  const MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
  CUdeviceptr mapped = 0;
  CUmemGenericAllocationHandle handle = 0;
  CHECK_THAT(cuMemAddressReserve(&mapped, 2 * kMiB, 0, 0, 0) == kSuccess);
  CHECK_THAT(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == kSuccess);
  CHECK_THAT(cuMemMap(mapped, 2 * kMiB, 0, handle, 0) == kSuccess);
  CHECK_THAT(user_records_block(mapped, kKiB) && profiler.Stats(gpu).idle_bytes == 2 * kMiB - kKiB);
  CHECK_THAT(cuMemUnmap(mapped, 2 * kMiB) == kSuccess);
  CHECK_THAT(InUse() == 2 * kMiB && profiler.Stats(gpu).idle_bytes == 2 * kMiB);
  CHECK_THAT(cuMemRelease(handle) == kSuccess && InUse() == 0);

  // Memory with a handle lies in the driver's memory too.
  CHECK_THAT(!profiler.RecordAlloc(BufferId::Handle(39, 5), kKiB, {gpu, {}, {}}) && InUse() == 0);

  // The driver's memory ends with the driver's free.
  const CUdeviceptr whole = vendor_allocates(kMiB);
  profiler.DropDevice(gpu);
  CHECK_THAT(InUse() == kMiB);
  profiler.SetEnabled(false);
  CHECK_THAT(!user_records(whole, kMiB, {}));
  const CUdeviceptr meanwhile = vendor_allocates(kMiB);
  CHECK_THAT(InUse() == 2 * kMiB);
  profiler.SetEnabled(true);
  CHECK_THAT(user_records(meanwhile, kMiB, {}) && InUse() == 2 * kMiB);
  CHECK_THAT(cuDevicePrimaryCtxReset_v2(0) == kSuccess);
  CHECK_THAT(InUse() == 0);
  // The program's own memory at addresses that the driver has used before.
  CHECK_THAT(user_records(whole, kKiB, {gpu, {}, {}}) && InUse() == kKiB && profiler.RecordFree(Id(whole)));
  CHECK_THAT(InUse() == 0);

  // Segments of the program's own.
  const BufferId own_segment(uint64_t{1} << 47);
  CHECK_THAT(profiler.RecordSegment(inner, own_segment, kMiB) && profiler.RecordResize(own_segment, 3 * kMiB));
  CHECK_THAT(profiler.RecordBlock(inner, own_segment, kKiB) && profiler.RecordBlockFree(inner, own_segment));
  CHECK_THAT(InUse() == 3 * kMiB && profiler.RecordSegmentFree(inner, own_segment) && InUse() == 0);

  // The program's own devices can be dropped. They have no probes here.
  const hbmprof::DeviceId simulated = profiler.Device("sim:0");
  profiler.SetDeviceProbe(
      simulated, [] { return hbmprof::DeviceProbe(); }, &driver);
  CHECK_THAT(user_records(uint64_t{1} << 46, 100, {simulated, {}, {}}) && InUse("sim:0") == 100);
  CHECK_THAT(InUse() == 0 && profiler.Stats(simulated).bytes_limit == std::nullopt);
  profiler.RemoveDeviceProbe(simulated, &driver);
  profiler.DropDevice(simulated);
  CHECK_THAT(InUse("sim:0") == 0);

  // What the C interface does not have.
  CHECK_THAT(user_records(uint64_t{1} << 46, 50, {simulated, {}, {}}));
  CHECK_THAT(!profiler.FindBuffer(Id(uint64_t{1} << 46)) && !profiler.FindBufferAt(Id(uint64_t{1} << 46)));
  CHECK_THAT(profiler.KeepSite(hbmprof::Caller::OfThisFunction(), 50, {simulated, {}, {}}) == 0);
  const hbmprof::Snapshot snapshot = profiler.TakeSnapshot();
  CHECK_THAT(snapshot.samples.empty() && snapshot.warnings.size() == 1 && snapshot.devices.size() == 2);
  CHECK_THAT(snapshot.devices[1].name == "sim:0" && snapshot.devices[1].spaces[0].bytes_in_use == 50);
  CHECK_THAT(profiler.RecordFree(Id(uint64_t{1} << 46)));

  profiler.RecordDropped(9);
  CHECK_THAT(profiler.GetTrackerStats().dropped_records == 1 && profiler.GetTrackerStats().dropped_bytes == 9);
  CHECK_THAT(profiler.GetTrackerStats().foreign_frees == 0 && profiler.GetTrackerStats().replaced_records == 0);
  CHECK_THAT(!profiler.RecordFree(Id(uint64_t{1} << 46)) && profiler.GetTrackerStats().foreign_frees == 1);

  // Other Profiler objects do not join.
  Profiler own;
  const CUdeviceptr elsewhere = vendor_allocates(kMiB);
  CHECK_THAT(own.RecordAlloc(Id(elsewhere), kMiB));
  CHECK_THAT(own.TakeSnapshot().devices.size() == 1 && own.TakeSnapshot().devices[0].name == "GPU:0");
  Free(elsewhere);
  CHECK_THAT(own.Stats(hbmprof::kDefaultDevice).bytes_in_use == kMiB);
}

void Forks() {
  UseDevice(0);
  const ScopedTag process("process", "parent");
  const CUdeviceptr segment = vendor_allocates(kMiB);
  CHECK_THAT(user_records(segment + kKiB, kKiB, {}));
  std::atomic<bool> ends{false};
  std::thread busy([&] {
    UseDevice(0);
    while (!ends) {
      const CUdeviceptr ptr = vendor_allocates(64 * kKiB);
      CHECK_THAT(user_records(ptr + kKiB, kKiB, {}) || !Profiler::Default().enabled());
      Free(ptr);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    CHECK_THAT(child >= 0);
    if (child == 0) {
      alarm(60);
      CHECK_THAT(InUse() == 0);
      const ScopedTag in_child("process", "child");
      Profiler& profiler = Profiler::Default();
      CHECK_THAT(!user_records(segment + kKiB, 5 * kKiB, {profiler.Device("GPU:0"), {}, {}}));
      profiler.RecordFree(Id(segment + kKiB));
      profiler.SetDeviceProbe(hbmprof::kDefaultDevice, [] { return hbmprof::DeviceProbe(); });
      profiler.RemoveDeviceProbe(hbmprof::kDefaultDevice, nullptr);
      profiler.DropDevice(hbmprof::kDefaultDevice);
      CHECK_THAT(InUse() == 0 && profiler.TakeSnapshot().samples.empty());
      std::exit(3);
    }
    int status = 0;
    CHECK_THAT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
  }
  ends = true;
  busy.join();
  CHECK_THAT(InUse() == DriverInUse());
}

std::atomic<int> signals{0};
std::atomic<uint64_t> slab_of_handler{0};
void RecordInHandler(int) {
  const ScopedTag tag("from", "handler");
  Profiler& profiler = Profiler::Default();
  const uint64_t address = slab_of_handler.load() + (static_cast<unsigned>(signals.fetch_add(1)) % 16) * kKiB;
  profiler.RecordAlloc(Id(address), kKiB);
  profiler.RecordFree(Id(address));
}

void SignalHandler() {
  UseDevice(0);
  Profiler::Default();  // its first use takes host memory
  slab_of_handler = vendor_allocates(16 * kKiB);
  struct sigaction action = {};
  action.sa_handler = &RecordInHandler;
  action.sa_flags = SA_RESTART;
  CHECK_THAT(sigaction(SIGALRM, &action, nullptr) == 0);
  itimerval often = {{0, 50}, {0, 50}};
  CHECK_THAT(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  const CUdeviceptr slab = vendor_allocates(kMiB);
  for (int i = 0; i < 100000 || signals < 2000; ++i) {
    const ScopedTag tag("from", i % 2 == 0 ? "even" : "odd");
    const CUdeviceptr ptr = vendor_allocates(4 * kKiB);
    const bool whole = user_records(ptr, 4 * kKiB, {});
    const bool block = user_records_block(slab + static_cast<unsigned>(i) % 64 * kKiB, kKiB);
    CHECK_THAT(whole && block);
    if (i % 1000 == 0) static_cast<void>(Profiler::Default().TakeSnapshot());
    CHECK_THAT(Profiler::Default().RecordBlockFree({}, Id(slab + static_cast<unsigned>(i) % 64 * kKiB)));
    CHECK_THAT(Profiler::Default().RecordFree(Id(ptr)));
    Free(ptr);
  }
  const itimerval never = {};
  CHECK_THAT(setitimer(ITIMER_REAL, &never, nullptr) == 0);
  CHECK_THAT(InUse() == DriverInUse());
}

// Freed after main, while profiles are written.
struct FreedByDestructor {
  CUdeviceptr ptr = 0;
  ~FreedByDestructor() {
    if (ptr != 0) Free(ptr);
  }
};
FreedByDestructor freed_by_destructor;

// The destructor frees after both libraries have written a profile at exit: their exit handlers are younger.
void Exit() {
  freed_by_destructor.ptr = vendor_allocates(kMiB);
  CHECK_THAT(user_records(freed_by_destructor.ptr, kMiB, {}));
}

// The destructor runs between the exit handlers of the two libraries: that of the injected one runs first.
void ExitBetween() {
  Profiler::Default();
  static FreedByDestructor freed;
  freed.ptr = vendor_allocates(kMiB);
}

// The test turns recording off and on while the program waits.
void Pause() {
  const CUdeviceptr slab = vendor_allocates(kMiB);
  CHECK_THAT(user_records_block(slab, kKiB) && user_records_block(slab + kKiB, kKiB));
  std::puts("ready");
  std::fflush(stdout);
  CHECK_THAT(std::getchar() == '\n');
  CHECK_THAT(user_records_block(slab + 4 * kKiB, 2 * kKiB));
  std::printf("in use %lld\n", static_cast<long long>(InUse()));
}

// In the program's constructors, before main: the driver has allocated nothing yet.
struct RecordsEarly {
  RecordsEarly() {
    if (std::getenv("JOINED_EARLY") == nullptr) return;
    const ScopedTag early("phase", "early");
    Attributes simulated;
    simulated.device = Profiler::Default().Device("sim:0");
    CHECK_THAT(user_records(uint64_t{1} << 46, 77, simulated));
  }
};
RecordsEarly records_early;

// The program starts and ends a recording of the injected library.
extern "C" [[gnu::noinline]] void user_fails() { hbmprof::ReportOutOfMemory({"MyPool", size_t{123}, "sim:0"}); }
void Recording(const std::string& path) {
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  vendor_allocates(kMiB);
  CHECK_THAT(hbmprof::SaveFlightRecording(path + ".flight").code() == kFailed);
  CHECK_THAT(hbmprof::StartRecording("/no/such/folder/x").code() == absl::StatusCode::kNotFound);
  hbmprof::RecordingOptions other;
  other.max_bytes *= 2;
  CHECK_THAT(hbmprof::StartRecording(path + ".hbmrec", other).code() == kFailed);
  CHECK_THAT(hbmprof::StartRecording(path + ".hbmrec").ok());
  const absl::Status again = hbmprof::StartRecording(path + ".hbmrec");
  CHECK_THAT(again.code() == kFailed && !again.message().empty());
  vendor_allocates(2 * kMiB);
  Attributes simulated;
  simulated.device = Profiler::Default().Device("sim:0");
  CHECK_THAT(user_records(uint64_t{1} << 46, 77, simulated));
  user_fails();
  CHECK_THAT(hbmprof::save_device_memory_profile(path + ".mark").ok());
  CHECK_THAT(hbmprof::StopRecording().ok() && hbmprof::StopRecording().code() == kFailed);
}

int Run(const std::string& name, const char* path) {
  UseDevice(0);
  if (name == "tags") Tags();
  if (name == "scope") scope_case();
  if (name == "all") EightThreads();
  if (name == "functions") Functions();
  if (name == "forks") Forks();
  if (name == "signals") SignalHandler();
  if (name == "exit") Exit();
  if (name == "exit_between") ExitBetween();
  if (name == "pause") Pause();
  if (name == "recording") Recording(path);
  if (name == "late") {
    // Memory that the driver allocated before this library was loaded. See late_program.cc.
    char* rest = nullptr;
    const uint64_t whole = std::strtoull(std::getenv("JOINED_BEFORE"), &rest, 16);
    const uint64_t slab = std::strtoull(rest, nullptr, 16);
    CHECK_THAT(user_records(whole, kMiB, {}) && user_records(slab + kKiB, kKiB, {}));
  }
  std::printf("driver %lld\n", static_cast<long long>(DriverInUse()));
  if (path != nullptr) CHECK_THAT(hbmprof::save_device_memory_profile(path).ok());
  return 0;
}

}  // namespace

#ifdef JOINED_LIBRARY
extern "C" [[gnu::visibility("default")]] int joined_case(const char* name, const char* path) {
  return Run(name, path);
}
#else
int main(int argc, char** argv) { return Run(argv[1], argc > 2 ? argv[2] : nullptr); }
#endif
