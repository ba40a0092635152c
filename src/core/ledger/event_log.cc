#include "src/core/ledger/event_log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "src/base/pages.h"

namespace hbmprof::internal {
namespace {

// The threads by their numbers. A process uses no number twice: a recording may refer to a thread that has ended. All
// further threads share the last number.
constexpr uint32_t kMaxThreads = UINT16_MAX;
std::atomic<int32_t> threads[kMaxThreads + 1];
std::atomic<uint32_t> numbered_threads{1};

}  // namespace

EventLog::~EventLog() { Free(); }

bool EventLog::Allocate(size_t count, int64_t ring_nanos) {
  auto* const memory = static_cast<EventBuffer*>(MapPages(count * sizeof(EventBuffer)));
  if (memory == nullptr) return false;
  count_ = count;
  memory_.store(memory, std::memory_order_release);
  ring_nanos_ = ring_nanos;
  List empty;
  for (size_t i = 0; i < count; ++i) empty.Append(&memory[i]);
  SpinLockHolder hold(lock_);
  empty_ = empty;
  lost_ = {};
  removed_until_ = 0;
  return true;
}

void EventLog::Free() {
  {
    SpinLockHolder hold(lock_);
    empty_ = {};
    full_ = {};
  }
  UnmapPages(memory_.exchange(nullptr), count_ * sizeof(EventBuffer));
}

bool EventLog::HasOldBuffer() const {
  const EventBuffer* const oldest = ring_nanos_ == 0 ? nullptr : full_.first;
  return oldest != nullptr && MonotonicNanos() - oldest->events[oldest->count - 1].time > ring_nanos_;
}

void EventLog::Open(uint32_t shard, ShardLog* log, RecordedEvent** next) {
  EventBuffer* buffer = nullptr;
  {
    SpinLockHolder hold(lock_);
    if (!HasOldBuffer()) buffer = empty_.TakeFirst();
    if (buffer == nullptr && mode() == Mode::kRing) {
      buffer = full_.TakeFirst();
      if (buffer != nullptr) removed_until_ = std::max(removed_until_, buffer->events[buffer->count - 1].time);
    }
  }
  log->buffer = buffer;
  if (buffer == nullptr) {
    *next = log->lost;
    log->end = log->lost + 1;
  } else {
    buffer->shard = shard;
    *next = buffer->events;
    log->end = buffer->events + EventBuffer::kEvents;
  }
}

void EventLog::Close(ShardLog* log, const RecordedEvent* next) {
  EventBuffer* const buffer = log->buffer;
  log->buffer = nullptr;
  if (buffer == nullptr) return;
  buffer->count = static_cast<uint32_t>(next - buffer->events);
  SpinLockHolder hold(lock_);
  (buffer->count == 0 ? empty_ : full_).Append(buffer);
}

void EventLog::Exchange(uint32_t shard, ShardLog* log, RecordedEvent** next) {
  if (log->buffer == nullptr) {
    const int64_t time = log->lost[0].time;
    SpinLockHolder hold(lock_);
    lost_ = {std::min(lost_.from, time), std::max(lost_.to, time), lost_.count + (*next - log->lost)};
    removed_until_ = std::max(removed_until_, time);
  }
  Close(log, *next);
  Open(shard, log, next);
}

EventBuffer* EventLog::TakeFull() {
  SpinLockHolder hold(lock_);
  EventBuffer* const list = full_.first;
  full_ = {};
  return list;
}

void EventLog::Return(EventBuffer* list) {
  while (list != nullptr) {
    EventBuffer* const buffer = list;
    list = list->next;
    SpinLockHolder hold(lock_);
    empty_.Append(buffer);
  }
}

LostTimes EventLog::TakeLost() {
  SpinLockHolder hold(lock_);
  return std::exchange(lost_, {});
}

int64_t EventLog::removed_until() const {
  SpinLockHolder hold(lock_);
  return removed_until_;
}

uint16_t EventLog::NumberThread() {
  const uint32_t number = std::min(numbered_threads.fetch_add(1, std::memory_order_relaxed), kMaxThreads);
  threads[number].store(static_cast<int32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  return thread_state.recorded = static_cast<uint16_t>(number);
}

int32_t EventLog::ThreadOf(uint16_t number) { return threads[number].load(std::memory_order_relaxed); }

uint32_t EventLog::ThreadCount() { return std::min(numbered_threads.load(std::memory_order_relaxed), kMaxThreads + 1); }

uint64_t& EventLog::MarkOfThread() {
  static __thread uint64_t mark __attribute__((tls_model("initial-exec"))) = 0;
  return mark;
}

}  // namespace hbmprof::internal
