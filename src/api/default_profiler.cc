// Profiler::Default(): the process's own profiler, set up from the environment; and the profile it writes at exit.
#include "src/api/default_profiler.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/options.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "src/api/control_server.h"
#include "src/api/exit_writer.h"
#include "src/api/out_of_memory.h"
#include "src/api/output_file.h"
#include "src/base/fork.h"
#include "src/base/message.h"
#include "src/base/thread_state.h"
#include "src/capture/libunwind_backend.h"
#include "src/core/joined.h"

namespace hbmprof {
namespace {

using internal::OutputFile;
using internal::PrintMessage;

std::atomic<Profiler*> default_profiler{nullptr};
std::atomic<OutputFile*> output_file{nullptr};  // never destroyed, so that a dump from a late exit handler finds it
std::atomic<mode_t> output_mode{0600};
std::atomic<bool> writes_on_signals{false};
std::atomic<const std::string*> socket_dir{nullptr};  // null: no control channel
const char* output_variable = nullptr;                // null: HBMPROF_OUTPUT

struct OfProcess {
  pid_t process;
  Snapshot snapshot;
};
std::atomic<const OfProcess*> exit_snapshot{nullptr};
std::atomic<pid_t> has_written{0};  // at exit

// Null if profiles go nowhere.
OutputFile* Output() {
  OutputFile* file = output_file.load(std::memory_order_acquire);
  if (file == nullptr || file->process() == getpid()) return file;
  // In a forked child the parent's may be locked by a thread that is not there.
  std::unique_ptr<OutputFile> own(file->NewForChild());
  return output_file.compare_exchange_strong(file, own.get(), std::memory_order_acq_rel) ? own.release() : file;
}

std::string_view Text(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

void WriteAtExit() try {
  OutputFile* const file = Output();
  if (has_written.exchange(getpid(), std::memory_order_relaxed) == getpid()) return;
  // The file is opened early where no other can be opened late; so the names are left to who reads the profile.
  const absl::StatusOr<std::string> bytes =
      SerializePprof(internal::ExitSnapshot(), file->is_early() ? nullptr : &ElfSymbolizer());
  const absl::Status status = bytes.ok() ? file->WriteLast(*bytes) : bytes.status();
  if (!status.ok()) PrintMessage("hbmprof: no profile at exit: ", Text(status), file->Advice(status));
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no profile at exit: the host has no memory to build it");
}

void StartOutput(const Options& options) try {
  auto file = std::make_unique<OutputFile>(options.output, options.output_mode);
  if (options.output_early) {
    const absl::Status status = file->OpenEarly();
    if (!status.ok()) PrintMessage("hbmprof: ", Text(status), "; it is tried again at exit");
  }
  output_file.store(file.release(), std::memory_order_release);
  std::atexit(&WriteAtExit);
  writes_on_signals.store(options.output_on_signals, std::memory_order_relaxed);
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no profile will be written at exit: the host has no memory");
}

// Where a report of a failed allocation writes its profile by default: in the folder of the other profiles.
std::string BesideOutput(const std::string& output) {
  const size_t slash = output.rfind('/');
  return (slash == std::string::npos ? "" : output.substr(0, slash + 1)) + "hbmprof.oom.%p.%n.pb.gz";
}

// Sets errno.
void StartThreadsNow() try {
  if (writes_on_signals.load(std::memory_order_relaxed) && !internal::StartExitWriter(&WriteAtExit)) {
    PrintMessage("hbmprof: no thread could be started that writes a profile when a signal ends the process");
  }
  const std::string* const directory = socket_dir.load(std::memory_order_acquire);
  if (directory == nullptr) return;
  const absl::Status status = internal::StartControlServer(*directory);
  if (!status.ok()) PrintMessage("hbmprof: ", Text(status));
} catch (const std::bad_alloc&) {
  PrintMessage("hbmprof: no control channel: the host has no memory");
}

// Without a lock, which another thread could hold when the process forks: of threads that make one at once, the first
// to be done has made it.
Profiler& MakeDefault(Profiler& off) {
  // An operator new that records comes back here from everything below. So does a signal handler.
  const internal::ForkPause pause;
  const internal::ReentryGuard guard;
  if (!guard.entered()) return off;
  std::vector<std::string> problems;
  Options options = OptionsFromEnvironment(&problems);
  if (output_variable != nullptr) {
    const char* output = secure_getenv(output_variable);
    options.output = output == nullptr ? "" : output;
    const char* on_signals = secure_getenv("HBMPROF_OUTPUT_ON_SIGNALS");
    options.output_on_signals = on_signals == nullptr || std::string_view(on_signals) != "0";
    const char* oom_output = secure_getenv("HBMPROF_OOM_OUTPUT");
    if (oom_output == nullptr || *oom_output == '\0') options.oom_output = BesideOutput(options.output);
  }
  std::unique_ptr<Profiler> made;
  if (const internal::InjectedProfiler* const injected = internal::JoinedProfiler()) {
    if (injected->start() == 0) throw std::bad_alloc();
    made.reset(internal::ProfilerAccess::NewJoined(*injected, options.enabled));
  } else {
    made = std::make_unique<Profiler>(options);
  }
  if (options.unwinder == Unwinder::kLibunwind && !internal::LoadLibunwind()) {
    problems.push_back(std::string("hbmprof: HBMPROF_UNWINDER=libunwind: ") + internal::LibunwindProblem() +
                       "; using auto");
  }
  Profiler* other = nullptr;
  if (!default_profiler.compare_exchange_strong(other, made.get(), std::memory_order_acq_rel)) return *other;
  Profiler& profiler = *made.release();
  if (internal::ProfilerAccess::JoinedBy(profiler) == nullptr) {  // else the injected library has said it
    for (const std::string& problem : problems) PrintMessage(problem);
  }
  internal::PrepareOutOfMemoryReports(options);
  if (!options.socket_dir.empty() && options.enabled) socket_dir.store(new std::string(options.socket_dir));
  output_mode.store(options.output_mode, std::memory_order_relaxed);
  if (!options.output.empty() && options.enabled) StartOutput(options);
  const bool is_injected = output_variable != nullptr;
  if (!is_injected && internal::ProfilerAccess::JoinedBy(profiler) == nullptr) internal::StartThreads();
  return profiler;
}

// Before main, so that no thread can wait for the dynamic linker's lock in the middle of an event.
[[gnu::constructor]] void LoadLibunwindEarly() {
  std::vector<std::string> problems;
  if (OptionsFromEnvironment(&problems).unwinder == Unwinder::kLibunwind) internal::LoadLibunwind();
}

}  // namespace

void internal::SetOutputVariable(const char* name) { output_variable = name; }

void internal::StartThreads() {
  const int error = errno;
  StartThreadsNow();
  errno = error;
}

absl::Status internal::WriteOutput() try {
  Profiler& profiler = Profiler::Default();
  OutputFile* const file = Output();
  if (file == nullptr) return absl::OkStatus();
  const absl::StatusOr<std::string> bytes = SerializePprof(profiler.TakeSnapshot(), &ElfSymbolizer());
  return bytes.ok() ? file->Write(*bytes) : bytes.status();
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("the host has no memory to build it");
}

const Snapshot& internal::ExitSnapshot() {
  const OfProcess* found = exit_snapshot.load(std::memory_order_acquire);
  if (found != nullptr && found->process == getpid()) return found->snapshot;
  const Profiler& profiler = Profiler::Default();
  const InjectedProfiler* const joined = ProfilerAccess::JoinedBy(profiler);
  auto taken = std::make_unique<OfProcess>();
  taken->process = getpid();
  taken->snapshot = joined != nullptr ? Joined(*joined).TakeExitSnapshot() : profiler.TakeSnapshot();
  // Of threads that exit at the same time, the first has taken it.
  const bool is_first = exit_snapshot.compare_exchange_strong(found, taken.get(), std::memory_order_acq_rel);
  return is_first ? taken.release()->snapshot : found->snapshot;
}

void internal::WriteOutputBeforeOlderExitHandlers() {
  if (output_file.load(std::memory_order_acquire) != nullptr) std::atexit(&WriteAtExit);
}

mode_t internal::OutputMode() {
  Profiler::Default();
  return output_mode.load(std::memory_order_relaxed);
}

Profiler& Profiler::Default() {
  Profiler* profiler = default_profiler.load(std::memory_order_acquire);
  return profiler != nullptr ? *profiler : MakeDefault(Off());
}

}  // namespace hbmprof
