// What only OpenCL has, on real devices: buffers, which end with their last reference, and the layer's own functions.
// The calls go through the layer, which lies above the system's loader here. tests/inject/vendors_test.cc has the
// contract.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_layer.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "src/backends/opencl/layer.h"

namespace hbmprof {
namespace internal {

Profiler* recorder = nullptr;  // of the test
const bool is_recording = (opencl_profiler.store([] { return recorder; }), true);

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

// The first device of a platform.
struct Context {
  explicit Context(int platform) {
    cl_device_id device = nullptr;
    EXPECT_EQ(clGetDeviceIDs(Platforms()[static_cast<size_t>(platform)], CL_DEVICE_TYPE_ALL, 1, &device, nullptr),
              CL_SUCCESS);
    context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
  }
  ~Context() { clReleaseContext(context); }

  cl_context context = nullptr;
};

std::string WhyNot(size_t platform) { return platform < Platforms().size() ? "" : "there is no such platform"; }

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

// Buffers and parts of them, with references in random order.
TEST_P(OpenclTest, SumsOfBuffersAreExact) {
  const Context device(GetParam());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::atomic<int64_t> sum{0};
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
        size_t bytes;
      };
      std::vector<Held> held;
      for (int step = 0; step < 1500; ++step) {
        if (held.size() < 20 && random() % 2 == 0) {
          Held one = {nullptr, nullptr, 4096 + random() % 65536};
          one.mem = Layer().clCreateBuffer(device.context, CL_MEM_READ_WRITE, one.bytes, nullptr, nullptr);
          ASSERT_NE(one.mem, nullptr);
          const cl_buffer_region region = {0, 64};
          if (random() % 2 == 0) {
            one.part = Layer().clCreateSubBuffer(one.mem, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, nullptr);
            ASSERT_NE(one.part, nullptr);
          }
          if (random() % 2 == 0) clRetainMemObject(one.mem), clReleaseMemObject(one.mem);
          sum += static_cast<int64_t>(one.bytes);
          held.push_back(one);
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          const Held& one = held.back();
          clReleaseMemObject(one.mem);
          if (one.part != nullptr) clReleaseMemObject(one.part);
          sum -= static_cast<int64_t>(one.bytes);
          held.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_done = true;
  reader.join();
  EXPECT_EQ(profiler_.Stats(Id()).bytes_in_use, sum);
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
