// Defines the wrappers of all tables. They have the drivers' own names.
#include "src/inject/driver_shim.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/profiler.h"
#include "src/backends/ascend/hal_driver.h"
#include "src/backends/calls/adapter.h"
#include "src/backends/calls/driver.h"
#include "src/backends/calls/events.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/backends/cuda/driver/driver_structs.h"
#include "src/backends/cuda/shared/driver_abi.h"
#include "src/backends/hip/hip_driver.h"
#include "src/backends/musa/mu_driver.h"
#include "src/backends/musa/musa_driver.h"
#include "src/base/fork.h"
#include "src/base/lock_free_lazy.h"
#include "src/base/message.h"
#include "src/base/no_cancellation.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"
#include "src/inject/event_tag.h"

namespace hbmprof::internal {
namespace {

// The adapter and its queries.
template <typename Queries>
struct ProcessTracker {
  Queries queries;
  DriverAdapter adapter{Profiler::Default(), queries};
};

// Returns null if this thread is inside the tracker: if the program's own operator new makes a wrapped call, the
// allocations of this function do not make a second tracker.
template <typename Queries>
std::unique_ptr<ProcessTracker<Queries>> MakeTracker(Driver& driver) {
  const NoCancellation no_cancellation;
  PrepareTracking();
  Profiler::Default();
  driver.Load();
  const ReentryGuard guard;
  if (!guard.entered()) return nullptr;
  auto tracker = std::make_unique<ProcessTracker<Queries>>();
  tracker->queries.adapter = &tracker->adapter;
  return tracker;
}

// The first tracked call makes the tracker. That is after the driver's initialization, so the profile at exit is
// written while the driver can still be called. Never destroyed, because calls can be made during static destruction.
// Returns null in a process that is off, and if the host has no memory for it: then the call is counted as dropped, if
// there is a profiler. A process that has made a tracked call counts as one that has recorded, so that the tracker's
// tables do not survive a fork.
template <typename Queries>
DriverAdapter* TrackerOf(Driver& driver) {
  if (!BeginEvent()) return nullptr;
  static LockFreeLazy<ProcessTracker<Queries>> made;
  bool is_new = false;
  ProcessTracker<Queries>* tracker = nullptr;
  if (!TryRun([&] { tracker = made.Get([&] { return MakeTracker<Queries>(driver); }, &is_new); })) {
    static_cast<void>(TryRun([] { Profiler::Default().RecordDropped(0); }));
  }
  if (tracker == nullptr) return nullptr;
  if (is_new) TrackingStarts();
  return &tracker->adapter;
}

template <typename Queries>
DriverQueries::Range RangeOf(uint64_t address) {
  return Queries().AddressRange(reinterpret_cast<const void*>(address));
}

// `name`: of the function, if the driver can return another address than that of its exported function.
template <typename Call>
int HandOutWrapper(const Call& call, void** function, const char* name = nullptr) {
  const int result = call();
  if (result != kCallSucceeded || function == nullptr) return result;
  void* const wrapper = name == nullptr ? nullptr : WrapperByName(name);
  *function = wrapper != nullptr ? wrapper : WrapperOf(*function);
  return result;
}

template <typename Call>
int CallOfProfiler(const Call& call, bool starts) {
  const int result = call();
  if (result == kCallSucceeded) ProfilerCalled(starts);
  return result;
}

// What a wrapped call requests, as its row says.
struct Request {
  size_t bytes = 0;  // 0: not known
  MemorySpace space = MemorySpace::kDevice;
  int device = -1;       // -1: the current one
  void* pool = nullptr;  // null: none that the program has created
  uint64_t pages = 0;    // which pages the call wants
};
constexpr int kNoDevice = -2;  // Request::device of a call that requests no memory

// Reports a wrapped call that has failed with kErrorOutOfMemory.
template <typename Queries>
[[gnu::noinline, gnu::cold]] void ReportFailure(const Caller& caller, std::string_view name, Driver& driver,
                                                Request request) {
  if (request.device == kNoDevice) return;
  const bool is_reported = TryRun([&] {
    Queries queries;
    // No value if the pool has no limit, or if the driver does not report its bytes in use.
    std::optional<size_t> limit;
    std::optional<size_t> in_use;
    if (request.device < 0) request.device = queries.CurrentDevice();
    if (DriverAdapter* const tracker = TrackerOf<Queries>(driver)) {
      tracker->VisitPool(request.pool, [&](const DriverPool& created) {
        request.space = created.space;
        if (created.device >= 0) request.device = created.device;
        in_use = created.limit == 0 ? std::nullopt : queries.PoolBytes(request.pool);
        if (in_use.has_value()) limit = created.limit;
      });
      tracker->Device(request.device);  // sets the probe of the device if this is its first allocation
    }
    const std::optional<size_t> bytes = request.bytes == 0 ? std::nullopt : std::optional(request.bytes);
    AllocationFailed({name, bytes, driver.DeviceName(request.device), request.space, limit, in_use}, caller,
                     request.pages);
  });
  Queries().RestoreLastError();
  if (!is_reported) PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
}

}  // namespace

// Each role is what the wrapper returns, and the fields of a Request, if its calls request memory. `call` is called
// once, outside of all code that can fail: see RemoveThenCall.
#define TRACK(step, ...)                                               \
  [&] {                                                                \
    DriverAdapter* const tracker = Tracker();                          \
    return tracker == nullptr ? call() : (step, tracker->__VA_ARGS__); \
  }()
#define OTHER(...) TRACK(void(), __VA_ARGS__)
#define END(...) TRACK(MemoryEnds(), __VA_ARGS__)
#define CLOSE(device, stays) \
  TRACK(DeviceEnds(*tracker, static_cast<int>(device)), EndDevice(call, static_cast<int>(device), stays))
#define RECORD(id, bytes, ...) \
  OTHER(Allocate(caller, call, [&] { return DriverBuffer{BufferId(id), bytes, __VA_ARGS__}; }))
#define ALLOCATE_AS(id, requested, bytes, kind) \
  RECORD(id, bytes, MemoryKind::kind), requested, SpaceOf(MemoryKind::kind)
#define ALLOCATE(id, bytes, kind) ALLOCATE_AS(id, bytes, bytes, kind)
#define ALLOCATE_ON(id, bytes, place) \
  RECORD(id, bytes, (place).kind, (place).device), bytes, SpaceOf((place).kind), (place).device
#define ALLOCATE_PAGES(id, bytes, place, pages) ALLOCATE_ON(id, bytes, place), nullptr, pages
#define IMPORT(...) OTHER(__VA_ARGS__), 0, MemorySpace::kDevice, kNoDevice
#define ALLOCATE_ASYNC(ptr, bytes, pool, stream, per_thread_default) \
  OTHER(AllocateAsync(caller, call, ptr, bytes, {stream, per_thread_default})), bytes, MemorySpace::kDevice, -1, pool
#define CREATE(handle, bytes, place)                                                                       \
  OTHER(CreatePhysical(caller, call, handle, bytes, [&] { return place; })), bytes, SpaceOf((place).kind), \
      (place).device
#define MAP(address, bytes, handle) OTHER(Map(caller, call, address, bytes, handle)), bytes
#define UNMAP(address, bytes) END(Unmap(call, address, bytes, &MemoryUnmaps))
#define UNMAP_KEPT(address, bytes) END(Unmap(call, address, bytes, &MemoryUnmaps, /*keeps=*/true, caller))
#define RELEASE(handle) END(ReleasePhysical(call, handle, caller))
#define NODE(graph, node) OTHER(AddNode(caller, call, graph, [&] { return node; }))
#define WITH_TAG(key, value, role) WITH_TAG_OF(key, value, role)
#define WITH_TAG_OF(key, value, action, ...) \
  [&] {                                      \
    const EventTag tag(key, value);          \
    return action;                           \
  }(),                                       \
      __VA_ARGS__
#define LOAD(id) OTHER(Load(caller, call, [&] { return id; }))
#define FREE(id) END(Free(BufferId(id), call))
#define LOOKUP(function) HandOutWrapper(call, function)
#define LOOKUP_NAME(name, function, is_other) HandOutWrapper(call, function, is_other ? nullptr : name)
#define PROFILE(starts) CallOfProfiler(call, starts)

#define WRAPPER(name, parameters, arguments, action, ...)                                                      \
  int name parameters {                                                                                        \
    const Caller here = Caller::OfThisFunction();                                                              \
    auto* const driver_function = reinterpret_cast<decltype(&name)>(driver.FunctionToCall(k_##name));          \
    if (driver_function == nullptr) return kErrorNotFound;                                                     \
    const auto call = [&]() -> int { return driver_function arguments; };                                      \
    const TrackedCall tracked(here);                                                                           \
    if (!tracked.outermost()) return call();                                                                   \
    [[maybe_unused]] const Caller& caller = tracked.caller();                                                  \
    const int result = action;                                                                                 \
    if (result == kErrorOutOfMemory && !IsOff()) ReportFailure<Queries>(caller, #name, driver, {__VA_ARGS__}); \
    return result;                                                                                             \
  }

namespace cuda_driver {
using Queries = CudaDriverInProcess;
#define CALLS "src/backends/cuda/driver/driver_calls.inc"
#include "src/inject/wrappers.inc"
#undef CALLS
}  // namespace cuda_driver

namespace hip_driver {
using Queries = HipDriverInProcess;
#define CALLS "src/backends/hip/hip_calls.inc"
#include "src/inject/wrappers.inc"
#undef CALLS
}  // namespace hip_driver

namespace ascend_driver {
using Queries = AscendDriverInProcess;
#define CALLS "src/backends/ascend/hal_calls.inc"
#include "src/inject/wrappers.inc"
#undef CALLS
}  // namespace ascend_driver

// Both have one tracker.
namespace musa_driver {
using Queries = MusaDriverInProcess;
#define CALLS "src/backends/musa/musa_calls.inc"
#include "src/inject/wrappers.inc"
#undef CALLS
}  // namespace musa_driver
namespace mu_driver {
using Queries = MusaDriverInProcess;
#define CALLS "src/backends/musa/mu_calls.inc"
#include "src/inject/wrappers.inc"
#undef CALLS
}  // namespace mu_driver

const WrappedDriver wrapped_drivers[] = {cuda_driver::kWrapped, hip_driver::kWrapped, ascend_driver::kWrapped,
                                         musa_driver::kWrapped, mu_driver::kWrapped};

MemoryFromBefore* MemoryFromBeforeOfProcess() {
  DriverAdapter* const tracker = cuda_driver::Tracker();
  return tracker == nullptr ? nullptr : &tracker->from_before();
}

void MeasureMemoryFromBefore(int attempts) {
  DriverAdapter* const tracker = cuda_driver::Tracker();
  if (tracker == nullptr) return;
  cuda_driver::CUdevice device = 0;
  int count = 0;
  if (cuda_driver::query::cuDeviceGetCount(&count) != cuda_driver::kSuccess) return;
  for (int i = 0; i < std::min(count, kMaxDevices); ++i) {
    if (cuda_driver::query::cuDeviceGet(&device, i) != cuda_driver::kSuccess) continue;
    unsigned flags = 0;
    int active = 0;
    if (cuda_driver::query::cuDevicePrimaryCtxGetState(device, &flags, &active) != cuda_driver::kSuccess) continue;
    if (active != 0) tracker->from_before().Measure(tracker->Device(i), attempts);
  }
}

void ExpectMemoryFromBefore(const Caller& stack) {
  for (const WrappedDriver& one : wrapped_drivers) {
    DriverAdapter* const tracker = one.driver.is_loaded() ? one.tracker() : nullptr;
    if (tracker != nullptr) tracker->from_before().Expect(stack, /*is_measured=*/false);
  }
}

bool AdoptMemoryFromBefore(uint64_t address) {
  const NoCancellation no_cancellation;
  bool is_adopted = false;
  static_cast<void>(TryRun([&] {
    for (const WrappedDriver& one : wrapped_drivers) {
      DriverAdapter* const tracker = is_adopted || !one.driver.is_loaded() ? nullptr : one.tracker();
      if (tracker == nullptr || !tracker->from_before().is_expected()) continue;
      const DriverQueries::Range range = one.range_of(address);
      is_adopted = range.bytes != 0 && tracker->AdoptFromBefore(range.start, range.bytes);
    }
  }));
  return is_adopted;
}

void FollowCalls(bool follow) {
  if (DriverAdapter* const tracker = cuda_driver::Tracker(); tracker != nullptr) tracker->Follow(follow);
}

uint32_t EndedCalls() { return TrackedCall::Ended(TrackedCall::Count()); }

Wrapped WrappedByName(std::string_view name) {
  for (const WrappedDriver& one : wrapped_drivers) {
    const std::string_view prefix = one.driver.names.prefix;
    if (name.substr(0, prefix.size()) != prefix) continue;  // most names
    for (int i = 0; i < one.driver.wrapped_count; ++i) {
      if (name == one.driver.entry_names[i]) return {one.wrappers[i], i, &one.driver};
    }
  }
  return {};
}

bool IsDriver(const link_map& library) {
  return std::any_of(std::begin(wrapped_drivers), std::end(wrapped_drivers), [&](const WrappedDriver& one) {
    return std::strstr(library.l_name, one.driver.names.path) != nullptr;
  });
}

void* WrapperOf(void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_saddr != function) return function;
  const Wrapped found = WrappedByName(info.dli_sname);
  return found.wrapper != nullptr && found.driver->FunctionToCall(found.entry) == function ? found.wrapper : function;
}

}  // namespace hbmprof::internal

// For `hbmprof doctor`. Calls visit(name, state, reason, argument) for each CALL and NOT_WRAPPED of the tables of the
// drivers that the process has loaded, in that order; of CUDA's if there is none. The state is "tracked", "passed
// through", or "absent" if this driver does not have the function. The reason is empty unless the state is "passed
// through".
extern "C" [[gnu::visibility("default")]] void hbmprof_driver_coverage(hbmprof::internal::Visit* visit,
                                                                       void* argument) {
  using namespace hbmprof::internal;  // NOLINT: its functions
  const auto is_loaded = [](const WrappedDriver& one) { return one.driver.Library() != nullptr; };
  const bool has_driver = std::any_of(std::begin(wrapped_drivers), std::end(wrapped_drivers), is_loaded);
  for (const WrappedDriver& one : wrapped_drivers) {
    if (has_driver ? is_loaded(one) : &one == wrapped_drivers) one.cover(visit, argument);
  }
}
