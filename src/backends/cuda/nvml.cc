#include "src/backends/cuda/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/descriptor.h"

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

struct Library {
  Result (*device_by_bus_id)(const char*, Device*) = nullptr;
  Result (*memory_info)(Device, MemoryInfo*) = nullptr;
  Result (*processes)(Device, unsigned* count, ProcessInfo*) = nullptr;
};

template <typename Function>
bool Find(Function& function, void* library, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Null where there is none. Threads may load it at the same time: initialising twice is allowed.
const Library* Load() {
  void* handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  Result (*init)() = nullptr;
  auto* library = new Library;
  if (Find(init, handle, "nvmlInit_v2") && init() == 0 &&
      Find(library->device_by_bus_id, handle, "nvmlDeviceGetHandleByPciBusId_v2") &&
      Find(library->memory_info, handle, "nvmlDeviceGetMemoryInfo") &&
      (Find(library->processes, handle, "nvmlDeviceGetComputeRunningProcesses_v3") ||
       Find(library->processes, handle, "nvmlDeviceGetComputeRunningProcesses_v2"))) {
    return library;
  }
  delete library;
  return nullptr;
}

const Library* Nvml() {
  static const Library* const library = Load();
  return library;
}

// This process's id in each process-id name space that /proc knows.
std::vector<unsigned> ProcessIds() {
  std::vector<unsigned> ids{static_cast<unsigned>(getpid())};
  std::istringstream status(ReadProcFile("/proc/self/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    std::istringstream numbers(line.substr(6));
    for (unsigned id = 0; numbers >> id;) ids.push_back(id);
  }
  return ids;
}

int64_t ProcessBytes(const Library& nvml, Device device) {
  std::vector<ProcessInfo> processes(64);
  Result result = kInsufficientSize;
  for (int attempt = 0; result == kInsufficientSize && attempt < 3; ++attempt) {
    auto count = static_cast<unsigned>(processes.size());
    result = nvml.processes(device, &count, processes.data());
    processes.resize(result == kInsufficientSize ? count + 16 : count);
  }
  if (result != 0) return -1;
  const std::vector<unsigned> ids = ProcessIds();
  for (const ProcessInfo& process : processes) {
    const bool is_this = std::find(ids.begin(), ids.end(), process.pid) != ids.end();
    if (is_this && process.used != kNotAvailable) return static_cast<int64_t>(process.used);
  }
  return -1;
}

}  // namespace

NvmlMemory AskNvml(const char* pci_bus_id) {
  const StandardDescriptorsTaken taken;
  NvmlMemory memory;
  const Library* nvml = Nvml();
  Device device = nullptr;
  if (nvml == nullptr || nvml->device_by_bus_id(pci_bus_id, &device) != 0) return memory;
  MemoryInfo info = {};
  if (nvml->memory_info(device, &info) == 0) memory.total_bytes = static_cast<int64_t>(info.total);
  memory.process_bytes = ProcessBytes(*nvml, device);
  return memory;
}

}  // namespace hbmprof::internal
