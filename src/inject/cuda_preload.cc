// libhbmprof_cuda.so: what a program gets that is started with it in LD_PRELOAD. The driver's wrapped calls come from
// src/backends/cuda/driver_shim.cc, dlsym from dlsym.cc; here is what else the library exports, and what starts with
// the first tracked call.
//
// Environment: OptionsFromEnvironment (hbmprof/options.h), but for HBMPROF_OUTPUT, which is the program's own. Instead
//   HBMPROF_CUDA_OUTPUT=PATH       where a profile is written when the process exits; a pattern as in Options::output
//   HBMPROF_CUDA_INTERVAL=SECONDS  writes one there every so often too
//   HBMPROF_NVTX=innermost|outermost|path  see nvtx.cc
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cmath>
#include <cstdlib>

#include "hbmprof/caller.h"
#include "src/api/default_profiler.h"
#include "src/backends/cuda/driver_adapter.h"
#include "src/backends/cuda/driver_shim.h"
#include "src/base/completes.h"
#include "src/base/message.h"
#include "src/inject/torch_blocks.h"

namespace hbmprof::internal {
namespace {

constexpr char kOutput[] = "HBMPROF_CUDA_OUTPUT";

timespec pause_between_dumps;  // set before the thread starts

void* DumpForEver(void*) {
  while (true) {
    for (timespec left = pause_between_dumps; nanosleep(&left, &left) != 0;) continue;
    const absl::Status status = WriteOutput();
    const absl::string_view message = status.message();
    if (!status.ok()) PrintMessage("hbmprof: no profile: ", {message.data(), message.size()});
  }
}

// A thread that takes none of the program's signals. It ends with the process; a dump that it is at leaves nothing.
void StartDumps() {
  const char* interval = secure_getenv("HBMPROF_CUDA_INTERVAL");
  const char* output = secure_getenv(kOutput);
  if (interval == nullptr || *interval == '\0') return;
  char* end = nullptr;
  const double seconds = std::strtod(interval, &end);
  if (*end != '\0' || !(seconds >= 0.001 && seconds <= 1e8)) {
    PrintMessage("HBMPROF_CUDA_INTERVAL=", interval,
                 ": must be a number of seconds from 0.001 to 1e8; no profiles in between");
    return;
  }
  if (output == nullptr || *output == '\0') {
    PrintMessage("HBMPROF_CUDA_INTERVAL needs HBMPROF_CUDA_OUTPUT, which says where the profiles go");
    return;
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  pause_between_dumps.tv_sec = static_cast<time_t>(seconds);
  pause_between_dumps.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  if (pthread_create(&thread, nullptr, &DumpForEver, nullptr) == 0) {
    pthread_detach(thread);
  } else {
    PrintMessage("hbmprof: no thread for HBMPROF_CUDA_INTERVAL; a profile is written at exit only");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void PrepareCudaTracking() {
  SetOutputVariable(kOutput);
  StartTorchBlocks();
}

void CudaTrackingStarts() {
  // The profiler may be older than the driver's exit handlers, if the program has used it before the driver.
  WriteOutputBeforeOlderExitHandlers();
  AddTorchWarningsToSnapshots();
  if (!Completes(&StartDumps)) {
    PrintMessage("hbmprof: the host has no memory for HBMPROF_CUDA_INTERVAL; a profile is written at exit only");
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
