// hbmprof: a heap profiler for accelerator memory (GPU, TPU). Start here. To link it: find_package(hbmprof) and the
// CMake target hbmprof::hbmprof, or pkg-config's package hbmprof; for C programs, pkg-config's package hbmprof-c. Pages
// such as docs/pools.md, which the headers name, and examples/ are in the source repository.
//
// It records every live device buffer with the call stack that allocated it, and writes profiles that pprof reads.
// Compare two profiles to see which call stack's memory grew:
//
//   #include <hbmprof/hbmprof.h>
//
//   absl::Status Measure() {
//     if (absl::Status s = hbmprof::save_device_memory_profile("before.pb.gz"); !s.ok()) return s;
//     Serve(100);
//     return hbmprof::save_device_memory_profile("after.pb.gz");
//   }
//
//   $ pprof -http=: -diff_base before.pb.gz after.pb.gz
//
// The library records the memory that goes through one of these:
//
//   your program has                       use                                            header
//   an allocator class                     TrackingAllocator, around your allocator       device_allocator.h
//   cudaMalloc, cudaMallocAsync, ...       hbmprof::cuda::Malloc, ... (same signatures)   cuda.h
//   a PJRT plugin (TPU, other devices)     hbmprof::pjrt::Wrap(GetPjrtApi())              pjrt.h
//   a pool that hands out blocks           Profiler::RecordSegment, RecordBlock           profiler.h
//   anything else                          Profiler::RecordAlloc, RecordFree              profiler.h
//   C, Rust, Go, Python                    hbmprof_record_alloc, ...                      c_api.h
//   no device                              SimulatedDevice: host memory as a device       simulated_device.h
//
// More headers:
//
//   allocation.h       names of devices, kinds of memory, the id of a buffer
//   tag.h              ScopedTag: labels what a thread allocates
//   options.h          settings, as a struct and as environment variables
//   snapshot.h         the recorded data as a value
//   pprof.h            a Snapshot as a pprof file
//   http.h             the profile and metrics for routes of the program's HTTP server
//   recording.h        StartRecording: a file with every event and its time; LogMemory
//   leak_check.h       LeakCheck: fails a GoogleTest test that leaks device memory
//   out_of_memory.h    ReportOutOfMemory: reports a failed allocation of your own allocator
//   caller.h           for wrappers of allocators
//   adapters/*.h       records allocators of other libraries: CUB, CCCL and RMM, ONNX Runtime, TensorRT, libtorch
//   version.h          the version
#ifndef HBMPROF_HBMPROF_H_
#define HBMPROF_HBMPROF_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/allocation.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"

namespace hbmprof {

// Writes a profile of what Profiler::Default() has recorded to the file `path`: pprof, gzip-compressed, with function
// names. In `path`, "%p" is replaced by the process id, "%n" by a number for which no file exists, "%%" by a percent
// sign; other percent signs are kept. Without "%n" an existing file is replaced. The number is not returned: a program
// that needs the name of the file uses a name without "%n". The file appears complete or not at all. A new file has the
// permissions of DefaultOptions::output_mode (0600 by default); a replaced file keeps its permissions. Any thread may
// call it; others allocate meanwhile. Errors: those of WritePprof (pprof.h); kFailedPrecondition in a child that is
// off.
absl::Status save_device_memory_profile(std::string_view path);

// Returns the same profile as bytes, with the limits of `options`. Any thread may call it. Errors: kResourceExhausted
// if the host has no memory for it; kInvalidArgument if the limits are too small (PprofOptions); kFailedPrecondition in
// a forked child whose parent had recorded.
absl::StatusOr<std::string> device_memory_profile(const PprofOptions& options = {});

// Sets the counter `name` of Profiler::Default() to `value`, for example SetCounter("requests", served). Each profile
// contains the counters, so that `hbmprof leaks --per requests` reports growth per request. See Profiler::SetCounter
// for the limits. Any thread may call it. Does nothing if the host has no memory for a new name.
void SetCounter(std::string_view name, int64_t value);

}  // namespace hbmprof

#endif  // HBMPROF_HBMPROF_H_
