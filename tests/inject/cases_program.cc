// A program that links the driver. argv[1] selects what it does; each value is a case of inject_test.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/inject/driver_program.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

extern "C" CUdeviceptr user_allocates(size_t bytes);

namespace {

using driver_program::Allocate;
using driver_program::UseDevice;
constexpr size_t kMiB = 1 << 20;

// One unmapping of many mappings. The handles of the memory were released early, and their values reused.
void GgmlPool() {
  CUdeviceptr pool = 0;
  CHECK_THAT(cuMemAddressReserve(&pool, 64 * kMiB, 0, 0, 0) == kSuccess);
  const MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
  for (size_t i = 0; i < 16; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    CHECK_THAT(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == kSuccess);
    CHECK_THAT(cuMemMap(pool + i * 2 * kMiB, 2 * kMiB, 0, handle, 0) == kSuccess);
    CHECK_THAT(cuMemRelease(handle) == kSuccess);
  }
  CHECK_THAT(cuMemUnmap(pool, 32 * kMiB) == kSuccess);
}

void EightThreads() {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      UseDevice(static_cast<int>(t % 2));
      unsigned random = t;
      std::vector<CUdeviceptr> mine;
      for (int i = 0; i < 3000; ++i) {
        random = random * 1664525 + 1013904223;
        if (mine.size() < 8 && (random >> 16) % 2 == 0) {
          CUdeviceptr ptr = 0;
          const size_t bytes = 512 * (1 + (random >> 20) % 4);
          CHECK_THAT((random & 1 ? cuMemAlloc_v2(&ptr, bytes) : cuMemAllocAsync(&ptr, bytes, nullptr)) == kSuccess);
          mine.push_back(ptr);
        } else if (!mine.empty()) {
          CHECK_THAT((random & 2 ? cuMemFree_v2(mine.back()) : cuMemFreeAsync(mine.back(), nullptr)) == kSuccess);
          mine.pop_back();
        }
      }
      for (const CUdeviceptr ptr : mine) CHECK_THAT(cuMemFree_v2(ptr) == kSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// An executable graph that allocates 1 MiB, and 4 MiB that it frees itself.
Handle CapturedGraph(Handle* graph, CUdeviceptr* kept) {
  const auto stream = reinterpret_cast<Handle>(0x20);
  CHECK_THAT(cuStreamBeginCapture_v2(stream, 0) == kSuccess);
  CUdeviceptr passing = 0;
  CHECK_THAT(cuMemAllocAsync(kept, kMiB, stream) == kSuccess);
  CHECK_THAT(cuMemAllocAsync(&passing, 4 * kMiB, stream) == kSuccess);
  CHECK_THAT(cuMemFreeAsync(passing, stream) == kSuccess);
  CHECK_THAT(cuStreamEndCapture(stream, graph) == kSuccess);
  Handle executable = nullptr;
  CHECK_THAT(cuGraphInstantiateWithFlags(&executable, *graph, 0) == kSuccess);
  return executable;
}

// The points at which the case ends.
void Graphs(const std::string& moment) {
  user_allocates(100);
  Handle graph = nullptr;
  CUdeviceptr kept = 0;
  const Handle executable = CapturedGraph(&graph, &kept);
  if (moment == "made") return;
  CHECK_THAT(cuGraphLaunch(executable, nullptr) == kSuccess);
  if (moment == "launched") return;
  if (moment == "launched_again") {
    CHECK_THAT(cuGraphLaunch(executable, nullptr) != kSuccess);
    CHECK_THAT(cuMemFreeAsync(kept, nullptr) == kSuccess);
    CHECK_THAT(cuGraphLaunch_ptsz(executable, nullptr) == kSuccess);
    return;
  }
  CHECK_THAT(cuGraphDestroy(graph) == kSuccess);
  CHECK_THAT(cuGraphExecDestroy(executable) == kSuccess);
  if (moment == "destroyed") return;
  if (moment == "freed_by_another_graph") {
    CHECK_THAT(cuGraphCreate(&graph, 0) == kSuccess);
    Handle node = nullptr;
    CHECK_THAT(cuGraphAddMemFreeNode(&node, graph, nullptr, 0, kept) == kSuccess);
    Handle other = nullptr;
    CHECK_THAT(cuGraphInstantiateWithFlags(&other, graph, 0) == kSuccess);
    CHECK_THAT(cuGraphLaunch(other, nullptr) == kSuccess);
    return;
  }
  CHECK_THAT(cuMemFree_v2(kept) == kSuccess);
}

// Memory of a locality domain of device 1, on a thread whose device is 0; and idle memory of pools: of a locality
// domain of device 1, of managed memory without a device and with device 1, and of the host.
void Locations() {
  constexpr int kDomain3OfDevice1 = 0x0301;
  constexpr int kManaged = 2;
  const MemLocation domain{kLocationDevice + 5, kDomain3OfDevice1};
  CUmemGenericAllocationHandle handle = 0;
  const MemAllocationProp properties{1, 0, domain};
  CHECK_THAT(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == kSuccess);
  const MemPoolProps pools[] = {{1, 0, domain, nullptr, 0, {}},
                                {kManaged, 0, {0, 0}, nullptr, 0, {}},
                                {kManaged, 0, {kLocationDevice, 1}, nullptr, 0, {}},
                                {1, 0, {kLocationHost, 0}, nullptr, 0, {}}};
  for (const MemPoolProps& pool_properties : pools) {
    Handle pool = nullptr;
    CUdeviceptr ptr = 0;
    CHECK_THAT(cuMemPoolCreate(&pool, &pool_properties) == kSuccess);
    CHECK_THAT(cuMemAllocFromPoolAsync(&ptr, 4 * kMiB, pool, nullptr) == kSuccess);
    CHECK_THAT(cuMemFreeAsync(ptr, nullptr) == kSuccess);
  }
}

// What makes hbmprof ask the driver: threads without a context that free and load, a stream that is being captured,
// and profiles that a thread of hbmprof takes.
void Questions() {
  const CUdeviceptr ptr = user_allocates(kMiB);
  std::thread([ptr] {
    Handle module = nullptr;
    CHECK_THAT(cuModuleLoadData(&module, "code") != kSuccess);
    CHECK_THAT(cuMemFree_v2(ptr) == kSuccess);
  }).join();
  const auto stream = reinterpret_cast<Handle>(0x20);
  CHECK_THAT(cuStreamBeginCapture_v2(stream, 0) == kSuccess);
  CUdeviceptr kept = 0;
  CHECK_THAT(cuMemAllocAsync(&kept, kMiB, nullptr) == kSuccess);
  CHECK_THAT(cuMemFreeAsync(kept, nullptr) == kSuccess);
  Handle graph = nullptr;
  CHECK_THAT(cuStreamEndCapture(stream, &graph) == kSuccess);
  user_allocates(100);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
}

// Launches a graph with a memory node of 1 MiB, which is added with each version of the call.
void GraphNodes() {
  Handle graph = nullptr;
  CHECK_THAT(cuGraphCreate(&graph, 0) == kSuccess);
  for (const auto add_node : {&cuGraphAddNode_v2, &cuGraphAddNode_v3}) {
    GraphNodeParams params = {};
    params.type = kGraphNodeMemAlloc;
    params.alloc = {};
    params.alloc.pool.location = {kLocationDevice, 0};
    params.alloc.bytes = kMiB;
    Handle node = nullptr;
    CHECK_THAT(add_node(&node, graph, nullptr, nullptr, 0, &params) == kSuccess);
  }
  Handle executable = nullptr;
  CHECK_THAT(cuGraphInstantiateWithFlags(&executable, graph, 0) == kSuccess);
  CHECK_THAT(cuGraphLaunch(executable, nullptr) == kSuccess);
}

// Looks up each wrapped function: every result must differ from the function that the fake driver exports.
void GetProcAddress() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  const struct {
    const char* name;
    int version;
    Flags64 flags;
    const char* symbol;
  } requests[] = {{"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
                  {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
                  {"cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"},
                  {"cuMemAllocAsync", 11020, kPerThreadDefaultStream, "cuMemAllocAsync_ptsz"},
                  {"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"},
                  {"cuCtxCreate", 12050, 0, "cuCtxCreate_v4"},
                  {"cuGraphAddNode", 13000, 0, "cuGraphAddNode_v2"},
                  {"cuGraphAddNode", 13040, 0, "cuGraphAddNode_v3"},
                  {"cuGraphInstantiate", 12000, 0, "cuGraphInstantiate_v2"},
                  {"cuGraphInstantiateWithFlags", 12000, 0, "cuGraphInstantiateWithFlags"},
                  {"cuGetProcAddress", 11080, 0, "cuGetProcAddress"},
                  {"cuGraphLaunch", 10000, kPerThreadDefaultStream, "cuGraphLaunch_ptsz"},
                  {"cuStreamBeginCapture", 10010, 0, "cuStreamBeginCapture_v2"},
                  {"cuStreamBeginCapture", 10010, kPerThreadDefaultStream, "cuStreamBeginCapture_v2_ptsz"}};
  for (const auto& request : requests) {
    void* function = nullptr;
    CHECK_THAT(cuGetProcAddress_v2(request.name, &function, request.version, request.flags, nullptr) == kSuccess);
    Dl_info info = {};
    CHECK_THAT(dladdr(function, &info) != 0);
    std::printf("%s %d %llu: %s in %s\n", request.name, request.version, request.flags,
                info.dli_sname == nullptr ? "?" : info.dli_sname, info.dli_fname);
    CHECK_THAT(function == dlsym(driver, request.symbol));
  }
  // hbmprof does not wrap an unknown variant with other arguments: the result is the driver's own function.
  void* function = nullptr;
  CHECK_THAT(cuGetProcAddress_v2("cuMemAlloc", &function, 99000, 0, nullptr) == kSuccess);
  CHECK_THAT(function != nullptr && function == dlsym(driver, "cuMemAlloc_v99"));
}

}  // namespace

extern "C" [[gnu::noinline]] CUdeviceptr user_allocates(size_t bytes) { return Allocate(bytes); }

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "get_proc_address") {
    GetProcAddress();
    return 0;
  }
  UseDevice(0);
  if (name == "ggml") {
    GgmlPool();
  } else if (name == "threads") {
    EightThreads();
  } else if (name == "graphs") {
    Graphs(argv[2]);
  } else if (name == "graph_nodes") {
    GraphNodes();
  } else if (name == "per_thread") {
    CUdeviceptr ptr = 0;
    CHECK_THAT(cuMemAllocAsync_ptsz(&ptr, 4444, nullptr) == kSuccess);
  } else if (name == "fails") {
    CUdeviceptr ptr = 77;
    std::printf("%d %d\n", cuMemAlloc_v2(&ptr, 100), cuMemFree_v2(0x1234));
    return 0;
  } else if (name == "crash") {
    user_allocates(100);
    *static_cast<volatile int*>(nullptr) = 1;
  } else if (name == "untracked_memory") {
    user_allocates(kMiB);
    CHECK_THAT(fake_cuda_take(0, 64 * kMiB) == 0);
  } else if (name == "physical_memory_before_the_context") {
    const MemAllocationProp properties{1, 0, {kLocationDevice, 0}};
    CUmemGenericAllocationHandle handle = 0;
    CHECK_THAT(cuCtxSetCurrent(nullptr) == kSuccess);
    CHECK_THAT(cuMemCreate(&handle, 2 * kMiB, &properties, 0) == kSuccess);
    fake_cuda_use_device(0);
    user_allocates(kMiB);
  } else if (name == "pools") {
    const MemPoolProps properties{1, 0, {kLocationDevice, 0}, nullptr, 0, {}};
    Handle pool = nullptr;
    CHECK_THAT(cuMemPoolCreate(&pool, &properties) == kSuccess);
    CUdeviceptr ptrs[2] = {};
    CHECK_THAT(cuMemAllocAsync(&ptrs[0], 3 * kMiB, nullptr) == kSuccess);
    CHECK_THAT(cuMemAllocFromPoolAsync(&ptrs[1], 5 * kMiB, pool, nullptr) == kSuccess);
    for (const CUdeviceptr ptr : ptrs) CHECK_THAT(cuMemFreeAsync(ptr, nullptr) == kSuccess);
  } else if (name == "locations") {
    Locations();
  } else if (name == "questions") {
    Questions();
  } else if (name == "module") {
    user_allocates(100);
    Handle module = nullptr;
    CHECK_THAT(cuModuleLoadData(&module, "code") == kSuccess);
    if (argc > 2) CHECK_THAT(cuModuleUnload(module) == kSuccess);
  } else if (name == "contexts") {
    user_allocates(100);
    Handle contexts[3] = {};
    CHECK_THAT(cuCtxCreate_v2(&contexts[0], 0, 0) == kSuccess);
    Allocate(1000);
    CHECK_THAT(cuGLCtxCreate_v2(&contexts[1], 0, 0) == kSuccess);
    Allocate(2000);
    CHECK_THAT(cuVDPAUCtxCreate_v2(&contexts[2], 0, 0, 0, nullptr) == kSuccess);
    Allocate(3000);
    for (const Handle context : contexts) CHECK_THAT(cuCtxDestroy_v2(context) == kSuccess);
    if (argc > 2) {
      UseDevice(0);
      CHECK_THAT(cuDevicePrimaryCtxReset_v2(0) == kSuccess);
    }
  } else if (name == "dlerror") {
    static_cast<void>(dlerror());
    user_allocates(100);
    CHECK_THAT(dlerror() == nullptr);
  } else if (name == "interval") {
    user_allocates(100);
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  } else {
    user_allocates(100);
  }
  std::printf("done\n");
  return 0;
}
