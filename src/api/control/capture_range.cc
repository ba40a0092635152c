#include "src/api/control/capture_range.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <memory>
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
#include "src/api/output/output_path.h"
#include "src/api/profiles/out_of_memory.h"
#include "src/api/profiles/profile_writer.h"
#include "src/recording/recorder/recorder.h"
#include "src/base/completes.h"
#include "src/base/delayed_signals.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/message.h"
#include "src/base/no_cancellation.h"
#include "src/base/option_text.h"
#include "src/core/joined/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/tables/tags.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof::internal {
namespace {

constexpr int kMillisecondsToWaitAtExit = 2000;

std::atomic<const std::string*> capture_output{nullptr};  // never freed

enum class Phase : uint64_t { kClosed, kOpening, kEndsWhenOpen, kOpen, kClosing };

// The phase in the lower bits, and the number of the range above it, which is 0 in other phases than kOpen. Both have
// the id of their process above them: the range of a parent is not a range of its forked child. A child of vfork
// changes nothing, because its memory is the parent's.
std::atomic<uint64_t> state{0};
constexpr int kPhaseBits = 3;
constexpr int kNumberBits = 32;

uint64_t ProcessOf(uint64_t number) { return number >> kNumberBits; }
uint64_t StateOf(Phase phase, uint64_t number = 0) {
  return (static_cast<uint64_t>(getpid()) << kNumberBits | number) << kPhaseBits | static_cast<uint64_t>(phase);
}

Phase PhaseOf(uint64_t word) {
  if (ProcessOf(word >> kPhaseBits) != static_cast<uint64_t>(getpid())) return Phase::kClosed;
  return static_cast<Phase>(word & ((1u << kPhaseBits) - 1));
}

// Returns whether this call has changed the phase from `from` to `to`. The thread that makes it kOpening or kClosing is
// the one that uses `open_range` and `last_range` until it makes it kOpen or kClosed.
bool Enter(Phase from, Phase to) {
  uint64_t word = state.load(std::memory_order_acquire);
  return PhaseOf(word) == from && state.compare_exchange_strong(word, StateOf(to), std::memory_order_acq_rel);
}
// Likewise, from kOpen to kClosing, if the range `number` is open.
bool EnterClosing(uint64_t number) {
  uint64_t word = StateOf(Phase::kOpen, number);
  return ProcessOf(number) == static_cast<uint64_t>(getpid()) &&
         state.compare_exchange_strong(word, StateOf(Phase::kClosing), std::memory_order_acq_rel);
}

struct Range {
  std::string name;
  // Set in the thread for files, before `is_started`.
  std::string profile;  // paths
  std::string recording;
  bool has_recording = false;
  std::atomic<bool> is_started{false};
  // Of the thread that begins the range and the thread for files, the second one that sets it records the mark.
  std::atomic<bool> has_mark{false};
};
// The open range is shared with the thread for files. In a forked child it can be the parent's, which is never freed.
std::shared_ptr<Range>* open_range = nullptr;
uint64_t last_range = 0;  // the number of the last range, with the process id above it

// Returns the number of a new range. The first one of a process is 1.
uint64_t NextNumber() {
  const auto process = static_cast<uint64_t>(getpid());
  if (ProcessOf(last_range) != process) last_range = process << kNumberBits;
  return ++last_range;
}

std::string_view Text(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

// A program can begin thousands of ranges in a second, so only the first messages about ranges are printed.
constexpr uint64_t kMostMessages = 10;
std::atomic<uint64_t> messages{0};  // that there were to print, in this process and its parents

void PrintAboutRange(std::string_view text, std::string_view more = {}, std::string_view still_more = {},
                     std::string_view end = {}) {
  const uint64_t number = messages.fetch_add(1, std::memory_order_relaxed);
  if (number < kMostMessages) PrintMessage(text, more, still_more, end);
  if (number == kMostMessages) PrintMessage("hbmprof: further messages about ranges are counted and not printed");
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
  range->has_recording = status.ok();
  if (!status.ok()) PrintAboutRange("hbmprof: no recording of the range ", range->name, ": ", Text(status));
  // Also ends the range, if it is still open then.
  WriteAtEveryEnd();
}

// Records the begin of the range. If the disk answers in time, that is an event of the thread that begins it.
void RecordBegin(Range* range) {
  if (range->has_mark.exchange(true)) static_cast<void>(Completes([&] { RecordMark(range->name); }));
}

// Writes the files of a range that ends, with its last snapshot.
void WriteFiles(const Range& range, const Snapshot& snapshot) {
  if (range.has_recording) {
    const absl::Status status = StopRecorder();
    // The recorder itself has printed why a recording has ended.
    if (absl::IsDeadlineExceeded(status)) PrintAboutRange("hbmprof: ", Text(status));
  }
  ProfilePlace place;
  place.pattern = absl::StrReplaceAll(range.profile, {{"%", "%%"}});
  place.must_be_new = true;
  place.has_flight = false;
  const absl::Status status = WriteProfile(SerializePprof(snapshot, &ElfSymbolizer()), place).status();
  if (!status.ok()) return PrintAboutRange("hbmprof: no profile of the range: ", Text(status));
  RememberProfile(snapshot);
}

// Ends the recording of a range whose files cannot be written.
void EndRecordingOf(const Range& range) {
  if (!range.is_started.load(std::memory_order_acquire) || !range.has_recording) return;
  static_cast<void>(Completes([] { static_cast<void>(StopRecorder()); }));
}

void SetClosed() { state.store(StateOf(Phase::kClosed), std::memory_order_release); }

// Takes the snapshot, and writes the files in the thread for files. REQUIRES: the phase is kClosing, and this thread
// has entered it.
void Close() {
  const std::unique_ptr<const std::shared_ptr<Range>> owned(std::exchange(open_range, nullptr));
  const std::shared_ptr<const Range> range = *owned;
  absl::Status status = absl::ResourceExhaustedError("the host has no memory for it");
  const auto close = [&] {
    const ScopedMark mark(range->is_started.load(std::memory_order_acquire) ? range->profile : range->name);
    const auto snapshot = std::make_shared<const Snapshot>(Profiler::Default().TakeSnapshot());
    status = DoFileWork([range, snapshot] {
      if (Completes([&] { WriteFiles(*range, *snapshot); })) return;
      EndRecordingOf(*range);
      PrintAboutRange("hbmprof: no profile of the range: the host has no memory for it");
    });
  };
  static_cast<void>(WithEnoughStack([&] { static_cast<void>(Completes(close)); }));
  if (absl::IsResourceExhausted(status)) {
    EndRecordingOf(*range);
    PrintAboutRange("hbmprof: no profile of the range: ", Text(status));
  }
  SetClosed();
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
  if (!Completes(prepare) || output.empty()) return 0;
  if (!Enter(Phase::kClosed, Phase::kOpening)) {
    if (PhaseOf(state.load(std::memory_order_acquire)) == Phase::kClosing) {
      PrintAboutRange("hbmprof: the range ", name, " is not captured: another thread still ends the range before");
    }
    return 0;
  }
  absl::Status status = absl::ResourceExhaustedError("the host has no memory for it");
  const auto start = [&] {
    ResetPeaks();
    const auto start_files = [shared = *range, output] {
      if (!Completes([&] { StartFiles(output, shared.get()); })) {
        PrintAboutRange("hbmprof: no recording of the range: the host has no memory for it");
      }
      shared->is_started.store(true, std::memory_order_release);
      RecordBegin(shared.get());
    };
    status = DoFileWork(start_files, kMostWaitForStart);
  };
  static_cast<void>(Completes(start));
  if (absl::IsResourceExhausted(status)) {
    PrintAboutRange("hbmprof: the range ", name, " is not captured: ", Text(status));
    SetClosed();
    return 0;
  }
  RecordBegin(range->get());
  open_range = range.release();
  const uint64_t number = NextNumber();
  uint64_t opening = StateOf(Phase::kOpening);
  if (!state.compare_exchange_strong(opening, StateOf(Phase::kOpen, number), std::memory_order_acq_rel)) {
    // Another thread has ended it meanwhile.
    state.store(StateOf(Phase::kClosing), std::memory_order_release);
    Close();
  }
  return number;
}

}  // namespace

void SetCaptureOutput(const std::string& pattern) {
  if (!pattern.empty()) capture_output.store(new std::string(pattern), std::memory_order_release);
}

CaptureChoice ReadCaptureChoice(std::vector<std::string>* problems) {
  CaptureChoice choice;
  const char* const value = OptionText("HBMPROF_CAPTURE_RANGE");
  const std::string text = value == nullptr ? "" : value;
  constexpr std::string_view kNvtx = "nvtx:";
  if (text == "cudaProfilerApi") {
    choice.is_profiler_api = true;
  } else if (text.compare(0, kNvtx.size(), kNvtx) == 0 && text.size() > kNvtx.size() &&
             text.size() <= kNvtx.size() + kMaxTagBytes) {
    choice.nvtx_name = text.substr(kNvtx.size());
  } else if (!text.empty() && problems != nullptr) {
    problems->push_back("hbmprof: HBMPROF_CAPTURE_RANGE='" + text.substr(0, 200) +
                        "' is not cudaProfilerApi or nvtx:NAME with a name of at most 128 bytes; using no ranges");
  }
  return choice;
}

uint64_t BeginCaptureRange(std::string_view name) {
  const NoCancellation no_cancellation;
  const DelayedSignals delayed;
  const KeptErrno kept_errno;
  if (IsOff() || SharesParentsMemory()) return 0;
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
  const bool ends = number != 0 ? EnterClosing(number)
                                : !Enter(Phase::kOpening, Phase::kEndsWhenOpen) && Enter(Phase::kOpen, Phase::kClosing);
  if (ends) Close();
}

void EndCaptureRangeAtExit() {
  const timespec millisecond = {0, 1'000'000};
  for (int i = 0; i < kMillisecondsToWaitAtExit; ++i) {
    const Phase phase = PhaseOf(state.load(std::memory_order_acquire));
    if (phase == Phase::kClosed || phase == Phase::kOpen) break;
    nanosleep(&millisecond, nullptr);
  }
  EndCaptureRange(0);
  const uint64_t all = messages.load(std::memory_order_relaxed);
  if (all <= kMostMessages) return;
  char number[24] = {};
  std::to_chars(number, number + sizeof(number) - 1, all - kMostMessages);
  PrintMessage("hbmprof: ", number, " messages about ranges were not printed");
}

}  // namespace hbmprof::internal
