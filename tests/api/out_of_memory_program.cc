// A program that runs out of memory on simulated devices of 64 MiB.
//
//   out_of_memory_program full        fills the device, after a profile in "before.pb.gz" at half of it
//   out_of_memory_program again N     the same, then fails N times more, and once on a second device
//   out_of_memory_program threads N   fills the device; then N threads fail at the same time
//   out_of_memory_program fragments   frees every second buffer and asks for more than one
//   out_of_memory_program host BYTES  fills the device; fails while the process may map no more than BYTES more
//   out_of_memory_program devices     holds memory by the same call stack on two devices, saves a profile, and fails on
//   one out_of_memory_program child       fills the device, fails, and fails in a forked child
// Its last word is "done" if each failed allocation returned upstream's own status.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/simulated_device.h"

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
// Not the same code as LoadWeights, which the compiler would share.
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

void Fill(hbmprof::DeviceAllocator& allocator) {
  LoadWeights(allocator, kCapacity / 4);
  GrowCache(allocator, kCapacity / 4);
  if (!hbmprof::save_device_memory_profile("before.pb.gz").ok()) std::abort();
  GrowCache(allocator, kCapacity / 4);
}

void FailInThreads(hbmprof::DeviceAllocator& allocator, int count) {
  std::atomic<int> waiting{count};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      waiting.fetch_sub(1);
      while (waiting.load() != 0) std::this_thread::yield();
      Fail(allocator, kCapacity / 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Fragment(hbmprof::DeviceAllocator& allocator) {
  std::vector<void*> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(GrowCache(allocator, kCapacity / 16));
  for (size_t i = 0; i < pieces.size(); i += 2) {
    if (!allocator.Free(pieces[i]).ok()) std::abort();
  }
  Fail(allocator, kCapacity / 8);
}

// Bytes of address space that the process has.
size_t MappedBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  size_t pages = 0;
  if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) std::abort();
  std::fclose(file);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The growth of a call stack is that on the device that is full.
void FailOnOneOfTwo(hbmprof::DeviceAllocator& one, hbmprof::DeviceAllocator& other) {
  hbmprof::DeviceAllocator* const both[] = {&one, &other};
  for (volatile int i = 0; i < 2; i = i + 1) LoadWeights(*both[i], kCapacity / 4);  // one call, not unrolled
  if (!hbmprof::save_device_memory_profile("before.pb.gz").ok()) std::abort();
  Fail(one, kCapacity);
}

void FailWithHostMemory(hbmprof::DeviceAllocator& allocator, size_t bytes) {
  const rlimit limit{MappedBytes() + bytes, MappedBytes() + bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
  Fail(allocator, kCapacity / 2);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const size_t number = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const std::unique_ptr<hbmprof::SimulatedDevice> device = NewDevice("sim:0");
  hbmprof::TrackingAllocator allocator(*device);
  if (mode == "devices") {
    const std::unique_ptr<hbmprof::SimulatedDevice> second = NewDevice("sim:1");
    hbmprof::TrackingAllocator other(*second);
    FailOnOneOfTwo(allocator, other);
  } else if (mode == "fragments") {
    Fragment(allocator);
  } else {
    Fill(allocator);
    if (mode == "threads") {
      FailInThreads(allocator, static_cast<int>(number));
    } else if (mode == "host") {
      FailWithHostMemory(allocator, number);
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
  if (mode == "child") {
    const pid_t child = fork();
    if (child == 0) {
      Fail(allocator, kCapacity / 2);
      std::_Exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) std::abort();
  }
  std::puts("done");
  return 0;
}
