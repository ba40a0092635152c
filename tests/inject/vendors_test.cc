// The drivers of all vendors, called by a program with the injected library (LD_PRELOAD): the contract
// suites and random calls of several threads whose sums the test keeps itself, from one list of drivers, and what only
// one vendor has. Those of OpenCL are real, the others substitutes. The program links a copy of the library, so
// Profiler::Default() is that of the injected library.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "src/backends/ascend/hal_driver.h"
#include "src/backends/hip/hip_driver.h"
#include "src/backends/musa/musa_driver.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"
#include "tests/support/fake_cudart/fake_cuda.h"
#include "tests/support/fake_vendors/fake_memory.h"
#include "tests/support/program_run.h"

#ifdef HBMPROF_OPENCL_VENDORS
#include "tests/inject/opencl_memory.h"
#endif

#pragma GCC visibility push(default)
#include "tests/inject/driver_calls.h"
namespace hbmprof::internal {
namespace hip_driver {
extern "C" {
int hipGetLastError();
int hipMemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, Flags64);
#define CALL(name, parameters, arguments, role) int name parameters;
#define QUERY CALL_OF_DRIVER
#define CALL_OF_DRIVER(name, parameters, arguments) int name parameters;
#include "src/backends/hip/hip_calls.inc"
}
}  // namespace hip_driver
namespace musa_driver {
extern "C" {
#define CALL(name, parameters, arguments, role) int name parameters;
#include "src/backends/musa/musa_calls.inc"
}
}  // namespace musa_driver
namespace mu_driver {
extern "C" {
int muMemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, Flags64);
int muMemAddressFree(CUdeviceptr, size_t);
#define CALL(name, parameters, arguments, role) int name parameters;
#include "src/backends/musa/mu_calls.inc"
}
}  // namespace mu_driver
namespace ascend_driver {
extern "C" {
#define CALL(name, parameters, arguments, role) int name parameters;
#include "src/backends/ascend/hal_calls.inc"
}
}  // namespace ascend_driver
}  // namespace hbmprof::internal
#pragma GCC visibility pop

namespace hbmprof {
namespace {

using hbmprof_test::NewDirectory;
using hbmprof_test::ProfileView;
using hbmprof_test::ViewProfile;
using internal::cuda_driver::CUdeviceptr;
using internal::cuda_driver::Handle;
namespace ascend = internal::ascend_driver;
namespace hip = internal::hip_driver;
namespace mu = internal::mu_driver;
namespace musa = internal::musa_driver;

constexpr size_t kCapacity = fake_vendors::kCapacity;
constexpr int kOutOfMemory[] = {2, 6};

// The calls that all drivers have. Those without stream-ordered memory free at once.
struct DriverCalls {
  const char* name;
  const char* device;
  void (*start)();       // a new device
  void (*use_device)();  // in each thread
  int (*allocate)(void** ptr, size_t bytes);
  int (*free)(void* ptr);
  int (*allocate_async)(void** ptr, size_t bytes, StreamId stream);
  int (*free_async)(void* ptr, StreamId stream);
  // Of a real device.
  MemoryKind kind = MemoryKind::kDevice;
  size_t capacity = kCapacity;  // 0: too large to fill
  std::string (*why_not)() = [] { return std::string(); };
  StreamId (*stream)(int index) = [](int) { return StreamId{0}; };
  void (*synchronize)(StreamId stream) = [](StreamId) {};
};

Handle ToHandle(StreamId stream) { return reinterpret_cast<Handle>(static_cast<uintptr_t>(stream)); }
CUdeviceptr* Address(void** ptr) { return reinterpret_cast<CUdeviceptr*>(ptr); }
CUdeviceptr Address(void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }
constexpr ascend::Flags kApp = 33ull << 56, kDevice = 1 << 10, kHost = 2 << 10;

#ifdef HBMPROF_OPENCL_VENDORS
template <int platform>
constexpr DriverCalls OpenclCalls(const char* name, const char* device) {
  using Memory = hbmprof_test::OpenclMemory<platform>;
  return {name,
          device,
          [] {},
          [] {},
          &Memory::Allocate,
          &Memory::Free,
          [](void** ptr, size_t bytes, StreamId) { return Memory::Allocate(ptr, bytes); },
          &Memory::FreeAsync,
          MemoryKind::kManaged,
          /*capacity=*/0,
          &Memory::WhyNot,
          &Memory::Stream,
          &Memory::Synchronize};
}
#endif

constexpr DriverCalls kDrivers[] = {
    {"Cuda", "GPU:0",
     [] {
       fake_cuda_reset(1, kCapacity + fake_cuda_context_bytes());
       internal::cuda_driver::cuInit(0);
     },
     [] {
       Handle context = nullptr;
       internal::cuda_driver::cuDevicePrimaryCtxRetain(&context, 0);
       internal::cuda_driver::cuCtxSetCurrent(context);
     },
     [](void** ptr, size_t bytes) { return internal::cuda_driver::cuMemAlloc_v2(Address(ptr), bytes); },
     [](void* ptr) { return internal::cuda_driver::cuMemFree_v2(Address(ptr)); },
     [](void** ptr, size_t bytes, StreamId stream) {
       return internal::cuda_driver::cuMemAllocAsync(Address(ptr), bytes, ToHandle(stream));
     },
     [](void* ptr, StreamId stream) { return internal::cuda_driver::cuMemFreeAsync(Address(ptr), ToHandle(stream)); }},
    {"Hip", "GPU:0", [] {}, [] {}, [](void** ptr, size_t bytes) { return hip::hipMalloc(Address(ptr), bytes); },
     [](void* ptr) { return hip::hipFree(Address(ptr)); },
     [](void** ptr, size_t bytes, StreamId stream) {
       return hip::hipMallocAsync(Address(ptr), bytes, ToHandle(stream));
     },
     [](void* ptr, StreamId stream) { return hip::hipFreeAsync(Address(ptr), ToHandle(stream)); }},
    {"Musa", "GPU:0", [] {}, [] {}, [](void** ptr, size_t bytes) { return musa::musaMalloc(Address(ptr), bytes); },
     [](void* ptr) { return musa::musaFree(Address(ptr)); },
     [](void** ptr, size_t bytes, StreamId stream) {
       return musa::musaMallocAsync(Address(ptr), bytes, ToHandle(stream));
     },
     [](void* ptr, StreamId stream) { return musa::musaFreeAsync(Address(ptr), ToHandle(stream)); }},
    {"Ascend", "NPU:0", [] {}, [] {},
     [](void** ptr, size_t bytes) { return ascend::halMemAlloc(ptr, bytes, kDevice | kApp); },
     [](void* ptr) { return ascend::halMemFree(ptr); },
     [](void** ptr, size_t bytes, StreamId) { return ascend::halMemAlloc(ptr, bytes, kDevice | kApp); },
     [](void* ptr, StreamId) { return ascend::halMemFree(ptr); }},
#ifdef HBMPROF_OPENCL_VENDORS
    OpenclCalls<0>("Opencl0", "OpenCL:0:0"),
    OpenclCalls<1>("Opencl1", "OpenCL:1:0"),
#endif
};
constexpr int kDriverCount = std::size(kDrivers);

TrackerStats Tracked() { return Profiler::Default().GetTrackerStats(); }
DeviceStats Stats(const char* device, MemorySpace space = MemorySpace::kDevice) {
  return Profiler::Default().Stats(Profiler::Default().Device(device), space);
}

// As a program writes it that has an allocator class. At its end the profiler must have seen each call.
class DriverMemory : public DeviceAllocator {
 public:
  explicit DriverMemory(const DriverCalls& calls) : calls_(calls) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    return Allocated(bytes, [&](void** ptr) { return calls_.allocate(ptr, bytes); });
  }
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override {
    return Allocated(bytes, [&](void** ptr) { return calls_.allocate_async(ptr, bytes, stream); });
  }
  absl::Status Free(void* ptr) override {
    return Freed(ptr, [&] { return calls_.free(ptr); });
  }
  absl::Status FreeAsync(void* ptr, StreamId stream) override {
    return Freed(ptr, [&] { return calls_.free_async(ptr, stream); });
  }
  std::string device_name() const override { return calls_.device; }
  MemoryKind kind() const override { return calls_.kind; }

 private:
  template <typename Call>
  absl::StatusOr<void*> Allocated(size_t bytes, const Call& call) {
    void* ptr = nullptr;
    if (bytes == 0) return ptr;
    calls_.use_device();
    const int error = call(&ptr);
    if (error == 0) return ptr;
    if (error == kOutOfMemory[0] || error == kOutOfMemory[1]) return absl::ResourceExhaustedError("full");
    return absl::InternalError("error " + std::to_string(error));
  }
  template <typename Call>
  absl::Status Freed(void* ptr, const Call& call) {
    if (ptr == nullptr) return absl::OkStatus();
    calls_.use_device();
    return call() == 0 ? absl::OkStatus() : absl::InvalidArgumentError("not live");
  }

  const DriverCalls& calls_;
};

template <int driver>
class DriverSubject : public ContractSubject {
 public:
  DriverSubject() { kCalls.start(); }
  ~DriverSubject() override {
    const DeviceStats after = Now();
    EXPECT_EQ(after.bytes_in_use, before_.bytes_in_use);
    EXPECT_EQ(after.num_live, before_.num_live);
    EXPECT_EQ(Tracked().dropped_records, tracked_.dropped_records);
    EXPECT_EQ(Tracked().replaced_records, tracked_.replaced_records);
  }
  DeviceAllocator& allocator() override { return allocator_; }
  StreamId stream(int index) override { return kCalls.stream(index); }
  void Synchronize(StreamId stream) override { kCalls.synchronize(stream); }

 private:
  static constexpr const DriverCalls& kCalls = kDrivers[driver];

  static DeviceStats Now() { return Stats(kCalls.device, SpaceOf(kCalls.kind)); }

  DriverMemory allocator_{kCalls};
  const DeviceStats before_ = Now();
  const TrackerStats tracked_ = Tracked();
};

template <typename Subject>
ContractCase Case(const DriverCalls& calls, const char* prefix) {
  ContractCase c;
  c.name = std::string(prefix) + calls.name;
  c.make = [] { return std::make_unique<Subject>(); };
  c.unavailable = calls.why_not;
  c.capacity = calls.capacity;
  return c;
}
template <int... drivers>
std::vector<ContractCase> Cases(std::integer_sequence<int, drivers...>) {
  return {Case<DriverSubject<drivers>>(kDrivers[drivers], "")...,
          Case<TrackedSubject<DriverSubject<drivers>>>(kDrivers[drivers], "Tracked")...};
}
const std::vector<ContractCase> kCases = Cases(std::make_integer_sequence<int, kDriverCount>());
INSTANTIATE_TEST_SUITE_P(Vendors, DeviceAllocatorContract, ::testing::ValuesIn(kCases), ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Vendors, TrackingContract, ::testing::ValuesIn(kCases), ContractCaseName);

class ExactnessTest : public ::testing::TestWithParam<int> {};

TEST_P(ExactnessTest, SumsOfThreadsAreExact) {
  const DriverCalls& calls = kDrivers[GetParam()];
  if (const std::string why = calls.why_not(); !why.empty()) GTEST_SKIP() << why;
  calls.start();
  DriverMemory memory(calls);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const DeviceStats before = Stats(calls.device, SpaceOf(calls.kind));
  const TrackerStats tracked = Tracked();
  std::atomic<int64_t> sum{0}, count{0}, allocations{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      const StreamId stream = calls.stream(t % 2);
      std::vector<std::pair<void*, size_t>> held;
      for (int step = 0; step < 3000; ++step) {
        const bool is_async = random() % 2 == 0;
        if (held.size() < 20 && random() % 2 == 0) {
          const size_t bytes = 1 + random() % 65536;
          const auto made = is_async ? memory.AllocateAsync(bytes, stream) : memory.Allocate(bytes);
          ASSERT_TRUE(made.ok()) << made.status();
          held.emplace_back(*made, bytes);
          sum += static_cast<int64_t>(bytes);
          ++count;
          ++allocations;
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          const auto [ptr, bytes] = held.back();
          held.pop_back();
          ASSERT_TRUE((is_async ? memory.FreeAsync(ptr, stream) : memory.Free(ptr)).ok());
          sum -= static_cast<int64_t>(bytes);
          --count;
        }
      }
      if (t % 2 == 0) return;
      for (const auto& [ptr, bytes] : held) {
        ASSERT_TRUE(memory.Free(ptr).ok());
        sum -= static_cast<int64_t>(bytes);
        --count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DeviceStats after = Stats(calls.device, SpaceOf(calls.kind));
  EXPECT_EQ(after.bytes_in_use - before.bytes_in_use, sum);
  EXPECT_EQ(after.num_live - before.num_live, count);
  EXPECT_EQ(after.num_allocs - before.num_allocs, allocations);
  EXPECT_EQ(Tracked().foreign_frees, tracked.foreign_frees);
  EXPECT_EQ(Tracked().replaced_records, tracked.replaced_records);
  EXPECT_EQ(Tracked().dropped_records, tracked.dropped_records);
}
INSTANTIATE_TEST_SUITE_P(Vendors, ExactnessTest, ::testing::Range(0, kDriverCount),
                         [](const auto& info) { return std::string(kDrivers[info.param].name); });

ProfileView Profile() {
  const std::string path = NewDirectory() + "/profile.pb.gz";
  EXPECT_TRUE(save_device_memory_profile(path).ok());
  return ViewProfile(path);
}

// Runs this test again, in a process of its own, and returns what that writes to standard error.
constexpr char kInner[] = "VENDORS_TEST_INNER";
bool IsInner() { return std::getenv(kInner) != nullptr; }
std::string MessagesOfThisTest(const std::string& profile = NewDirectory() + "/profile.pb.gz") {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  const std::string output = "HBMPROF_GPU_OUTPUT=" + profile;
  const auto run =
      hbmprof_test::RunCommand({self, filter}, {std::string(kInner) + "=1", "LD_PRELOAD=" HBMPROF_INJECTED, output});
  EXPECT_EQ(run.exit_code, 0) << run.out;
  return run.err;
}

// --- HIP. ---

TEST(HipTest, SizesAreThoseOfTheMemory) {
  const auto grows_by = [before = Stats("GPU:0").bytes_in_use](int64_t bytes) {
    EXPECT_EQ(Stats("GPU:0").bytes_in_use - before, bytes);
  };
  CUdeviceptr pitched = 0;
  size_t pitch = 0;
  ASSERT_EQ(hip::hipMallocPitch(&pitched, &pitch, 100, 10), 0);
  grows_by(5120);
  hip::PitchedPtr volume = {};
  ASSERT_EQ(hip::hipMalloc3D(&volume, {100, 10, 2}), 0);
  grows_by(5120 + 10240);
  Handle array = nullptr;
  const hip::ChannelFormat four_floats = {{32, 32, 32, 32}, 2};
  ASSERT_EQ(hip::hipMallocArray(&array, &four_floats, 16, 16, 0), 0);
  grows_by(5120 + 10240 + 4096);
  EXPECT_EQ(hip::hipFreeArray(array), 0);
  EXPECT_EQ(hip::hipFree(Address(volume.ptr)), 0);
  EXPECT_EQ(hip::hipFree(pitched), 0);
  grows_by(0);
  void* host = nullptr;
  const int64_t pinned = Stats("GPU:0", MemorySpace::kPinnedHost).bytes_in_use;
  ASSERT_EQ(hip::hipHostMalloc(&host, 4096, 0), 0);
  EXPECT_EQ(Stats("GPU:0", MemorySpace::kPinnedHost).bytes_in_use - pinned, 4096);
  EXPECT_EQ(hip::hipHostFree(host), 0);
}

TEST(HipTest, LookUpsGiveTheWrappers) {
  const int64_t before = Stats("GPU:0").num_allocs;
  void* found = nullptr;
  ASSERT_EQ(hip::hipGetProcAddress("hipMalloc", &found, 60000, 0, nullptr), 0);
  EXPECT_EQ(found, reinterpret_cast<void*>(&hip::hipMalloc));
  CUdeviceptr ptr = 0;
  ASSERT_EQ(reinterpret_cast<int (*)(CUdeviceptr*, size_t)>(found)(&ptr, 77), 0);
  EXPECT_EQ(Stats("GPU:0").num_allocs - before, 1);
  EXPECT_EQ(hip::hipFree(ptr), 0);
  EXPECT_NE(hip::hipGetProcAddress("hipNone", &found, 60000, 0, nullptr), 0);
}

extern "C" [[gnu::noinline]] int release_cache(hip::CUmemGenericAllocationHandle handle) {
  return hip::hipMemRelease(handle);
}

TEST(HipTest, ReleasedMemoryIsHeldUntilItsAddressesAreFreed) {
  constexpr int64_t kBytes = 2 << 20;
  constexpr char kHeld[] = "released, still held";
  const hip::MemAllocationProp properties = {1, 0, {1, 0}};
  const int64_t before = Stats("GPU:0").bytes_in_use;
  const size_t in_use = [] {
    size_t free = 0, total = 0;
    return hip::hipMemGetInfo(&free, &total) == 0 ? total - free : 0;
  }();
  const auto expect_agreement = [&](int64_t bytes) {
    size_t free = 0, total = 0;
    EXPECT_EQ(hip::hipMemGetInfo(&free, &total), 0);
    EXPECT_EQ(static_cast<int64_t>(total - free - in_use), bytes);
    EXPECT_EQ(Stats("GPU:0").bytes_in_use - before, bytes);
  };
  CUdeviceptr addresses = 0;
  ASSERT_EQ(hip::hipMemAddressReserve(&addresses, 4 * kBytes, 0, 0, 0), 0);
  for (int i = 0; i < 3; ++i) {  // the last one where another is held
    hip::CUmemGenericAllocationHandle handle = 0;
    const CUdeviceptr at = addresses + static_cast<CUdeviceptr>(i % 2 * kBytes);
    ASSERT_EQ(hip::hipMemCreate(&handle, kBytes, &properties, 0), 0);
    ASSERT_EQ(hip::hipMemMap(at, kBytes, 0, handle, 0), 0);
    EXPECT_EQ(Profile().SumWhere("inuse_space", "allocator", kHeld), i * kBytes);
    if (i == 1) {
      ASSERT_EQ(hip::hipMemRelease(handle), 0);
    }
    ASSERT_EQ(hip::hipMemUnmap(at, kBytes), 0);
    if (i != 1) {
      ASSERT_EQ(release_cache(handle), 0);
    }
    EXPECT_EQ(Profile().SumWhere("inuse_space", "allocator", kHeld), (i + 1) * kBytes);
  }
  EXPECT_EQ(Profile().SumUnder("inuse_space", "release_cache"), 2 * kBytes);
  const std::string saved = NewDirectory() + "/held.pb.gz";
  ASSERT_TRUE(save_device_memory_profile(saved).ok());
  EXPECT_THAT(hbmprof_test::RunCommand({HBMPROF_TOOL, "explain", saved}, {"LD_PRELOAD="}).out,
              ::testing::HasSubstr("STILL_HELD  the program has released 6.00 MiB of GPU:0 that are still in use"));
  expect_agreement(3 * kBytes);
  // What was mapped nowhere ends at once.
  hip::CUmemGenericAllocationHandle unmapped = 0;
  ASSERT_EQ(hip::hipMemCreate(&unmapped, kBytes, &properties, 0), 0);
  expect_agreement(4 * kBytes);
  ASSERT_EQ(hip::hipMemRelease(unmapped), 0);
  expect_agreement(3 * kBytes);
  ASSERT_EQ(hip::hipMemAddressFree(addresses, 4 * kBytes), 0);
  expect_agreement(0);
}

TEST(HipTest, AResetEndsTheMemoryOfTheDevice) {
  ASSERT_EQ(hip::hipSetDevice(1), 0);
  const hip::MemAllocationProp properties = {1, 0, {1, 1}};
  hip::MemPoolProps of_pool = {1, 0, {1, 1}, nullptr, 0, {}};
  CUdeviceptr linear = 0, ordered = 0, managed = 0;
  hip::CUmemGenericAllocationHandle handle = 0;
  Handle pool = nullptr;
  void* host = nullptr;
  const int64_t of_other = Stats("GPU:0").bytes_in_use;
  const int64_t foreign = Tracked().foreign_frees;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(hip::hipMalloc(&linear, 1000), 0);
    ASSERT_EQ(hip::hipMallocAsync(&ordered, 2000, nullptr), 0);
    ASSERT_EQ(hip::hipMemCreate(&handle, 4000, &properties, 0), 0);
    ASSERT_EQ(hip::hipMemPoolCreate(&pool, &of_pool), 0);
    EXPECT_EQ(Profile().SumWhere("inuse_space", "device", "GPU:1"), 7000 + i * (8192 + 3000));
    if (i == 0) {
      ASSERT_EQ(hip::hipHostMalloc(&host, 8192, 0), 0);
      ASSERT_EQ(hip::hipMallocManaged(&managed, 3000, 1), 0);
    }
    ASSERT_EQ(hip::hipDeviceReset(), 0);
    EXPECT_EQ(Profile().SumWhere("inuse_space", "device", "GPU:1"), 8192 + 3000);
    EXPECT_EQ(Stats("GPU:1").bytes_in_use, 0);
  }
  ASSERT_EQ(hip::hipMemCreate(&handle, 4000, &properties, 0), 0);
  EXPECT_EQ(hip::hipMemRelease(handle), 0);
  EXPECT_EQ(hip::hipHostFree(host), 0);
  EXPECT_EQ(hip::hipFree(managed), 0);
  EXPECT_EQ(Profile().SumWhere("inuse_space", "device", "GPU:1"), 0);
  EXPECT_EQ(Stats("GPU:0").bytes_in_use, of_other);
  EXPECT_EQ(Tracked().foreign_frees, foreign);
  EXPECT_EQ(hip::hipSetDevice(0), 0);
}

TEST(HipTest, TheErrorOfAFailedCallStaysTheLastOne) {
  CUdeviceptr ptr = 0;
  ASSERT_EQ(hip::hipMalloc(&ptr, 2 * kCapacity), 2);
  EXPECT_EQ(hip::hipGetLastError(), 2);
  EXPECT_EQ(hip::hipGetLastError(), 0);
}

TEST(HipTest, TheKindOfAPoolIsThatOfItsMemory) {
  Handle pool = nullptr;
  CUdeviceptr ptr = 0;
  const hip::MemPoolProps properties = {2, 0, {1, 0}, nullptr, 0, {}};
  const int64_t before = Stats("GPU:0", MemorySpace::kManaged).bytes_in_use;
  ASSERT_EQ(hip::hipMemPoolCreate(&pool, &properties), 0);
  ASSERT_EQ(hip::hipMallocFromPoolAsync(&ptr, 5000, pool, nullptr), 0);
  EXPECT_EQ(Stats("GPU:0", MemorySpace::kManaged).bytes_in_use - before, 5000);
  EXPECT_EQ(hip::hipFreeAsync(ptr, nullptr), 0);
  EXPECT_EQ(hip::hipMemPoolDestroy(pool), 0);
}

TEST(HipTest, AFailedImportIsNoLackOfMemory) {
  if (!IsInner()) {
    EXPECT_THAT(MessagesOfThisTest(), ::testing::Not(::testing::HasSubstr("out of memory")));
    return;
  }
  Handle memory = nullptr;
  CUdeviceptr ptr = 0;
  const hip::ExternalMemoryHandleDesc description = {1, {}, 4096};
  EXPECT_EQ(hip::hipImportExternalMemory(&memory, &description), 2);
  EXPECT_EQ(hip::hipMemPoolImportPointer(&ptr, &memory, nullptr), 2);
  EXPECT_EQ(hip::hipGetLastError(), 2);
}

TEST(HipTest, AChildGraphIsACopy) {
  Handle child = nullptr, parent = nullptr, node = nullptr, executable = &node;
  const int64_t before = Stats("GPU:0").bytes_in_use;
  ASSERT_EQ(hip::hipGraphCreate(&child, 0), 0);
  ASSERT_EQ(hip::hipGraphCreate(&parent, 0), 0);
  hip::MemAllocNodeParams allocation = {{1, 0, {1, 0}, nullptr, 0, {}}, nullptr, 0, 6000, 0};
  ASSERT_EQ(hip::hipGraphAddMemAllocNode(&node, child, nullptr, 0, &allocation), 0);
  hip::GraphNodeParams params = {};
  params.type = 4;
  params.child = {child, 1};  // HIP has no second member here
  ASSERT_EQ(hip::hipGraphAddNode(&node, parent, nullptr, 0, &params), 0);
  ASSERT_EQ(hip::hipGraphInstantiate(&executable, child, nullptr, nullptr, 0), 0);
  ASSERT_EQ(hip::hipGraphLaunch(executable, nullptr), 0);
  EXPECT_EQ(Stats("GPU:0").bytes_in_use - before, 6000);
  EXPECT_EQ(hip::hipFree(allocation.address), 0);
  EXPECT_EQ(hip::hipGraphExecDestroy(executable), 0);
  EXPECT_EQ(hip::hipGraphDestroy(parent), 0);
  EXPECT_EQ(hip::hipGraphDestroy(child), 0);
}

hbmprof_test::CommandResult RunPython(const std::string& argument, const std::string& libraries,
                                      const std::string& preload, const std::string& output) {
  return hbmprof_test::RunCommand({"python3", HBMPROF_HIP_PROGRAM, argument},
                                  {"PYTHONPATH=" HBMPROF_PYPI, "LD_LIBRARY_PATH=" + libraries, "LD_PRELOAD=" + preload,
                                   "HBMPROF_GPU_OUTPUT=" + output});
}

TEST(HipTest, AmdsBindingsForPythonAreRecorded) {
  if (!std::filesystem::exists(HBMPROF_PYPI "/rocm/bindings")) {
    GTEST_SKIP() << "no rocm-bindings-hip in build/pypi: scripts/test.sh reads it from PyPI";
  }
  const std::string output = NewDirectory() + "/profile.pb.gz";
  const auto alone = RunPython("bindings", HBMPROF_VENDORS, "", "");
  const auto injected = RunPython("bindings", HBMPROF_VENDORS, HBMPROF_INJECTED, output);
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(injected.out, alone.out) << injected.err;
  const ProfileView view = ViewProfile(output);
  EXPECT_EQ(view.SumUnder("inuse_space", "weights"), 3 << 20);
  EXPECT_EQ(view.SumUnder("inuse_space", "staging"), 4096);
  EXPECT_EQ(view.Sum("inuse_space"), (3 << 20) + 4096);
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
}

TEST(HipTest, AmdsLibraryAnswersTheSame) {
  const std::string library = HBMPROF_HIP "/libamdhip64.so.5";
  if (!std::filesystem::exists(library)) {
    GTEST_SKIP() << "no libamdhip64 in build/hip: scripts/test.sh downloads it";
  }
  const auto alone = RunPython(library, HBMPROF_HIP, "", "");
  const auto injected = RunPython(library, HBMPROF_HIP, HBMPROF_INJECTED, "");
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, ::testing::StartsWith("100 c_int"));  // no device
  EXPECT_EQ(injected.out, alone.out);
  EXPECT_EQ(injected.err, alone.err);
}

TEST(HipTest, ThePoolOfCupyIsThatOfTheProfile) {
  if (!std::filesystem::exists(HBMPROF_PYPI "/cupy")) {
    GTEST_SKIP() << "no cupy-rocm-7-0 in build/pypi: scripts/test.sh reads it from PyPI";
  }
  const std::string output = NewDirectory() + "/profile.pb.gz";
  const auto alone = RunPython("cupy", HBMPROF_VENDORS, "", "");
  const auto injected = RunPython("cupy", HBMPROF_VENDORS, HBMPROF_INJECTED, output);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(injected.out, alone.out) << injected.err;
  int64_t used = 0, total = 0, of_driver = 0;
  ASSERT_EQ(std::sscanf(injected.out.c_str(), "used %ld total %ld of the driver %ld", &used, &total, &of_driver), 3);
  EXPECT_EQ(used, 3 << 20);
  const ProfileView view = ViewProfile(output);
  const auto of_kind = [&](const char* kind) { return view.SumWhere("inuse_space", "kind", kind); };
  EXPECT_EQ(of_kind("device"), total + 777);
  EXPECT_EQ(of_kind("device") + of_kind("managed"), of_driver);
  EXPECT_EQ(of_kind("managed"), 4096);
  EXPECT_EQ(of_kind("pinned_host"), 8192);
  EXPECT_EQ(view.SumUnder("inuse_space", "weights"), 3 << 20);
  EXPECT_EQ(view.SumUnder("inuse_space", "temporary"), total - used) << "what the pool keeps";
  EXPECT_EQ(view.Comment("tracker", "foreign_frees"), "0");
}

// --- MUSA. ---

TEST(MusaTest, RuntimeAndDriverAreRecordedTogether) {
  const int64_t before = Stats("GPU:0").bytes_in_use;
  const TrackerStats tracked = Tracked();
  CUdeviceptr of_runtime = 0, of_driver = 0;
  ASSERT_EQ(musa::musaMalloc(&of_runtime, 3000), 0);
  ASSERT_EQ(mu::muMemAlloc_v2(&of_driver, 5000), 0);
  EXPECT_EQ(Stats("GPU:0").bytes_in_use - before, 8000);
  EXPECT_EQ(mu::muMemFree_v2(of_runtime), 0);
  EXPECT_EQ(musa::musaFree(of_driver), 0);
  EXPECT_EQ(Stats("GPU:0").bytes_in_use, before);
  EXPECT_EQ(Tracked().foreign_frees, tracked.foreign_frees);
  void* host = nullptr;
  const int64_t pinned = Stats("GPU:0", MemorySpace::kPinnedHost).bytes_in_use;
  ASSERT_EQ(musa::musaHostAlloc(&host, 4096, 0), 0);
  EXPECT_EQ(Stats("GPU:0", MemorySpace::kPinnedHost).bytes_in_use - pinned, 4096);
  EXPECT_EQ(musa::musaFreeHost(host), 0);
}

TEST(MusaTest, PhysicalMemoryCountsUntilItIsReleasedAndUnmapped) {
  constexpr int64_t kBytes = 2 << 20;
  const mu::MemAllocationProp properties = {1, 0, {1, 0}};
  const int64_t before = Stats("GPU:0").bytes_in_use;
  CUdeviceptr addresses = 0;
  ASSERT_EQ(mu::muMemAddressReserve(&addresses, 2 * kBytes, 0, 0, 0), 0);
  for (const bool is_released_first : {true, false}) {
    mu::CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(mu::muMemCreate(&handle, kBytes, &properties, 0), 0);
    ASSERT_EQ(mu::muMemMap(addresses, kBytes, 0, handle, 0), 0);
    ASSERT_EQ(is_released_first ? mu::muMemRelease(handle) : mu::muMemUnmap(addresses, kBytes), 0);
    EXPECT_EQ(Stats("GPU:0").bytes_in_use - before, kBytes);
    ASSERT_EQ(is_released_first ? mu::muMemUnmap(addresses, kBytes) : mu::muMemRelease(handle), 0);
    EXPECT_EQ(Stats("GPU:0").bytes_in_use, before);
  }
  EXPECT_EQ(mu::muMemAddressFree(addresses, 2 * kBytes), 0);
}

// --- Ascend. ---

TEST(AscendTest, FlagsSayDeviceKindAndComponent) {
  void *of_hccl = nullptr, *on_host = nullptr, *reserved = nullptr;
  ASSERT_EQ(ascend::halMemAlloc(&of_hccl, 3 << 20, 3ull << 56 | kDevice | 1), 0);
  ASSERT_EQ(ascend::halMemAlloc(&on_host, 4096, kHost), 0);
  ASSERT_EQ(ascend::halMemAlloc(&reserved, 1 << 20, 5 << 10), 0);
  const ProfileView view = Profile();
  EXPECT_EQ(view.SumWhere("inuse_space", "component", "HCCL"), 3 << 20);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "NPU:1"), 3 << 20);
  EXPECT_EQ(Stats("NPU:1").bytes_in_use, 3 << 20);
  EXPECT_EQ(Stats("NPU:0", MemorySpace::kPinnedHost).bytes_in_use, 4096);
  for (void* ptr : {of_hccl, on_host, reserved}) EXPECT_EQ(ascend::halMemFree(ptr), 0);
  EXPECT_EQ(Stats("NPU:1").bytes_in_use, 0);
}

TEST(AscendTest, PhysicalMemoryCountsUntilItIsUnmapped) {
  const ascend::MemProperties properties = {1, 1, 45};
  ascend::Handle handle = 0;
  ASSERT_EQ(ascend::halMemCreate(&handle, 2 << 20, &properties, 0), 0);
  ASSERT_EQ(ascend::halMemMap(0x200000000, 2 << 20, 0, handle, 0), 0);
  ASSERT_EQ(ascend::halMemRelease(handle), 0);
  EXPECT_EQ(Profile().SumWhere("inuse_space", "component", "GE"), 2 << 20);
  EXPECT_EQ(Stats("NPU:1").bytes_in_use, 2 << 20);
  ASSERT_EQ(ascend::halMemUnmap(0x200000000), 0);
  EXPECT_EQ(Stats("NPU:1").bytes_in_use, 0);
}

TEST(AscendTest, ManagedMemoryAndHostMemoryAreOnTheirSides) {
  void* managed = nullptr;
  ascend::Handle handle = 0;
  const int64_t of_device = Stats("NPU:0").bytes_in_use;
  ASSERT_EQ(ascend::halMemAlloc(&managed, 5000, 7 << 10), 0);
  EXPECT_EQ(Stats("NPU:0", MemorySpace::kManaged).bytes_in_use, 5000);
  const ascend::MemProperties on_numa_node = {2, 3, 33};
  ASSERT_EQ(ascend::halMemCreate(&handle, 2 << 20, &on_numa_node, 0), 0);
  EXPECT_EQ(Stats("NPU:0", MemorySpace::kPinnedHost).bytes_in_use, 2 << 20);
  EXPECT_EQ(Stats("NPU:0").bytes_in_use, of_device);
  EXPECT_EQ(ascend::halMemFree(managed), 0);
  EXPECT_EQ(ascend::halMemRelease(handle), 0);
}

TEST(AscendTest, RegisteredMemoryOfTheDriverKeepsItsRecord) {
  enum { kHostForDevice, kHostSvmForDevice, kDeviceForHost };
  char of_program[4096];
  void *ptr = nullptr, *mapped = nullptr;
  const TrackerStats tracked = Tracked();
  ASSERT_EQ(ascend::halMemAlloc(&ptr, 1 << 20, kApp | kDevice | 2), 0);
  ASSERT_EQ(ascend::halHostRegister(ptr, 4096, 1 << 16 | kDeviceForHost, 2, &mapped), 0);
  ASSERT_EQ(ascend::halHostRegister(of_program, sizeof(of_program), kHostForDevice, 2, &mapped), 0);
  EXPECT_EQ(Stats("NPU:2").bytes_in_use, 1 << 20);
  EXPECT_EQ(Stats("NPU:2", MemorySpace::kPinnedHost).bytes_in_use, 4096);
  EXPECT_EQ(ascend::halHostUnregister(ptr, 2), 0);
  EXPECT_EQ(ascend::halHostUnregisterEx(of_program, 2, 0), 0);
  EXPECT_EQ(Stats("NPU:2").bytes_in_use, 1 << 20);
  EXPECT_EQ(Stats("NPU:2", MemorySpace::kPinnedHost).bytes_in_use, 0);
  EXPECT_EQ(ascend::halMemFree(ptr), 0);
  EXPECT_EQ(Stats("NPU:2").bytes_in_use, 0);
  EXPECT_EQ(Tracked().foreign_frees, tracked.foreign_frees);
  EXPECT_EQ(Tracked().replaced_records, tracked.replaced_records);
}

TEST(AscendTest, AClosedDeviceHasNoMemory) {
  const ascend::MemProperties properties = {1, 4, 45};
  const std::vector<std::pair<const char*, int (*)()>> kCloses = {
      {"halDeviceClose", [] { return ascend::halDeviceClose(4, nullptr); }},
      {"halMemAgentClose", [] { return ascend::halMemAgentClose(4, 0); }}};
  const int64_t foreign = Tracked().foreign_frees;
  for (const auto& [name, close] : kCloses) {
    SCOPED_TRACE(name);
    void *ptr = nullptr, *host = nullptr, *of_other = nullptr;
    ascend::Handle handle = 0;
    ASSERT_EQ(ascend::halMemAlloc(&ptr, 1 << 20, kApp | kDevice | 4), 0);
    ASSERT_EQ(ascend::halMemAlloc(&host, 4096, kApp | kHost | 4), 0);
    ASSERT_EQ(ascend::halMemAlloc(&of_other, 3000, kApp | kDevice | 5), 0);
    ASSERT_EQ(ascend::halMemCreate(&handle, 2 << 20, &properties, 0), 0);
    ASSERT_EQ(ascend::halMemMap(0x300000000, 2 << 20, 0, handle, 0), 0);
    constexpr uint32_t kHostUser = 2;
    ASSERT_EQ(ascend::halDeviceClose(4, &kHostUser), 0);
    EXPECT_EQ(Stats("NPU:4").bytes_in_use, 3 << 20);
    ASSERT_EQ(close(), 0);
    EXPECT_EQ(Stats("NPU:4").bytes_in_use, 0);
    EXPECT_EQ(Stats("NPU:5").bytes_in_use, 3000);
    EXPECT_EQ(Stats("NPU:4", MemorySpace::kPinnedHost).bytes_in_use, 4096);
    EXPECT_EQ(ascend::halMemFree(host), 0);
    EXPECT_EQ(ascend::halMemFree(of_other), 0);
    for (const size_t bytes : {20 << 20, 1 << 20}) {  // at the address of what was mapped when the device was closed
      ASSERT_EQ(ascend::halMemCreate(&handle, bytes, &properties, 0), 0);
      ASSERT_EQ(ascend::halMemMap(0x300000000, bytes, 0, handle, 0), 0);
      EXPECT_EQ(Stats("NPU:4").bytes_in_use, bytes);
      ASSERT_EQ(ascend::halMemUnmap(0x300000000), 0);
      ASSERT_EQ(ascend::halMemRelease(handle), 0);
      EXPECT_EQ(Stats("NPU:4").bytes_in_use, 0);
    }
  }
  EXPECT_EQ(Tracked().foreign_frees, foreign);
}

// torch_npu closes its devices when Python ends. Other programs also close them before, and go on.
TEST(AscendTest, TheProfileAtExitIsThatBeforeTheDeviceIsClosed) {
  if (!IsInner()) {
    const std::string profile = NewDirectory() + "/profile.pb.gz";
    MessagesOfThisTest(profile);
    EXPECT_EQ(ViewProfile(profile).SumWhere("inuse_space", "device", "NPU:6"), 1 << 20);
    return;
  }
  void* ptr = nullptr;
  for (const int bytes : {4096, 1 << 20}) {
    ASSERT_EQ(ascend::halMemAlloc(&ptr, bytes, kApp | kDevice | 6), 0);
    ASSERT_EQ(ascend::halDeviceClose(6, nullptr), 0);
    EXPECT_EQ(Stats("NPU:6").bytes_in_use, 0);
  }
}

TEST(AscendTest, MemoryFreedAfterACloseIsNotInTheProfileAtExit) {
  if (!IsInner()) {
    const std::string profile = NewDirectory() + "/profile.pb.gz";
    MessagesOfThisTest(profile);
    EXPECT_EQ(ViewProfile(profile).SumWhere("inuse_space", "device", "NPU:7"), 0);
    return;
  }
  void *first = nullptr, *second = nullptr;
  ASSERT_EQ(ascend::halMemAlloc(&first, 1 << 20, kApp | kDevice | 6), 0);
  ASSERT_EQ(ascend::halMemAlloc(&second, 1 << 20, kApp | kDevice | 7), 0);
  EXPECT_EQ(ascend::halMemFree(first), 0);
  ASSERT_EQ(ascend::halDeviceClose(6, nullptr), 0);
  EXPECT_EQ(ascend::halMemFree(second), 0);
  ASSERT_EQ(ascend::halDeviceClose(7, nullptr), 0);
}

TEST(AscendTest, ImportedMemoryCountsWhileItIsMapped) {
  ascend::Handle handle = 0;
  const int64_t foreign = Tracked().foreign_frees;
  ASSERT_EQ(ascend::halMemImportFromShareableHandleV2(1, nullptr, 0, &handle), 0);
  ASSERT_EQ(ascend::halMemMapNoAccess(0x400000000, 2 << 20, 0, handle, 0), 0);
  EXPECT_EQ(Profile().SumWhere("inuse_space", "kind", "external"), 2 << 20);
  ASSERT_EQ(ascend::halMemUnmap(0x400000000), 0);
  ASSERT_EQ(ascend::halMemRelease(handle), 0);
  EXPECT_EQ(Profile().SumWhere("inuse_space", "kind", "external"), 0);
  EXPECT_EQ(Tracked().foreign_frees, foreign);
}

void AllocateIn(const char* library, void** ptr, int bytes, int module) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr) << dlerror();
  auto* const allocate = reinterpret_cast<int (*)(void**, ascend::Flags, ascend::Flags)>(dlsym(loaded, "allocate"));
  ASSERT_EQ(allocate(ptr, static_cast<ascend::Flags>(bytes), static_cast<ascend::Flags>(module)), 0);
}

TEST(AscendTest, ComponentsAndLibrariesHaveRows) {
  constexpr int kRuntime = 7, kHccl = 3, kGe = 45, kMiB = 1 << 20;
  void *of_app = nullptr, *of_runtime = nullptr, *of_hccl = nullptr, *of_ge = nullptr;
  ASSERT_EQ(ascend::halMemAlloc(&of_app, 4 * kMiB, kApp | kDevice), 0);
  ASSERT_EQ(ascend::halMemAlloc(&of_runtime, 3 * kMiB, ascend::Flags{kRuntime} << 56 | kDevice), 0);
  AllocateIn(HBMPROF_HCCL, &of_hccl, 2 * kMiB, kHccl);
  AllocateIn(HBMPROF_GE, &of_ge, kMiB, kGe);
  const std::string path = NewDirectory() + "/profile.pb.gz";
  ASSERT_TRUE(save_device_memory_profile(path).ok());
  const auto top_by = [&](const char* label) {
    return hbmprof_test::RunCommand({HBMPROF_TOOL, "top", "-n", "0", "--by", label, path}, {"LD_PRELOAD="}).out;
  };
  EXPECT_THAT(top_by("component"), ::testing::ContainsRegex("4.00 MiB +40.00% +APP\n *3.00 MiB +30.00% +RUNTIME\n *"
                                                            "2.00 MiB +20.00% +HCCL\n *1.00 MiB +10.00% +GE\n"));
  EXPECT_THAT(top_by("library"), ::testing::ContainsRegex("7.00 MiB +70.00% +own code\n *2.00 MiB +20.00% +HCCL\n *"
                                                          "1.00 MiB +10.00% +GE\n"));
  for (void* ptr : {of_app, of_runtime, of_hccl, of_ge}) EXPECT_EQ(ascend::halMemFree(ptr), 0);
}

TEST(AscendTest, TheDriversMemoryIsKnown) {
  void* ptr = nullptr;
  ASSERT_EQ(ascend::halMemAlloc(&ptr, 3 << 20, kApp | kDevice), 0);
  const DeviceStats stats = Stats("NPU:0");
  EXPECT_EQ(stats.bytes_limit, static_cast<int64_t>(kCapacity));
  EXPECT_EQ(stats.driver_bytes_in_use, 3 << 20);
  EXPECT_EQ(stats.unaccounted, 0);
  EXPECT_EQ(ascend::halMemFree(ptr), 0);
}

// Blocks in device memory, which are reported through mstx.
class MstxTest : public ::testing::Test {
 protected:
  struct Range {
    uint32_t device;
    const void* address;
    uint64_t bytes;
  };

  void SetUp() override {
    ASSERT_EQ(ascend::halMemAlloc(&segment_, 2 << 20, kApp | kDevice), 0);
    mstx_ = dlopen(HBMPROF_MSTX, RTLD_NOW | RTLD_LOCAL);  // as MindSpore
    ASSERT_NE(mstx_, nullptr) << dlerror();
  }
  void TearDown() override { EXPECT_EQ(ascend::halMemFree(segment_), 0); }

  void* Domain(const char* name) const {
    return reinterpret_cast<void* (*)(const char*)>(dlsym(mstx_, "mstxDomainCreateA"))(name);
  }
  void Register(void* domain, std::vector<Range> ranges) const {
    const struct {
      void* heap;
      int type;
      size_t count;
      const Range* ranges;
      void** handles;
    } batch = {nullptr, 0, ranges.size(), ranges.data(), nullptr};
    reinterpret_cast<void (*)(void*, const void*)>(dlsym(mstx_, "mstxMemRegionsRegister"))(domain, &batch);
  }
  void Unregister(void* domain, const void* address) const {
    const struct {
      int type;
      const void* address;
    } reference = {0, address};
    const struct {
      size_t count;
      const void* references;
    } batch = {1, &reference};
    reinterpret_cast<void (*)(void*, const void*)>(dlsym(mstx_, "mstxMemRegionsUnregister"))(domain, &batch);
  }
  static int64_t Blocks(const char* allocator) {
    return Profile().Sum("inuse_space", [&](const ProfileView::Sample& sample) {
      const auto& labels = sample.labels;
      return labels.at("kind") == "device" && labels.count("allocator") != 0 && labels.at("allocator") == allocator;
    });
  }
  void* At(int offset) const { return static_cast<char*>(segment_) + offset; }

  void* segment_ = nullptr;
  void* mstx_ = nullptr;
};

TEST_F(MstxTest, ReportedBlocksAreRecorded) {
  for (const auto& [name, allocator] : {std::pair("ptaCaching", "pytorch"), {"mindsporeMemPool", "mindspore"}}) {
    void* const domain = Domain(name);
    ASSERT_NE(domain, nullptr);
    EXPECT_EQ(Domain(name), domain);
    Register(domain, {{0, segment_, 512 << 10}, {0, At(1 << 20), 256 << 10}});
    EXPECT_EQ(Blocks(allocator), 768 << 10);
    EXPECT_EQ(Stats("NPU:0").bytes_in_use, 2 << 20);
    EXPECT_EQ(Profile().SumWhere("reserved_space", "component", "APP"), 2 << 20);
    Unregister(domain, segment_);
    EXPECT_EQ(Blocks(allocator), 256 << 10);
    int on_host = 0;
    Register(domain, {{0, &on_host, sizeof(on_host)}});
    Unregister(domain, &on_host);
    EXPECT_EQ(Blocks(allocator), 256 << 10);
    TearDown();  // its blocks end, too
    EXPECT_EQ(Stats("NPU:0").bytes_in_use, 0);
    SetUp();
  }
  EXPECT_EQ(Tracked().foreign_frees, 0);
  EXPECT_EQ(Profile().Comment("warning", "text"), "");
}

TEST_F(MstxTest, OtherRegionsAreNotRecorded) {
  EXPECT_EQ(Domain("atb"), nullptr);
  Register(nullptr, {{0, segment_, 4096}});
  Unregister(nullptr, segment_);
  EXPECT_EQ(Profile().SumWhere("reserved_space", "kind", "pool"), 0);
}

TEST_F(MstxTest, ContradictingReportsAreNotUsed) {
  void* const domain = Domain("ptaCaching");
  Register(domain, {{0, segment_, 4096}, {0, segment_, 4096}});
  EXPECT_EQ(Blocks("pytorch"), 0);
  EXPECT_THAT(Profile().Comment("warning", "text"), ::testing::HasSubstr("torch_npu's%20blocks%20are%20not%20shown"));
}

TEST_F(MstxTest, MissingReportsAreAWarning) {
  constexpr char kWarning[] = "torch_npu's%20blocks%20are%20not%20shown,%20only%20its%20segments:%20it%20reports%20no";
  void* ptr = nullptr;
  AllocateIn(HBMPROF_TORCH_NPU, &ptr, 4096, 33);
  EXPECT_THAT(Profile().Comment("warning", "text"), ::testing::HasSubstr(kWarning));
  Register(Domain("ptaCaching"), {{0, segment_, 4096}});
  EXPECT_EQ(Profile().Comment("warning", "text"), "");
  EXPECT_EQ(ascend::halMemFree(ptr), 0);
}

// torch_npu returns its idle memory after a failed aclrtMalloc, which tries huge pages first, and repeats that.
TEST_F(MstxTest, PagesOfAnotherSizeAreNoRepeatedCall) {
  if (!IsInner()) {
    std::string lines;
    std::istringstream messages(MessagesOfThisTest());
    for (std::string line; std::getline(messages, line);) {
      if (line.rfind("call on", 0) == 0 || line.find("out of memory on") != std::string::npos) lines += line + "\n";
    }
    EXPECT_EQ(lines,
              "call on 0\ncall on 0\ncall on 0\ncall on 0\n"
              "hbmprof: out of memory on NPU:0: halMemAlloc of 128.00 MiB failed\n"
              "call on 1\ncall on 1\nhbmprof: out of memory on NPU:1: halMemAlloc of 128.00 MiB failed\n");
    return;
  }
  constexpr ascend::Flags kHuge = 1 << 17, kUsual = 0;
  void* const loaded = dlopen(HBMPROF_TORCH_NPU, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr) << dlerror();
  auto* const allocate =
      reinterpret_cast<int (*)(void**, ascend::Flags, ascend::Flags)>(dlsym(loaded, "allocate_with"));
  const std::vector<std::vector<ascend::Flags>> kFailures = {{kHuge, kUsual, kHuge, kUsual}, {kHuge, kHuge}};
  for (ascend::Flags device = 0; device < kFailures.size(); ++device) {
    void *segment = nullptr, *ptr = nullptr;
    ASSERT_EQ(ascend::halMemAlloc(&segment, 2 << 20, kApp | kDevice | device), 0);
    Register(Domain("ptaCaching"), {{0, segment, 4096}});
    for (const ascend::Flags pages : kFailures[device]) {
      std::fprintf(stderr, "call on %d\n", static_cast<int>(device));
      EXPECT_EQ(allocate(&ptr, 2 * kCapacity, kApp | kDevice | device | pages), 6);
    }
    EXPECT_EQ(ascend::halMemFree(segment), 0);
  }
}
TEST_F(MstxTest, AnotherToolGetsItsCalls) {
  void* const tool = dlopen(HBMPROF_PROFAPI, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(tool, nullptr) << dlerror();
  auto* const calls = reinterpret_cast<int (*)()>(dlsym(tool, "fake_profapi_calls"));
  void* const domain = Domain("ptaCaching");
  EXPECT_NE(Domain("of the tool"), nullptr);
  Register(domain, {{0, segment_, 4096}});
  EXPECT_EQ(Blocks("pytorch"), 4096);
  Unregister(domain, segment_);
  EXPECT_EQ(Blocks("pytorch"), 0);
  EXPECT_EQ(calls(), 2);
}

// As libmspti.so.
TEST_F(MstxTest, APreloadedToolGetsItsCalls) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const auto run = hbmprof_test::RunCommand({self, "--gtest_filter=MstxTest.AnotherToolGetsItsCalls"},
                                            {"LD_PRELOAD=" HBMPROF_INJECTED ":" HBMPROF_PROFAPI});
  EXPECT_EQ(run.exit_code, 0) << run.out;
}

// --- All. ---

TEST(DoctorTest, NamesEachDriverThatItFinds) {
  const hbmprof_test::CommandResult run =
      hbmprof_test::RunCommand({HBMPROF_TOOL, "doctor"}, {"LD_PRELOAD=", "LD_LIBRARY_PATH=" HBMPROF_VENDORS});
  EXPECT_THAT(run.out, ::testing::HasSubstr("libamdhip64.so.7, HIP 7.0, 2 devices\n"));
  EXPECT_THAT(run.out, ::testing::HasSubstr("libmusart.so.5, MUSA 5.1, 2 devices\n"));
  EXPECT_THAT(run.out, ::testing::HasSubstr("libascend_hal.so, Ascend\n"));
  EXPECT_THAT(run.out,
              ::testing::HasSubstr("\n  driver           libcuda.so.1 is not found: CUDA is not recorded here\n"));
  EXPECT_EQ(run.exit_code, 0);
}

}  // namespace
}  // namespace hbmprof
