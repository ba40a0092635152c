// PjrtPlugin: queries to a plugin through its own function table. A query changes no state of the plugin. If the plugin
// returns an error, the error is destroyed. If the plugin does not have the function or returns an error, the result is
// a default value.
//
// Not in this file: what the answers are used for (hooks.cc, adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_PJRT_PLUGIN_H_
#define HBMPROF_SRC_BACKENDS_PJRT_PLUGIN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/profiler.h"
#include "src/backends/pjrt/abi.h"
#include "src/backends/pjrt/adapter.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// The arguments of a query, initialized with zeros. The storage is larger than the struct that is declared here,
// because a newer plugin writes fields that are not declared here.
template <typename Args, size_t kStorageBytes = 256>
struct PjrtQuery {
  union {
    Args args;
    char storage[kStorageBytes];
  };
  PjrtQuery() : storage{} {
    static_assert(sizeof(Args) + 32 <= kStorageBytes);
    args.struct_size = sizeof(storage);
  }
};

// Returns the bytes that a message of XLA about a failed allocation names as requested, as in "Out of memory while
// trying to allocate 1048576 bytes" or "Attempting to allocate 1.50G. That was not possible."; nullopt if it names
// none. A number with a fraction is rounded as the message rounds it.
std::optional<size_t> PjrtRequestedBytes(std::string_view message);

// Returns a shape in XLA's notation, for example "f32[128,64]".
std::string PjrtShapeText(int element_type, const int64_t* dims, size_t num_dims);

class PjrtPlugin {
 public:
  // `api` must stay valid for the life of the process. Devices get their names and probes in `profiler`.
  PjrtPlugin(const pjrt::Api* api, Profiler& profiler) : api_(api), profiler_(profiler) {}

  // Returns whether the table has a function in this slot.
  bool Has(int slot) const {
    return pjrt::OffsetOf(slot) + sizeof(void*) <= api_->struct_size && Function(slot) != nullptr;
  }
  // Calls the function in a slot as the program's call would. REQUIRES: Has(slot).
  template <typename Args>
  pjrt::Error* Call(int slot, Args* args) const {
    return reinterpret_cast<pjrt::Error* (*)(Args*)>(Function(slot))(args);
  }
  // Calls the function in a slot with the query's arguments. Returns false if there is no such function, or if it
  // returns an error, which is destroyed.
  template <typename Args, size_t kStorageBytes>
  bool Query(int slot, PjrtQuery<Args, kStorageBytes>* query) const {
    if (!Has(slot)) return false;
    pjrt::Error* error = Call(slot, &query->args);
    if (error == nullptr) return true;
    Discard(error);
    return false;
  }
  // Returns the code of `error`; nullopt if the plugin does not report it. Does not destroy `error`.
  std::optional<int> CodeOf(const pjrt::Error* error) const;
  // Returns the message of `error`, which is valid until `error` is destroyed; "" if there is none.
  std::string_view MessageOf(const pjrt::Error* error) const;

  // Returns the error of work that has failed by now; null if there is none. Destroy it with Discard.
  pjrt::Error* FailureOf(pjrt::Event* event) const;
  void Discard(pjrt::Error* error) const;

  // A device, and the name of one of its memory spaces.
  struct Location {
    Attributes attributes;
    std::string space;
  };
  // Finds the client's devices and sets a probe for each.
  void ClientCreated(pjrt::Client* client) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the devices and their probes; called before the client is destroyed. When this returns, no probe of its
  // devices is running.
  void ClientDestroyed(pjrt::Client* client) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the location of `memory`, of `device` if `memory` is null. `client` is the client of both, null if unknown.
  Location LocationOf(PjrtHandle client, pjrt::Device* device, pjrt::Memory* memory) ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceId DeviceOf(PjrtHandle client, pjrt::Device* device) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the name of a device that DeviceOf has returned, also after its client was destroyed.
  std::string NameOf(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the attributes, labels and size with which the buffer is recorded. `device` and `memory` are the arguments
  // of the call that made it, each null if it was not given. If both were given, `memory` is used. The memory space
  // that the plugin reports has priority over both.
  PjrtMemory Describe(PjrtHandle client, pjrt::Buffer* buffer, pjrt::Device* device, pjrt::Memory* memory);
  size_t SizeOf(pjrt::Buffer* buffer) const;
  // Returns whether the buffer is deleted; false if the plugin does not have the function or returns an error.
  bool IsDeleted(pjrt::Buffer* buffer) const;
  std::shared_ptr<PjrtProgram> DescribeProgram(PjrtHandle client, pjrt::LoadedExecutable* executable);
  std::vector<pjrt::Device*> AddressableDevices(pjrt::Client* client) const;

  const pjrt::Api* api() const { return api_; }

 private:
  struct CachedLocation {
    PjrtHandle client;
    Location location;
  };

  void* Function(int slot) const {
    return *reinterpret_cast<void* const*>(reinterpret_cast<const char*>(api_) + pjrt::OffsetOf(slot));
  }
  std::string QueryName(pjrt::Device* device) const;
  Location QueryLocation(PjrtHandle client, pjrt::Memory* memory);
  static DeviceProbe Probe(const PjrtPlugin& plugin, pjrt::Device* device);

  const pjrt::Api* const api_;
  Profiler& profiler_;
  Mutex mutex_;
  // By Device* and Memory*.
  std::unordered_map<PjrtHandle, CachedLocation> locations_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<DeviceId, std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<PjrtHandle, std::vector<DeviceId>> probed_ ABSL_GUARDED_BY(mutex_);  // by client
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_PJRT_PLUGIN_H_
