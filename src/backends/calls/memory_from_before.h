// TrackedCall: a call of a driver that is tracked, and the number of those in progress.
//
// MemoryFromBefore: the memory that the program had on each device before hbmprof was attached to it. It is one
// record for each device, of the bytes that the driver had in use when no call was in progress, less those that are
// recorded. It becomes smaller when such memory is freed, and when a part of it gets a record of its own.
#ifndef HBMPROF_SRC_BACKENDS_CALLS_MEMORY_FROM_BEFORE_H_
#define HBMPROF_SRC_BACKENDS_CALLS_MEMORY_FROM_BEFORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

// One tracked call on the calling thread. Only the outermost call is recorded. A call that the driver, or a wrapper
// above it, makes within a tracked call is not recorded.
class TrackedCall {
 public:
  explicit TrackedCall(const Caller& caller) : outermost_(thread_state.calls++ == 0), caller_(caller) {
    if (outermost_) count_.fetch_add(1, std::memory_order_relaxed);
  }
  ~TrackedCall() {
    --thread_state.calls;
    constexpr uint64_t kEnded = uint64_t{1} << 32;
    if (outermost_) count_.fetch_add(kEnded - 1, std::memory_order_relaxed);
  }
  TrackedCall(const TrackedCall&) = delete;
  TrackedCall& operator=(const TrackedCall&) = delete;

  bool outermost() const { return outermost_; }
  const Caller& caller() const { return caller_; }

  // A number that each start and each end of an outermost call changes, on all threads.
  static uint64_t Count() { return count_.load(std::memory_order_seq_cst); }
  // The number of outermost calls in progress when Count() was `count`, and of those that had ended, modulo 2^32.
  static uint32_t InProgress(uint64_t count) { return static_cast<uint32_t>(count); }
  static uint32_t Ended(uint64_t count) { return static_cast<uint32_t>(count >> 32); }

 private:
  inline static std::atomic<uint64_t> count_{0};
  const bool outermost_;
  const Caller& caller_;
};

// Thread-safe and without locks.
class MemoryFromBefore {
 public:
  // `is_expected` is what is_expected() returns.
  MemoryFromBefore(Profiler& profiler, std::atomic<bool>& is_expected)
      : profiler_(profiler), is_expected_(is_expected) {}

  // From now on every device has such memory. `is_measured`: it is to be measured; otherwise only the parts that get a
  // record of their own are shown. `stack` is the stack of its records; what it points to is never freed. REQUIRES: no
  // such memory has a record.
  void Expect(const Caller& stack, bool is_measured);
  bool is_expected() const { return is_expected_.load(std::memory_order_acquire); }
  const Caller& stack() const { return stack_; }

  // Measures the device and makes its record, unless that has been done. Does nothing if the driver's bytes are not
  // known in this thread: then another thread, in which a context of the device is current, can call it later. Waits a
  // while for an instant without calls of other threads in progress; `attempts` is how often it looks. If there is no
  // such instant, the result can differ by the bytes of calls that were in progress.
  void Measure(DeviceId device, int attempts);

  // `bytes` of this memory were freed or got a record.
  void Remove(DeviceId device, int64_t bytes);
  // The same, for bytes that got a record as segments with the same stack.
  void BecomeSegment(DeviceId device, int64_t bytes);

  // The bytes that are left, and those that have become segments. No value before the measurement.
  struct Bytes {
    int64_t left = 0;
    int64_t segments = 0;
    bool is_measured = false;
  };
  Bytes Of(DeviceId device) const;

 private:
  enum class State : uint8_t { kUnknown, kBusy, kMeasured };
  struct OfDevice {
    std::atomic<State> state{State::kUnknown};
    std::atomic<int64_t> left{0};
    std::atomic<int64_t> segments{0};
  };
  OfDevice& At(DeviceId device) { return devices_[static_cast<int>(device)]; }
  void Publish(DeviceId device);

  Profiler& profiler_;
  std::atomic<bool>& is_expected_;
  Caller stack_;
  OfDevice devices_[kMaxDevices];
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_MEMORY_FROM_BEFORE_H_
