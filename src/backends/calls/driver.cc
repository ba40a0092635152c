#include "src/backends/calls/driver.h"

#include <dlfcn.h>

#include "src/base/linker_error.h"
#include "src/base/no_cancellation.h"
#include "src/base/try_run.h"

// The injected library defines HBMPROF_DLSYM as the name of a function that calls the C library's dlsym: inside that
// library the name dlsym refers to its own dlsym.
#ifdef HBMPROF_DLSYM
extern "C" void* HBMPROF_DLSYM(void* library, const char* name);
#else
#define HBMPROF_DLSYM dlsym
#endif

namespace hbmprof::internal {
namespace {

void* OpenLoaded(const Driver& driver) {
  void* library = nullptr;
  for (const char* const file : driver.names.files) {
    if (library == nullptr && file != nullptr) library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
  }
  return library;
}

// The unaccounted bytes of each device after its first allocation with a context was recorded. By DeviceId.
struct Baseline {
  std::atomic<bool> taken{false};
  std::atomic<bool> known{false};
  std::atomic<int64_t> bytes{0};
};
Baseline baselines[kMaxDevices];

}  // namespace

void* FindSymbol(void* library, const char* name) { return HBMPROF_DLSYM(library, name); }

Driver::Loaded::Loaded(const Driver& driver) : library_(OpenLoaded(driver)) {}

Driver::Loaded::~Loaded() {
  if (library_ != nullptr) dlclose(library_);
  if (has_failed_ || library_ == nullptr) ClearLinkerError();
}

void* Driver::Loaded::Find(const char* name) {
  void* const function = library_ == nullptr ? nullptr : FindSymbol(library_, name);
  has_failed_ = has_failed_ || function == nullptr;
  return function;
}

void* Driver::Library() {
  if (void* library = library_.load(std::memory_order_acquire)) return library;
  void* library = OpenLoaded(*this);
  if (library != nullptr) {
    library_.store(library, std::memory_order_release);
  } else {
    ClearLinkerError();
  }
  return library;
}

bool Driver::Load() {
  if (is_loaded()) return true;
  void* library = Library();
  if (library == nullptr) return false;
  for (int i = 0; i < count_; ++i) {
    functions_[i].store(FindSymbol(library, entry_names[i]), std::memory_order_relaxed);
  }
  ClearLinkerError();  // if the last functions are missing
  is_filled_.store(true, std::memory_order_release);
  return true;
}

AllocatorId Driver::StreamOrderedAllocator() {
  int allocator = stream_ordered_.load(std::memory_order_relaxed);
  if (allocator < 0) {
    allocator = static_cast<int>(Profiler::Default().Allocator(names.stream_ordered));
    stream_ordered_.store(allocator, std::memory_order_relaxed);
  }
  return AllocatorId{static_cast<uint8_t>(allocator)};
}

DeviceProbe Driver::WithBaseline(DeviceProbe probe, DeviceId id) {
  const Baseline& baseline = baselines[static_cast<int>(id)];
  if (baseline.known.load(std::memory_order_acquire)) probe.baseline = baseline.bytes.load(std::memory_order_relaxed);
  return probe;
}

void DriverQueries::KeepBaseline(DeviceId device) {
  Baseline& baseline = baselines[static_cast<int>(device)];
  if (baseline.taken.load(std::memory_order_relaxed) || !HasContext() || baseline.taken.exchange(true)) return;
  const NoCancellation no_cancellation;  // the probe can load a library
  DeviceStats stats;
  if (!TryRun([&] { stats = Profiler::Default().Stats(device); }) || !stats.unaccounted.has_value()) return;
  baseline.bytes.store(*stats.unaccounted, std::memory_order_relaxed);
  baseline.known.store(true, std::memory_order_release);
}

}  // namespace hbmprof::internal
