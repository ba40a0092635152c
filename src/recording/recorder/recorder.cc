#include "src/recording/recorder/recorder.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/background_thread.h"
#include "src/base/delayed_signals.h"
#include "src/base/fork.h"
#include "src/base/lazy.h"
#include "src/base/message.h"
#include "src/base/mutex.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"
#include "src/core/tables/tags.h"
#include "src/recording/recorder/source.h"
#include "src/recording/writer.h"

namespace hbmprof::internal {
namespace {

using Mode = EventLog::Mode;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1000 * kMillisecond;
// The pause after a round: kShortWait if the round found a full buffer, otherwise kLongWait.
constexpr int64_t kShortWait = 5 * kMillisecond;
constexpr int64_t kLongWait = 50 * kMillisecond;
constexpr int64_t kStopWait = 10 * kSecond;
// After a loss a new file begins when no event was lost for this time.
constexpr int64_t kQuietTime = kSecond;
constexpr size_t kMaxLiveListed = size_t{1} << 22;
constexpr int64_t kMaxBufferBytes = int64_t{512} << 20;
constexpr char kOldSuffix[] = ".old";

absl::Status NoHostMemory() { return absl::ResourceExhaustedError("the host has no memory for the recording"); }

void Sleep(int64_t nanoseconds) {
  timespec time = {nanoseconds / kSecond, nanoseconds % kSecond};
  nanosleep(&time, nullptr);
}

Lazy<Marks> marks;

// The profiler whose log is on. A process that has switched a log on counts as one that has recorded, so no forked
// child has a log of its parent.
std::atomic<ProfilerImpl*> logged_profiler{nullptr};
// The number of buffers of the flight recorder; 0: there is none.
std::atomic<size_t> flight_buffers{0};
std::atomic<int64_t> flight_nanos{0};  // events that are older are not kept; 0: no limit
std::atomic<int64_t> flight_begin{0};  // the instant at which it began

ProfilerImpl* LoggedProfiler() { return IsOff() ? nullptr : logged_profiler.load(std::memory_order_acquire); }

void ObserveTags(TagSetId tags) {
  ProfilerImpl* const profiler = LoggedProfiler();
  const ReentryGuard guard;
  if (profiler == nullptr || !guard.entered()) return;
  profiler->ledger().LogOnly(RecordedKind::kTags, tags, kNoRecordedSite, 0);
}

void SetLogged(ProfilerImpl* profiler) {
  logged_profiler.store(profiler, std::memory_order_release);
  tags_observer.store(profiler == nullptr ? nullptr : &ObserveTags, std::memory_order_relaxed);
}

// While an object exists, its thread is the only one that starts or stops the log or takes the events of the flight
// recorder. Signals of the thread are delayed.
class LogUse {
 public:
  LogUse() {
    while (is_used.exchange(true, std::memory_order_acq_rel)) Sleep(kMillisecond);
  }
  ~LogUse() { is_used.store(false, std::memory_order_release); }
  LogUse(const LogUse&) = delete;
  LogUse& operator=(const LogUse&) = delete;

 private:
  static std::atomic<bool> is_used;
  const DelayedSignals delayed_;  // ends after ~LogUse
};
std::atomic<bool> LogUse::is_used{false};

// Begins the flight recorder. Its buffers are allocated, and empty.
void BeginFlight(ProfilerImpl& profiler) { flight_begin.store(profiler.ledger().SetLogMode(Mode::kRing)); }

// Switches the flight recorder on if it is wanted (at its start, and after each recording). Otherwise records that no
// log is on.
void ResumeFlight(ProfilerImpl& profiler) {
  EventLog& log = profiler.ledger().log();
  const size_t buffers = flight_buffers.load(std::memory_order_relaxed);
  if (buffers == 0 || !log.Allocate(buffers, flight_nanos.load(std::memory_order_relaxed))) return SetLogged(nullptr);
  BeginFlight(profiler);
  SetLogged(&profiler);
}

// Switches the log off, and returns the instant. Allocates no memory.
int64_t SwitchOff(ProfilerImpl& profiler) { return profiler.ledger().SetLogMode(Mode::kOff); }

// Whether a recording is in progress.
std::atomic<bool> is_recording{false};

// A recording in progress. After Begin, only the thread of the recording uses it, except for the methods that other
// threads may call.
class Recorder {
 public:
  Recorder(ProfilerImpl& profiler, std::string path, const RecordingOptions& options)
      : profiler_(profiler), ledger_(profiler.ledger()), path_(std::move(path)), options_(options) {
    sem_init(&wakes_, 0, 0);
  }

  // Opens the file and switches the log on. The log's buffers are allocated. kAlreadyExists: `must_be_new` is true, and
  // the file exists.
  absl::Status Begin(bool must_be_new);
  // Writes events until Stop is called.
  void Run();
  // Called by other threads: ends Run, and waits until it has ended. Returns false if that takes too long.
  bool Stop() {
    stops_.store(true, std::memory_order_release);
    sem_post(&wakes_);
    const int64_t end = MonotonicNanos() + kStopWait;
    while (!is_done_.load(std::memory_order_acquire)) {
      if (MonotonicNanos() > end) return false;
      Sleep(kMillisecond / 2);
    }
    return true;
  }
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  // REQUIRES: is_done().
  absl::Status status() const { return has_memory_ ? status_ : NoHostMemory(); }

 private:
  // One file.
  struct File {
    explicit File(ProfilerImpl& profiler) : source(profiler, marks.Get()) {}
    std::unique_ptr<RecordingWriter> writer;
    RecordingSource source;
    // Used until the live buffers at the start of the file are known: `resolver` has the events since the start,
    // `listed` the live table.
    std::optional<LiveResolver> resolver;
    std::vector<RecordingTables::Live> listed;
    bool has_listed = false;
    bool is_exact = true;    // no event was lost
    int64_t start_size = 0;  // in bytes, with the tables of the start
  };

  absl::Status Open(File* file, bool must_be_new);
  absl::Status BeginFile(File* file, const LedgerState& state);
  // Writes the events that the log has. If `next` is not null, buffers of events later than `split` are written to it.
  absl::Status Round(File* next = nullptr, int64_t split = INT64_MAX);
  absl::Status WriteBuffers(EventBuffer* list, File* next, int64_t split);
  absl::Status WriteEvents(File* file, std::vector<RecordedEvent>* events);
  void ListLive();
  absl::Status ResolveLive();
  absl::Status NextFile();
  absl::Status WriteSample();
  absl::Status End();
  absl::Status RunRounds();
  // Prints the error with which the recording has ended, and the number of lost events.
  void PrintEnd() const;

  ProfilerImpl& profiler_;
  Ledger& ledger_;
  std::string path_;  // changes only in Begin
  const RecordingOptions options_;
  LedgerState start_;  // until the tables of the first file are written
  std::unique_ptr<File> file_;
  bool found_full_ = false;  // the last round found a full buffer
  int64_t lost_events_ = 0;
  int64_t last_loss_ = 0;  // nanoseconds
  int64_t next_sample_ = 0;
  int64_t written_until_ = 0;  // all events up to this time, in nanoseconds, are written
  int files_ = 1;
  sem_t wakes_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> is_done_{false};
  bool has_memory_ = true;
  absl::Status status_;
};

absl::Status Recorder::Open(File* file, bool must_be_new) {
  absl::StatusOr<std::unique_ptr<RecordingWriter>> writer = RecordingWriter::Create(path_, must_be_new);
  if (!writer.ok()) return writer.status();
  file->writer = *std::move(writer);
  return absl::OkStatus();
}

absl::Status Recorder::Begin(bool must_be_new) {
  file_ = std::make_unique<File>(profiler_);
  if (absl::Status status = Open(file_.get(), must_be_new); !status.ok()) return status;
  // The later files of the recording lie beside this one, also if the working directory or a link in the path changes.
  if (char* const real = realpath(path_.c_str(), nullptr); real != nullptr) {
    const std::unique_ptr<char, decltype(&std::free)> owned(real, &std::free);
    path_ = real;
  }
  const Mode mode = Mode::kStream;
  start_ = RecordingSource::ReadLedger(profiler_, &mode);
  written_until_ = start_.instant;
  return absl::OkStatus();
}

absl::Status Recorder::BeginFile(File* file, const LedgerState& state) {
  file->resolver.emplace();
  file->source.Begin(state, state.instant);
  absl::Status status = file->writer->AddTables(file->source.tables());
  file->start_size = file->writer->size();
  return status;
}

absl::Status Recorder::WriteEvents(File* file, std::vector<RecordedEvent>* events) {
  const size_t tag_sets = file->source.tables().tag_sets.size();
  const size_t devices = file->source.tables().names.devices.size();
  const size_t mark_count = file->source.tables().marks.size();
  for (RecordedEvent& event : *events) {
    file->source.Translate(&event);
    if (file->resolver.has_value()) file->resolver->AddEvent(event);
  }
  const RecordingTables& tables = file->source.tables();
  if (tables.tag_sets.size() != tag_sets || tables.names.devices.size() != devices ||
      tables.marks.size() != mark_count) {
    if (absl::Status status = file->writer->AddTables(tables); !status.ok()) return status;
  }
  return file->writer->AddEvents(events->data(), events->size());
}

absl::Status Recorder::WriteBuffers(EventBuffer* list, File* next, int64_t split) {
  absl::Status status;
  std::vector<RecordedEvent> events;
  for (EventBuffer* buffer = list; buffer != nullptr; buffer = list) {
    events.assign(buffer->events, buffer->events + buffer->count);
    list = buffer->next;
    buffer->next = nullptr;
    ledger_.log().Return(buffer);
    File* const file = next != nullptr && events[0].time > split ? next : file_.get();
    if (status.ok()) status = WriteEvents(file, &events);
  }
  return status;
}

absl::Status Recorder::Round(File* next, int64_t split) {
  File* const last = next != nullptr ? next : file_.get();
  const bool resolves = last->has_listed;
  const int64_t until = ledger_.CollectEvents();
  EventBuffer* const list = ledger_.log().TakeFull();
  const LostTimes lost = ledger_.log().TakeLost();
  found_full_ = list != nullptr && list->count >= EventBuffer::kEvents;
  for (File* file : {file_.get(), next}) {
    if (file == nullptr || list == nullptr) continue;
    file->source.Update();
    if (absl::Status status = file->writer->AddTables(file->source.tables()); !status.ok()) {
      ledger_.log().Return(list);
      return status;
    }
  }
  absl::Status status = WriteBuffers(list, next, split);
  if (lost.count > 0) {
    if (lost_events_ == 0) {
      PrintMessage("hbmprof: the recording ", path_,
                   " loses events, because they are recorded faster than they can be written");
    }
    lost_events_ += lost.count;
    last_loss_ = MonotonicNanos();
    last->is_exact = false;
    if (status.ok()) {
      status = last->writer->AddLost({lost.from, lost.to, lost.count});
    }
  }
  if (until != 0) written_until_ = until - 1;
  if (status.ok() && list != nullptr) status = last->writer->Flush(written_until_);
  if (status.ok() && resolves) status = ResolveLive();
  return status;
}

void Recorder::ListLive() {
  file_->has_listed = true;
  if (!RecordingSource::ListLive(profiler_, kMaxLiveListed, &file_->listed)) {
    file_->resolver.reset();
    file_->listed = {};
  }
}

absl::Status Recorder::ResolveLive() {
  file_->has_listed = false;
  if (!file_->resolver.has_value()) return absl::OkStatus();
  RecordingTables& tables = file_->source.tables();
  tables.live = file_->resolver->Resolve(file_->listed);
  tables.live_is_complete = file_->is_exact;
  file_->resolver.reset();
  file_->listed = {};
  const int64_t before = file_->writer->size();
  absl::Status status = file_->writer->AddTables(tables);
  file_->start_size += file_->writer->size() - before;
  return status;
}

absl::Status Recorder::WriteSample() {
  const int64_t now = MonotonicNanos();
  if (now < next_sample_) return absl::OkStatus();
  next_sample_ = now + options_.sample_interval.count() * kMillisecond;
  const DriverSample sample = file_->source.Sample();
  if (absl::Status status = file_->writer->AddTables(file_->source.tables()); !status.ok()) return status;
  if (absl::Status status = file_->writer->AddSample(sample); !status.ok()) return status;
  return file_->writer->Flush(written_until_);
}

absl::Status Recorder::NextFile() {
  const std::string old = path_ + kOldSuffix;
  if (rename(path_.c_str(), old.c_str()) != 0) {
    const std::string problem = strerror(errno);
    return absl::InternalError("cannot rename " + path_ + " to " + old + ": " + problem);
  }
  auto next = std::make_unique<File>(profiler_);
  if (absl::Status status = Open(next.get(), /*must_be_new=*/false); !status.ok()) return status;
  // At the instant, each shard gets a new buffer.
  const Mode mode = Mode::kStream;
  const LedgerState state = RecordingSource::ReadLedger(profiler_, &mode);
  const int64_t time = state.instant;
  next->source.tables().functions = file_->source.tables().functions;
  next->source.tables().names.warnings.push_back(
      "The recording was started earlier. Its part before this one is in " + old +
      (files_ == 1 ? "." : ", and older parts were removed, because its size is limited or events were lost."));
  if (absl::Status status = BeginFile(next.get(), state); !status.ok()) return status;
  if (absl::Status status = Round(next.get(), state.instant); !status.ok()) return status;
  if (absl::Status status = file_->writer->Finish(time); !status.ok()) return status;
  file_ = std::move(next);
  ++files_;
  ListLive();
  return absl::OkStatus();
}

absl::Status Recorder::End() {
  const int64_t instant = SwitchOff(profiler_);
  absl::Status status = Round();
  if (!status.ok()) return status;
  written_until_ = instant;
  next_sample_ = 0;
  const ProbeLimit limit;  // the process may be ending
  if (status = WriteSample(); !status.ok()) return status;
  return file_->writer->Finish(written_until_);
}

absl::Status Recorder::RunRounds() {
  if (absl::Status status = BeginFile(file_.get(), start_); !status.ok()) return status;
  start_ = {};
  ListLive();
  while (!stops_.load(std::memory_order_acquire)) {
    if (absl::Status status = Round(); !status.ok()) return status;
    if (absl::Status status = WriteSample(); !status.ok()) return status;
    // Even if the tables at its start are large, a file also gets events of a quarter of max_bytes.
    const int64_t size = file_->writer->size();
    const bool is_large =
        options_.max_bytes != 0 && size >= options_.max_bytes / 2 && size - file_->start_size >= options_.max_bytes / 4;
    const bool is_quiet = !file_->is_exact && MonotonicNanos() - last_loss_ > kQuietTime;
    if (is_large || is_quiet) {
      if (absl::Status status = NextFile(); !status.ok()) return status;
    }
    timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t nanos = until.tv_nsec + (found_full_ ? kShortWait : kLongWait);
    until.tv_sec += nanos / kSecond;
    until.tv_nsec = nanos % kSecond;
    sem_clockwait(&wakes_, CLOCK_MONOTONIC, &until);
  }
  return End();
}

void Recorder::PrintEnd() const {
  if (!has_memory_) {
    PrintMessage("hbmprof: the recording ", path_, " has ended: the host has no memory");
  } else if (!status_.ok()) {
    PrintMessage("hbmprof: the recording has ended: ", TextOf(status_));
  }
  if (lost_events_ > 0) {
    PrintMessage("hbmprof: the recording ", path_, " has lost ", std::to_string(lost_events_) + " events");
  }
}

void Recorder::Run() {
  // Host memory that this thread allocates is not recorded, if the profiler records the host's allocator.
  const ReentryGuard guard;
  try {
    status_ = RunRounds();
  } catch (const std::bad_alloc&) {
    has_memory_ = false;
  }
  // From here on nothing allocates memory, except to print.
  if (!has_memory_ || !status_.ok()) SwitchOff(profiler_);
  try {
    PrintEnd();
  } catch (const std::bad_alloc&) {
    PrintMessage("hbmprof: a recording has ended, and the host has no memory to say why");
  }
  file_.reset();
  ledger_.log().Free();
  ResumeFlight(profiler_);
  is_recording.store(false, std::memory_order_release);
  is_done_.store(true, std::memory_order_release);
}

// The recording of this process. Never destroyed while its thread runs.
std::atomic<Recorder*> recorder{nullptr};

absl::Status Validate(const RecordingOptions& options) {
  const auto problem = [](const char* field, int64_t value, const char* range) {
    return absl::InvalidArgumentError(std::string("StartRecording: the option ") + field + " is " +
                                      std::to_string(value) + ", not " + range);
  };
  if (options.max_bytes != 0 && options.max_bytes < 1 << 20) {
    return problem("max_bytes", options.max_bytes, "0 or at least 1048576");
  }
  if (options.buffer_bytes < 2 << 20 || options.buffer_bytes > kMaxBufferBytes) {
    return problem("buffer_bytes", options.buffer_bytes, "2097152 to 536870912");
  }
  if (options.sample_interval.count() < 10 || options.sample_interval.count() > 3'600'000) {
    return problem("sample_interval", options.sample_interval.count(), "10 to 3600000 milliseconds");
  }
  return absl::OkStatus();
}

absl::Status StartNow(ProfilerImpl& profiler, const std::string& path, const RecordingOptions& options,
                      bool must_be_new) {
  EventLog& log = profiler.ledger().log();
  Recorder* const before = recorder.load(std::memory_order_acquire);
  if (before != nullptr && !before->is_done()) {
    return absl::FailedPreconditionError("StartRecording: there is a recording already; StopRecording ends it");
  }
  auto own = std::make_unique<Recorder>(profiler, path, options);
  if (log.mode() == Mode::kRing) SwitchOff(profiler);
  log.Return(log.TakeFull());
  log.Free();
  // Each shard that is in use keeps one buffer.
  const size_t least = size_t{2} * Ledger::kShards;
  if (!log.Allocate(std::max(static_cast<size_t>(options.buffer_bytes) / sizeof(EventBuffer), least))) {
    ResumeFlight(profiler);
    return NoHostMemory();
  }
  absl::Status status;
  const bool has_memory = TryRun([&] { status = own->Begin(must_be_new); });
  const auto run = [](void* argument) -> void* {
    static_cast<Recorder*>(argument)->Run();
    return nullptr;
  };
  is_recording.store(true, std::memory_order_release);
  const bool has_begun = has_memory && status.ok();
  const bool is_started = has_begun && StartBackgroundThread(run, own.get());
  if (!is_started) {
    is_recording.store(false, std::memory_order_release);
    SwitchOff(profiler);
    log.Return(log.TakeFull());
    log.Free();
    ResumeFlight(profiler);
    if (!has_memory) return NoHostMemory();
    return has_begun ? absl::ResourceExhaustedError("no thread can be started for the recording") : status;
  }
  SetLogged(&profiler);
  recorder.store(own.release(), std::memory_order_release);
  delete before;
  return status;
}

// --- The flight recorder ---

struct FlightEvents {
  LedgerState state;
  int64_t begin = 0;  // when the flight recorder began
  int64_t start = 0;  // all events after it are in `shards`
  std::vector<std::vector<RecordedEvent>> shards;
  std::vector<RecordingTables::Live> listed;
  bool live_is_complete = true;
};

// Takes the events of the flight recorder, and the state after them. Then the flight recorder begins anew. Throws
// std::bad_alloc.
FlightEvents TakeFlight(ProfilerImpl& profiler) {
  EventLog& log = profiler.ledger().log();
  FlightEvents flight;
  flight.begin = flight_begin.load();
  const int64_t listing = MonotonicNanos();
  flight.live_is_complete = RecordingSource::ListLive(profiler, kMaxLiveListed, &flight.listed);
  const Mode off = Mode::kOff;
  flight.state = RecordingSource::ReadLedger(profiler, &off);
  struct Taken {
    ~Taken() {
      profiler.ledger().log().Return(list);
      BeginFlight(profiler);
    }
    ProfilerImpl& profiler;
    EventBuffer* const list;
  };
  const Taken taken{profiler, log.TakeFull()};
  flight.shards.resize(Ledger::kShards);
  for (const EventBuffer* buffer = taken.list; buffer != nullptr; buffer = buffer->next) {
    std::vector<RecordedEvent>& events = flight.shards[buffer->shard];
    events.insert(events.end(), buffer->events, buffer->events + buffer->count);
  }
  flight.start = std::max(log.removed_until(), flight.begin);
  // The events during the listing tell which of the listed buffers were live.
  if (flight.start > listing) flight.live_is_complete = false;
  return flight;
}

// Undoes the events between the start and the instant. If the peak of an account or of a pool was reached after the
// start, the earlier peak is not known. Then the peak at the start is set to the bytes in use at the start.
void UndoFlight(ProfilerImpl& profiler, FlightEvents* flight) {
  LedgerState& state = flight->state;
  const auto has_new_peak = [&](AccountId account) {
    return state.accounts[static_cast<size_t>(account)].peak_time > flight->start;
  };
  for (const std::vector<RecordedEvent>& events : flight->shards) {
    for (size_t i = events.size(); i-- > 0;) {
      UndoEvent(profiler.sites(), events[i], events[i].is_continued ? &events[i + 1] : nullptr, &state);
    }
  }
  for (size_t site = 0; site < state.sites.size(); ++site) {
    SiteTotals& totals = state.sites[site];
    const SiteBooks& books = profiler.sites().At(static_cast<SiteId>(site)).books;
    if (has_new_peak(books.account)) {
      totals.peak_objects = totals.inuse_objects;
      totals.peak_bytes = totals.inuse_bytes;
    }
    if (books.pool == 0 || state.pools[books.pool].peak_time <= flight->start) continue;
    totals.pool_peak_objects = totals.inuse_objects;
    totals.pool_peak_bytes = totals.inuse_bytes;
  }
  for (PoolTotals& pool : state.pools) {
    if (pool.peak_time <= flight->start) continue;
    pool.peak_bytes_allocated = pool.bytes_allocated;
    pool.peak_bytes_reserved = pool.bytes_reserved;
  }
  for (AccountId account = 0; account < kAccounts; ++account) {
    AccountTotals& totals = state.accounts[static_cast<size_t>(account)];
    if (has_new_peak(account)) totals.peak_bytes_in_use = totals.bytes_in_use;
  }
}

// Moves the start to the time limit of the flight recorder. Returns a warning if events after that time were removed,
// else "".
std::string LimitFlight(FlightEvents* flight) {
  const int64_t nanos = flight_nanos.load(std::memory_order_relaxed);
  if (nanos == 0) return "";
  const int64_t end = flight->state.instant;
  const int64_t limit = end - nanos;
  if (flight->start <= limit || flight->start == flight->begin) {
    flight->start = std::max(flight->start, limit);
    return "";
  }
  char text[200];
  std::snprintf(text, sizeof(text),
                "The flight recorder has only the last %.3g of %.3g seconds: there were more events than it "
                "keeps. Set HBMPROF_FLIGHT to a higher number.",
                static_cast<double>(end - flight->start) / kSecond, static_cast<double>(nanos) / kSecond);
  return text;
}

absl::Status WriteFlightEvents(ProfilerImpl& profiler, RecordingWriter& writer) {
  FlightEvents flight = TakeFlight(profiler);
  const int64_t end = flight.state.instant;
  const std::string warning = LimitFlight(&flight);
  // Removes the events up to the start, because the log no longer has all events of that time.
  for (std::vector<RecordedEvent>& events : flight.shards) {
    events.erase(std::remove_if(events.begin(), events.end(),
                                [&](const RecordedEvent& event) { return event.time <= flight.start; }),
                 events.end());
  }
  UndoFlight(profiler, &flight);
  flight.state.unix_nanos -= end - flight.start;
  RecordingSource source(profiler, marks.Get());
  source.Begin(flight.state, flight.start);
  source.Update();
  if (!warning.empty()) source.tables().names.warnings.push_back(warning);
  LiveResolver resolver;
  for (std::vector<RecordedEvent>& events : flight.shards) {
    for (const RecordedEvent& event : events) resolver.AddEvent(event);
    for (RecordedEvent& event : events) source.Translate(&event);
  }
  if (flight.live_is_complete) source.tables().live = resolver.Resolve(flight.listed);
  source.tables().live_is_complete = flight.live_is_complete;
  const DriverSample sample = source.Sample();
  absl::Status status = writer.AddTables(source.tables());
  for (const std::vector<RecordedEvent>& events : flight.shards) {
    if (status.ok()) status = writer.AddEvents(events.data(), events.size());
  }
  if (status.ok()) status = writer.AddSample(sample);
  return status.ok() ? writer.Finish(end) : status;
}

absl::Status WriteFlightNow(ProfilerImpl& profiler, const std::string& path, bool must_be_new) {
  // The events are taken when there is a file for them.
  const absl::StatusOr<std::unique_ptr<RecordingWriter>> writer = RecordingWriter::Create(path, must_be_new);
  if (!writer.ok()) return writer.status();
  absl::Status status = NoHostMemory();
  static_cast<void>(TryRun([&] { status = WriteFlightEvents(profiler, **writer); }));
  // An incomplete file is of no use, and it can take the last space of the disk.
  if (!status.ok()) unlink(path.c_str());
  return status;
}

}  // namespace

absl::Status StartRecorder(ProfilerImpl& profiler, const std::string& path, const RecordingOptions& options,
                           bool must_be_new) try {
  if (!BeginEvent()) return absl::FailedPreconditionError(kOffText);
  if (absl::Status status = Validate(options); !status.ok()) return status;
  const LogUse use;
  const ReentryGuard guard;
  return StartNow(profiler, path, options, must_be_new);
} catch (const std::exception&) {
  return NoHostMemory();
}

absl::Status StopRecorder() try {
  if (IsOff()) return absl::FailedPreconditionError(kOffText);
  const LogUse use;
  Recorder* const own = recorder.load(std::memory_order_acquire);
  if (own == nullptr) return absl::FailedPreconditionError("StopRecording: there is no recording");
  if (!own->Stop()) {
    return absl::DeadlineExceededError("StopRecording: the recording was not written within ten seconds");
  }
  recorder.store(nullptr, std::memory_order_release);
  const std::unique_ptr<Recorder> owned(own);
  return own->status();
} catch (const std::bad_alloc&) {
  return NoHostMemory();
}

bool IsRecorderRunning() { return !IsOff() && is_recording.load(std::memory_order_acquire); }

bool StartFlightRecorder(ProfilerImpl& profiler, size_t events, int64_t nanos) {
  if (!BeginEvent()) return false;
  const LogUse use;
  const ReentryGuard guard;
  // Each shard that is in use has a buffer, which may be nearly empty.
  flight_buffers.store(events / EventBuffer::kEvents + 1 + Ledger::kShards);
  flight_nanos.store(nanos);
  if (IsRecorderRunning()) return true;
  ResumeFlight(profiler);
  return profiler.ledger().log().mode() == Mode::kRing;
}

bool IsFlightRecorderOn() {
  return LoggedProfiler() != nullptr && flight_buffers.load() != 0 && !is_recording.load(std::memory_order_acquire);
}

void StopFlightRecorder() {
  if (IsOff()) return;
  const LogUse use;
  const ReentryGuard guard;
  if (!IsFlightRecorderOn()) return;
  flight_buffers.store(0);
  ProfilerImpl& profiler = *LoggedProfiler();
  SetLogged(nullptr);
  SwitchOff(profiler);
  profiler.ledger().log().Free();
}

absl::Status WriteFlight(const std::string& path, bool must_be_new) try {
  if (IsOff()) return absl::FailedPreconditionError(kOffText);
  const LogUse use;
  if (!IsFlightRecorderOn()) {
    return absl::FailedPreconditionError(
        IsRecorderRunning() ? "SaveFlightRecording: a recording is in progress; it contains the events"
                            : "SaveFlightRecording: the flight recorder is off (HBMPROF_FLIGHT=EVENTS or "
                              "HBMPROF_FLIGHT=SECONDSs)");
  }
  const ReentryGuard guard;
  return WriteFlightNow(*LoggedProfiler(), path, must_be_new);
} catch (const std::exception&) {
  return NoHostMemory();
}

ScopedMark::ScopedMark(std::string_view name) {
  if (LoggedProfiler() == nullptr) return;
  const ReentryGuard guard;
  if (guard.entered()) EventLog::MarkOfThread() = marks.Get().Number(name);
}

void RecordMark(std::string_view name) {
  ProfilerImpl* const profiler = LoggedProfiler();
  const ReentryGuard guard;
  if (profiler == nullptr || !guard.entered()) return;
  const uint64_t number = marks.Get().Number(name);
  if (number != 0) profiler->ledger().LogOnly(RecordedKind::kMark, number - 1, kNoRecordedSite, 0);
}

void RecordFailure(ProfilerImpl& profiler, const Caller& caller, DeviceId device, MemorySpace space, int64_t bytes) {
  if (LoggedProfiler() != &profiler) return;
  const ReentryGuard guard;
  if (!guard.entered()) return;
  static_assert(kNoSite == kNoRecordedSite);
  profiler.ledger().LogOnly(RecordedKind::kFailed, static_cast<uint64_t>(AccountOf(device, space)),
                            profiler.SiteOfFailure(caller, device, space), bytes);
}

}  // namespace hbmprof::internal
