#include "hbmprof/recording.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "hbmprof/profiler.h"
#include "src/api/output/exit_writer.h"
#include "src/api/output/file_work.h"
#include "src/api/output/output_file.h"
#include "src/api/recording/recording.h"
#include "src/base/bytes_text.h"
#include "src/base/descriptor.h"
#include "src/base/lazy.h"
#include "src/base/message.h"
#include "src/base/mutex.h"
#include "src/base/regular_file.h"
#include "src/base/try_run.h"
#include "src/base/write_all.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/snapshot_builder.h"
#include "src/export/device_stats.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof {
namespace internal {
namespace {

// The capacity of the flight recorder if only flight_seconds is set.
constexpr int64_t kDefaultFlightEvents = int64_t{1} << 22;

// Calls use(name, must_be_new) with the name of the file for the pattern `path`, and returns its result. If the pattern
// has "%n" or `must_be_new` is true, the file is a new one, with the next name for which there is none. A message says
// so if the name has no "%n".
template <typename Use>
absl::Status WithFile(std::string_view path, bool must_be_new, const Use& use) {
  const OutputPattern pattern(path);
  must_be_new = must_be_new || pattern.has_number();
  return WithFreeName(pattern, must_be_new, [&](const std::string& name, int attempt) {
    absl::Status status = must_be_new ? CheckIsNew(name) : absl::OkStatus();
    if (status.ok()) status = use(name, must_be_new);
    if (status.ok() && attempt > 0 && !pattern.has_number()) {
      PrintMessage("hbmprof: ", pattern.Path(0), " exists: this run is recorded to ", name);
    }
    return status;
  });
}

// Returns the implementation of the profiler of this process, or an error with the name of the caller. REQUIRES: it
// does not use the injected library.
absl::StatusOr<ProfilerImpl*> OwnProfiler(const char* caller) {
  Profiler& profiler = Profiler::Default();
  if (!profiler.enabled()) return absl::FailedPreconditionError(std::string(caller) + ": the profiler is off");
  return &ProfilerAccess::ImplOf(profiler);
}

// The paths of this process's recordings.
struct RecordingPaths {
  Mutex mutex;
  std::set<std::string> paths ABSL_GUARDED_BY(mutex);
};
Lazy<RecordingPaths> recording_paths;

std::string AbsolutePath(const std::string& path) {
  char directory[PATH_MAX];
  if (path.rfind('/', 0) == 0 || getcwd(directory, sizeof(directory)) == nullptr) return path;
  return absl::StrCat(directory, "/", path);
}

bool IsRecordingOfThisProcess(const std::string& path) {
  RecordingPaths& recordings = recording_paths.Get();
  const std::string absolute = AbsolutePath(path);
  MutexLock hold(recordings.mutex);
  return recordings.paths.count(absolute) != 0;
}

// As WriteFlight. Does not replace a recording of this process: kAlreadyExists.
absl::Status WriteFlightTo(const std::string& path, bool must_be_new) {
  if (!IsRecordingOfThisProcess(path)) return WriteFlight(path, must_be_new);
  return absl::AlreadyExistsError(absl::StrCat(path, " is a recording of this process and is not replaced"));
}

absl::Status Start(std::string_view path, bool must_be_new, const RecordingOptions& options) {
  const absl::StatusOr<ProfilerImpl*> profiler = OwnProfiler("StartRecording");
  if (!profiler.ok()) return profiler.status();
  WriteAtEveryEnd();
  RecordingPaths& recordings = recording_paths.Get();
  return WithFile(path, must_be_new, [&](const std::string& name, bool is_new) {
    std::set<std::string> own = {AbsolutePath(name)};
    const absl::Status started = StartRecorder(**profiler, name, options, is_new);
    MutexLock hold(recordings.mutex);
    if (started.ok()) recordings.paths.merge(own);  // takes no memory: an exception would hide that the recorder runs
    return started;
  });
}

// --- LogMemory ---

std::atomic<bool> is_log_off{false};  // known after the first call

// The bytes of device memory in use in the last line of each device.
struct LastLines {
  Mutex mutex;
  std::map<std::string, int64_t> in_use ABSL_GUARDED_BY(mutex);
};
Lazy<LastLines> last_lines;

std::string LineOf(const Snapshot::Device& device, std::string_view label) {
  const DeviceStats& stats = device.spaces[static_cast<int>(MemorySpace::kDevice)];
  int64_t before = 0;
  bool has_before = false;
  {
    LastLines& last = last_lines.Get();
    MutexLock hold(last.mutex);
    const auto [found, is_new] = last.in_use.try_emplace(device.name, stats.bytes_in_use);
    has_before = !is_new;
    before = std::exchange(found->second, stats.bytes_in_use);
  }
  std::string line = "hbmprof: ";
  line.append(label).append(": ").append(device.name).append(" in use ").append(BytesText(stats.bytes_in_use));
  const int64_t change = stats.bytes_in_use - before;
  if (has_before) line.append(" (").append(change >= 0 ? "+" : "").append(BytesText(change)).append(")");
  line.append(", peak ").append(BytesText(stats.peak_bytes_in_use));
  if (stats.bytes_limit.has_value()) line.append(", limit ").append(BytesText(*stats.bytes_limit));
  if (stats.largest_free_block_bytes.has_value()) {
    line.append(", largest free ").append(BytesText(*stats.largest_free_block_bytes));
  }
  return line;
}

// Prints why there are no lines in the log, once.
void PrintLogError(const std::string& log, std::string_view why) {
  static std::atomic<bool> is_printed{false};
  if (!is_printed.exchange(true)) PrintMessage("hbmprof: cannot write the log ", log, ": ", why);
}

void AppendToLog(const std::string& log, const std::string& lines) {
  const FileDescriptor file(OpenRegularFile(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600));
  const int error = file.get() < 0 ? errno : WriteAll(file.get(), lines);
  if (error != 0) PrintLogError(log, error == EINVAL ? "not a regular file" : strerror(error));
}

[[gnu::noinline]] void Log(std::string_view label) try {
  const DefaultOptions options = Profiler::OptionsOfDefault();
  if (options.log.empty()) return is_log_off.store(true, std::memory_order_relaxed);
  std::string lines;
  for (const Snapshot::Device& device : SnapshotOf(Profiler::Default(), SnapshotParts::kDevices).devices) {
    if (IsUsed(device.spaces[static_cast<int>(MemorySpace::kDevice)])) lines += LineOf(device, label) + "\n";
  }
  if (lines.empty()) return;
  if (options.log == "stderr") {
    lines.pop_back();  // PrintMessage adds a line feed
    return PrintMessage(lines);
  }
  const absl::Status status =
      DoFileWork([log = options.log, lines] { static_cast<void>(TryRun([&] { AppendToLog(log, lines); })); });
  if (absl::IsResourceExhausted(status)) PrintLogError(options.log, TextOf(status));
} catch (const std::exception&) {
  PrintMessage("hbmprof: no line in the log: the host has no memory for it");
}

}  // namespace

void StartRecordingOfOptions(const DefaultOptions& options) {
  const bool has_flight = options.flight_events > 0 || options.flight_seconds > 0;
  if (options.record.empty() && !has_flight) return;
  // If the program uses the injected library, the injected library starts the recording: it reads the same
  // variables.
  if (InjectedOfDefault() != nullptr) return;
  const absl::StatusOr<ProfilerImpl*> profiler = OwnProfiler("StartRecording");
  if (!profiler.ok()) return;
  if (has_flight) {
    const int64_t events = options.flight_events > 0 ? options.flight_events : kDefaultFlightEvents;
    const auto nanos = static_cast<int64_t>(options.flight_seconds * 1e9);
    if (!StartFlightRecorder(**profiler, static_cast<size_t>(events), nanos)) {
      PrintMessage("hbmprof: no flight recorder: the host has no memory for it");
    }
  }
  if (options.record.empty()) return;
  RecordingOptions recording;
  recording.max_bytes = options.record_max_bytes;
  const absl::Status status = Start(options.record, /*must_be_new=*/true, recording);
  if (!status.ok()) PrintMessage("hbmprof: no recording: ", TextOf(status));
}

void StopRecordingAtExit() {
  if (!IsRecorderRunning()) return;
  const absl::Status status = StopRecorder();
  if (!status.ok()) PrintMessage("hbmprof: ", TextOf(status));
}

std::string SaveFlightBeside(std::string_view profile) {
  const InjectedProfiler* const injected = InjectedOfDefault();
  if (injected == nullptr && !IsFlightRecorderOn()) return "";
  const std::string path = RecordingBeside(profile);
  const absl::Status status = injected != nullptr
                                  ? injected->SaveFlightRecording(absl::StrReplaceAll(path, {{"%", "%%"}}))
                                  : WriteFlightTo(path, /*must_be_new=*/false);
  if (status.ok()) return path;
  // The injected library's flight recorder is off.
  if (injected != nullptr && absl::IsFailedPrecondition(status)) return "";
  PrintMessage("hbmprof: no flight recording: ", TextOf(status));
  return "";
}

}  // namespace internal

absl::Status StartRecording(std::string_view path, const RecordingOptions& options) try {
  const internal::InjectedProfiler* const injected = internal::InjectedOfDefault();
  const RecordingOptions known;
  if (injected != nullptr && (options.max_bytes != known.max_bytes || options.buffer_bytes != known.buffer_bytes ||
                              options.sample_interval != known.sample_interval)) {
    return absl::FailedPreconditionError(
        "StartRecording: under `hbmprof run` a recording has the default RecordingOptions");
  }
  if (injected != nullptr) return injected->StartRecording(path);
  return internal::Start(path, /*must_be_new=*/false, options);
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("the host has no memory for the recording");
}

absl::Status StopRecording() try {
  const internal::InjectedProfiler* const injected = internal::InjectedOfDefault();
  return injected != nullptr ? injected->StopRecording() : internal::StopRecorder();
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("the host has no memory for the recording");
}

absl::Status SaveFlightRecording(std::string_view path) try {
  const internal::InjectedProfiler* const injected = internal::InjectedOfDefault();
  if (injected != nullptr) return injected->SaveFlightRecording(path);
  const absl::StatusOr<internal::ProfilerImpl*> profiler = internal::OwnProfiler("SaveFlightRecording");
  if (!profiler.ok()) return profiler.status();
  return internal::WithFile(path, /*must_be_new=*/false, &internal::WriteFlightTo);
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("the host has no memory for the recording");
}

void LogMemory(std::string_view label) {
  if (!internal::is_log_off.load(std::memory_order_relaxed)) internal::Log(label);
}

}  // namespace hbmprof
