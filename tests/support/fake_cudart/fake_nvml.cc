// The fake libnvidia-ml.so.1: reports the memory of the device model per process. With FAKE_NVML_PROCESS=0 it does not
// know this process, as in a container that does not share process ids with the host. With FAKE_NVML_MEMORY=0 it does
// not know the device's memory either. With FAKE_NVML_GROUP=LIMIT:USED the control group of the process has a limit.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_cudart/fake_cuda.h"

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};

struct GroupLimits {
  const char* group;
  unsigned long long soft, hard, used;
};

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  unsigned bus = 0;
  if (std::sscanf(bus_id, "%*x:%X:", &bus) != 1 || bus == 0) return 6;
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(bus));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  const char* known = std::getenv("FAKE_NVML_MEMORY");
  if (known != nullptr && std::strcmp(known, "0") == 0) return 3;  // not supported
  const int ordinal = static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1;
  memory->total = fake_cuda_capacity(ordinal);
  memory->used = fake_cuda_bytes_in_use(ordinal);
  memory->free = memory->total - memory->used;
  return 0;
}

int nvmlDeviceGetMemoryLimits_v1(void*, GroupLimits* limits) {
  const char* const group = std::getenv("FAKE_NVML_GROUP");
  if (std::strncmp(limits->group, "/sys/fs/cgroup/", 15) != 0) return 2;
  if (group == nullptr) return 6;  // no limits
  limits->soft = 0;
  return std::sscanf(group, "%llu:%llu", &limits->hard, &limits->used) == 2 ? 0 : 2;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-fa4e0000-0000-4000-8000-%012u",
                static_cast<unsigned>(reinterpret_cast<uintptr_t>(device)));
  return 0;
}

// There is another process too, so the first call's buffer is too small.
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  const int ordinal = static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1;
  if (*count < 100) {
    *count = 100;
    return 7;
  }
  const char* known = std::getenv("FAKE_NVML_PROCESS");
  const bool knows_us = known == nullptr || std::strcmp(known, "0") != 0;
  const size_t elsewhere = fake_cuda_bytes_elsewhere(ordinal);
  processes[0] = {1, elsewhere != 0 ? elsewhere : 123456789, 0, 0};
  processes[1] = {static_cast<unsigned>(getpid()), fake_cuda_bytes_in_use(ordinal) - elsewhere, 0, 0};
  *count = knows_us ? 2 : 1;
  return 0;
}

// The functions that PyTorch calls. The first form of the list of processes, whose elements have another size, is
// empty.
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13020;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 3; }

// The functions that XLA and TensorFlow call.
int nvmlInit() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "an error of the fake NVML"; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "590.44.01");
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned, unsigned* is_active) {
  *is_active = 0;
  return 0;
}
int nvmlDeviceGetFieldValues(void*, int, void*) { return 3; }

// The functions that vLLM calls.
int nvmlInitWithFlags(unsigned) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(fake_cuda_device_count());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= static_cast<unsigned>(fake_cuda_device_count())) return 2;
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(index + 1));
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Substitute H100");
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
}
