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

#define CALL(name, parameters, arguments, role) using Type_##name = CUresult parameters;
#include "src/backends/cuda/driver/driver_calls.inc"

}  // namespace

extern "C" {
#define CALL(name, parameters, arguments, role) [[gnu::visibility("default"), gnu::noinline]] CUresult name parameters;
#include "src/backends/cuda/driver/driver_calls.inc"
}

namespace {

// By Entry.
void* const kWrappers[] = {
#define CALL(name, parameters, arguments, role) reinterpret_cast<void*>(&name),
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

// What a wrapped call requests, as its row says.
struct Request {
  size_t bytes = 0;  // 0: not known
  MemorySpace space = MemorySpace::kDevice;
  int device = -1;        // -1: the current one
  Handle pool = nullptr;  // null: none that the program has created
};

// Reports a wrapped call that has failed with kErrorOutOfMemory.
[[gnu::noinline, gnu::cold]] void ReportFailure(const Caller& caller, std::string_view name, Request request) {
  const bool is_reported = TryRun([&] {
    // No value if the pool has no limit, or if the driver does not report its bytes in use.
    std::optional<size_t> limit;
    std::optional<size_t> in_use;
    if (request.device < 0) request.device = CudaDriverInProcess().CurrentDevice();
    if (CudaDriverAdapter* const tracker = Tracker()) {
      tracker->VisitPool(request.pool, [&](const CudaPool& created) {
        request.space = created.space;
        if (created.device >= 0) request.device = created.device;
        uint64_t used = 0;
        if (created.limit == 0 || query::cuMemPoolGetAttribute(request.pool, kPoolUsedCurrent, &used) != kSuccess) {
          return;
        }
        limit = created.limit;
        in_use = used;
      });
      tracker->Device(request.device);  // sets the probe of the device if this is its first allocation
    }
    const std::optional<size_t> bytes = request.bytes == 0 ? std::nullopt : std::optional(request.bytes);
    const std::string device = request.device < 0 ? "unknown" : CudaDeviceName(request.device);
    CudaAllocationFailed({name, bytes, device, request.space, limit, in_use}, caller);
  });
  if (!is_reported) PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
}

}  // namespace

// Each role is what the wrapper returns, and the fields of a Request, if its calls request memory. `call` is called
// once, outside of all code that can fail: see RemoveThenCall.
#define TRACK(step, ...)                                               \
  [&] {                                                                \
    CudaDriverAdapter* const tracker = Tracker();                      \
    return tracker == nullptr ? call() : (step, tracker->__VA_ARGS__); \
  }()
#define OTHER(...) TRACK(void(), __VA_ARGS__)
#define END(...) TRACK(CudaMemoryEnds(), __VA_ARGS__)
#define ALLOCATE_AS(id, requested, bytes, kind)                              \
  OTHER(Allocate(caller, call,                                               \
                 [&] {                                                       \
                   return CudaBuffer{BufferId(id), bytes, MemoryKind::kind}; \
                 })),                                                        \
      requested, SpaceOf(MemoryKind::kind)
#define ALLOCATE(id, bytes, kind) ALLOCATE_AS(id, bytes, bytes, kind)
#define ALLOCATE_ASYNC(ptr, bytes, pool, stream, per_thread_default) \
  OTHER(AllocateAsync(caller, call, ptr, bytes, {stream, per_thread_default})), bytes, MemorySpace::kDevice, -1, pool
#define CREATE(handle, bytes, properties)                                               \
  OTHER(CreatePhysical(caller, call, handle, bytes, properties)), bytes,                \
      IsOnHost(properties->location) ? MemorySpace::kPinnedHost : MemorySpace::kDevice, \
      DeviceOfLocation(properties->location)
#define MAP(address, bytes, handle) OTHER(Map(caller, call, address, bytes, handle)), bytes
#define LOAD(id) OTHER(Load(caller, call, [&] { return id; }))
#define FREE(id) END(Free(BufferId(id), call))
#define LOOKUP(function) HandOutWrapper(call, function)
#define PROFILE(starts) ProfilerCalled(call, starts)

extern "C" {
#define CALL(name, parameters, arguments, role) WRAPPER(name, parameters, arguments, role)
#define WRAPPER(name, parameters, arguments, action, ...)                                     \
  CUresult name parameters {                                                                  \
    const Caller here = Caller::OfThisFunction();                                             \
    auto* const driver_function = reinterpret_cast<Type_##name*>(FunctionToCall(k_##name));   \
    if (driver_function == nullptr) return kErrorNotFound;                                    \
    const auto call = [&]() -> CUresult { return driver_function arguments; };                \
    const TrackedCudaCall tracked(here);                                                      \
    if (!tracked.outermost()) return call();                                                  \
    [[maybe_unused]] const Caller& caller = tracked.caller();                                 \
    const CUresult result = action;                                                           \
    if (result == kErrorOutOfMemory && !IsOff()) ReportFailure(caller, #name, {__VA_ARGS__}); \
    return result;                                                                            \
  }
#include "src/backends/cuda/driver/driver_calls.inc"
}

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
#define CALL(name, parameters, arguments, role) visit(#name, has(#name) ? "tracked" : "absent", "", argument);
#define NOT_WRAPPED(name, why) \
  has(#name) ? visit(#name, "passed through", why, argument) : visit(#name, "absent", "", argument);
#include "src/backends/cuda/driver/driver_calls.inc"
}
