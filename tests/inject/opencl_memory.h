// The shared memory (SVM) of a real OpenCL device, with the form of a driver's calls (vendors_test.cc). The calls go
// through the system's loader, which loads the layer of the library HBMPROF_INJECTED.
#ifndef HBMPROF_TESTS_INJECT_OPENCL_MEMORY_H_
#define HBMPROF_TESTS_INJECT_OPENCL_MEMORY_H_

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

namespace hbmprof_test {

// The first device of the platform with this number.
template <int platform>
class OpenclMemory {
 public:
  static constexpr int kOutOfMemory = 2;

  // Returns why the calls cannot be made; empty if they can.
  static std::string WhyNot() {
    return Instance().context_ != nullptr ? "" : "there is no OpenCL platform " + std::to_string(platform);
  }
  static int Allocate(void** ptr, size_t bytes) {
    *ptr = bytes > kMost ? nullptr : clSVMAlloc(Instance().context_, CL_MEM_READ_WRITE, bytes, 0);
    if (*ptr == nullptr) return kOutOfMemory;
    const std::lock_guard<std::mutex> hold(Instance().mutex_);
    Instance().live_.insert(*ptr);
    return CL_SUCCESS;
  }
  static int Free(void* ptr) {
    if (!Instance().Ends(ptr)) return CL_INVALID_VALUE;
    clSVMFree(Instance().context_, ptr);
    return CL_SUCCESS;
  }
  static int FreeAsync(void* ptr, uintptr_t queue) {
    if (!Instance().Ends(ptr)) return CL_INVALID_VALUE;
    return clEnqueueSVMFree(reinterpret_cast<cl_command_queue>(queue), 1, &ptr, nullptr, nullptr, 0, nullptr, nullptr);
  }
  static uintptr_t Stream(int index) { return reinterpret_cast<uintptr_t>(Instance().queues_[index]); }
  static void Synchronize(uintptr_t queue) { clFinish(reinterpret_cast<cl_command_queue>(queue)); }

 private:
  static constexpr size_t kMost = size_t{1} << 32;

  static OpenclMemory& Instance() {
    static auto* const memory = new OpenclMemory;
    return *memory;
  }
  OpenclMemory() {
    setenv("OCL_ICD_VENDORS", HBMPROF_OPENCL_VENDORS, 0);  // the loader reads both in its first call
    setenv("OPENCL_LAYERS", HBMPROF_INJECTED, 0);
    cl_platform_id platforms[platform + 1] = {};
    cl_device_id device = nullptr;
    clGetPlatformIDs(platform + 1, platforms, nullptr);
    if (platforms[platform] == nullptr) return;
    if (clGetDeviceIDs(platforms[platform], CL_DEVICE_TYPE_ALL, 1, &device, nullptr) != CL_SUCCESS) return;
    context_ = clCreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
    for (cl_command_queue& queue : queues_) {
      queue = clCreateCommandQueueWithProperties(context_, device, nullptr, nullptr);
    }
  }
  // OpenCL does not check the pointers that it frees.
  bool Ends(void* ptr) {
    const std::lock_guard<std::mutex> hold(mutex_);
    return live_.erase(ptr) == 1;
  }

  cl_context context_ = nullptr;
  cl_command_queue queues_[2] = {};
  std::mutex mutex_;
  std::set<void*> live_;
};

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_INJECT_OPENCL_MEMORY_H_
