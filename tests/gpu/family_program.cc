// Allocates memory of the family argv[1] with the driver's functions, and ends while it holds the memory. Prints "KIND
// BYTES TAKEN GRANULARITY NVML MAPPED": the requested bytes, the decrease of the device's free memory as the driver
// reports it, the driver's granularity, the increase of used memory as NVML reports it (-1: no NVML), and by how much
// the address space of the process grew. "time": prints the nanoseconds of a pair of cuMemAlloc and cuMemFree, and of
// the stream-ordered pair, of which there are argv[2].
// Needs no toolkit and no runtime, so it runs on the substitute driver, too. Exit code 77: not possible here; the
// reason is printed.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <type_traits>

#include "tests/inject/driver_calls.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types and calls

namespace {

constexpr size_t kBytes = (size_t{8} << 20) + 4096;

[[noreturn]] void NotHere(const std::string& why) {
  std::puts(why.c_str());
  std::exit(77);
}

void Check(CUresult result, const char* what) {
  if (result == kSuccess) return;
  std::fprintf(stderr, "%s: error %d\n", what, result);
  std::exit(1);
}

template <typename Function>
Function* Find(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) NotHere("no libcuda.so.1");
  void* const function = dlsym(driver, name);
  if (function == nullptr) NotHere(std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(function);
}
#define DO(name, ...) Check(Find<decltype(name)>(#name)(__VA_ARGS__), #name)

struct Used {
  long long driver = 0;
  long long nvml = -1;
  long long address_space = 0;  // of the process
};

Used UsedNow() {
  Used used;
  size_t free = 0;
  size_t total = 0;
  Check(Find<CUresult(size_t*, size_t*)>("cuMemGetInfo_v2")(&free, &total), "cuMemGetInfo_v2");
  used.driver = static_cast<long long>(total - free);
  void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  char bus[32] = "";
  Check(Find<CUresult(char*, int, CUdevice)>("cuDeviceGetPCIBusId")(bus, sizeof(bus), 0), "cuDeviceGetPCIBusId");
  const auto find = [&](const char* name) { return nvml == nullptr ? nullptr : dlsym(nvml, name); };
  auto* const init = reinterpret_cast<int (*)()>(find("nvmlInit_v2"));
  auto* const handle = reinterpret_cast<int (*)(const char*, void**)>(find("nvmlDeviceGetHandleByPciBusId_v2"));
  auto* const memory = reinterpret_cast<int (*)(void*, void*)>(find("nvmlDeviceGetMemoryInfo"));
  void* device = nullptr;
  unsigned long long figures[3] = {};  // total, free, used
  if (init != nullptr && handle != nullptr && memory != nullptr && init() == 0 && handle(bus, &device) == 0 &&
      memory(device, figures) == 0) {
    used.nvml = static_cast<long long>(figures[2]);
  }
  std::ifstream("/proc/self/statm") >> used.address_space;
  used.address_space *= sysconf(_SC_PAGESIZE);
  return used;
}

// Nanoseconds of each of `count` pairs.
template <typename Pair>
double Time(int count, const Pair& pair) {
  for (int i = 0; i < 10; ++i) pair();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) pair();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / count;
}

struct Allocated {
  const char* kind = "device";
  size_t bytes = kBytes;
};

}  // namespace

extern "C" [[gnu::noinline]] void user_allocates(const std::string& family, Allocated* allocated) {
  CUdeviceptr ptr = 0;
  void* host = nullptr;
  Handle array = nullptr;
  size_t& bytes = allocated->bytes;
  const char*& kind = allocated->kind;
  const MemLocation here{kLocationDevice, 0};
  if (family == "linear") {
    DO(cuMemAlloc_v2, &ptr, bytes);
  } else if (family == "pitch") {
    size_t pitch = 0;
    DO(cuMemAllocPitch_v2, &ptr, &pitch, 100000, 300, 4);
    bytes = pitch * 300;
  } else if (family == "managed") {
    kind = "managed";
    DO(cuMemAllocManaged, &ptr, bytes, 1);
  } else if (family == "pinned") {
    kind = "pinned_host";
    DO(cuMemAllocHost_v2, &host, bytes);
  } else if (family == "registered") {
    kind = "pinned_host";
    host = std::aligned_alloc(4096, bytes);
    DO(cuMemHostRegister_v2, host, bytes, 0);
  } else if (family == "async") {
    DO(cuMemAllocAsync, &ptr, bytes, nullptr);
  } else if (family == "pool") {
    const MemPoolProps properties{1, 0, here, nullptr, 0, {}};
    Handle pool = nullptr;
    DO(cuMemPoolCreate, &pool, &properties);
    DO(cuMemAllocFromPoolAsync, &ptr, bytes, pool, nullptr);
  } else if (family == "vmm") {
    kind = "vmm";
    bytes = size_t{8} << 20;
    const MemAllocationProp properties[4] = {{1, 0, here}};  // the driver's struct is larger
    CUmemGenericAllocationHandle physical = 0;
    DO(cuMemCreate, &physical, bytes, properties, 0);
  } else if (family == "array") {
    kind = "array";
    const ArrayDescriptor float4_image{1024, 1024, 0x20, 4};
    DO(cuArrayCreate_v2, &array, &float4_image);
    bytes = size_t{16} << 20;
  } else if (family == "graph") {
    kind = "graph";
    Handle graph = nullptr;
    Handle node = nullptr;
    Handle executable = nullptr;
    DO(cuGraphCreate, &graph, 0);
    MemAllocNodeParams params = {};
    params.pool.type = 1;
    params.pool.location = here;
    params.bytes = bytes;
    DO(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &params);
    DO(cuGraphInstantiateWithFlags, &executable, graph, 0);
    DO(cuGraphLaunch, executable, nullptr);
  } else {
    NotHere("no such family");
  }
}

int main(int argc, char** argv) {
  const std::string family = argc > 1 ? argv[1] : "";
  if (const CUresult error = Find<decltype(cuInit)>("cuInit")(0)) NotHere("cuInit: error " + std::to_string(error));
  Handle context = nullptr;
  DO(cuDevicePrimaryCtxRetain, &context, 0);
  DO(cuCtxSetCurrent, context);
  if (family == "time") {
    const int count = argc > 2 ? std::atoi(argv[2]) : 1000;
    CUdeviceptr ptr = 0;
    const double plain = Time(count, [&] {
      DO(cuMemAlloc_v2, &ptr, size_t{1} << 20);
      DO(cuMemFree_v2, ptr);
    });
    const double async = Time(count, [&] {
      DO(cuMemAllocAsync, &ptr, size_t{1} << 20, nullptr);
      DO(cuMemFreeAsync, ptr, nullptr);
    });
    std::printf("%.0f %.0f\n", plain, async);
    return 0;
  }
  // CUmemAllocationProp is larger than its declaration here.
  const MemAllocationProp properties[4] = {{1, 0, {kLocationDevice, 0}}};
  size_t granularity = 0;
  Check(Find<CUresult(size_t*, const MemAllocationProp*, int)>("cuMemGetAllocationGranularity")(&granularity,
                                                                                                properties, 0),
        "cuMemGetAllocationGranularity");
  if (family == "pinned") {  // the library maps its tables at the first allocation
    void* first = nullptr;
    DO(cuMemAllocHost_v2, &first, size_t{4096});
    DO(cuMemFreeHost, first);
  }
  const Used before = UsedNow();
  Allocated allocated;
  user_allocates(family, &allocated);
  Check(Find<CUresult()>("cuCtxSynchronize")(), "cuCtxSynchronize");
  const Used after = UsedNow();
  std::printf("%s %zu %lld %zu %lld %lld\n", allocated.kind, allocated.bytes, after.driver - before.driver, granularity,
              before.nvml < 0 ? -1 : after.nvml - before.nvml, after.address_space - before.address_space);
  return 0;
}
