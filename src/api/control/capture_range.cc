#include "src/api/control/capture_range.h"

#include <time.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "hbmprof/options.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "hbmprof/snapshot.h"
#include "src/api/control/live.h"
#include "src/api/output/enough_stack.h"
#include "src/api/output/exit_writer.h"
#include "src/api/output/file_work.h"
#include "src/api/output/output_file.h"
#include "src/api/profiles/out_of_memory.h"
#include "src/api/profiles/profile_writer.h"
#include "src/base/delayed_signals.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/lock_free_lazy.h"
#include "src/base/message.h"
#include "src/base/no_cancellation.h"
#include "src/base/option_text.h"
#include "src/base/try_run.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/tables/tags.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof::internal {
namespace {

constexpr int kMillisecondsToWaitAtExit = 2000;

std::atomic<const std::string*> capture_output{nullptr};  // never freed

// Held by a thread that begins or ends a range. No thread waits for it, except at the end of the process.
std::mutex busy;

struct Range {
  std::string name;
  std::string profile;  // paths. Set in the thread for files, before `has_recording`
  std::string recording;
  std::atomic<bool> has_recording{false};
};
// The open range is shared with the thread for files. Both are protected by `busy`.
std::shared_ptr<Range>* open_range = nullptr;
uint64_t last_range = 0;  // its number, if a range is open
// The number of the open range; 0 if there is none. It lets calls that have nothing to begin or to end return without
// the lock, because a call that meets another one at the lock has no effect.
std::atomic<uint64_t> open_number{0};

// A program can begin thousands of ranges in a second, so only the first messages about ranges are printed.
void PrintAboutRange(std::string_view text, std::string_view more = {}, std::string_view still_more = {},
                     std::string_view end = {}) {
  constexpr int kMostMessages = 10;
  static std::atomic<int> messages{0};
  const int number = messages.load(std::memory_order_relaxed) > kMostMessages ? kMostMessages + 1 : messages++;
  if (number < kMostMessages) PrintMessage(text, more, still_more, end);
  if (number == kMostMessages) PrintMessage("hbmprof: further messages about ranges are not printed");
}

// Starts the recording of a range, with the next number for which there are no files. Without "%n" in the pattern, the
// number is put before ".pb.gz".
void StartFiles(const std::string& output, Range* range) {
  const OutputPattern given(output);
  const OutputPattern pattern(given.has_number() ? output : BeforeEnding(output, ".%n"));
  const absl::Status status = WithFreeName(pattern, /*must_be_new=*/true, [&](const std::string& path, int) {
    range->profile = path;
    range->recording = RecordingBeside(path);
    if (absl::Status is_new = CheckIsNew(path); !is_new.ok()) return is_new;
    RecordingOptions options;
    options.max_bytes = Profiler::OptionsOfDefault().record_max_bytes;
    return StartRecorder(ProfilerAccess::ImplOf(Profiler::Default()), range->recording, options, /*must_be_new=*/true);
  });
  range->has_recording.store(status.ok(), std::memory_order_release);
  if (!status.ok()) PrintAboutRange("hbmprof: no recording of the range ", range->name, ": ", TextOf(status));
  // Also ends the range, if it is still open then.
  WriteAtEveryEnd();
}

// Ends the recording of a range. The recorder itself prints why a recording has ended.
void EndRecordingOf(const Range& range) {
  if (!range.has_recording.load(std::memory_order_acquire)) return;
  const absl::Status status = StopRecorder();
  if (absl::IsDeadlineExceeded(status)) PrintAboutRange("hbmprof: ", TextOf(status));
}

// Writes the profile of a range that has ended, with its last snapshot.
void WriteProfileOf(const Range& range, const Snapshot& snapshot) {
  ProfilePlace place;
  place.pattern = absl::StrReplaceAll(range.profile, {{"%", "%%"}});
  place.must_be_new = true;
  place.has_flight = false;
  const absl::Status status = WriteProfile(SerializePprof(snapshot, &ElfSymbolizer()), place).status();
  if (!status.ok()) return PrintAboutRange("hbmprof: no profile of the range: ", TextOf(status));
  RememberProfile(snapshot);
}

// Takes the snapshot, and writes the files in the thread for files. REQUIRES: there is an open range, and this thread
// has locked `busy`.
void Close() {
  open_number.store(0);
  const std::unique_ptr<const std::shared_ptr<Range>> owned(std::exchange(open_range, nullptr));
  const std::shared_ptr<const Range> range = *owned;
  absl::Status status = absl::ResourceExhaustedError("the host has no memory for it");
  const auto close = [&] {
    const ScopedMark mark(range->has_recording.load(std::memory_order_acquire) ? range->profile : range->name);
    const auto snapshot = std::make_shared<const Snapshot>(Profiler::Default().TakeSnapshot());
    status = DoFileWork([range, snapshot] {
      static_cast<void>(TryRun([&] { EndRecordingOf(*range); }));
      if (TryRun([&] { WriteProfileOf(*range, *snapshot); })) return;
      PrintAboutRange("hbmprof: no profile of the range: the host has no memory for it");
    });
  };
  static_cast<void>(WithEnoughStack([&] { static_cast<void>(TryRun(close)); }));
  if (absl::IsResourceExhausted(status)) {
    static_cast<void>(TryRun([&] { EndRecordingOf(*range); }));
    PrintAboutRange("hbmprof: no profile of the range: ", TextOf(status));
  }
}

uint64_t Begin(std::string_view name) {
  std::string output;
  std::unique_ptr<std::shared_ptr<Range>> range;
  const auto prepare = [&] {
    Profiler::Default();  // sets the pattern
    if (const std::string* const pattern = capture_output.load(std::memory_order_acquire)) output = *pattern;
    range = std::make_unique<std::shared_ptr<Range>>(std::make_shared<Range>());
    (*range)->name = name;
  };
  if (open_number.load() != 0 || !TryRun(prepare) || output.empty() || !BeginEvent()) return 0;
  const std::unique_lock<std::mutex> hold(busy, std::try_to_lock);
  if (!hold) PrintAboutRange("hbmprof: the range ", name, " is not captured: another thread begins or ends one");
  if (!hold || open_range != nullptr) return 0;
  absl::Status status = absl::ResourceExhaustedError("the host has no memory for it");
  const auto start = [&] {
    ResetPeaks();
    const auto start_files = [shared = *range, output] {
      if (!TryRun([&] { StartFiles(output, shared.get()); })) {
        PrintAboutRange("hbmprof: no recording of the range: the host has no memory for it");
      }
    };
    status = DoFileWork(start_files, kMostWaitForStart);
    RecordMark(name);  // if the disk has answered in time, and the recording has begun
  };
  static_cast<void>(TryRun(start));
  if (absl::IsResourceExhausted(status)) {
    PrintAboutRange("hbmprof: the range ", name, " is not captured: ", TextOf(status));
    return 0;
  }
  open_range = range.release();
  open_number.store(++last_range);
  return last_range;
}

LockFreeLazy<CaptureChoice> chosen_ranges;

std::unique_ptr<CaptureChoice> ReadChoice() {
  auto choice = std::make_unique<CaptureChoice>();
  const char* const value = OptionText("HBMPROF_CAPTURE_RANGE");
  const std::string text = value == nullptr ? "" : value;
  constexpr std::string_view kNvtx = "nvtx:";
  if (text == "cudaProfilerApi") {
    choice->is_profiler_api = true;
  } else if (text.compare(0, kNvtx.size(), kNvtx) == 0 && text.size() > kNvtx.size() &&
             text.size() <= kNvtx.size() + kMaxTagBytes) {
    choice->nvtx_name = text.substr(kNvtx.size());
  } else if (!text.empty()) {
    choice->problem = "hbmprof: HBMPROF_CAPTURE_RANGE='" + text.substr(0, 200) +
                      "' is not cudaProfilerApi or nvtx:NAME with a name of at most 128 bytes; using no ranges";
  }
  return choice;
}

// Whether the open range is that of the parent process.
bool IsOfParent() { return IsOff() || SharesParentsMemory(); }

}  // namespace

void SetCaptureOutput(const std::string& pattern) {
  if (!pattern.empty()) capture_output.store(new std::string(pattern), std::memory_order_release);
}

const CaptureChoice* ChosenRanges() {
  const CaptureChoice* choice = nullptr;
  static_cast<void>(TryRun([&] { choice = chosen_ranges.Get(&ReadChoice); }));
  return choice;
}

uint64_t BeginCaptureRange(std::string_view name) {
  const NoCancellation no_cancellation;
  const DelayedSignals delayed;
  const KeptErrno kept_errno;
  if (IsOfParent()) return 0;
  uint64_t number = 0;
  if (!WithEnoughStack([&] { number = Begin(name); })) {
    PrintAboutRange("hbmprof: the range ", name, " is not captured: the stack is small and no thread can be started");
  }
  return number;
}

void EndCaptureRange(uint64_t number) {
  const NoCancellation no_cancellation;
  const DelayedSignals delayed;
  const KeptErrno kept_errno;
  if (IsOfParent()) return;
  const uint64_t open = open_number.load();
  if (open == 0 || (number != 0 && number != open)) return;
  const std::unique_lock<std::mutex> hold(busy, std::try_to_lock);
  if (hold && open_range != nullptr && (number == 0 || number == last_range)) Close();
}

void EndCaptureRangeAtExit() {
  std::unique_lock<std::mutex> hold(busy, std::try_to_lock);
  if (!hold && IsOfParent()) return;
  const timespec millisecond = {0, 1'000'000};
  for (int i = 0; i < kMillisecondsToWaitAtExit && !hold && !hold.try_lock(); ++i) nanosleep(&millisecond, nullptr);
  if (hold && open_range != nullptr && !IsOfParent()) Close();
}

}  // namespace hbmprof::internal
