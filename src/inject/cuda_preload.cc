// libhbmprof_cuda.so, which is loaded with LD_PRELOAD. The driver's wrapped calls are in
// src/backends/cuda/driver_shim.cc, dlsym and dlopen in dynamic_linker.cc. This file has the other exported functions,
// and the code that writes profiles.
//
// Environment: OptionsFromEnvironment (hbmprof/options.h), except HBMPROF_OUTPUT, which belongs to the program.
// Instead:
//   HBMPROF_CUDA_OUTPUT=PATH       the path of the profile at exit; a pattern as in DefaultOptions::output
//   HBMPROF_CUDA_INTERVAL=SECONDS  also writes a profile there at this interval
//   HBMPROF_NVTX=innermost|outermost|path  see nvtx.cc
#include <time.h>

#include <cmath>
#include <cstdlib>

#include "hbmprof/caller.h"
#include "src/api/default_profiler.h"
#include "src/backends/cuda/driver_adapter.h"
#include "src/backends/cuda/driver_shim.h"
#include "src/base/background_thread.h"
#include "src/base/completes.h"
#include "src/base/message.h"
#include "src/inject/torch_blocks.h"

namespace hbmprof::internal {
namespace {

constexpr char kOutput[] = "HBMPROF_CUDA_OUTPUT";

timespec profile_interval;  // written before the thread starts

void* WriteProfilesPeriodically(void*) {
  while (true) {
    for (timespec left = profile_interval; nanosleep(&left, &left) != 0;) continue;
    const absl::Status status = WriteOutput();
    const absl::string_view message = status.message();
    if (!status.ok()) PrintMessage("hbmprof: no profile: ", {message.data(), message.size()});
  }
}

// If HBMPROF_CUDA_INTERVAL is set, starts the thread that writes profiles at this interval. The thread blocks all
// signals. It ends with the process; if it is writing a profile at that time, no file remains.
void StartPeriodicProfiles() {
  const char* interval = secure_getenv("HBMPROF_CUDA_INTERVAL");
  const char* output = secure_getenv(kOutput);
  if (interval == nullptr || *interval == '\0') return;
  char* end = nullptr;
  const double seconds = std::strtod(interval, &end);
  if (*end != '\0' || !(seconds >= 0.001 && seconds <= 1e8)) {
    PrintMessage("hbmprof: HBMPROF_CUDA_INTERVAL=", interval,
                 ": must be a number of seconds from 0.001 to 1e8; profiles are written at exit only");
    return;
  }
  if (output == nullptr || *output == '\0') {
    PrintMessage("hbmprof: HBMPROF_CUDA_INTERVAL needs HBMPROF_CUDA_OUTPUT, the path of the profiles");
    return;
  }
  profile_interval.tv_sec = static_cast<time_t>(seconds);
  profile_interval.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  if (!StartBackgroundThread(&WriteProfilesPeriodically, nullptr)) {
    PrintMessage("hbmprof: cannot start a thread for HBMPROF_CUDA_INTERVAL; profiles are written at exit only");
  }
}

}  // namespace

void PrepareCudaTracking() {
  SetOutputVariable(kOutput);
  StartTorchBlocks();
}

void CudaTrackingStarts() {
  // If the program used the profiler before the driver, the profiler's exit handler would run after the driver's.
  WriteOutputBeforeOlderExitHandlers();
  StartThreads();
  AddTorchWarningsToSnapshots();
  if (!Completes(&StartPeriodicProfiles)) {
    PrintMessage("hbmprof: the host has no memory for HBMPROF_CUDA_INTERVAL; profiles are written at exit only");
  }
}

}  // namespace hbmprof::internal

extern "C" {

// For the tracked calls of a program that links hbmprof::cuda: see TrackedCudaCall::SetCallerAbove.
[[gnu::visibility("default")]] void hbmprof_cuda_set_caller(const hbmprof::Caller* caller) {
  hbmprof::internal::TrackedCudaCall::SetCallerAbove(caller);
}

// For CudaCoverage: see ForEachCudaEntryPoint.
[[gnu::visibility("default")]] void hbmprof_cuda_coverage(hbmprof::internal::CudaCoverageVisitor visit,
                                                          void* argument) {
  hbmprof::internal::ForEachCudaEntryPoint(visit, argument);
}
}
