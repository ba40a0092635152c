// A memory resource of CCCL with recorded memory, for CCCL 3.0 and for newer releases.
#include <cuda_runtime_api.h>
#include <hbmprof/adapters/cuda_mr.h>
#include <hbmprof/hbmprof.h>

#include <cstddef>
#include <cstdio>
#include <new>

// The program's resource. A type with the functions of either concept, or of both, can be wrapped.
struct PlainCudaResource {
  void* allocate_sync(std::size_t bytes, std::size_t) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) throw std::bad_alloc();
    return memory;
  }
  void deallocate_sync(void* memory, std::size_t, std::size_t) noexcept { cudaFree(memory); }
  void* allocate(std::size_t bytes, std::size_t alignment) { return allocate_sync(bytes, alignment); }
  void deallocate(void* memory, std::size_t, std::size_t) noexcept { cudaFree(memory); }
  friend bool operator==(const PlainCudaResource&, const PlainCudaResource&) { return true; }
  friend bool operator!=(const PlainCudaResource&, const PlainCudaResource&) { return false; }
  friend void get_property(const PlainCudaResource&, cuda::mr::device_accessible) noexcept {}
};

using Resource = hbmprof::adapters::TrackingResource<PlainCudaResource>;

[[gnu::noinline]] void* LoadWeights(Resource& resource) { return resource.allocate_sync(3 << 20, 256); }
[[gnu::noinline]] void* MakeActivations(Resource& resource) { return resource.allocate_sync(1 << 20, 256); }

int main(int argc, char** argv) {
  Resource resource{PlainCudaResource()};
  void* const weights = LoadWeights(resource);
  void* const activations = MakeActivations(resource);
  resource.deallocate_sync(activations, 1 << 20, 256);

  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  std::printf("in use %lld B\n", static_cast<long long>(profiler.Stats(profiler.Device("GPU:0")).bytes_in_use));
  const bool is_saved = hbmprof::save_device_memory_profile(argc > 1 ? argv[1] : "cuda_mr.pb.gz").ok();
  resource.deallocate_sync(weights, 3 << 20, 256);
  return is_saved ? 0 : 1;
}
