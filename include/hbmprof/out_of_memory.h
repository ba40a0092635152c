// Reports of failed allocations: what held the memory of a device when an allocation failed.
//
// The wrappers of this library (TrackingAllocator, hbmprof::cuda, hbmprof::pjrt, `hbmprof run`) call ReportOutOfMemory
// themselves. Call it from an allocator of your own that records with Profiler::RecordAlloc.
#ifndef HBMPROF_OUT_OF_MEMORY_H_
#define HBMPROF_OUT_OF_MEMORY_H_

#include <cstddef>
#include <optional>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"

namespace hbmprof {

// An allocation that failed because there was no memory.
struct FailedAllocation {
  std::string_view call;              // the function that failed, by the name that its user knows: "cudaMalloc"
  std::optional<size_t> bytes;        // what was asked for; nullopt if it is not known
  std::string_view device = "GPU:0";  // its name; empty: the one with most bytes in use
  MemorySpace space = MemorySpace::kDevice;
};

// Reports `failure`, an allocation on a device of `profiler`. The report goes to standard error: what was asked for, by
// which thread's tags; the device's total, free and largest free memory; what this process holds, by kind; what other
// processes hold; the peak; a verdict that says why the allocation failed and what to do; and the ten call stacks that
// hold most of the memory space, with their growth since the last profile that save_device_memory_profile wrote. If
// Options::oom_output is set, a profile is written there too, for the first ten reports of the process, and only while
// the file system has 64 MiB free.
//
// Reports at most once a minute for each device; further failures are counted, and the next report says how many there
// were. Returns whether this call reported. Does nothing while the profiler is off, inside another report of the same
// thread, and if Options::oom_report is off.
//
// Call it after the allocation has failed, in the thread that asked for it, and with no lock held that a device probe
// takes (Profiler::SetDeviceProbe): the device is asked for its free memory. It allocates nothing on the device. It
// takes host memory, of which 2 MiB are kept for this purpose from the first use of Profiler::Default() on; if that is
// not enough, the list of call stacks is left out. Not for signal handlers. Throws nothing and keeps errno. Any
// thread.
bool ReportOutOfMemory(const FailedAllocation& failure, Profiler& profiler = Profiler::Default()) noexcept;

}  // namespace hbmprof

#endif  // HBMPROF_OUT_OF_MEMORY_H_
