// Allocates on a real GPU, as argv[1] says, and ends while it holds the memory: prints "KIND BYTES". Knows nothing of
// hbmprof. Built with the static and the shared runtime, and for the per-thread default stream. Physical memory is
// asked for as PyTorch does, by the driver's entry points. Exit code 77: not possible on this machine, and why.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#ifdef WITH_CUBLAS
#include <cublas_v2.h>
#endif

namespace {

constexpr size_t kBytes = (size_t{8} << 20) + 4096;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

[[noreturn]] void NotHere(const char* why) {
  std::puts(why);
  std::exit(77);
}

template <typename Function>
Function* EntryPoint(const char* name, int version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, static_cast<unsigned>(version), cudaEnableDefault, &found));
  return reinterpret_cast<Function*>(function);
}

size_t Physical() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t granularity = 0;
  EntryPoint<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity", 10020)(
      &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  CUmemGenericAllocationHandle handle = 0;
  if (EntryPoint<decltype(cuMemCreate)>("cuMemCreate", 10020)(&handle, 4 * granularity, &properties, 0) != 0) {
    NotHere("cuMemCreate fails");
  }
  return 4 * granularity;
}

// The driver's own function, past whatever was preloaded: libc's dlsym, found in libc.
void BehindEverybodysBack() {
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

extern "C" [[gnu::noinline]] void user_allocates(const std::string& mode) {
  void* ptr = nullptr;
  size_t bytes = kBytes;
  const char* kind = "device";
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
    cudaGraph_t graph = nullptr;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location = {cudaMemLocationTypeDevice, 0};
    params.bytesize = bytes;
    cudaGraphNode_t node = nullptr;
    CHECK(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
  } else if (mode == "captured") {
    kind = "graph";
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&ptr, bytes, stream));
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph));
  } else if (mode == "second_device") {
    int count = 0;
    CHECK(cudaGetDeviceCount(&count));
    if (count < 2) NotHere("there is one device only");
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&ptr, bytes));
  } else if (mode == "behind_our_back") {
    CHECK(cudaMalloc(&ptr, bytes));
    BehindEverybodysBack();
  } else if (mode == "cublas") {
#ifdef WITH_CUBLAS
    CHECK(cudaMalloc(&ptr, bytes));
    cublasHandle_t handle = nullptr;
    if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) NotHere("cublasCreate fails");
    const float one = 1;
    auto* a = static_cast<float*>(ptr);
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 256, 256, 256, &one, a, 256, a, 256, &one, a, 256);
    CHECK(cudaDeviceSynchronize());
#else
    NotHere("built without cuBLAS");
#endif
  } else {
    NotHere("no such mode");
  }
  std::printf("%s %zu\n", kind, bytes);
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) NotHere(cudaGetErrorString(error));
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
  user_allocates(mode);
  return 0;
}
