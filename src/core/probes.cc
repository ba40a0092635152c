#include "src/core/probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <new>
#include <utility>

#include "src/base/background_thread.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"
#include "src/core/device_driver.h"

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

// A question to a probe that another thread asks. That thread may end after the one that waits for the answer.
struct Question {
  std::function<DeviceProbe()> call;
  void* context;
  std::promise<DeviceProbe> answer;
};

void* Answer(void* argument) {
  const std::unique_ptr<Question> question(static_cast<Question*>(argument));
  const ReentryGuard guard;  // as in the thread that waits
  if (question->context != nullptr) device_driver.load()->set_context(question->context);
  DeviceProbe answer;
  if (!TryRun([&] { answer = question->call(); })) answer = {};
  question->answer.set_value(std::move(answer));
  return nullptr;
}

}  // namespace

void ProbeTable::Set(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  Exchange(device, nullptr, std::make_shared<Prober>(Prober{std::move(probe), owner}));
}

void ProbeTable::Remove(DeviceId device, const void* owner) { Exchange(device, &owner, nullptr); }

void ProbeTable::Exchange(DeviceId device, const void* const* owner, std::shared_ptr<Prober> prober) {
  Slot& slot = slots_[static_cast<size_t>(device) % kMaxDevices];
  {
    MutexLock hold(slot.mutex);
    if (owner != nullptr && (slot.prober == nullptr || slot.prober->owner != *owner)) return;
    slot.prober.swap(prober);
    if (slot.prober != nullptr) {
      set_.fetch_or(BitOf(device), std::memory_order_relaxed);
    } else {
      set_.fetch_and(~BitOf(device), std::memory_order_relaxed);
    }
  }
  // A thread that is inside a probe does not wait: it might wait for itself, or for a probe that waits for it.
  if (prober == nullptr || thread_state.probes != 0) return;
  for (Backoff backoff; prober.use_count() != 1;) backoff.Wait();
}

ProbeLimit::ProbeLimit(void* context)
    : context_(context), end_(std::chrono::steady_clock::now() + std::chrono::seconds(2)) {
  if (limit_of_thread == nullptr) limit_of_thread = this;
}

ProbeLimit::~ProbeLimit() {
  if (limit_of_thread == this) limit_of_thread = nullptr;
}

bool ProbeLimit::IsSilent(int device) {
  return limit_of_thread != nullptr && (limit_of_thread->silent_devices_ >> device & 1) != 0;
}

DeviceProbe ProbeLimit::Ask(int device, std::function<DeviceProbe()> call) {
  auto question = std::make_unique<Question>();
  question->call = std::move(call);
  question->context = context_;
  std::future<DeviceProbe> answer = question->answer.get_future();
  if (StartBackgroundThread(&Answer, question.get())) {
    static_cast<void>(question.release());
    const auto until = std::min(std::chrono::steady_clock::now() + std::chrono::seconds(1), end_);
    if (answer.wait_until(until) == std::future_status::ready) return answer.get();
  }
  silent_devices_ |= uint64_t{1} << device;
  return {};
}

DeviceProbe ProbeTable::Ask(int device) const {
  if (thread_state.probes != 0) return {};
  Slot& slot = slots_[device];
  if (limit_of_thread != nullptr) {
    const bool has_probe = slot.Present() != nullptr;
    return has_probe ? limit_of_thread->Ask(device, [this, device] { return Ask(device); }) : DeviceProbe{};
  }
  // Ends the call, also if the probe throws.
  struct Call {
    explicit Call(std::shared_ptr<Prober> present) : prober(std::move(present)) { ++thread_state.probes; }
    ~Call() { --thread_state.probes; }
    const std::shared_ptr<Prober> prober;
  };
  const Call call(slot.Present());
  if (call.prober == nullptr || !call.prober->probe) return {};
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

void ProbeTable::RemoveAll() {
  for (Slot& slot : slots_) new (&slot) Slot;
  set_.store(0, std::memory_order_relaxed);
}

}  // namespace hbmprof::internal
