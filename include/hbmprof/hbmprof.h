// hbmprof: the heap profiler for accelerator memory. Start here.
//
//   #include <hbmprof/hbmprof.h>
//
//   hbmprof::save_device_memory_profile("before.pb.gz");
//   Serve(100);
//   hbmprof::save_device_memory_profile("after.pb.gz");
//
//   $ pprof -http=: -diff_base before.pb.gz after.pb.gz
//
// Memory is seen when it is allocated through a wrapper (TrackingAllocator, hbmprof::cuda::Malloc, hbmprof::pjrt::Wrap)
// or told to Profiler::Default() by the allocator that hands it out.
#ifndef HBMPROF_HBMPROF_H_
#define HBMPROF_HBMPROF_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/allocation.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"

namespace hbmprof {

// Writes what Profiler::Default() tracks now to `path` as a gzip-compressed pprof profile with function names. "%p" in
// the path becomes the process id, "%n" a number that counts up within the process and to a name of which there is no
// file, "%%" a percent sign. Without "%n" a file of that name is replaced. The file appears whole or not at all; its
// permissions are 0600 (HBMPROF_OUTPUT_MODE, options.h) or those of the file that it replaces. Any thread; other
// threads go on allocating meanwhile. Errors: see WritePprof (pprof.h).
absl::Status save_device_memory_profile(std::string_view path);

// The same as bytes, for an HTTP route or any other transport.
absl::StatusOr<std::string> device_memory_profile();

// Sets a counter of the program's own in Profiler::Default(): SetCounter("requests", served). Every profile carries its
// value, so that `hbmprof leaks --per requests` tells growth per request. See Profiler::SetCounter.
void SetCounter(std::string_view name, int64_t value);

}  // namespace hbmprof

#endif  // HBMPROF_HBMPROF_H_
