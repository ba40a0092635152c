// Allocates memory of the type argv[1] on a real GPU and ends without freeing it. Prints "KIND BYTES TAKEN
// GRANULARITY". The last two are from the driver: the decrease of the device's free memory, and its granularity. Built
// with the static and the shared runtime, and for the per-thread default stream.
#include "tests/gpu/gpu_program.h"

#include <dlfcn.h>

#include <chrono>
#include <string>

namespace {

constexpr size_t kBytes = (size_t{8} << 20) + 4096;

size_t Physical() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const size_t granularity = Granularity(0);
  CUmemGenericAllocationHandle handle = 0;
  if (EntryPoint<decltype(cuMemCreate)>("cuMemCreate", 10020)(&handle, 4 * granularity, &properties, 0) != 0) {
    NotHere("cuMemCreate fails");
  }
  return 4 * granularity;
}

// A graph's memory is taken when it runs.
void Launch(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, nullptr));
}

// Allocates with the driver's own function, which no preloaded library can see: it is found with the dlsym of libc.
void AllocateUnrecorded() {
  using Dlsym = void*(void*, const char*);
  auto* real = reinterpret_cast<Dlsym*>(dlsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym"));
  auto* allocate =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(real(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2"));
  CUdeviceptr ptr = 0;
  if (allocate(&ptr, size_t{64} << 20) != CUDA_SUCCESS) std::exit(1);
}

// Nanoseconds per allocation and free.
template <typename Pair>
double Time(const Pair& pair) {
  for (int i = 0; i < 100; ++i) pair();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) pair();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 2000;
}

}  // namespace

struct Allocated {
  const char* kind = "device";
  size_t bytes = kBytes;
  cudaGraph_t graph = nullptr;
};

extern "C" [[gnu::noinline]] void user_allocates(const std::string& mode, Allocated* allocated) {
  void* ptr = nullptr;
  size_t& bytes = allocated->bytes;
  const char*& kind = allocated->kind;
  if (mode == "linear") {
    CHECK(cudaMalloc(&ptr, bytes));
  } else if (mode == "pitch") {
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&ptr, &pitch, 1000, 300));
    bytes = pitch * 300;
  } else if (mode == "managed") {
    kind = "managed";
    CHECK(cudaMallocManaged(&ptr, bytes));
  } else if (mode == "pinned") {
    kind = "pinned_host";
    CHECK(cudaMallocHost(&ptr, bytes));
  } else if (mode == "async") {
    CHECK(cudaMallocAsync(&ptr, bytes, nullptr));
    CHECK(cudaStreamSynchronize(nullptr));
  } else if (mode == "pool") {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool = nullptr;
    CHECK(cudaMemPoolCreate(&pool, &properties));
    CHECK(cudaMallocFromPoolAsync(&ptr, bytes, pool, nullptr));
  } else if (mode == "array") {
    kind = "array";
    const cudaChannelFormatDesc format = {32, 32, 32, 32, cudaChannelFormatKindFloat};
    cudaArray_t array = nullptr;
    CHECK(cudaMallocArray(&array, &format, 1024, 1024, 0));
    bytes = size_t{16} << 20;
  } else if (mode == "vmm") {
    kind = "vmm";
    bytes = Physical();
  } else if (mode == "graph") {
    kind = "graph";
    CHECK(cudaGraphCreate(&allocated->graph, 0));
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location = {cudaMemLocationTypeDevice, 0};
    params.bytesize = bytes;
    cudaGraphNode_t node = nullptr;
    CHECK(cudaGraphAddMemAllocNode(&node, allocated->graph, nullptr, 0, &params));
  } else if (mode == "captured") {
    kind = "graph";
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&ptr, bytes, stream));
    CHECK(cudaStreamEndCapture(stream, &allocated->graph));
  } else if (mode == "second_device") {
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&ptr, bytes));
  } else if (mode == "behind_our_back") {
    CHECK(cudaMalloc(&ptr, bytes));
    AllocateUnrecorded();
  } else {
    NotHere("no such mode");
  }
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int gpus = UsableGpus();
  const int used = mode == "second_device" ? 2 : 1;
  if (gpus < used) NotHere("there is one device only");
  if (mode == "time") {
    void* ptr = nullptr;
    CHECK(cudaFree(nullptr));
    const double plain = Time([&] {
      CHECK(cudaMalloc(&ptr, 1 << 20));
      CHECK(cudaFree(ptr));
    });
    const double async = Time([&] {
      CHECK(cudaMallocAsync(&ptr, 1 << 20, nullptr));
      CHECK(cudaFreeAsync(ptr, nullptr));
    });
    std::printf("%.0f %.0f\n", plain, async);
    return 0;
  }
  const int64_t before = FreeBytes(used);
  Allocated allocated;
  user_allocates(mode, &allocated);
  if (allocated.graph != nullptr) Launch(allocated.graph);
  const int64_t taken = before - FreeBytes(used);
  std::printf("%s %zu %lld %zu\n", allocated.kind, allocated.bytes, static_cast<long long>(taken), Granularity(0));
  return 0;
}
