// libhbmprof_cuda.so, which is loaded with LD_PRELOAD. The driver's wrapped calls are in
// src/inject/driver_shim.cc, dlsym and dlopen in dynamic_linker.cc.
//
// Environment: OptionsFromEnvironment (hbmprof/options.h), except HBMPROF_OUTPUT, which belongs to the program.
// Instead:
//   HBMPROF_CUDA_OUTPUT=PATH       the path of the profile at exit; a pattern as in DefaultOptions::output
//   HBMPROF_NVTX=innermost|outermost|path|none  see nvtx.cc
//   HBMPROF_CAPTURE_RANGE=cudaProfilerApi|nvtx:NAME  writes profiles and recordings of these ranges only
//                                  (capture_range.h), to files whose names come from HBMPROF_CUDA_OUTPUT
#include <atomic>

#include "src/api/control/capture_range.h"
#include "src/api/output/exit_writer.h"
#include "src/api/public/default_profiler.h"
#include "src/base/fork.h"
#include "src/base/try_run.h"
#include "src/core/joined/injected.h"
#include "src/core/profiler_impl.h"
#include "src/inject/attach_warnings.h"
#include "src/inject/driver_shim.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/frameworks/python_end.h"
#include "src/inject/frameworks/tensorflow_blocks.h"
#include "src/inject/frameworks/torch_blocks.h"
#include "src/inject/linker/deep_bind.h"

namespace hbmprof::internal {

void PrepareCudaTracking() {
  if (IsOff()) return;
  SetOutputVariable("HBMPROF_CUDA_OUTPUT");
  StartTorchBlocks();
  StartTensorflowBlocks();
  HideLackingFunctions();
}

void CudaTrackingStarts() {
  // If the program used the profiler before the driver, the profiler's exit handler would run after the driver's.
  WriteBeforeOlderExitHandlers();
  StartThreads();
  ProfilerImpl& profiler = ProfilerAccess::ImplOf(Profiler::Default());
  profiler.SetResumeHook(&CudaTrackingResumes);
  profiler.SetSnapshotFinisher([](Snapshot* snapshot) {
    AddTorchWarnings(snapshot);
    AddTensorflowWarnings(snapshot);
    AddXlaWarning(snapshot);
    AddAttachWarnings(snapshot);
  });
}

void CudaCallIsTracked() { KeepStateAtPythonEnd(); }

void CudaProfilerCalled(bool starts) {
  // Read once: getenv must not run while another thread calls setenv.
  enum : int { kUnknown, kNo, kYes };
  static std::atomic<int> captures{kUnknown};
  if (captures.load() == kUnknown) {
    CaptureChoice choice;
    if (!TryRun([&] { choice = ReadCaptureChoice(nullptr); })) return;
    captures.store(choice.is_profiler_api ? kYes : kNo);
  }
  if (captures.load() == kNo || IsOff()) return;
  PrepareCudaTracking();
  if (starts) {
    BeginCaptureRange("cudaProfilerStart");
  } else {
    EndCaptureRange(0);
  }
}

void CudaAllocationFailed(const FailedAllocation& failure, const Caller& caller) {
  if (LeaveFailureToTorch(failure, caller)) return;
  const ScopedCaller scope(caller);
  ReportOutOfMemory(failure);
}

}  // namespace hbmprof::internal

extern "C" {

// For CudaCoverage: see ForEachCudaEntryPoint.
[[gnu::visibility("default")]] void hbmprof_cuda_coverage(hbmprof::internal::CudaCoverageVisitor visit,
                                                          void* argument) {
  hbmprof::internal::ForEachCudaEntryPoint(visit, argument);
}
}
