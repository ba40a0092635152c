// libhbmprof_gpu.so, which is loaded with LD_PRELOAD. The driver's wrapped calls are in
// src/inject/driver_shim.cc, dlsym and dlopen in dynamic_linker.cc.
//
// Environment: OptionsFromEnvironment (hbmprof/options.h), except HBMPROF_OUTPUT, which belongs to the program.
// Instead:
//   HBMPROF_GPU_OUTPUT=PATH       the path of the profile at exit; a pattern as in DefaultOptions::output
//   HBMPROF_NVTX=innermost|outermost|path|none  see nvtx.cc
//   HBMPROF_CAPTURE_RANGE=cudaProfilerApi|nvtx:NAME  writes profiles and recordings of these ranges only
//                                  (capture_range.h), to files whose names come from HBMPROF_GPU_OUTPUT
#include "src/api/control/capture_range.h"
#include "src/api/output/exit_writer.h"
#include "src/api/public/default_profiler.h"
#include "src/backends/opencl/layer.h"
#include "src/base/fork.h"
#include "src/base/no_cancellation.h"
#include "src/base/try_run.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/linker/deep_bind.h"

namespace hbmprof::internal {

void PrepareTracking() {
  if (IsOff()) return;
  SetOutputVariable("HBMPROF_GPU_OUTPUT");
  uses_reports.store(true, std::memory_order_release);
  HideLackingFunctions();
}

void TrackingStarts() {
  // If the program used the profiler before the driver, the profiler's exit handler would run after the driver's.
  WriteBeforeOlderExitHandlers();
  StartThreads();
  ProfilerImpl& profiler = ProfilerAccess::ImplOf(Profiler::Default());
  profiler.SetResumeHook(&TrackingResumes);
  profiler.SetSnapshotFinisher([](Snapshot* snapshot) {
    AddTorchWarnings(snapshot);
    AddTensorflowWarnings(snapshot);
    AddMstxWarnings(snapshot);
    AddXlaWarning(snapshot);
    AddAttachWarnings(snapshot);
  });
}

void MemoryEnds() { KeepStateAtPythonEnd(); }
void DeviceEnds(DriverAdapter& tracker, int device) {
  bool holds_memory = false;
  static_cast<void>(TryRun([&] {
    const DeviceId id = tracker.Device(device);
    for (const MemorySpace space : {MemorySpace::kDevice, MemorySpace::kManaged}) {
      holds_memory = holds_memory || Profiler::Default().Stats(id, space).bytes_in_use != 0;
    }
  }));
  if (holds_memory) KeepStateForExit(/*python_ends=*/false);
}

void ProfilerCalled(bool starts) {
  const CaptureChoice* const ranges = ChosenRanges();
  if (IsOff() || ranges == nullptr || !ranges->is_profiler_api) return;
  PrepareTracking();
  if (starts) {
    BeginCaptureRange("cudaProfilerStart");
  } else {
    EndCaptureRange(0);
  }
}

void AllocationFailed(const FailedAllocation& failure, const Caller& caller, uint64_t pages) {
  if (LeaveFailureToTorch(failure, caller, pages)) return;
  const ScopedCaller scope(caller);
  ReportOutOfMemory(failure);
}

static Profiler* OpenclProfiler() {
  static std::atomic<bool> has_joined{false};
  if (!BeginEvent()) return nullptr;
  Profiler* profiler = nullptr;
  static_cast<void>(TryRun([&] {
    if (!has_joined.load(std::memory_order_acquire)) {
      const NoCancellation no_cancellation;
      hbmprof_injected_join();
      has_joined.store(true, std::memory_order_release);
    }
    MemoryEnds();
    profiler = &Profiler::Default();
  }));
  return profiler != nullptr && profiler->enabled() ? profiler : nullptr;
}
[[gnu::constructor]] static void RecordOpencl() { opencl_profiler.store(&OpenclProfiler); }

}  // namespace hbmprof::internal
