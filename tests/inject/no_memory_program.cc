// Makes every wrapped call of the driver while one host allocation of the injected library fails: the one with the
// number argv[1]. Prints "reached" if there was such an allocation. Every call must reach the driver once and return
// its result.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/inject/driver_program.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

uintptr_t library_begin = 0;
uintptr_t library_end = 0;
bool armed = false;
int fails_in = 0;
bool reached = false;

bool Fails(const void* returns_to) {
  const auto caller = reinterpret_cast<uintptr_t>(returns_to);
  if (!armed || caller < library_begin || caller >= library_end || fails_in == 0 || --fails_in > 0) return false;
  reached = true;
  return true;
}

int FindLibrary(dl_phdr_info* info, size_t, void*) {
  if (std::strstr(info->dlpi_name, "libhbmprof_gpu.so") == nullptr) return 0;
  library_begin = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD && info->dlpi_addr + header.p_vaddr + header.p_memsz > library_end) {
      library_end = info->dlpi_addr + header.p_vaddr + header.p_memsz;
    }
  }
  return 1;
}

// Makes the call, which must succeed.
template <typename Call>
void Once(const char* name, const Call& call) {
  const int64_t before = fake_cuda_calls(name);
  armed = true;
  const CUresult result = call();
  armed = false;
  Check(result == kSuccess && fake_cuda_calls(name) == before + 1, name);
}
#define ONCE(name, ...) Once(#name, [&] { return name(__VA_ARGS__); })

constexpr size_t kMiB = 1 << 20;

void LinearMemory() {
  CUdeviceptr ptr = 0;
  size_t pitch = 0;
  void* host = nullptr;
  static char registered[4096];
  ONCE(cuMemAlloc_v2, &ptr, 1000);
  ONCE(cuMemFree_v2, ptr);
  ONCE(cuMemAllocPitch_v2, &ptr, &pitch, 100, 10, 4);
  ONCE(cuMemFree_v2, ptr);
  ONCE(cuMemAllocManaged, &ptr, 1000, 1);
  ONCE(cuMemFree_v2, ptr);
  ONCE(cuMemAllocHost_v2, &host, 1000);
  ONCE(cuMemFreeHost, host);
  ONCE(cuMemHostAlloc, &host, 1000, 0);
  ONCE(cuMemFreeHost, host);
  ONCE(cuMemHostRegister_v2, registered, sizeof(registered), 0);
  ONCE(cuMemHostUnregister, registered);
}

void StreamOrderedMemory() {
  const MemPoolProps properties{1, 0, {kLocationDevice, 0}, nullptr, 0, {}};
  CUdeviceptr ptr = 0;
  CUdeviceptr exported = 0;
  Handle pool = nullptr;
  ONCE(cuMemAllocAsync, &ptr, 1000, nullptr);
  ONCE(cuMemFreeAsync, ptr, nullptr);
  ONCE(cuMemAllocAsync_ptsz, &ptr, 1000, nullptr);
  // The fake driver counts both under one name.
  Once("cuMemFreeAsync", [&] { return cuMemFreeAsync_ptsz(ptr, nullptr); });
  ONCE(cuMemPoolCreate, &pool, &properties);
  ONCE(cuMemAllocFromPoolAsync, &exported, 1000, pool, nullptr);
  ONCE(cuMemFreeAsync, exported, nullptr);
  ONCE(cuMemPoolDestroy, pool);
}

void PhysicalMemory() {
  const MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
  CUdeviceptr reserved = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle again = 0;
  CHECK_THAT(cuMemAddressReserve(&reserved, 4 * kMiB, 0, 0, 0) == kSuccess);
  ONCE(cuMemCreate, &handle, 2 * kMiB, &properties, 0);
  ONCE(cuMemMap, reserved, 2 * kMiB, 0, handle, 0);
  ONCE(cuMemRetainAllocationHandle, &again, reinterpret_cast<void*>(reserved));
  ONCE(cuMemRelease, again);
  ONCE(cuMemRelease, handle);
  ONCE(cuMemUnmap, reserved, 2 * kMiB);
  ONCE(cuMemImportFromShareableHandle, &handle, nullptr, 1);
  ONCE(cuMemMap, reserved, 2 * kMiB, 0, handle, 0);
  ONCE(cuMemUnmap, reserved, 2 * kMiB);
  ONCE(cuMemRelease, handle);
  ONCE(cuMulticastCreate, &handle, nullptr);
  ONCE(cuMemRelease, handle);
}

void Arrays() {
  const ArrayDescriptor plain{64, 64, 0x20, 4};
  const Array3dDescriptor deep{64, 64, 4, 0x20, 4, 0};
  const Array3dDescriptor sparse{1024, 1024, 0, 0x20, 4, 0x40};
  Handle array = nullptr;
  ONCE(cuArrayCreate_v2, &array, &plain);
  ONCE(cuArrayDestroy, array);
  ONCE(cuMipmappedArrayCreate, &array, &deep, 2);
  ONCE(cuMipmappedArrayDestroy, array);
  ONCE(cuArray3DCreate_v2, &array, &sparse);
  ONCE(cuArrayDestroy, array);
}

void ForeignMemory() {
  CUdeviceptr ptr = 0;
  CUdeviceptr opened = 0;
  IpcMemHandle handle = {};
  Handle external = nullptr;
  const ExternalMemoryHandleDesc description{1, {}, 65536};
  ONCE(cuMemAlloc_v2, &ptr, 1000);
  CHECK_THAT(cuIpcGetMemHandle(&handle, ptr) == kSuccess);
  ONCE(cuIpcOpenMemHandle_v2, &opened, handle, 0);
  ONCE(cuIpcCloseMemHandle, opened);
  ONCE(cuMemFree_v2, ptr);
  ONCE(cuMemPoolImportPointer, &ptr, nullptr, nullptr);
  ONCE(cuMemFreeAsync, ptr, nullptr);
  ONCE(cuImportExternalMemory, &external, &description);
  ONCE(cuExternalMemoryGetMappedBuffer, &ptr, external, nullptr);
  ONCE(cuMemFree_v2, ptr);
  ONCE(cuDestroyExternalMemory, external);
}

void Graphs() {
  const auto stream = reinterpret_cast<Handle>(0x20);
  Handle graph = nullptr;
  Handle executable = nullptr;
  Handle node = nullptr;
  CUdeviceptr kept = 0;
  CUdeviceptr passing = 0;
  ONCE(cuStreamBeginCapture_v2, stream, 0);
  ONCE(cuMemAllocAsync, &kept, kMiB, stream);
  ONCE(cuMemAllocAsync, &passing, kMiB, stream);
  ONCE(cuMemFreeAsync, passing, stream);
  CHECK_THAT(cuStreamEndCapture(stream, &graph) == kSuccess);
  ONCE(cuGraphInstantiateWithFlags, &executable, graph, 0);
  ONCE(cuGraphLaunch, executable, nullptr);
  ONCE(cuGraphDestroy, graph);
  ONCE(cuGraphExecDestroy, executable);
  ONCE(cuMemFree_v2, kept);

  // A graph whose memory another one frees.
  MemAllocNodeParams params = {};
  params.pool.location = {kLocationDevice, 0};
  params.bytes = kMiB;
  ONCE(cuGraphCreate, &graph, 0);
  ONCE(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &params);
  ONCE(cuGraphInstantiateWithFlags, &executable, graph, 0);
  ONCE(cuGraphLaunch, executable, nullptr);
  Handle other = nullptr;
  Handle other_executable = nullptr;
  ONCE(cuGraphCreate, &other, 0);
  ONCE(cuGraphAddMemFreeNode, &node, other, nullptr, 0, params.address);
  ONCE(cuGraphInstantiateWithFlags, &other_executable, other, 0);
  ONCE(cuGraphLaunch, other_executable, nullptr);
}

void Code() {
  Handle handle = nullptr;
  ONCE(cuModuleLoadData, &handle, "code");
  ONCE(cuModuleUnload, handle);
  ONCE(cuLibraryLoadData, &handle, "code", nullptr, nullptr, 0, nullptr, nullptr, 0);
  ONCE(cuLibraryUnload, handle);
}

void Contexts() {
  CUdeviceptr ptr = 0;
  Handle context = nullptr;
  ONCE(cuCtxCreate_v2, &context, 0, 0);
  ONCE(cuMemAlloc_v2, &ptr, 1000);
  ONCE(cuMemAlloc_v2, &ptr, 2000);
  ONCE(cuMemFree_v2, ptr);
  ONCE(cuCtxDestroy_v2, context);
  driver_program::UseDevice(0);
  ONCE(cuMemAlloc_v2, &ptr, 1000);
  ONCE(cuDevicePrimaryCtxRelease_v2, 0);
  ONCE(cuDevicePrimaryCtxReset_v2, 0);
}

}  // namespace

extern "C" void* malloc(size_t bytes) { return Fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes); }
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  return Fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
}

int main(int, char** argv) {
  dl_iterate_phdr(&FindLibrary, nullptr);
  Check(library_end != 0, "the injected library is preloaded");
  fails_in = std::atoi(argv[1]);
  driver_program::UseDevice(0);
  LinearMemory();
  StreamOrderedMemory();
  PhysicalMemory();
  Arrays();
  ForeignMemory();
  Graphs();
  Code();
  Contexts();
  std::printf("%s\n", reached ? "reached" : "not reached");
  return 0;
}
