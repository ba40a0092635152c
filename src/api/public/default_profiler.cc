// Profiler::Default() and InitDefault(): the profiler of the process, and the profile that it writes at exit.
#include "src/api/public/default_profiler.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hbmprof/options.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "src/api/control/capture_range.h"
#include "src/api/control/control_server.h"
#include "src/api/control/dump_triggers.h"
#include "src/api/output/end_calls.h"
#include "src/api/output/enough_stack.h"
#include "src/api/output/exit_writer.h"
#include "src/api/output/file_work.h"
#include "src/api/output/output_file.h"
#include "src/api/profiles/out_of_memory.h"
#include "src/api/profiles/profile_writer.h"
#include "src/api/recording/recording.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/message.h"
#include "src/base/no_cancellation.h"
#include "src/base/option_text.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"
#include "src/core/device_driver.h"
#include "src/core/injected/injected.h"
#include "src/core/run_environment.h"
#include "src/core/snapshot_builder.h"
#include "src/recording/recorder/recorder.h"
#include "src/recording/recording.h"

namespace hbmprof {
namespace {

using internal::OutputFile;
using internal::PrintMessage;
using internal::TextOf;

// The process's own profiler and the options that it was made with. Never destroyed.
struct DefaultProfiler {
  explicit DefaultProfiler(const DefaultOptions& with) : profiler(static_cast<const Options&>(with)), options(with) {}
  DefaultProfiler(const internal::InjectedProfiler& injected, const DefaultOptions& with)
      : profiler(internal::ProfilerAccess::RecordsInto(injected, with.enabled)), options(with) {}

  Profiler profiler;
  const DefaultOptions options;
};
std::atomic<DefaultProfiler*> default_profiler{nullptr};
std::atomic<OutputFile*> output_file{nullptr};      // never destroyed, because late exit handlers use it
std::atomic<const char*> output_variable{nullptr};  // null: HBMPROF_OUTPUT. libhbmprof_gpu.so sets another

struct OfProcess {
  pid_t process;
  Snapshot snapshot;
};
std::atomic<const OfProcess*> exit_snapshot{nullptr};
std::atomic<const OfProcess*> kept_state{nullptr};  // of KeepStateForExit
std::atomic<bool> exit_uses_kept_state{false};      // ExitSnapshot can read it, so it is not deleted any more

// Returns the number of all allocations until the snapshot.
int64_t Allocations(const Snapshot& snapshot) {
  int64_t count = 0;
  for (const Snapshot::Device& device : snapshot.devices) {
    for (const DeviceStats& stats : device.spaces) count += stats.num_allocs;
  }
  return count;
}

// Returns null if no profile is written.
OutputFile* Output() {
  OutputFile* file = output_file.load(std::memory_order_acquire);
  if (file == nullptr || file->process() == getpid()) return file;
  // This is a forked child: its file has another name, and a thread of its parent may hold the lock of the object.
  std::unique_ptr<OutputFile> own(file->NewForChild());
  return output_file.compare_exchange_strong(file, own.get(), std::memory_order_acq_rel) ? own.release() : file;
}

// Writes the profile `bytes` to DefaultOptions::output. Does nothing if that is empty, or if recording was off from the
// start.
absl::Status WriteOutput(const absl::StatusOr<std::string>& bytes, bool is_last, bool is_at_interval) {
  internal::ProfilePlace place;
  place.file = Output();
  place.pattern = Profiler::OptionsOfDefault().output;
  place.leaves_space = is_at_interval && internal::OutputPattern(place.pattern).has_number();
  place.is_last = is_last;
  place.has_flight = !is_at_interval;
  if (place.file == nullptr) return absl::OkStatus();
  return internal::WriteProfile(bytes, place).status();
}

void WriteLastProfile(const internal::ProcessEnd& end) try {
  const OutputFile* const inherited = output_file.load(std::memory_order_acquire);
  if (inherited == nullptr) return;
  const bool is_child = inherited->process() != getpid();
  // A process that has recorded nothing, such as most forked children, writes no profile.
  if ((is_child || !end.is_exit) && !internal::HasRecorded(Profiler::Default())) return;
  const internal::InjectedProfiler* const injected = internal::InjectedOfDefault();
  const absl::Status status = WriteOutput(
      injected != nullptr ? injected->ExitProfile() : SerializePprof(internal::ExitSnapshot(), &ElfSymbolizer()),
      /*is_last=*/true, /*is_at_interval=*/false);
  if (!status.ok()) PrintMessage("hbmprof: no profile at exit: ", TextOf(status));
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no profile at exit: the host has no memory to build it");
}

// Writes a profile that a later one replaces. Does nothing if nothing was recorded, except at an interval.
void WriteOutputNow(bool is_at_interval) try {
  Profiler& profiler = Profiler::Default();
  if (internal::IsOff() || (!is_at_interval && !internal::HasRecorded(profiler))) return;
  const internal::ScopedMark mark(Profiler::OptionsOfDefault().output);
  const absl::Status status = WriteOutput(device_memory_profile(), /*is_last=*/false, is_at_interval);
  if (!status.ok()) PrintMessage("hbmprof: no profile: ", TextOf(status));
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no profile: the host has no memory to build it");
}

// Returns the default path of the profiles of failed allocations and of triggers: the file `name` in the directory of
// `output`.
std::string BesideOutput(const std::string& output, const char* name) {
  const size_t slash = output.rfind('/');
  return (slash == std::string::npos ? "" : output.substr(0, slash + 1)) + name;
}

// --- The end of the process ---

void EndOtherFiles() {
  internal::EndCaptureRangeAtExit();
  internal::FinishFileWork();
  internal::StopRecordingAtExit();
}

// The profile comes first, because the process waits for five seconds if nothing goes on, and StopRecordingAtExit can
// take ten on a disk that hangs. A recording that is not stopped has all events but those of the last 0.1 seconds.
void EndProcess(const internal::ProcessEnd& end) {
  internal::RemoveControlSocket();
  const internal::ProbeLimit limit(end.context);
  WriteLastProfile(end);
  internal::ProfileIsWritten();
  EndOtherFiles();
}

// Called when a signal comes that the kernel ignores by default, so that the process continues.
void WriteAndContinue() {
  const internal::ProbeLimit limit;
  internal::EndCaptureRange(0);
  WriteOutputNow(/*is_at_interval=*/false);
}

// Called before exec replaces the program.
void BeforeExec() {
  const internal::ProbeLimit limit;
  WriteOutputNow(/*is_at_interval=*/false);
  EndOtherFiles();
}

// The injected library exports the replacements.
void ExitWriterStarts() {
  if (output_variable == nullptr) internal::ReplaceEndCalls();
}

constexpr internal::EndFunctions kEndFunctions = {&EndProcess, &BeforeExec, &WriteAndContinue, &ExitWriterStarts};

// --- The start ---

// Starts the recording and the control channel.
void StartFiles(const DefaultOptions& options) try {
  const absl::Status status =
      options.socket_dir.empty() ? absl::OkStatus() : internal::StartControlServer(options.socket_dir);
  if (!status.ok()) PrintMessage("hbmprof: ", TextOf(status));
  internal::StartRecordingOfOptions(options);
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no recording or no control channel: the host has no memory");
}

// May change errno.
void StartThreadsNow(const DefaultOptions& options) try {
  if (!options.output.empty()) internal::WriteAtEveryEnd();
  internal::StartDumpTriggers(options, [] { WriteOutputNow(/*is_at_interval=*/true); });
  const bool has_flight = options.flight_events > 0 || options.flight_seconds > 0;
  if (options.record.empty() && !has_flight && options.socket_dir.empty()) return;
  const absl::Status status = internal::DoFileWork([options] { StartFiles(options); }, internal::kMostWaitForStart);
  if (absl::IsResourceExhausted(status)) {
    PrintMessage("hbmprof: no recording and no control channel: ", TextOf(status));
  }
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no control channel and no triggers: the host has no memory");
}

// Makes the process's own profiler. Returns false if another thread has made it meanwhile. The calling thread must be
// inside the tracker (ReentryGuard). Takes no lock. `capture_output`: the pattern for the files of capture ranges; "":
// no ranges are captured. Throws std::bad_alloc.
bool Make(DefaultOptions options, const std::string& capture_output = "") {
  internal::RunEnvironment();  // opens files, which a sandbox can forbid later
  internal::SetEndFunctions(kEndFunctions);
  if (options.dump_output.empty()) options.dump_output = BesideOutput(options.output, "hbmprof.dump.%p.%n.pb.gz");
  std::unique_ptr<OutputFile> file;
  if (options.enabled && !options.output.empty()) {
    file = std::make_unique<OutputFile>(options.output, static_cast<mode_t>(options.output_mode));
  }
  std::unique_ptr<DefaultProfiler> made;
  if (const internal::InjectedProfiler* const injected = internal::InjectedOfProcess()) {
    injected->join();  // makes the injected library's profiler
    made = std::make_unique<DefaultProfiler>(*injected, options);
  } else {
    made = std::make_unique<DefaultProfiler>(options);
  }
  if (options.enabled) internal::SetCaptureOutput(capture_output);
  DefaultProfiler* none = nullptr;
  if (!default_profiler.compare_exchange_strong(none, made.get(), std::memory_order_acq_rel)) return false;
  static_cast<void>(made.release());
  if (file != nullptr) {
    output_file.store(file.release(), std::memory_order_release);
    internal::WriteAtExit();
  }
  // The exit handler of the injected library then runs before that of this copy.
  if (const internal::InjectedProfiler* const injected = internal::InjectedOfProcess()) injected->join();
  const bool is_injected = output_variable != nullptr;
  if (!is_injected && internal::InjectedOfProcess() == nullptr) internal::StartThreads();
  return true;
}

// Returns null if the thread is inside the tracker. That happens while this function runs: an operator new that
// records, or a signal handler, can call it again on the same thread. Does not change errno.
[[gnu::noinline, gnu::cold]] DefaultProfiler* MakeFromEnvironment() {
  const internal::KeptErrno kept_errno;
  const internal::NoCancellation no_cancellation;
  const internal::ReentryGuard guard;
  if (!guard.entered()) return nullptr;
  std::vector<std::string> problems;
  DefaultOptions options = OptionsFromEnvironment(&problems);
  std::string capture_output;
  if (output_variable != nullptr) {
    const char* output = internal::OptionText(output_variable.load());
    options.output = output == nullptr ? "" : output;
    const char* on_signals = internal::OptionText("HBMPROF_OUTPUT_ON_SIGNALS");
    options.output_on_signals = options.output_on_signals || on_signals == nullptr || *on_signals == '\0';
    const char* oom_output = internal::OptionText("HBMPROF_OOM_OUTPUT");
    const internal::CaptureChoice* const ranges = internal::ChosenRanges();
    const bool captures_ranges = ranges != nullptr && ranges->is_on();
    if (ranges != nullptr && !ranges->problem.empty()) problems.push_back(ranges->problem);
    if (!captures_ranges && (oom_output == nullptr || *oom_output == '\0')) {
      options.oom_output = BesideOutput(options.output, "hbmprof.oom.%p.%n.pb.gz");
    }
    if (captures_ranges) {
      if (options.output.empty()) {
        problems.push_back(
            "hbmprof: HBMPROF_CAPTURE_RANGE has no effect without HBMPROF_GPU_OUTPUT, the path of the files");
      }
      if (options.output_interval != 0 || !options.record.empty()) {
        problems.push_back(
            "hbmprof: HBMPROF_OUTPUT_INTERVAL and HBMPROF_RECORD have no effect with HBMPROF_CAPTURE_RANGE");
      }
      options.dump_output = BesideOutput(options.output, "hbmprof.dump.%p.%n.pb.gz");
      capture_output = std::exchange(options.output, "");
      options.output_interval = 0;
      options.record.clear();
    }
  }
  if (!Make(options, capture_output)) return default_profiler.load(std::memory_order_acquire);
  internal::PrintOptionProblems(problems);
  return default_profiler.load(std::memory_order_acquire);
}

// Returns null in the same case as MakeFromEnvironment, and in a process that is off. Does not change errno.
[[gnu::always_inline]] inline DefaultProfiler* FindOrMake() {
  if (internal::IsOff()) return nullptr;
  DefaultProfiler* const found = default_profiler.load(std::memory_order_acquire);
  return __builtin_expect(static_cast<int64_t>(found != nullptr), 1) != 0 ? found : MakeFromEnvironment();
}

absl::Status MadeAlready() {
  return absl::FailedPreconditionError(
      "Profiler::InitDefault: the process's profiler exists already. Call InitDefault before anything else of hbmprof, "
      "at the start of main(): the first use of Profiler::Default(), of hbmprof.h, of c_api.h or of a wrapper makes "
      "the profiler, also in the constructor of a static variable");
}

}  // namespace

void internal::SetOutputVariable(const char* name) { output_variable = name; }

void internal::PrintOptionProblems(const std::vector<std::string>& problems) {
  static std::atomic<bool> has_printed{false};
  if (problems.empty() || InjectedOfProcess() != nullptr || has_printed.exchange(true)) return;
  for (const std::string& problem : problems) PrintMessage(problem);
}

void internal::StartThreads() {
  const DefaultProfiler* const made = default_profiler.load(std::memory_order_acquire);
  static std::atomic<bool> is_started{false};
  if (made == nullptr || !made->options.enabled || IsOff() || is_started.exchange(true)) return;
  const NoCancellation no_cancellation;
  const internal::KeptErrno kept_errno;
  StartThreadsNow(made->options);
}

void internal::KeepStateForExit(bool python_ends) {
  static std::atomic<bool> is_busy{false};
  if (IsOff() || is_busy.exchange(true)) return;
  const NoCancellation no_cancellation;
  const KeptErrno kept_errno;
  const DeviceDriver* const driver = device_driver.load();
  void* const context = driver == nullptr ? nullptr : driver->context();
  const auto keep = [=] {
    const ProbeLimit limit(context);
    const OfProcess* const kept = kept_state.load();
    if (kept != nullptr && kept->process == getpid() &&
        Allocations(kept->snapshot) == Allocations(SnapshotOf(Profiler::Default(), SnapshotParts::kDevices))) {
      return;
    }
    const ScopedMark mark(python_ends ? kPythonEndMark : "device closed");
    const OfProcess* const older = kept_state.exchange(new OfProcess{getpid(), Profiler::Default().TakeSnapshot()});
    if (!exit_uses_kept_state.load()) delete older;
  };
  // Without host memory or stack, the profile shows what is in use later.
  static_cast<void>(WithEnoughStack([&] { static_cast<void>(TryRun(keep)); }));
  is_busy.store(false);
}

const Snapshot& internal::ExitSnapshot() {
  const OfProcess* found = exit_snapshot.load(std::memory_order_acquire);
  if (found != nullptr && found->process == getpid()) return found->snapshot;
  auto taken = std::make_unique<OfProcess>();
  const ScopedMark mark("exit");
  const ProbeLimit limit;
  taken->process = getpid();
  taken->snapshot = Profiler::Default().TakeSnapshot();
  exit_uses_kept_state.store(true);
  const OfProcess* const kept = kept_state.load();
  const bool is_end =
      kept != nullptr && kept->process == taken->process && Allocations(kept->snapshot) == Allocations(taken->snapshot);
  if (is_end) taken->snapshot = kept->snapshot;
  // Several threads may exit at the same time: the first snapshot is used.
  const bool is_first = exit_snapshot.compare_exchange_strong(found, taken.get(), std::memory_order_acq_rel);
  return is_first ? taken.release()->snapshot : found->snapshot;
}

Profiler& Profiler::Default() {
  DefaultProfiler* const made = FindOrMake();
  return made != nullptr ? made->profiler : Off();
}

absl::Status Profiler::InitDefault(const DefaultOptions& options) try {
  const internal::NoCancellation no_cancellation;
  if (internal::IsOff()) return absl::FailedPreconditionError(internal::kOffText);
  if (const absl::Status valid = internal::ValidateOptions(options); !valid.ok()) return valid;
  const internal::ReentryGuard guard;
  if (!guard.entered()) {
    return absl::FailedPreconditionError("Profiler::InitDefault: called from inside one of the profiler's functions");
  }
  if (default_profiler.load(std::memory_order_acquire) != nullptr) return MadeAlready();
  return Make(options) ? absl::OkStatus() : MadeAlready();
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("Profiler::InitDefault: the host has no memory for the profiler");
}

DefaultOptions Profiler::OptionsOfDefault() {
  const DefaultProfiler* const made = FindOrMake();
  return made != nullptr ? made->options : DefaultOptions();
}

}  // namespace hbmprof
