#include "src/core/probes.h"

#include <semaphore.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>

#include "src/base/background_thread.h"
#include "src/base/completes.h"
#include "src/base/monotonic_clock.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {
namespace {

// Takes the thread out of the tracker during its life, because it runs the program's code. It stays inside while it
// holds a Mutex, which that code could need.
class OutsideTracker {
 public:
  OutsideTracker() : was_inside_(thread_state.inside) {
    if (thread_state.mutexes == 0) ReentryGuard::Leave();
  }
  ~OutsideTracker() {
    if (was_inside_) ReentryGuard::Enter();
  }
  OutsideTracker(const OutsideTracker&) = delete;
  OutsideTracker& operator=(const OutsideTracker&) = delete;

 private:
  const bool was_inside_;
};

__thread ProbeLimit* limit_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;

constexpr int64_t kSecond = 1'000'000'000;

// A question to a probe that another thread asks. That thread may end after the one that waits for the answer.
struct Question {
  std::function<DeviceProbe()> call;
  void* context;
  DeviceProbe answer;
  std::atomic<bool> has_answer = false;  // written after the answer; the thread sanitizer does not know sem_clockwait
  sem_t answered;
};

void* Answer(void* argument) {
  const std::unique_ptr<std::shared_ptr<Question>> own(static_cast<std::shared_ptr<Question>*>(argument));
  Question& question = **own;
  const ReentryGuard guard;  // as in the thread that waits
  if (question.context != nullptr) driver_context.load()->set(question.context);
  if (!Completes([&] { question.answer = question.call(); })) question.answer = {};
  question.has_answer.store(true, std::memory_order_release);
  sem_post(&question.answered);
  return nullptr;
}

}  // namespace

void ProbeTable::Set(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  Slot& slot = slots_[static_cast<size_t>(device) % kMaxDevices];
  auto prober = std::make_shared<Prober>();
  prober->probe = std::move(probe);
  prober->owner = owner;
  {
    MutexLock hold(slot.mutex);
    slot.prober.swap(prober);
    set_.fetch_or(BitOf(device), std::memory_order_relaxed);
  }
  AwaitCalls(prober);
}

void ProbeTable::Remove(DeviceId device, const void* owner) {
  Slot& slot = slots_[static_cast<size_t>(device) % kMaxDevices];
  std::shared_ptr<Prober> removed;
  {
    MutexLock hold(slot.mutex);
    if (slot.prober == nullptr || slot.prober->owner != owner) return;
    slot.prober.swap(removed);
    set_.fetch_and(~BitOf(device), std::memory_order_relaxed);
  }
  AwaitCalls(removed);
}

void ProbeTable::AwaitCalls(const std::shared_ptr<Prober>& prober) {
  // A thread that is inside a probe does not wait: it might wait for itself, or for a probe that waits for it.
  if (prober == nullptr || thread_state.probes != 0) return;
  for (Backoff backoff; prober->calls->load(std::memory_order_acquire) != 0;) backoff.Wait();
}

ProbeLimit::ProbeLimit(void* context) : context_(context), end_(MonotonicNanos() + 2 * kSecond) {
  if (limit_of_thread == nullptr) limit_of_thread = this;
}

ProbeLimit::~ProbeLimit() {
  if (limit_of_thread == this) limit_of_thread = nullptr;
}

bool ProbeLimit::IsSilent(int device) {
  return limit_of_thread != nullptr && (limit_of_thread->silent_devices_ >> device & 1) != 0;
}

DeviceProbe ProbeLimit::Ask(int device, std::function<DeviceProbe()> call) {
  const auto question = std::make_shared<Question>();
  question->call = std::move(call);
  question->context = context_;
  sem_init(&question->answered, 0, 0);
  auto argument = std::make_unique<std::shared_ptr<Question>>(question);
  const int64_t until = std::min(MonotonicNanos() + kSecond, end_);
  const timespec deadline = {until / kSecond, until % kSecond};
  if (StartBackgroundThread(&Answer, argument.get())) {
    static_cast<void>(argument.release());
    while (sem_clockwait(&question->answered, CLOCK_MONOTONIC, &deadline) != 0 && errno == EINTR) {
    }
    if (question->has_answer.load(std::memory_order_acquire)) return std::move(question->answer);
  }
  silent_devices_ |= uint64_t{1} << device;
  return {};
}

DeviceProbe ProbeTable::Ask(int device) const {
  if (thread_state.probes != 0) return {};
  Slot& slot = slots_[device];
  if (limit_of_thread != nullptr) {
    const auto has_probe = [&slot] {
      MutexLock hold(slot.mutex);
      return slot.prober != nullptr;
    };
    return has_probe() ? limit_of_thread->Ask(device, [this, device] { return Ask(device); }) : DeviceProbe{};
  }
  // Ends the call, also if the probe throws. After that, a waiting thread destroys the prober.
  struct Call {
    std::shared_ptr<Prober> prober;
    std::shared_ptr<std::atomic<int>> calls;
    ~Call() {
      if (calls == nullptr) return;
      prober.reset();
      --thread_state.probes;
      calls->fetch_sub(1, std::memory_order_release);
    }
  } call;
  {
    MutexLock hold(slot.mutex);
    if (slot.prober == nullptr) return {};
    call.prober = slot.prober;
    call.calls = slot.prober->calls;
    call.calls->fetch_add(1, std::memory_order_relaxed);
    ++thread_state.probes;
  }
  if (!call.prober->probe) return {};
  try {
    const OutsideTracker outside;
    const DeviceProbe answer = call.prober->probe();
    // The answer is copied, so that what the probe allocated outside of the tracker is also freed there. A compiler may
    // leave out the copy of `return answer`.
    const ReentryGuard guard;
    return DeviceProbe(answer);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return {};  // the program's own exception must not end a thread of this library
  }
}

void ProbeTable::DropAll() {
  for (Slot& slot : slots_) new (&slot) Slot;
  set_.store(0, std::memory_order_relaxed);
}

}  // namespace hbmprof::internal
