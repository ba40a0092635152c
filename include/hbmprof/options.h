// How a Profiler behaves, and the environment variables that say so.
//
// Lives here: Options, OptionsFromEnvironment.
#ifndef HBMPROF_OPTIONS_H_
#define HBMPROF_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hbmprof {

// How call stacks are captured.
enum class Unwinder : uint8_t {
  kAuto,          // exact with and without frame pointers: the default
  kFramePointer,  // walks the frame-pointer chain; cheapest, blind in code built without frame pointers
  kLibunwind,     // libunwind on every capture, to compare with: not in static programs, and see docs/limits.md
  kNone,          // no stacks: totals, labels and peaks only
};

struct Options {
  // Off: every event is forwarded untouched and costs one relaxed load.
  bool enabled = true;
  // Innermost frames kept per stack, 1 to 512. Deeper stacks are cut at the outer end and counted.
  int max_stack_depth = 128;
  Unwinder unwinder = Unwinder::kAuto;
  // Where CPython runs in the process, stacks have the Python functions in place of the interpreter's evaluation
  // frames. Only with kAuto and kLibunwind.
  bool python = true;
  // Live buffers tracked at once. One more is not recorded; it is counted in dropped_records and dropped_bytes.
  int64_t max_live_buffers = int64_t{1} << 24;
  // Distinct (stack, attributes, tags, size) combinations, at most 2^22. An allocation at one more is dropped likewise.
  int64_t max_sites = int64_t{1} << 18;
  // Host memory that the tracker's tables may take, in bytes: pages that they have mapped, touched or not. Tables are
  // partly shared, so it counts for all profilers of the process together, and the smallest limit of those that exist
  // holds. Beyond it what is known goes on, and what would need more memory is dropped likewise; new tags are left out.
  // An empty profiler takes some 4 MiB. Snapshots, profiles being written and what backends keep are not part of it.
  int64_t max_host_bytes = int64_t{1} << 31;
  // Where a profile is written when the process exits; empty: nowhere. "%p" becomes the process id, "%n" the next
  // number from 0 of which there is no file, "%%" a percent sign. A file of another process is never replaced, except
  // that a name with neither "%p" nor "%n" replaces the file that was there when the process started; otherwise a
  // number is put before ".pb.gz", and a line on stderr says so. Used by Profiler::Default(), as are the next two.
  std::string output;
  // When the file of `output` is opened: when the process exits, or (early) already when recording starts. Early serves
  // a program that cannot open files at its end: it has changed its root or its user, or a seccomp filter forbids it.
  // The file is empty until the process exits and is then written in place; functions have no names in it, which
  // `hbmprof symbolize` adds.
  bool output_early = false;
  // Permission bits of the files that are made for profiles, at most 0777; no umask applies. A file that is replaced
  // keeps its own.
  unsigned output_mode = 0600;
  // Where a profile is written when the device has no memory left, at most once a minute; patterns as in
  // save_device_memory_profile; empty: nowhere. Used by the backends that see such failures (pjrt.h).
  std::string oom_output = "hbmprof.oom.%p.%n.pb.gz";
};

// What the environment asks for, on top of the defaults above. Each variable with a bad value adds one line to
// `problems` (variable, value, what is allowed, what is used instead) and keeps its default; never fails. In a
// set-user-id program, or one that has gained rights in another way when it was started (AT_SECURE), the environment is
// another user's: no variable is read, and oom_output is empty.
//   HBMPROF=0|1               off or on
//   HBMPROF_OUTPUT=PATH       Options::output
//   HBMPROF_OUTPUT_OPEN=exit|early
//   HBMPROF_OUTPUT_MODE=0644  Options::output_mode, an octal number
//   HBMPROF_OOM_OUTPUT=PATH   Options::oom_output; "off": nowhere
//   HBMPROF_STACK_DEPTH=N     Options::max_stack_depth
//   HBMPROF_UNWINDER=auto|fp|libunwind|none
//   HBMPROF_PYTHON=0|1        Options::python
//   HBMPROF_MAX_LIVE=N        Options::max_live_buffers
//   HBMPROF_MAX_HOST_BYTES=N  Options::max_host_bytes
Options OptionsFromEnvironment(std::vector<std::string>* problems);

}  // namespace hbmprof

#endif  // HBMPROF_OPTIONS_H_
