#include "src/backends/cuda/shared/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "src/base/descriptor.h"
#include "src/base/kept_errno.h"
#include "src/base/lines.h"
#include "src/base/linker_error.h"
#include "src/base/lock_free_lazy.h"

namespace hbmprof::internal {
namespace {

using Result = int;  // nvmlReturn_t: 0 is success
constexpr Result kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ull;

using Device = void*;

struct MemoryInfo {  // nvmlMemory_t
  unsigned long long total, free, used;
};

struct ProcessInfo {  // nvmlProcessInfo_t since version 2
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct GroupLimits {  // nvmlGetMemoryLimits_v1_t
  const char* control_group;
  unsigned long long soft, hard, used;
};
constexpr unsigned long long kNoLimit = ~0ull;

struct Library {
  bool complete = false;
  Result (*device_by_bus_id)(const char*, Device*) = nullptr;
  Result (*memory_info)(Device, MemoryInfo*) = nullptr;
  Result (*processes)(Device, unsigned* count, ProcessInfo*) = nullptr;
  // Null: this NVML has no such function.
  Result (*uuid)(Device, char* text, unsigned size) = nullptr;
  Result (*group_limits)(Device, GroupLimits*) = nullptr;
};

template <typename Function>
bool Find(Function& function, void* library, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::unique_ptr<Library> Load() {
  auto library = std::make_unique<Library>();
  const KeptErrno kept_errno;
  void* handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  Result (*init)() = nullptr;
  if (handle != nullptr && Find(init, handle, "nvmlInit_v2") && init() == 0 &&
      Find(library->device_by_bus_id, handle, "nvmlDeviceGetHandleByPciBusId_v2") &&
      Find(library->memory_info, handle, "nvmlDeviceGetMemoryInfo") &&
      (Find(library->processes, handle, "nvmlDeviceGetComputeRunningProcesses_v3") ||
       Find(library->processes, handle, "nvmlDeviceGetComputeRunningProcesses_v2"))) {
    Find(library->uuid, handle, "nvmlDeviceGetUUID");
    Find(library->group_limits, handle, "nvmlDeviceGetMemoryLimits_v1");
    library->complete = true;
  }
  ClearLinkerError();
  return library;
}

// Returns null if there is no NVML. Several threads may initialize NVML here at the same time, which is harmless.
const Library* Nvml() {
  static LockFreeLazy<Library> library;
  const Library* loaded = library.Get(&Load);
  return loaded->complete ? loaded : nullptr;
}

// Returns the ids of this process in all process-id name spaces that /proc shows.
std::vector<unsigned> ProcessIds() {
  std::vector<unsigned> ids{static_cast<unsigned>(getpid())};
  ForEachLine(ReadProcFile("/proc/self/status"), [&ids](const std::string& line) {
    if (line.rfind("NSpid:", 0) != 0) return;
    const char* at = line.c_str() + 6;
    for (char* end = nullptr;; at = end) {
      const unsigned long id = std::strtoul(at, &end, 10);
      if (end == at) return;
      ids.push_back(static_cast<unsigned>(id));
    }
  });
  return ids;
}

std::vector<DeviceProcess> Processes(const Library& nvml, Device device) {
  std::vector<ProcessInfo> infos(64);
  Result result = kInsufficientSize;
  for (int attempt = 0; result == kInsufficientSize && attempt < 3; ++attempt) {
    auto count = static_cast<unsigned>(infos.size());
    result = nvml.processes(device, &count, infos.data());
    infos.resize(result == kInsufficientSize ? count + 16 : count);
  }
  std::vector<DeviceProcess> processes;
  if (result != 0) return processes;
  const std::vector<unsigned> ids = ProcessIds();
  for (const ProcessInfo& info : infos) {
    DeviceProcess& process = processes.emplace_back();
    process.process_id = info.pid;
    if (info.used != kNotAvailable) process.bytes = static_cast<int64_t>(info.used);
    process.is_this = std::find(ids.begin(), ids.end(), info.pid) != ids.end();
  }
  return processes;
}

}  // namespace

NvmlMemory QueryNvml(const char* pci_bus_id) {
  const StandardDescriptorsTaken taken;
  NvmlMemory memory;
  const Library* nvml = Nvml();
  Device device = nullptr;
  if (nvml == nullptr || nvml->device_by_bus_id(pci_bus_id, &device) != 0) return memory;
  MemoryInfo info = {};
  if (nvml->memory_info(device, &info) == 0) {
    memory.total_bytes = static_cast<int64_t>(info.total);
    memory.used_bytes = static_cast<int64_t>(info.used);
  }
  char uuid[96] = "";
  const bool has_uuid = nvml->uuid != nullptr && nvml->uuid(device, uuid, sizeof(uuid)) == 0;
  if (has_uuid) memory.uuid.assign(uuid, strnlen(uuid, sizeof(uuid)));
  memory.processes = Processes(*nvml, device);
  for (const DeviceProcess& process : memory.processes) {
    if (process.is_this && !memory.process_bytes.has_value()) memory.process_bytes = process.bytes;
  }
  return memory;
}

void QueryNvmlGroup(const char* pci_bus_id, const char* control_group, DeviceFacts* facts) {
  const StandardDescriptorsTaken taken;
  const Library* nvml = Nvml();
  Device device = nullptr;
  if (nvml == nullptr || nvml->group_limits == nullptr || nvml->device_by_bus_id(pci_bus_id, &device) != 0) return;
  GroupLimits limits = {control_group, 0, 0, 0};
  if (nvml->group_limits(device, &limits) != 0 || limits.hard == kNoLimit) return;
  facts->group_limit = static_cast<int64_t>(limits.hard);
  facts->group_in_use = static_cast<int64_t>(limits.used);
}

}  // namespace hbmprof::internal
