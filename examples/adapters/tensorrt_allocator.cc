// An allocator for TensorRT with recorded memory.
#include <NvInferRuntime.h>
#include <hbmprof/adapters/tensorrt.h>
#include <hbmprof/hbmprof.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

// The program's allocator. This one takes host memory, so that the example runs without a GPU.
class HostAllocator : public nvinfer1::IGpuAsyncAllocator {
 public:
  void* allocateAsync(uint64_t bytes, uint64_t, nvinfer1::AllocatorFlags, cudaStream_t) noexcept override {
    return bytes == 0 ? nullptr : std::malloc(bytes);
  }
  bool deallocateAsync(void* memory, cudaStream_t) noexcept override {
    std::free(memory);
    return true;
  }
};

// Does what TensorRT does when it loads an engine and makes an execution context.
[[gnu::noinline]] void* DeserializeEngine(nvinfer1::IGpuAllocator& allocator) {
  return allocator.allocateAsync(8 << 20, 256, 0, nullptr);
}
[[gnu::noinline]] void* CreateContext(nvinfer1::IGpuAllocator& allocator) {
  return allocator.allocateAsync(2 << 20, 256, 0, nullptr);
}

int main(int argc, char** argv) {
  HostAllocator memory;
  hbmprof::adapters::TrackingGpuAsyncAllocator tracker(memory, {"GPU:0", "tensorrt"});
  // With TensorRT: runtime->setGpuAllocator(&tracker);
  void* const engine = DeserializeEngine(tracker);
  void* const context = CreateContext(tracker);
  if (!tracker.deallocateAsync(context, nullptr)) return 1;

  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  std::printf("in use %lld B\n", static_cast<long long>(profiler.Stats(profiler.Device("GPU:0")).bytes_in_use));
  const bool is_saved = hbmprof::save_device_memory_profile(argc > 1 ? argv[1] : "tensorrt.pb.gz").ok();
  return tracker.deallocateAsync(engine, nullptr) && is_saved ? 0 : 1;
}
