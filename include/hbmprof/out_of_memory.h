// Reports of failed allocations. A report says which call stacks held the memory of the device.
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
  std::optional<size_t> bytes;        // the requested bytes; nullopt if they are not known
  std::string_view device = "GPU:0";  // the name of the device; empty: the device with the most bytes in use
  MemorySpace space = MemorySpace::kDevice;
  // For a call that allocates from a pool with a limit; nullopt for all others, or if the pool's bytes are not known.
  std::optional<size_t> pool_limit = std::nullopt;   // the most bytes that the pool may have in use
  std::optional<size_t> pool_in_use = std::nullopt;  // the bytes that it has in use
  bool is_trimmed = false;  // the caller is a pool that had returned its segments without blocks before
};

// The value of the tag `failure` (tag.h) of a thread that reports a request of earlier work: reports and recordings
// then say "noticed at" instead of "requested by".
inline constexpr std::string_view kLateFailure = "asynchronous";

// Reports `failure`, an allocation on a device of `profiler`. The report is written to standard error. It has the
// requested bytes; the tags and the call stack of the calling thread; the device's total, free and largest free memory;
// the memory that this process holds, by kind, and how much of it is idle in pools or unaccounted; the memory that
// other processes hold, with their ids and names if the device reports them; the peak; a sentence that says why the
// allocation failed and what to do; and the ten call stacks that hold most of the memory space, with their growth since
// the last profile that save_device_memory_profile or a trigger (DefaultOptions::dump_output) wrote. If
// DefaultOptions::oom_output is set, a profile is also written to that path; DefaultOptions::dump_keep limits the
// number of these profiles. A thread of the library writes it. If that takes longer than a quarter of a second, the
// call returns, and a later line names the profile.
//
// If a recording is in progress or the flight recorder is on (recording.h), each failure is also an event of it, with
// the calling thread's tags and the stack that begins at the caller of this function, or at that of a ScopedCaller
// (caller.h).
//
// Reports at most once a minute for each device; further failures are counted, and the next report says how many there
// were. Returns true if this call wrote a report. Writes nothing and returns false if recording is off, if the same
// thread is inside another report, or if DefaultOptions::oom_report is off.
//
// Call it after the allocation has failed, in the thread that requested it. The caller must hold no lock that a device
// probe takes (Profiler::SetDeviceProbe), because the report calls the probe of the device. It allocates nothing on the
// device. It takes host memory. If there is not enough, the list of call stacks is left out. Any thread may call it,
// but not a signal handler. It throws nothing and does not change errno.
bool ReportOutOfMemory(const FailedAllocation& failure, Profiler& profiler = Profiler::Default()) noexcept;

}  // namespace hbmprof

#endif  // HBMPROF_OUT_OF_MEMORY_H_
