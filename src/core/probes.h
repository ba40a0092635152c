// The probes of devices: functions with which a backend asks a device for its own numbers.
#ifndef HBMPROF_SRC_CORE_PROBES_H_
#define HBMPROF_SRC_CORE_PROBES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "hbmprof/profiler.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// While an object exists, the probes that Stats and TakeSnapshot of its thread call run in threads of their own. A
// probe has one second to answer, and all of them together have two. A device that has not answered has no values of
// its own, and the snapshot has a warning. For the end of a process, which must not wait for a device or for a probe
// that hangs. A second object of a thread has no effect. REQUIRES: the profilers that the thread uses are never
// destroyed.
class ProbeLimit {
 public:
  // `context`: the driver's context that the probes take over; null: none.
  explicit ProbeLimit(void* context = nullptr);
  ~ProbeLimit();
  ProbeLimit(const ProbeLimit&) = delete;
  ProbeLimit& operator=(const ProbeLimit&) = delete;

  // Returns call(), which it calls in another thread. If that takes too long, returns a DeviceProbe without values; the
  // other thread then continues.
  DeviceProbe Ask(int device, std::function<DeviceProbe()> call);
  // Returns whether the device did not answer a probe of this thread in time.
  static bool IsSilent(int device);

 private:
  void* const context_;
  const std::chrono::steady_clock::time_point end_;
  uint64_t silent_devices_ = 0;
};

// The probes of a profiler, one for each device. Any thread may call any function. No lock is held while a probe runs:
// it may wait for the dynamic linker's lock, and a library's constructor, which runs under that lock, may be asking.
class ProbeTable {
 public:
  // Sets the device's probe, and returns when no other thread is in a call of the one that it replaces.
  void Set(DeviceId device, std::function<DeviceProbe()> probe, const void* owner);
  // Returns when no other thread is in a call of the probe.
  void Remove(DeviceId device, const void* owner);
  // Returns whether the device has a probe. Takes no lock.
  bool Has(DeviceId device) const { return (set_.load(std::memory_order_relaxed) & BitOf(device)) != 0; }
  // Returns what the device's probe answers. The answer has no values if there is no probe, if it throws a
  // std::exception other than std::bad_alloc, or if this thread is inside a probe.
  DeviceProbe Ask(int device) const;
  // The same for one memory space of the device. Only kDevice has a probe.
  DeviceProbe Ask(DeviceId device, MemorySpace space) const {
    return space == MemorySpace::kDevice ? Ask(static_cast<int>(device)) : DeviceProbe();
  }
  // In a forked child: removes all probes, since device handles do not survive the fork. Their objects are not
  // destroyed, because their destructors could use the device.
  void RemoveAll();

 private:
  // A call in progress is one of its owners.
  struct Prober {
    std::function<DeviceProbe()> probe;
    const void* owner;
  };
  struct Slot {
    // Returns the one that is asked; null if there is none.
    std::shared_ptr<Prober> Present() {
      MutexLock hold(mutex);
      return prober;
    }
    Mutex mutex;
    std::shared_ptr<Prober> prober ABSL_GUARDED_BY(mutex);
  };
  static uint64_t BitOf(DeviceId device) { return uint64_t{1} << static_cast<unsigned>(device) % kMaxDevices; }
  // Puts `prober` into the slot, and waits until no other thread is in a call of the one that was there. Does not wait
  // if this thread is inside a probe. Does nothing if `owner` is not null and the one there is of another owner.
  void Exchange(DeviceId device, const void* const* owner, std::shared_ptr<Prober> prober);

  mutable Slot slots_[kMaxDevices];
  std::atomic<uint64_t> set_{0};  // bit d: device d has a probe; changes under the mutex of the device's slot
  static_assert(kMaxDevices <= 64);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_PROBES_H_
