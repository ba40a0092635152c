// PjrtPlugin: a plugin's own function table, asked and called without a trace: errors of our own questions are
// destroyed, and a question that the plugin cannot answer has an answer all the same.
//
// Not here: what the answers are used for (hooks.cc, adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_PJRT_PLUGIN_H_
#define HBMPROF_SRC_BACKENDS_PJRT_PLUGIN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/profiler.h"
#include "src/backends/pjrt/abi.h"
#include "src/backends/pjrt/adapter.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// Arguments of a question of ours: zeroed, and larger than any plugin may know them, since a newer plugin writes fields
// that are not declared here.
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

// As XLA writes shapes: f32[128,64].
std::string PjrtShapeText(int element_type, const int64_t* dims, size_t num_dims);

class PjrtPlugin {
 public:
  // `api` lives for ever. The profiler is where devices are named and probed.
  PjrtPlugin(const pjrt::Api* api, Profiler& profiler) : api_(api), profiler_(profiler) {}

  // Whether the table has a function in this slot.
  bool Has(int slot) const {
    return pjrt::OffsetOf(slot) + sizeof(void*) <= api_->struct_size && Function(slot) != nullptr;
  }
  // Calls a slot that is there, as the program's call would.
  template <typename Args>
  pjrt::Error* Call(int slot, Args* args) const {
    return reinterpret_cast<pjrt::Error* (*)(Args*)>(Function(slot))(args);
  }
  // Asks a question; false if there is no such slot or the plugin gave an error, which is destroyed.
  template <typename Args, size_t kStorageBytes>
  bool Query(int slot, PjrtQuery<Args, kStorageBytes>* query) const {
    if (!Has(slot)) return false;
    pjrt::Error* error = Call(slot, &query->args);
    if (error == nullptr) return true;
    Discard(error);
    return false;
  }
  // The code of an error, which stays whole; -1 if the plugin does not say.
  int CodeOf(const pjrt::Error* error) const;

  // Where memory is: a device, and the name of one of its memory spaces.
  struct Location {
    Attributes attributes;
    std::string space;
  };
  // Learns the client's devices, each probed for its own numbers from now on.
  void ClientCreated(pjrt::Client* client) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets them, before the client ends. No probe of its devices runs any more once this returns.
  void ClientDestroyed(pjrt::Client* client) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the two, the memory counts if it is given. `client` is the one they belong to, null if unknown.
  Location LocationOf(PjrtHandle client, pjrt::Device* device, pjrt::Memory* memory) ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceId DeviceOf(PjrtHandle client, pjrt::Device* device) ABSL_LOCKS_EXCLUDED(mutex_);
  // The name of a device that DeviceOf has given out, also when its client has ended.
  std::string NameOf(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);

  // The buffer as it is recorded. `device` and `memory` are where the call wanted it, null where it did not say; of the
  // two the memory counts. The plugin is asked for the memory space all the same.
  PjrtMemory Describe(PjrtHandle client, pjrt::Buffer* buffer, pjrt::Device* device, pjrt::Memory* memory);
  size_t SizeOf(pjrt::Buffer* buffer) const;
  // False also where the plugin does not say.
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
  void Discard(pjrt::Error* error) const;
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
