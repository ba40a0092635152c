// The wrappers themselves, under the driver's own names, made from driver_calls.inc.
#include "src/backends/cuda/driver_shim.h"

#include <atomic>
#include <functional>
#include <memory>

#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/adapter.h"
#include "src/backends/cuda/driver_abi.h"
#include "src/backends/cuda/driver_adapter.h"
#include "src/backends/cuda/driver_queries.h"
#include "src/backends/cuda/made_tracker.h"

namespace hbmprof::internal::cuda_driver {
namespace {

enum Entry : int {
#define CALL(name, parameters, arguments, action) k_##name,
#define PASSED(name, why)
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED
  kEntries
};

constexpr const char* kNames[] = {
#define CALL(name, parameters, arguments, action) #name,
#define PASSED(name, why)
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED
};

#define CALL(name, parameters, arguments, action) using Type_##name = CUresult parameters;
#define PASSED(name, why)
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED

}  // namespace

extern "C" {
#define CALL(name, parameters, arguments, action) \
  [[gnu::visibility("default"), gnu::noinline]] CUresult name parameters;
#define PASSED(name, why)
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED
}

namespace {

void* const kWrappers[] = {
#define CALL(name, parameters, arguments, action) reinterpret_cast<void*>(&name),
#define PASSED(name, why)
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED
};

// What the driver has, null for what it lacks. Threads that look it up at the same time write the same.
std::atomic<void*> driver_functions[kEntries];
std::atomic<bool> driver_found{false};

// Whether the process has loaded libcuda. Takes no memory and no lock: the driver's call is made whatever happens here.
bool FindDriver() {
  if (driver_found.load(std::memory_order_acquire)) return true;
  void* library = CudaDriverLibrary();
  if (library == nullptr) return false;
  for (int i = 0; i < kEntries; ++i) {
    driver_functions[i].store(FindDriverSymbol(library, kNames[i]), std::memory_order_relaxed);
  }
  driver_found.store(true, std::memory_order_release);
  return true;
}

void* DriverFunction(int entry) { return driver_functions[entry].load(std::memory_order_relaxed); }

// The adapter and what it asks.
struct ProcessTracker {
  CudaDriverInProcess questions;
  CudaDriverAdapter adapter{Profiler::Default(), questions};
};

std::unique_ptr<ProcessTracker> MakeTracker() {
  PrepareCudaTracking();
  auto tracker = std::make_unique<ProcessTracker>();
  CudaDriverAdapter* const adapter = &tracker->adapter;
  tracker->questions.SetBooks({[adapter](int ordinal, const std::function<void(void*)>& visit) {
                                 adapter->ForEachPool(ordinal,
                                                      [&](const void* pool) { visit(const_cast<void*>(pool)); });
                               },
                               [adapter](DeviceId id) { return adapter->GraphBytes(id); }});
  return tracker;
}

// Made by the first call that must be tracked, which follows the driver's initialisation: so the profile that is
// written at exit is written while the driver still answers. Never destroyed: calls go on during static destruction.
CudaDriverAdapter* Tracker() {
  static MadeTracker<ProcessTracker> made;
  bool is_new = false;
  ProcessTracker* const tracker = made.Get(&MakeTracker, &is_new);
  if (is_new) CudaTrackingStarts();
  return tracker == nullptr ? nullptr : &tracker->adapter;
}

// From which version of the driver's interface on cuGetProcAddress means this function by its name without variant.
struct Variant {
  std::string_view name;
  int version;
};
constexpr Variant kVariants[] = {{"cuCtxCreate_v3", 11040},
                                 {"cuCtxCreate_v4", 12050},
                                 {"cuCtxDestroy_v2", 4000},
                                 {"cuDevicePrimaryCtxRelease_v2", 11000},
                                 {"cuDevicePrimaryCtxReset_v2", 11000},
                                 {"cuGetProcAddress_v2", 12000},
                                 {"cuGraphAddNode_v2", 12030},
                                 {"cuGraphAddNode_v3", 13040},
                                 {"cuGraphInstantiate_v2", 11000},
                                 {"cuGraphInstantiateWithFlags", 12000},
                                 {"cuIpcOpenMemHandle_v2", 11000},
                                 {"cuMemHostRegister_v2", 6050},
                                 {"cuStreamBeginCapture_v2", 10010},
                                 {"cuStreamBeginCapture_v2_ptsz", 10010}};
constexpr int kSecondVariants = 3020;  // all other _v2

int SinceVersion(std::string_view name) {
  for (const Variant& variant : kVariants) {
    if (variant.name == name) return variant.version;
  }
  return name.substr(name.size() - 3) == "_v2" ? kSecondVariants : 0;
}

// Without "_ptsz", then without "_vN".
std::string_view BaseName(std::string_view name) {
  if (name == "cuGraphInstantiateWithFlags") return "cuGraphInstantiate";
  if (name.size() > 5 && name.substr(name.size() - 5) == "_ptsz") name.remove_suffix(5);
  if (name.size() > 3 && name.substr(name.size() - 3, 2) == "_v") name.remove_suffix(3);
  return name;
}

// By cuGetProcAddress's rules, for a driver that hands out other addresses than those it exports. Null if no wrapper
// fits.
void* WrapperByRequest(std::string_view name, int version, Flags64 flags) {
  void* best = nullptr;
  int best_rank = -1;
  for (int i = 0; i < kEntries; ++i) {
    const std::string_view candidate = kNames[i];
    if (BaseName(candidate) != name && candidate != name) continue;
    const bool per_thread = candidate.substr(candidate.size() - 5) == "_ptsz";
    if (per_thread && (flags & kPerThreadDefaultStream) == 0) continue;
    const int since = candidate == name ? 0 : SinceVersion(candidate);
    const int rank = 2 * since + (per_thread ? 1 : 0);
    if (since > version || rank <= best_rank) continue;
    best = kWrappers[i];
    best_rank = rank;
  }
  return best;
}

template <typename Real>
CUresult HandOutWrapper(const Real& real, const char* name, void** function, int version, Flags64 flags) {
  const CUresult result = real();
  if (result != kSuccess || function == nullptr || *function == nullptr) return result;
  void* wrapper = CudaWrapperOf(*function);
  if (wrapper == *function && name != nullptr) wrapper = WrapperByRequest(name, version, flags);
  if (wrapper != nullptr) *function = wrapper;
  return result;
}

}  // namespace

// `real` is made once, outside of all that can fail: see CallThenRecord and ForgetThenCall.
#define TRACK(...)                                             \
  [&] {                                                        \
    CudaDriverAdapter* const tracker = Tracker();              \
    return tracker == nullptr ? real() : tracker->__VA_ARGS__; \
  }()

extern "C" {
#define CALL(name, parameters, arguments, action)                                                                    \
  CUresult name parameters {                                                                                         \
    const Caller here = Caller::OfThisFunction();                                                                    \
    auto* const driver_function = FindDriver() ? reinterpret_cast<Type_##name*>(DriverFunction(k_##name)) : nullptr; \
    if (driver_function == nullptr) return kErrorNotFound;                                                           \
    const auto real = [&]() -> CUresult { return driver_function arguments; };                                       \
    const TrackedCudaCall call(here);                                                                                \
    if (!call.outermost()) return real();                                                                            \
    [[maybe_unused]] const Caller& caller = call.caller();                                                           \
    return action;                                                                                                   \
  }
#define PASSED(name, why)
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED
}
#undef TRACK

}  // namespace hbmprof::internal::cuda_driver

namespace hbmprof::internal {

bool NameCudaMappingByAddress(uint64_t address, bool (*rename)(BufferId from, BufferId to)) {
  CudaDriverAdapter* const tracker = cuda_driver::Tracker();
  return tracker != nullptr && tracker->NameMappingByAddress(address, rename);
}

void* CudaWrapperByName(std::string_view name) {
  for (int i = 0; i < cuda_driver::kEntries; ++i) {
    if (name == cuda_driver::kNames[i]) return cuda_driver::kWrappers[i];
  }
  return nullptr;
}

void* CudaWrapperOf(void* function) {
  using namespace cuda_driver;  // NOLINT: its table
  if (!FindDriver()) return function;
  // Of several names for one function, the first wrapper stands for it.
  for (int i = 0; i < kEntries; ++i) {
    if (function != nullptr && DriverFunction(i) == function) return kWrappers[i];
  }
  return function;
}

void ForEachCudaEntryPoint(CudaCoverageVisitor visit, void* argument) {
  void* library = CudaDriverLibrary();
  const auto has = [&](const char* name) { return library != nullptr && FindDriverSymbol(library, name) != nullptr; };
#define CALL(name, parameters, arguments, action) visit(#name, has(#name) ? "tracked" : "absent", "", argument);
#define PASSED(name, why)                                        \
  if (has(#name)) visit(#name, "passed through", why, argument); \
  if (!has(#name)) visit(#name, "absent", "", argument);
#include "src/backends/cuda/driver_calls.inc"
#undef CALL
#undef PASSED
}

}  // namespace hbmprof::internal
