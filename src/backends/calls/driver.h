// What the engine needs of a vendor's driver: Driver, its library with the functions of the vendor's table (roles.inc),
// and DriverQueries. Everything here is thread-safe. The table uses no memory and no lock of hbmprof.
//
// Not in this file: the wrappers (src/inject/driver_shim.h), the use of the results (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CALLS_DRIVER_H_
#define HBMPROF_SRC_BACKENDS_CALLS_DRIVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"
#include "src/base/thread_state.h"
#include "src/core/device_driver.h"

namespace hbmprof::internal {

struct DriverStream {
  void* stream = nullptr;
  bool per_thread_default = false;  // the null stream is the per-thread default stream
};

// Where memory is.
struct Place {
  int device = -1;  // -1: the current one
  MemoryKind kind = MemoryKind::kDevice;
};

// Calls the C library's dlsym, also in the injected library, which has a dlsym of its own.
void* FindSymbol(void* library, const char* name);

// A vendor's driver in this process, and the table of its functions that hbmprof calls. The table is filled at the
// first use after the process has loaded the library, and from then on that library stays loaded. Constant-initialized.
class Driver {
 public:
  struct Names {
    const char* files[4];        // of the library; null: no more
    const char* path;            // a part of each path of the library
    const char* prefix;          // of the functions
    const char* device;          // the names of devices are this and the ordinal
    const char* stream_ordered;  // the label of stream-ordered memory
    const DeviceDriver* device_driver;
  };

  constexpr Driver(const Names& with, const char* const* of_entries, std::atomic<void*>* to, int wrapped, int all)
      : names(with), entry_names(of_entries), wrapped_count(wrapped), functions_(to), count_(all) {}

  // The process's library, which stays loaded while this object lives.
  class Loaded {
   public:
    explicit Loaded(const Driver& driver);
    ~Loaded();
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;

    bool is_loaded() const { return library_ != nullptr; }
    // Returns null if the driver is not loaded or lacks the function.
    void* Find(const char* name);

   private:
    void* const library_;
    bool has_failed_ = false;
  };

  // The process's library; null while the process has not loaded it. From the first call that finds it, the library
  // stays loaded.
  void* Library();

  // Fills the table if the process has loaded the driver; returns whether it is filled.
  bool Load();
  bool is_loaded() const { return is_filled_.load(std::memory_order_acquire); }
  // From now on `function` is called as the driver's function with the number `entry`: what the driver's own entry
  // jumps to, after that entry was changed to jump to the wrapper. REQUIRES: the table is filled.
  void SetDriverFunction(int entry, void* function) { functions_[entry].store(function, std::memory_order_release); }
  // The driver's function with the number `entry`; null if the process has not loaded the driver or the driver lacks
  // it.
  void* DriverFunction(int entry) { return Load() ? functions_[entry].load(std::memory_order_relaxed) : nullptr; }
  // The same, but does not fill the table: a program that has made no tracked call can unload the driver.
  void* FunctionToCall(int entry) const {
    if (is_loaded()) return functions_[entry].load(std::memory_order_relaxed);
    return Loaded(*this).Find(entry_names[entry]);
  }

  std::string DeviceName(int ordinal) const { return ordinal < 0 ? "unknown" : names.device + std::to_string(ordinal); }
  // Returns the id of a device in Profiler::Default(); of the device "unknown" for the ordinal -1. Call it only if the
  // device is in use: after a call that allocates on it, even if that call has failed. The first call for a device sets
  // its probe: probe(ordinal, id), to which the baseline is added.
  template <typename Probe>
  DeviceId Device(int ordinal, const Probe& probe) {
    const bool is_cached = ordinal >= 0 && ordinal < kMaxDevices;
    if (is_cached) {
      if (const int id = known_[ordinal].load(std::memory_order_acquire))
        return DeviceId{static_cast<uint16_t>(id - 1)};
    }
    Profiler& profiler = Profiler::Default();
    const DeviceId id = profiler.Device(DeviceName(ordinal));
    // The probe takes host memory. If the program's own operator new makes a wrapped call, that call gets here again,
    // inside the tracker. It does not set the probe; a call outside of the tracker does.
    const ReentryGuard guard;
    if (is_cached && guard.entered()) {
      if (names.device_driver != nullptr) device_driver.store(names.device_driver);
      profiler.SetDeviceProbe(id, [=] { return WithBaseline(probe(ordinal, id), id); });
      known_[ordinal].store(static_cast<int>(id) + 1, std::memory_order_release);
    }
    return id;
  }
  // Returns the allocator of Profiler::Default() that labels stream-ordered memory.
  AllocatorId StreamOrderedAllocator();

  const Names names;
  const char* const* const entry_names;  // by the vendor's Entry
  const int wrapped_count;

 private:
  static DeviceProbe WithBaseline(DeviceProbe probe, DeviceId id);

  // An element is null if the driver does not have the function. Threads that fill the table at the same time write the
  // same values.
  std::atomic<void*>* const functions_;
  const int count_;
  std::atomic<bool> is_filled_{false};
  std::atomic<void*> library_{nullptr};
  std::atomic<int> known_[kMaxDevices] = {};  // id + 1, by ordinal
  std::atomic<int> stream_ordered_{-1};
};

// What only the adapter knows of a device. Called in the device's probe.
class AdapterMemory {
 public:
  // Calls visit(pool) for each pool that was created on the device and not destroyed, which it is not during the call.
  virtual void ForEachPool(int device, const std::function<void(void*)>& visit) = 0;
  // Returns the bytes of graphs in use on a device. Makes no query.
  virtual int64_t GraphBytes(DeviceId device) = 0;

 protected:
  ~AdapterMemory() = default;
};

// The queries that the adapter makes to the driver. No query may change any state of the driver or create a context.
// What a vendor does not define is not known. Never destroyed after a call of Device().
class DriverQueries {
 public:
  using Pointer = Place;  // device -1: the driver does not report it
  struct Capture {
    bool active = false;
    const void* graph = nullptr;  // the graph that the stream is captured into
  };
  struct Range {
    uint64_t start = 0;
    size_t bytes = 0;
  };

  explicit constexpr DriverQueries(Driver* driver = nullptr) : driver_(driver) {}
  // Returns the ordinal of the calling thread's current device, -1 if it has none.
  virtual int CurrentDevice() = 0;
  virtual const void* CurrentContext() { return nullptr; }
  virtual Pointer DescribePointer(const void* /*address*/) { return {}; }
  // The allocation that contains `address`; 0 bytes if the driver does not report it.
  virtual Range AddressRange(const void* /*address*/) { return {}; }
  virtual size_t AddressRangeBytes(const void* address) { return AddressRange(address).bytes; }
  virtual Capture CaptureOf(const DriverStream& /*stream*/) { return {}; }
  virtual bool PrimaryContextActive(int /*device*/) { return true; }
  // Returns the free bytes of the current device; nullopt if there is no current device.
  virtual std::optional<int64_t> FreeBytes() { return std::nullopt; }
  // The bytes of a pool in use.
  virtual std::optional<size_t> PoolBytes(void* /*pool*/) { return std::nullopt; }
  // Called after queries that follow a call which has failed because there was no memory: makes its error the last one
  // of the thread again, if queries change that.
  virtual void RestoreLastError() {}
  // What the driver reports about a device. `id`: the profiler's.
  virtual DeviceProbe Probe(int /*ordinal*/, DeviceId /*id*/) { return {}; }
  // Whether the memory of the thread's context is a part of the baseline now. Physical memory can be created before.
  virtual bool HasContext() { return true; }
  // Returns the profiler's id of a device.
  virtual DeviceId Device(int ordinal) {
    return driver_->Device(ordinal, [this](int number, DeviceId id) { return Probe(number, id); });
  }
  // Returns the allocator that labels stream-ordered memory.
  virtual AllocatorId StreamOrderedAllocator() { return driver_->StreamOrderedAllocator(); }
  // Keeps the device's baseline (DeviceProbe::baseline), unless that has been done. Called after each record of an
  // allocation on the device.
  virtual void KeepBaseline(DeviceId device);

  // Null: there is none. REQUIRES: no call was tracked before.
  AdapterMemory* adapter = nullptr;

 protected:
  ~DriverQueries() = default;

 private:
  Driver* const driver_;
};

// Returns the attributes of stream-ordered memory at `address`.
inline Attributes StreamOrderedAttributes(DriverQueries& driver, const void* address, bool is_captured) {
  const DriverQueries::Pointer pointer = driver.DescribePointer(address);
  const int device = pointer.device >= 0 ? pointer.device : driver.CurrentDevice();
  return {driver.Device(device), is_captured ? MemoryKind::kGraph : pointer.kind, driver.StreamOrderedAllocator()};
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_DRIVER_H_
