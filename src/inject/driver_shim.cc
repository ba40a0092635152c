// Defines the wrappers from driver_calls.inc. They have the driver's own names.
#include "src/inject/driver_shim.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/driver/driver_adapter.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/backends/cuda/driver/driver_sizes.h"
#include "src/backends/cuda/driver/driver_table.h"
#include "src/backends/cuda/shared/adapter.h"
#include "src/backends/cuda/shared/driver_abi.h"
#include "src/base/fork.h"
#include "src/base/lock_free_lazy.h"
#include "src/base/message.h"
#include "src/base/no_cancellation.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"

namespace hbmprof::internal::cuda_driver {
namespace {

#define CALL(name, parameters, arguments, action) using Type_##name = CUresult parameters;
#include "src/backends/cuda/driver/driver_calls.inc"

}  // namespace

extern "C" {
#define CALL(name, parameters, arguments, action) \
  [[gnu::visibility("default"), gnu::noinline]] CUresult name parameters;
#include "src/backends/cuda/driver/driver_calls.inc"
}

namespace {

// By Entry.
void* const kWrappers[] = {
#define CALL(name, parameters, arguments, action) reinterpret_cast<void*>(&name),
#include "src/backends/cuda/driver/driver_calls.inc"
};

// The adapter and its queries.
struct ProcessTracker {
  CudaDriverInProcess queries;
  CudaDriverAdapter adapter{Profiler::Default(), queries};
};

// Returns null if this thread is inside the tracker: if the program's own operator new makes a wrapped call, the
// allocations of this function do not make a second tracker.
std::unique_ptr<ProcessTracker> MakeTracker() {
  const NoCancellation no_cancellation;
  PrepareCudaTracking();
  Profiler::Default();
  const ReentryGuard guard;
  if (!guard.entered()) return nullptr;
  auto tracker = std::make_unique<ProcessTracker>();
  CudaDriverAdapter* const adapter = &tracker->adapter;
  tracker->queries.SetAdapterQueries({[adapter](int ordinal, const std::function<void(void*)>& visit) {
                                        adapter->ForEachPool(ordinal,
                                                             [&](const void* pool) { visit(const_cast<void*>(pool)); });
                                      },
                                      [adapter](DeviceId id) { return adapter->GraphBytes(id); }});
  return tracker;
}

// The first tracked call makes the tracker. That is after the driver's initialization, so the profile at exit is
// written while the driver can still be called. Never destroyed, because calls can be made during static destruction.
// Returns null in a process that is off, and if the host has no memory for it: then the call is counted as dropped, if
// there is a profiler. A process that has made a tracked call counts as one that has recorded, so that the tracker's
// tables do not survive a fork.
CudaDriverAdapter* Tracker() {
  if (!BeginEvent()) return nullptr;
  static LockFreeLazy<ProcessTracker> made;
  bool is_new = false;
  ProcessTracker* tracker = nullptr;
  if (!TryRun([&] { tracker = made.Get(&MakeTracker, &is_new); })) {
    static_cast<void>(TryRun([] { Profiler::Default().RecordDropped(0); }));
  }
  if (tracker == nullptr) return nullptr;
  CudaCallIsTracked();
  if (is_new) CudaTrackingStarts();
  return &tracker->adapter;
}

template <typename Call>
CUresult HandOutWrapper(const Call& call, void** function) {
  const CUresult result = call();
  if (result == kSuccess && function != nullptr) *function = CudaWrapperOf(*function);
  return result;
}

template <typename Call>
CUresult ProfilerCalled(const Call& call, bool starts) {
  const CUresult result = call();
  if (result == kSuccess) CudaProfilerCalled(starts);
  return result;
}

// Returns the bytes that a wrapped call requests: its second argument, or for pitched memory the width times the
// height. Returns nullopt for calls whose second argument is neither.
template <typename... Arguments>
std::optional<size_t> RequestedBytes(const Arguments&... arguments) {
  const std::tuple<const Arguments&...> all(arguments...);
  if constexpr (sizeof...(Arguments) >= 2) {
    using Second = std::decay_t<decltype(std::get<1>(all))>;
    if constexpr (std::is_same_v<Second, size_t>) return std::get<1>(all);
    if constexpr (std::is_same_v<Second, size_t*>) return CudaPitchedBytes(std::get<2>(all), std::get<3>(all));
  }
  return std::nullopt;
}

// The pool that a wrapped call allocates from. `limit` and `in_use` have no value if the pool has no limit, or if the
// driver does not report its bytes in use.
struct PoolFigures {
  std::optional<int> device;         // no value: the call does not use a pool that the program has created on a device
  std::optional<MemorySpace> space;  // no value: the call does not use a pool that the program has created
  std::optional<size_t> limit;
  std::optional<size_t> in_use;
};

template <typename... Arguments>
PoolFigures PoolOf(const Arguments&... arguments) {
  PoolFigures figures;
  // The arguments of cuMemAllocFromPoolAsync.
  if constexpr (std::is_same_v<std::tuple<Arguments...>, std::tuple<CUdeviceptr*, size_t, Handle, Handle>>) {
    const Handle pool = std::get<2>(std::tie(arguments...));
    CudaDriverAdapter* const tracker = Tracker();
    if (tracker == nullptr) return figures;
    tracker->VisitPool(pool, [&](const CudaPool& created) {
      figures.space = created.space;
      if (created.device >= 0) figures.device = created.device;
      uint64_t used = 0;
      if (created.limit == 0 || query::cuMemPoolGetAttribute(pool, kPoolUsedCurrent, &used) != kSuccess) return;
      figures.limit = created.limit;
      figures.in_use = used;
    });
  }
  return figures;
}

// Returns the device of a wrapped call: for physical memory the device in its properties, else the current device.
template <typename... Arguments>
int DeviceOf(const Arguments&... arguments) {
  int device = CudaDriverInProcess().CurrentDevice();
  [[maybe_unused]] const auto look_at = [&](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, const MemAllocationProp*>) {
      if (const int located = DeviceOfLocation(argument->location); located >= 0) device = located;
    }
  };
  (look_at(arguments), ...);
  return device;
}

// Returns whether a wrapped call requests physical memory on the host.
template <typename... Arguments>
bool RequestsHostMemory(const Arguments&... arguments) {
  [[maybe_unused]] const auto is_on_host = [](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, const MemAllocationProp*>) {
      return IsOnHost(argument->location);
    }
    return false;
  };
  return (is_on_host(arguments) || ...);
}

MemorySpace SpaceOfCall(std::string_view name) {
  if (name.find("Host") != std::string_view::npos) return MemorySpace::kPinnedHost;
  return name.find("Managed") != std::string_view::npos ? MemorySpace::kManaged : MemorySpace::kDevice;
}

// Reports a wrapped call that has failed with kErrorOutOfMemory.
template <typename... Arguments>
void ReportFailure(const Caller& caller, std::string_view name, const Arguments&... arguments) {
  const bool is_reported = TryRun([&] {
    const PoolFigures pool = PoolOf(arguments...);
    const int ordinal = pool.device.value_or(DeviceOf(arguments...));
    const std::string device = ordinal < 0 ? "unknown" : CudaDeviceName(ordinal);
    // Sets the probe of the device if this is its first allocation.
    if (CudaDriverAdapter* const tracker = Tracker()) tracker->Device(ordinal);
    const MemorySpace space =
        RequestsHostMemory(arguments...) ? MemorySpace::kPinnedHost : pool.space.value_or(SpaceOfCall(name));
    CudaAllocationFailed({name, RequestedBytes(arguments...), device, space, pool.limit, pool.in_use}, caller);
  });
  if (!is_reported) PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
}

}  // namespace

// `call` is called once, outside of all code that can fail: see CallThenRecord and RemoveThenCall.
#define TRACK(...)                                             \
  [&] {                                                        \
    CudaDriverAdapter* const tracker = Tracker();              \
    return tracker == nullptr ? call() : tracker->__VA_ARGS__; \
  }()
#define ALLOCATE(id, bytes, kind) \
  TRACK(Allocate(caller, call, [&] { return CudaDriverAdapter::Buffer(id, bytes, MemoryKind::kind); }))
#define REPORT(name, arguments) \
  std::apply([&](const auto&... all) { ReportFailure(caller, #name, all...); }, std::tie arguments)
#define LOAD(id) TRACK(Load(caller, call, [&] { return id; }))

extern "C" {
#define CALL(name, parameters, arguments, action)                                           \
  CUresult name parameters {                                                                \
    const Caller here = Caller::OfThisFunction();                                           \
    auto* const driver_function = reinterpret_cast<Type_##name*>(FunctionToCall(k_##name)); \
    if (driver_function == nullptr) return kErrorNotFound;                                  \
    const auto call = [&]() -> CUresult { return driver_function arguments; };              \
    const TrackedCudaCall tracked(here);                                                    \
    if (!tracked.outermost()) return call();                                                \
    [[maybe_unused]] const Caller& caller = tracked.caller();                               \
    const CUresult result = action;                                                         \
    if (result == kErrorOutOfMemory && !IsOff()) REPORT(name, arguments);                   \
    return result;                                                                          \
  }
#include "src/backends/cuda/driver/driver_calls.inc"
}
#undef REPORT
#undef LOAD
#undef ALLOCATE
#undef TRACK

}  // namespace hbmprof::internal::cuda_driver

namespace hbmprof::internal {

CudaMemoryFromBefore* CudaMemoryFromBeforeOfProcess() {
  CudaDriverAdapter* const tracker = cuda_driver::Tracker();
  return tracker == nullptr ? nullptr : &tracker->from_before();
}

void MeasureCudaMemoryFromBefore(int attempts) {
  CudaDriverAdapter* const tracker = cuda_driver::Tracker();
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

bool AdoptCudaMemoryFromBefore(uint64_t address) {
  const NoCancellation no_cancellation;
  CudaDriverAdapter* const tracker = cuda_driver::Tracker();
  if (tracker == nullptr || !tracker->from_before().is_expected()) return false;
  cuda_driver::CUdeviceptr base = 0;
  size_t bytes = 0;
  bool is_adopted = false;
  const bool is_complete = TryRun([&] {
    is_adopted = CudaDriverInProcess().CurrentContext() != nullptr &&
                 cuda_driver::query::cuMemGetAddressRange_v2(&base, &bytes, address) == cuda_driver::kSuccess &&
                 tracker->AdoptFromBefore(base, bytes);
  });
  return is_complete && is_adopted;
}

void FollowCudaCalls(bool follow) {
  if (CudaDriverAdapter* const tracker = cuda_driver::Tracker(); tracker != nullptr) tracker->Follow(follow);
}

uint32_t EndedCudaCalls() { return TrackedCudaCall::Ended(TrackedCudaCall::Count()); }

void* CudaWrapperByName(std::string_view name) {
  if (name.substr(0, 2) != "cu") return nullptr;  // most names
  for (int i = 0; i < cuda_driver::kWrappedCount; ++i) {
    if (name == cuda_driver::kEntryNames[i]) return cuda_driver::kWrappers[i];
  }
  return nullptr;
}

bool IsCudaDriver(const link_map& library) { return std::strstr(library.l_name, "/libcuda.so") != nullptr; }

void* CudaWrapperOf(void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_saddr != function) return function;
  for (int i = 0; i < cuda_driver::kWrappedCount; ++i) {
    if (std::strcmp(info.dli_sname, cuda_driver::kEntryNames[i]) != 0) continue;
    return cuda_driver::FunctionToCall(i) == function ? cuda_driver::kWrappers[i] : function;
  }
  return function;
}

}  // namespace hbmprof::internal

// For `hbmprof doctor`. Calls visit(name, state, reason, argument) for each CALL and NOT_WRAPPED of driver_calls.inc,
// in that order. The state is "tracked", "passed through", or "absent" if this driver does not have the function. The
// reason is empty unless the state is "passed through".
extern "C" [[gnu::visibility("default")]] void hbmprof_cuda_coverage(void (*visit)(const char* name, const char* state,
                                                                                   const char* reason, void* argument),
                                                                     void* argument) {
  void* const library = hbmprof::internal::CudaDriverLibrary();
  const auto has = [&](const char* name) {
    return library != nullptr && hbmprof::internal::FindSymbol(library, name) != nullptr;
  };
#define CALL(name, parameters, arguments, action) visit(#name, has(#name) ? "tracked" : "absent", "", argument);
#define NOT_WRAPPED(name, why) \
  has(#name) ? visit(#name, "passed through", why, argument) : visit(#name, "absent", "", argument);
#include "src/backends/cuda/driver/driver_calls.inc"
}
