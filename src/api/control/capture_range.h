// Capture ranges: the parts of a run that the program itself delimits, by calls of the CUDA profiler API or by NVTX
// ranges. With HBMPROF_CAPTURE_RANGE, an injected library writes a profile and a recording for each range, and no
// profile at the end of the process.
//
// A process has at most one range at a time. The thread for files (file_work.h) writes the files. The functions below
// do not wait for it for long, and wait for no other thread, except at the end of the process: while a thread begins or
// ends a range, a range that another thread begins is not captured, and an end has no effect. A forked child has no
// range of its parent, and none of its own: it is off.
#ifndef HBMPROF_SRC_API_CONTROL_CAPTURE_RANGE_H_
#define HBMPROF_SRC_API_CONTROL_CAPTURE_RANGE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace hbmprof::internal {

// The ranges that are captured.
struct CaptureChoice {
  bool is_profiler_api = false;  // from cuProfilerStart to cuProfilerStop
  std::string nvtx_name;         // NVTX ranges with this name; "": none
  std::string problem;           // a line about a bad value, for the user; "": there is none

  bool is_on() const { return is_profiler_api || !nvtx_name.empty(); }
};
// Returns the choice of HBMPROF_CAPTURE_RANGE, which the first call reads; no ranges if the value is bad. Returns null
// if the host has no memory for it. Any thread may call it.
const CaptureChoice* ChosenRanges();

// Sets the pattern for the profiles of the ranges; "": no ranges are captured, as before this call. Called before
// Profiler::Default() is made; every call passes the same pattern. Throws std::bad_alloc.
void SetCaptureOutput(const std::string& pattern);

// Begins a range, whose begin is a mark with the name `name` in its recording. Begins a new peak of every device.
// Returns a number for EndCaptureRange that is not 0; returns 0 if no range was begun, because one is open already or
// because Profiler::Default() captures no ranges. Prints what fails. Does not change errno. Does not throw.
uint64_t BeginCaptureRange(std::string_view name);

// Ends the range with the number `number`, or the open range if that is 0, and writes its files. Does nothing if there
// is no such range in this process. Prints what fails. Does not change errno. Does not throw.
void EndCaptureRange(uint64_t number);

// Ends the open range when the process ends or calls exec. If another thread begins or ends a range, waits for that for
// two seconds at most.
void EndCaptureRangeAtExit();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_CONTROL_CAPTURE_RANGE_H_
