// A program that uses TensorFlow's BFC allocator as TensorFlow does, from the real libtensorflow_framework.so.2, whose
// path is argv[1]. argv[2] is the name of the case; tensorflow_test has one test for each case. The program does not
// use hbmprof or TensorFlow's headers: it finds functions by their names.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/inject/driver_calls.h"
#include "tests/inject/framework_pool.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types and calls

namespace tsl {

// As TensorFlow declares it.
class SubAllocator {
 public:
  virtual ~SubAllocator() = default;
  virtual void* Alloc(size_t alignment, size_t num_bytes, size_t* bytes_received) = 0;
  virtual void Free(void* ptr, size_t num_bytes) = 0;
  virtual bool SupportsCoalescing() const = 0;
  virtual int GetMemoryType() const { return 0; }

 private:
  std::vector<std::function<void(void*, int, size_t)>> alloc_visitors_;
  std::vector<std::function<void(void*, int, size_t)>> free_visitors_;
};

}  // namespace tsl

namespace {

class DeviceMemory : public tsl::SubAllocator {
 public:
  explicit DeviceMemory(int device) {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context_, device);
  }
  void* Alloc(size_t, size_t bytes, size_t* received) override {
    CUdeviceptr segment = 0;
    cuCtxSetCurrent(context_);
    if (cuMemAlloc_v2(&segment, bytes) != 0) return nullptr;
    *received = bytes;
    return reinterpret_cast<void*>(segment);
  }
  void Free(void* segment, size_t) override { cuMemFree_v2(reinterpret_cast<CUdeviceptr>(segment)); }
  bool SupportsCoalescing() const override { return true; }

 private:
  Handle context_ = nullptr;
};

class HostMemory : public tsl::SubAllocator {
 public:
  void* Alloc(size_t alignment, size_t bytes, size_t* received) override {
    *received = bytes;
    return std::aligned_alloc(alignment, bytes);
  }
  void Free(void* segment, size_t) override { std::free(segment); }
  bool SupportsCoalescing() const override { return false; }
};

// As TensorFlow declares them.
struct Options {
  bool allow_growth = true;
  bool allow_retry_on_failure = false;
  bool garbage_collection = false;
  double fragmentation_fraction = 0;
};
struct AllocationAttributes {
  bool retry_on_failure = false;
  bool allocation_will_be_logged = false;
  void* freed_by_func = nullptr;
};

class Tensorflow final : public Pool {
 public:
  explicit Tensorflow(const char* path) : library_(dlopen(path, RTLD_NOW)) {
    REQUIRE(library_ != nullptr);
    Find(alloc_, "11AllocateRawEmmRKNS_20AllocationAttributesE");
    Find(free_, "13DeallocateRawEPv");
    Find(stats_, "8GetStatsEv");
    for (int device = 0; device < fake_cuda_device_count(); ++device) {
      Make(devices_[device], std::make_unique<DeviceMemory>(device));
    }
    Make(host_, std::make_unique<HostMemory>());
  }

  void SetDevice(int device) const override { current_ = device; }
  void* Allocate(size_t bytes) const override { return AllocateIn(devices_[current_], bytes); }
  void Free(void* block) const override { free_(&devices_[current_], block); }
  void* AllocateOnHost(size_t bytes) const { return AllocateIn(host_, bytes); }
  void FreeOnHost(void* block) const { free_(&host_, block); }

  // Prints the totals of the allocator and of the driver for each device. An object of GetStats begins with the number
  // of allocations and the bytes in use.
  void PrintTotals() const {
    for (int device = 0; device < fake_cuda_device_count(); ++device) {
      int64_t stats[128] = {};
      stats_(stats, &devices_[device]);
      const size_t context = fake_cuda_context_active(device) != 0 ? fake_cuda_context_bytes() : 0;
      const long long driver = static_cast<long long>(fake_cuda_bytes_in_use(device) - context);
      std::printf("device %d: allocations %lld allocated %lld driver %lld\n", device, static_cast<long long>(stats[0]),
                  static_cast<long long>(stats[1]), driver);
    }
  }

 private:
  static constexpr int kMaxDevices = 8;
  // Larger than an allocator, whose size depends on the release.
  struct alignas(64) Allocator {
    char bytes[4096];
  };

  template <typename Function>
  void Find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, (std::string("_ZN3tsl12BFCAllocator") + name).c_str()));
    REQUIRE(function != nullptr);
  }
  void Make(Allocator& allocator, std::unique_ptr<tsl::SubAllocator> memory) {
    void (*construct)(void*, std::unique_ptr<tsl::SubAllocator>, size_t, const std::string&, const Options&) = nullptr;
    Find(construct,
         "C1ESt10unique_ptrINS_12SubAllocatorESt14default_deleteIS2_EEmRKNSt7__cxx1112basic_"
         "stringIcSt11char_traitsIcESaIcEEERKNS0_7OptionsE");
    construct(&allocator, std::move(memory), size_t{1} << 34, "bfc", Options());
  }
  void* AllocateIn(Allocator& allocator, size_t bytes) const {
    return alloc_(&allocator, 64, bytes, AllocationAttributes());
  }

  void* const library_;
  void* (*alloc_)(void*, size_t, size_t, const AllocationAttributes&) = nullptr;
  void (*free_)(void*, void*) = nullptr;
  void (*stats_)(void*, void*) = nullptr;
  mutable Allocator devices_[kMaxDevices] = {};
  mutable Allocator host_ = {};
  static thread_local int current_;
};
thread_local int Tensorflow::current_ = 0;

// Allocates blocks in host memory and in device memory in turn.
void AllocateOnHost(const Tensorflow& tensorflow) {
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(tensorflow.AllocateOnHost(100000));
    tensorflow.Free(copy_input(tensorflow, 100000));
  }
  for (void* const block : blocks) tensorflow.FreeOnHost(block);
  REQUIRE(load_weights(tensorflow, 3 * kMiB) != nullptr);
}

// The child frees a block that its parent has allocated.
void Fork(const Tensorflow& tensorflow) {
  void* const block = load_weights(tensorflow, 3 * kMiB);
  const pid_t child = fork();
  if (child == 0) {
    tensorflow.Free(block);
    std::_Exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

// Begins to record after an allocation, which is freed later.
void Attach(const Tensorflow& tensorflow) {
  void* const before = load_weights(tensorflow, 3 * kMiB);
  void* const library = dlopen(std::getenv("ATTACH_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* const attach = reinterpret_cast<int (*)(const char*)>(dlsym(library, "hbmprof_attach"));
  REQUIRE(attach != nullptr && attach(nullptr) == 0);
  grow_kv_cache(tensorflow, kMiB / 2);
  tensorflow.Free(before);
  Operate(tensorflow, 1, 1000, 1);
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc == 3);
  // Never destroyed, as in TensorFlow.
  const Tensorflow& tensorflow = *new Tensorflow(argv[1]);
  const std::string_view name = argv[2];
  if (name == "random") Random(tensorflow, 1);
  if (name == "two_devices") Random(tensorflow, 2);
  if (name == "serve") Serve(tensorflow, false);
  if (name == "leak") Serve(tensorflow, true);
  if (name == "host") AllocateOnHost(tensorflow);
  if (name == "fork") Fork(tensorflow);
  if (name == "attach") Attach(tensorflow);
  tensorflow.PrintTotals();
}
