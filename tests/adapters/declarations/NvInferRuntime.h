// The allocators of TensorRT 10 and 11, with the same order of virtual functions, for machines without NVIDIA's header.
#ifndef HBMPROF_TESTS_ADAPTERS_DECLARATIONS_NVINFERRUNTIME_H_
#define HBMPROF_TESTS_ADAPTERS_DECLARATIONS_NVINFERRUNTIME_H_

#include <cstdint>

using cudaStream_t = struct CUstream_st*;

namespace nvinfer1 {

using AllocatorFlags = uint32_t;
enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };
struct InterfaceInfo {
  const char* kind;
  int32_t major;
  int32_t minor;
};

class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};

class IGpuAllocator : public IVersionedInterface {
 public:
  [[deprecated]] virtual void* allocate(uint64_t bytes, uint64_t alignment, AllocatorFlags flags) noexcept = 0;
  virtual void* reallocate(void* /*memory*/, uint64_t /*alignment*/, uint64_t /*bytes*/) noexcept { return nullptr; }
  [[deprecated]] virtual bool deallocate(void* memory) noexcept = 0;
  virtual void* allocateAsync(uint64_t bytes, uint64_t alignment, AllocatorFlags flags,
                              cudaStream_t stream) noexcept = 0;
  virtual bool deallocateAsync(void* memory, cudaStream_t stream) noexcept = 0;
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"IGpuAllocator", 1, 0}; }
};

class IGpuAsyncAllocator : public IGpuAllocator {
 public:
  [[deprecated]] void* allocate(uint64_t bytes, uint64_t alignment, AllocatorFlags flags) noexcept override {
    return allocateAsync(bytes, alignment, flags, nullptr);
  }
  [[deprecated]] bool deallocate(void* memory) noexcept override { return deallocateAsync(memory, nullptr); }
};

}  // namespace nvinfer1

#endif  // HBMPROF_TESTS_ADAPTERS_DECLARATIONS_NVINFERRUNTIME_H_
