// The contract suites on the shared memory (SVM) of real OpenCL devices, and random calls of several threads whose sums
// the test keeps itself. The calls go through the layer, which lies above the system's loader here.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_layer.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "src/backends/opencl/layer.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"

namespace hbmprof {
namespace internal {

Profiler* recorder = nullptr;  // of the test
const bool is_recording = [] {
  opencl_profiler.store([] { return recorder; });
  return true;
}();

}  // namespace internal

namespace {

constexpr int kMostPlatforms = 2;

// Before the loader is called: the drivers of the system, and that of build/opencl.
const int is_set = setenv("OCL_ICD_VENDORS", HBMPROF_OPENCL_VENDORS, 0);

const cl_icd_dispatch& Layer() {
  static const cl_icd_dispatch* const layer = [] {
    static cl_icd_dispatch loader = {};
#define SET(name) loader.name = &::name
    SET(clGetPlatformIDs);
    SET(clGetDeviceIDs);
    SET(clGetDeviceInfo);
    SET(clGetContextInfo);
    SET(clGetMemObjectInfo);
    SET(clSetMemObjectDestructorCallback);
    SET(clCreateBuffer);
    SET(clCreateSubBuffer);
    SET(clSVMAlloc);
    SET(clSVMFree);
    SET(clEnqueueSVMFree);
#undef SET
    cl_uint count = 0;
    const cl_icd_dispatch* made = nullptr;
    EXPECT_EQ(clInitLayer(sizeof(loader) / sizeof(void*), &loader, &count, &made), CL_SUCCESS);
    EXPECT_EQ(count, sizeof(loader) / sizeof(void*));
    return made;
  }();
  return *layer;
}

std::vector<cl_platform_id> Platforms() {
  cl_platform_id platforms[kMostPlatforms] = {};
  cl_uint count = 0;
  EXPECT_EQ(is_set, 0);
  if (clGetPlatformIDs(kMostPlatforms, platforms, &count) != CL_SUCCESS) return {};
  return {platforms, platforms + std::min<size_t>(count, kMostPlatforms)};
}

// The first device of a platform, with two queues.
struct Device {
  explicit Device(int platform) {
    cl_device_id device = nullptr;
    EXPECT_EQ(clGetDeviceIDs(Platforms()[static_cast<size_t>(platform)], CL_DEVICE_TYPE_ALL, 1, &device, nullptr),
              CL_SUCCESS);
    context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
    for (cl_command_queue& queue : queues) {
      queue = clCreateCommandQueueWithProperties(context, device, nullptr, nullptr);
      EXPECT_NE(queue, nullptr);
    }
  }
  ~Device() {
    for (cl_command_queue queue : queues) clReleaseCommandQueue(queue);
    clReleaseContext(context);
  }

  cl_context context = nullptr;
  cl_command_queue queues[2] = {};
};

// As a program writes it that has an allocator class. OpenCL does not check the pointers that it frees.
class SharedMemory : public DeviceAllocator {
 public:
  explicit SharedMemory(Device& device) : device_(device) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* const ptr = bytes > kMost ? nullptr : Layer().clSVMAlloc(device_.context, CL_MEM_READ_WRITE, bytes, 0);
    if (ptr == nullptr) return absl::ResourceExhaustedError("clSVMAlloc");
    const internal::MutexLock lock(mutex_);
    live_.insert(ptr);
    return ptr;
  }
  absl::Status Free(void* ptr) override {
    if (ptr == nullptr) return absl::OkStatus();
    if (!Remove(ptr)) return absl::InvalidArgumentError("not live");
    Layer().clSVMFree(device_.context, ptr);
    return absl::OkStatus();
  }
  absl::Status FreeAsync(void* ptr, StreamId stream) override {
    if (ptr == nullptr) return absl::OkStatus();
    if (!Remove(ptr)) return absl::InvalidArgumentError("not live");
    auto* const queue = reinterpret_cast<cl_command_queue>(static_cast<uintptr_t>(stream));
    const cl_int error = Layer().clEnqueueSVMFree(queue, 1, &ptr, nullptr, nullptr, 0, nullptr, nullptr);
    return error == CL_SUCCESS ? absl::OkStatus() : absl::InternalError("clEnqueueSVMFree");
  }
  std::string device_name() const override { return "OpenCL:0:0"; }
  MemoryKind kind() const override { return MemoryKind::kManaged; }

 private:
  static constexpr size_t kMost = size_t{1} << 32;

  bool Remove(void* ptr) {
    const internal::MutexLock lock(mutex_);
    return live_.erase(ptr) == 1;
  }

  Device& device_;
  internal::Mutex mutex_;
  std::set<void*> live_;
};

class OpenclSubject : public ContractSubject {
 public:
  explicit OpenclSubject(int platform) : device_(platform) { internal::recorder = &profiler_; }
  ~OpenclSubject() override {
    internal::recorder = nullptr;
    EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 0) << "the layer has seen each allocation";
    EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 0) << "and each free";
  }
  DeviceAllocator& allocator() override { return allocator_; }
  StreamId stream(int index) override { return reinterpret_cast<uintptr_t>(device_.queues[index]); }
  void Synchronize(StreamId stream) override {
    EXPECT_EQ(clFinish(reinterpret_cast<cl_command_queue>(static_cast<uintptr_t>(stream))), CL_SUCCESS);
  }

 private:
  Profiler profiler_;
  Device device_;
  SharedMemory allocator_{device_};
};

template <int platform>
class OfPlatform : public OpenclSubject {
 public:
  OfPlatform() : OpenclSubject(platform) {}
};

std::string WhyNot(size_t platform) { return platform < Platforms().size() ? "" : "there is no such platform"; }

template <typename Subject, int platform>
ContractCase Case(const char* name) {
  ContractCase c;
  c.name = name + std::to_string(platform);
  c.make = [] { return std::make_unique<Subject>(); };
  c.unavailable = [] { return WhyNot(platform); };
  return c;
}

const auto kCases =
    ::testing::Values(Case<OfPlatform<0>, 0>("Opencl"), Case<TrackedSubject<OfPlatform<0>>, 0>("TrackedOpencl"),
                      Case<OfPlatform<1>, 1>("Opencl"), Case<TrackedSubject<OfPlatform<1>>, 1>("TrackedOpencl"));
INSTANTIATE_TEST_SUITE_P(Opencl, DeviceAllocatorContract, kCases, ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Opencl, TrackingContract, kCases, ContractCaseName);

class OpenclTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string why = WhyNot(static_cast<size_t>(GetParam()));
    if (!why.empty()) GTEST_SKIP() << why;
    internal::recorder = &profiler_;
  }
  void TearDown() override { internal::recorder = nullptr; }

  DeviceId Id() { return profiler_.Device("OpenCL:" + std::to_string(GetParam()) + ":0"); }

  Profiler profiler_;
};

// Buffers, parts of them and shared memory, with references in random order.
TEST_P(OpenclTest, SumsOfThreadsAreExact) {
  Device device(GetParam());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::atomic<int64_t> sums[2] = {{0}, {0}}, counts[2] = {{0}, {0}};  // of buffers; of shared memory
  std::atomic<bool> is_done{false};
  std::thread reader([&] {
    while (!is_done) {
      const Snapshot snapshot = profiler_.TakeSnapshot();
      for (const Snapshot::Sample& sample : snapshot.samples) EXPECT_GE(sample.inuse_bytes, 0);
    }
  });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      struct Held {
        cl_mem mem, part;
        void* shared;
        size_t bytes;
      };
      std::vector<Held> held;
      for (int step = 0; step < 1500; ++step) {
        if (held.size() < 20 && random() % 2 == 0) {
          Held one = {nullptr, nullptr, nullptr, 4096 + random() % 65536};
          if (random() % 2 == 0) {
            one.mem = Layer().clCreateBuffer(device.context, CL_MEM_READ_WRITE, one.bytes, nullptr, nullptr);
            ASSERT_NE(one.mem, nullptr);
            const cl_buffer_region region = {0, 64};
            if (random() % 2 == 0) {
              one.part = Layer().clCreateSubBuffer(one.mem, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, nullptr);
              ASSERT_NE(one.part, nullptr);
            }
            if (random() % 2 == 0) clRetainMemObject(one.mem), clReleaseMemObject(one.mem);
          } else {
            one.shared = Layer().clSVMAlloc(device.context, CL_MEM_READ_WRITE, one.bytes, 0);
            ASSERT_NE(one.shared, nullptr);
          }
          sums[one.shared != nullptr] += static_cast<int64_t>(one.bytes);
          ++counts[one.shared != nullptr];
          held.push_back(one);
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          Held& one = held.back();
          if (one.shared != nullptr) Layer().clSVMFree(device.context, one.shared);
          if (one.mem != nullptr) clReleaseMemObject(one.mem);
          if (one.part != nullptr) clReleaseMemObject(one.part);
          sums[one.shared != nullptr] -= static_cast<int64_t>(one.bytes);
          --counts[one.shared != nullptr];
          held.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_done = true;
  reader.join();
  EXPECT_EQ(profiler_.Stats(Id()).bytes_in_use, sums[0]);
  EXPECT_EQ(profiler_.Stats(Id(), MemorySpace::kManaged).bytes_in_use, sums[1]);
  EXPECT_EQ(profiler_.Stats(Id(), MemorySpace::kManaged).num_live, counts[1]);
  const TrackerStats stats = profiler_.GetTrackerStats();
  EXPECT_EQ(stats.foreign_frees, 0);
  EXPECT_EQ(stats.replaced_records, 0);
  EXPECT_EQ(stats.dropped_records, 0);
}

TEST_P(OpenclTest, ALoaderWithFewFunctionsIsRefused) {
  cl_uint count = 0;
  const cl_icd_dispatch* table = nullptr;
  EXPECT_EQ(clInitLayer(100, &Layer(), &count, &table), CL_INVALID_VALUE);
  EXPECT_EQ(clInitLayer(149, nullptr, &count, &table), CL_INVALID_VALUE);
  EXPECT_EQ(table, nullptr);
}

TEST_P(OpenclTest, TheLayerHasVersion100) {
  cl_layer_api_version version = 0;
  size_t size = 0;
  EXPECT_EQ(clGetLayerInfo(CL_LAYER_API_VERSION, sizeof(version), &version, &size), CL_SUCCESS);
  EXPECT_EQ(version, CL_LAYER_API_VERSION_100);
  EXPECT_EQ(size, sizeof(version));
  EXPECT_EQ(clGetLayerInfo(CL_LAYER_API_VERSION, 1, &version, &size), CL_INVALID_VALUE);
  EXPECT_EQ(clGetLayerInfo(0, sizeof(version), &version, &size), CL_INVALID_VALUE);
}

INSTANTIATE_TEST_SUITE_P(Platforms, OpenclTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace hbmprof
