// The calls of hbmprof::cuda on the fake CUDA runtime: success, failure, free and failing free of every wrapper, and
// special cases.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/c_api.h"
#include "hbmprof/cuda.h"
#include "hbmprof/hbmprof.h"
#include "tests/backends/cuda_per_thread_calls.h"
#include "tests/backends/cuda_subject.h"
#include "tests/support/failing_new.h"
#include "tests/support/fake_cudart/fake_cuda.h"
#include "tests/support/profile_checker.h"

extern "C" int cuCtxGetCurrent(void** context);

namespace hbmprof {
namespace {

using hbmprof_test::CountedNew;

// --- The wrappers have exactly the runtime's signatures. ---

template <auto wrapper, auto original>
constexpr bool kSameSignature = std::is_same_v<decltype(wrapper), decltype(original)>;
// Selects the overload with the original's signature. Does not compile if there is none.
#define EXPECT_SIGNATURE(name) \
  static_assert(kSameSignature<static_cast<decltype(&::cuda##name)>(&cuda::name), &::cuda##name>)
EXPECT_SIGNATURE(Malloc);
EXPECT_SIGNATURE(MallocManaged);
EXPECT_SIGNATURE(MallocPitch);
EXPECT_SIGNATURE(Malloc3D);
EXPECT_SIGNATURE(Free);
EXPECT_SIGNATURE(MallocHost);
EXPECT_SIGNATURE(HostAlloc);
EXPECT_SIGNATURE(FreeHost);
EXPECT_SIGNATURE(HostRegister);
EXPECT_SIGNATURE(HostUnregister);
EXPECT_SIGNATURE(DeviceReset);
EXPECT_SIGNATURE(MallocAsync);
EXPECT_SIGNATURE(MallocFromPoolAsync);
EXPECT_SIGNATURE(FreeAsync);
#undef EXPECT_SIGNATURE

constexpr size_t kCapacity = size_t{1} << 30;
constexpr int kDevice = 1;

// Arguments that some wrappers need. Created by the runtime directly, so not tracked. On device kDevice.
struct Surroundings {
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  void* unrecorded = nullptr;
  alignas(64) char host[4096];
};
Surroundings* around = nullptr;

class CudaRuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset(2, kCapacity);
    static_cast<void>(cudaGetLastError());
    ASSERT_EQ(cudaSetDevice(kDevice), cudaSuccess);
    around = &surroundings_;
    ASSERT_EQ(cudaStreamCreate(&around->stream), cudaSuccess);
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, kDevice};
    ASSERT_EQ(cudaMemPoolCreate(&around->pool, &properties), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&around->unrecorded, 12288), cudaSuccess);
    objects_before_ = fake_cuda_live_objects();
    allocs_before_ = TotalAllocs();
    tracker_before_ = profiler().GetTrackerStats();
    ASSERT_EQ(TotalInUse(), 0);
  }
  void TearDown() override {
    EXPECT_EQ(TotalInUse(), 0) << "all is freed";
    EXPECT_EQ(profiler().GetTrackerStats().live_records, 0);
    EXPECT_EQ(fake_cuda_live_objects(), objects_before_);
  }

  static Profiler& profiler() { return Profiler::Default(); }

  static int64_t Sum(int64_t DeviceStats::*value) {
    int64_t total = 0;
    for (const Snapshot::Device& device : profiler().TakeSnapshot().devices) {
      for (const DeviceStats& space : device.spaces) total += space.*value;
    }
    return total;
  }
  static int64_t TotalInUse() { return Sum(&DeviceStats::bytes_in_use); }
  static int64_t TotalAllocs() { return Sum(&DeviceStats::num_allocs); }
  int64_t NewAllocs() const { return TotalAllocs() - allocs_before_; }
  int64_t NewForeignFrees() const { return profiler().GetTrackerStats().foreign_frees - tracker_before_.foreign_frees; }
  int64_t NewReplacedRecords() const {
    return profiler().GetTrackerStats().replaced_records - tracker_before_.replaced_records;
  }

  // Returns the only site with live buffers, if there is one.
  static std::optional<Snapshot::Sample> OnlyLiveSample(const Snapshot& snapshot) {
    std::optional<Snapshot::Sample> live;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.inuse_objects == 0) continue;
      if (live) return std::nullopt;
      live = sample;
    }
    return live;
  }

  static bool IsOn(const char* device, BufferId id) {
    const auto buffer = profiler().FindBuffer(id);
    return buffer && buffer->attributes.device == profiler().Device(device);
  }

  Surroundings surroundings_;
  int64_t objects_before_ = 0;
  int64_t allocs_before_ = 0;
  TrackerStats tracker_before_;
};

// --- Every wrapper. ---

struct Made {
  cudaError_t error;
  BufferId id;
  void* handle;
  uintptr_t returns_to;
};

#define RETURN_MADE(error, id, handle) \
  return Made { error, id, handle, reinterpret_cast<uintptr_t>(__builtin_return_address(0)) }

// A call that allocates and a call that frees. The functions are [[gnu::noinline]], so that each has its own frame.
struct Wrapper {
  const char* creates;   // the runtime's function
  const char* releases;  // the runtime's function
  Made (*make)();
  cudaError_t (*release)(void* handle);
  int64_t bytes;
  MemoryKind kind = MemoryKind::kDevice;
  const char* allocator = "";
};
void PrintTo(const Wrapper& wrapper, std::ostream* out) { *out << wrapper.creates << " and " << wrapper.releases; }

[[gnu::noinline]] Made MakeMalloc() {
  void* ptr = nullptr;
  const cudaError_t error = cuda::Malloc(&ptr, 1000);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeMallocOfFloats() {
  float* ptr = nullptr;
  const cudaError_t error = cuda::Malloc(&ptr, 250 * sizeof(float));
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeManaged() {
  void* ptr = nullptr;
  const cudaError_t error = cuda::MallocManaged(&ptr, 2000);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeManagedFloats() {
  float* ptr = nullptr;
  const cudaError_t error = cuda::MallocManaged(&ptr, 2000);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakePitch() {
  float* ptr = nullptr;
  size_t pitch = 0;
  const cudaError_t error = cuda::MallocPitch(&ptr, &pitch, 600, 10);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made Make3D() {
  cudaPitchedPtr pitched = {};
  const cudaError_t error = cuda::Malloc3D(&pitched, {100, 20, 3});
  RETURN_MADE(error, pitched.ptr, pitched.ptr);
}
[[gnu::noinline]] Made MakeHost() {
  void* ptr = nullptr;
  const cudaError_t error = cuda::MallocHost(&ptr, 3000);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeHostFloats() {
  float* ptr = nullptr;
  const cudaError_t error = cuda::MallocHost(&ptr, 3000);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeHostAlloc() {
  float* ptr = nullptr;
  const cudaError_t error = cuda::HostAlloc(&ptr, 3500, cudaHostAllocPortable);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeRegistered() {
  const cudaError_t error = cuda::HostRegister(around->host, sizeof(around->host), cudaHostRegisterDefault);
  RETURN_MADE(error, around->host, around->host);
}
[[gnu::noinline]] Made MakeAsync() {
  void* ptr = nullptr;
  const cudaError_t error = cuda::MallocAsync(&ptr, 4000, around->stream);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeAsyncFloatsFromPool() {
  float* ptr = nullptr;
  const cudaError_t error = cuda::MallocAsync(&ptr, 4000, around->pool, around->stream);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakeFromPool() {
  void* ptr = nullptr;
  const cudaError_t error = cuda::MallocFromPoolAsync(&ptr, 5000, around->pool, around->stream);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakePerThreadAsync() {
  void* ptr = nullptr;
  const cudaError_t error = PerThreadMallocAsync(&ptr, 4000, around->stream);
  RETURN_MADE(error, ptr, ptr);
}
[[gnu::noinline]] Made MakePerThreadFromPool() {
  void* ptr = nullptr;
  const cudaError_t error = PerThreadMallocFromPoolAsync(&ptr, 5000, around->pool, around->stream);
  RETURN_MADE(error, ptr, ptr);
}

cudaError_t ReleaseAsync(void* handle) { return cuda::FreeAsync(handle, around->stream); }
cudaError_t ReleasePerThreadAsync(void* handle) { return PerThreadFreeAsync(handle, around->stream); }

constexpr const char* kPool = "cudaMallocAsync";

const Wrapper kWrappers[] = {
    {"cudaMalloc", "cudaFree", MakeMalloc, cuda::Free, 1000},
    {"cudaMalloc", "cudaFree", MakeMallocOfFloats, cuda::Free, 1000},
    {"cudaMallocManaged", "cudaFree", MakeManaged, cuda::Free, 2000, MemoryKind::kManaged},
    {"cudaMallocManaged", "cudaFree", MakeManagedFloats, cuda::Free, 2000, MemoryKind::kManaged},
    {"cudaMallocPitch", "cudaFree", MakePitch, cuda::Free, 1024 * 10},
    {"cudaMalloc3D", "cudaFree", Make3D, cuda::Free, 512 * 20 * 3},
    {"cudaMallocHost", "cudaFreeHost", MakeHost, cuda::FreeHost, 3000, MemoryKind::kPinnedHost},
    {"cudaHostAlloc", "cudaFreeHost", MakeHostFloats, cuda::FreeHost, 3000, MemoryKind::kPinnedHost},
    {"cudaHostAlloc", "cudaFreeHost", MakeHostAlloc, cuda::FreeHost, 3500, MemoryKind::kPinnedHost},
    {"cudaHostRegister", "cudaHostUnregister", MakeRegistered, cuda::HostUnregister, 4096, MemoryKind::kPinnedHost},
    {"cudaMallocAsync", "cudaFreeAsync", MakeAsync, ReleaseAsync, 4000, MemoryKind::kDevice, kPool},
    {"cudaMallocAsync", "cudaFree", MakeAsync, cuda::Free, 4000, MemoryKind::kDevice, kPool},
    {"cudaMallocFromPoolAsync", "cudaFreeAsync", MakeFromPool, ReleaseAsync, 5000, MemoryKind::kDevice, kPool},
    {"cudaMallocFromPoolAsync", "cudaFree", MakeFromPool, cuda::Free, 5000, MemoryKind::kDevice, kPool},
    {"cudaMallocFromPoolAsync", "cudaFreeAsync", MakeAsyncFloatsFromPool, ReleaseAsync, 4000, MemoryKind::kDevice,
     kPool},
    {"cudaMallocAsync_ptsz", "cudaFreeAsync_ptsz", MakePerThreadAsync, ReleasePerThreadAsync, 4000, MemoryKind::kDevice,
     kPool},
    {"cudaMallocFromPoolAsync_ptsz", "cudaFreeAsync_ptsz", MakePerThreadFromPool, ReleasePerThreadAsync, 5000,
     MemoryKind::kDevice, kPool},
};

class EveryWrapper : public CudaRuntimeTest, public ::testing::WithParamInterface<Wrapper> {
 protected:
  static int64_t CallsOf(const char* function) { return fake_cuda_calls(function); }
};

TEST_P(EveryWrapper, RecordsSuccess) {
  const Wrapper& wrapper = GetParam();
  const int64_t calls = CallsOf(wrapper.creates);
  const Made made = wrapper.make();
  ASSERT_EQ(made.error, cudaSuccess);
  EXPECT_EQ(CallsOf(wrapper.creates), calls + 1);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);

  const Snapshot snapshot = profiler().TakeSnapshot();
  const auto sample = OnlyLiveSample(snapshot);
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->inuse_objects, 1);
  EXPECT_EQ(sample->inuse_bytes, wrapper.bytes);
  EXPECT_EQ(sample->kind, wrapper.kind);
  EXPECT_EQ(snapshot.devices[sample->device].name, "GPU:1");
  EXPECT_EQ(snapshot.allocators[sample->allocator], wrapper.allocator);
  const auto& stack = snapshot.stacks[sample->stack].return_addresses;
  ASSERT_GE(stack.size(), 2u);
  const auto make_start = reinterpret_cast<uintptr_t>(wrapper.make);
  const bool per_thread = std::string(wrapper.creates).find("_ptsz") != std::string::npos;
  if (!per_thread) {  // those are called from another file's function
    EXPECT_GT(stack[0], make_start);
    EXPECT_LT(stack[0], make_start + 4096);
    EXPECT_EQ(stack[1], made.returns_to);
  }
  const auto buffer = profiler().FindBuffer(made.id);
  ASSERT_TRUE(buffer.has_value());
  EXPECT_EQ(buffer->bytes, wrapper.bytes);
  EXPECT_EQ(NewAllocs(), 1);

  const int64_t releases = CallsOf(wrapper.releases);
  EXPECT_EQ(wrapper.release(made.handle), cudaSuccess);
  EXPECT_EQ(CallsOf(wrapper.releases), releases + 1);
  EXPECT_EQ(TotalInUse(), 0);
  EXPECT_EQ(NewForeignFrees(), 0);
}

TEST_P(EveryWrapper, ReturnsFailureAndRecordsNothing) {
  const Wrapper& wrapper = GetParam();
  fake_cuda_fail(wrapper.creates, cudaErrorMemoryAllocation, 0);
  EXPECT_EQ(wrapper.make().error, cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation) << "as the call itself left it";
  EXPECT_EQ(NewAllocs(), 0);
  EXPECT_EQ(profiler().GetTrackerStats().live_records, 0);
}

TEST_P(EveryWrapper, RefusedReleaseEndsTheRecordAndIsCounted) {
  const Wrapper& wrapper = GetParam();
  const Made made = wrapper.make();
  ASSERT_EQ(made.error, cudaSuccess);
  const int64_t refused = profiler().GetTrackerStats().refused_frees;
  fake_cuda_fail(wrapper.releases, cudaErrorIllegalAddress, 0);
  EXPECT_EQ(wrapper.release(made.handle), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(TotalInUse(), 0);
  EXPECT_EQ(profiler().GetTrackerStats().refused_frees, refused + 1);
  EXPECT_EQ(NewForeignFrees(), 0);
  EXPECT_EQ(wrapper.release(made.handle), cudaSuccess);
}

// In each iteration another allocation of host memory fails, until the two calls make no more.
TEST_P(EveryWrapper, CallsRuntimeOnceWithoutHostMemory) {
  const Wrapper& wrapper = GetParam();
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 100);
    const int64_t makes = CallsOf(wrapper.creates);
    const int64_t releases = CallsOf(wrapper.releases);
    const int64_t dropped = profiler().GetTrackerStats().dropped_records;
    std::optional<Made> made;
    CountedNew::Fail(nth);
    {
      const CountedNew counted;
      made = wrapper.make();
    }
    ASSERT_EQ(made->error, cudaSuccess);
    EXPECT_EQ(CallsOf(wrapper.creates), makes + 1);
    const bool is_recorded = profiler().FindBuffer(made->id).has_value();
    EXPECT_EQ(profiler().GetTrackerStats().dropped_records, dropped + (is_recorded ? 0 : 1));
    {
      const CountedNew counted;
      EXPECT_EQ(wrapper.release(made->handle), cudaSuccess);
    }
    EXPECT_EQ(CallsOf(wrapper.releases), releases + 1);
    EXPECT_EQ(TotalInUse(), 0);
    EXPECT_EQ(profiler().GetTrackerStats().live_records, 0);
    failed = CountedNew::HasFailed();
  }
  CountedNew::Fail(0);
}

TEST_P(EveryWrapper, CanBeReleasedOnAnotherThread) {
  const Wrapper& wrapper = GetParam();
  const Made made = wrapper.make();
  ASSERT_EQ(made.error, cudaSuccess);
  std::thread([&] { EXPECT_EQ(wrapper.release(made.handle), cudaSuccess); }).join();
  EXPECT_EQ(NewForeignFrees(), 0);
}

TEST_P(EveryWrapper, KeepsEarlierError) {
  const Wrapper& wrapper = GetParam();
  int unknown = 0;
  ASSERT_EQ(cudaFreeHost(&unknown), cudaErrorInvalidValue);
  const Made made = wrapper.make();
  ASSERT_EQ(made.error, cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(wrapper.release(made.handle), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_P(EveryWrapper, SucceedsIfTheDeviceQueryFails) {
  const Wrapper& wrapper = GetParam();
  for (const char* query : {"cuCtxGetCurrent", "cuCtxGetDevice", "cuPointerGetAttribute", "cuStreamGetCaptureInfo_v2",
                            "cuStreamGetCaptureInfo_v2_ptsz"}) {
    fake_cuda_fail(query, cudaErrorNotSupported, 0);
  }
  const Made made = wrapper.make();
  EXPECT_EQ(made.error, cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(profiler().FindBuffer(made.id).has_value());
  EXPECT_EQ(wrapper.release(made.handle), cudaSuccess);
  fake_cuda_reset(2, kCapacity);
  objects_before_ = 0;
}

TEST_P(EveryWrapper, MakesNoQueryWhileOff) {
  const Wrapper& wrapper = GetParam();
  const int64_t queries = CallsOf("cuCtxGetCurrent");
  profiler().SetEnabled(false);
  const Made made = wrapper.make();
  EXPECT_EQ(made.error, cudaSuccess);
  EXPECT_EQ(wrapper.release(made.handle), cudaSuccess);
  profiler().SetEnabled(true);
  EXPECT_EQ(CallsOf("cuCtxGetCurrent"), queries);
  EXPECT_EQ(NewAllocs(), 0);
  EXPECT_EQ(NewForeignFrees(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryWrapper, ::testing::ValuesIn(kWrappers),
                         [](const ::testing::TestParamInfo<Wrapper>& info) {
                           return std::to_string(info.index) + "_" + info.param.creates;
                         });

// --- Frees. ---

TEST_F(CudaRuntimeTest, FreeOfNullIsSilent) {
  EXPECT_EQ(cuda::Free(nullptr), cudaSuccess);
  EXPECT_EQ(cuda::FreeHost(nullptr), cudaFreeHost(nullptr));
  EXPECT_EQ(cuda::FreeAsync(nullptr, around->stream), cudaFreeAsync(nullptr, around->stream));
  EXPECT_EQ(cuda::HostUnregister(nullptr), cudaHostUnregister(nullptr));
  EXPECT_EQ(NewForeignFrees(), 0);
}

TEST_F(CudaRuntimeTest, UnknownFreeIsForwardedAndCounted) {
  void* ptr = nullptr;
  ASSERT_EQ(cudaMalloc(&ptr, 100), cudaSuccess);
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
  EXPECT_EQ(NewForeignFrees(), 1);
}

TEST_F(CudaRuntimeTest, DoubleFreeReturnsCudasError) {
  void* kept = nullptr;
  void* ptr = nullptr;
  ASSERT_EQ(cuda::Malloc(&kept, 300), cudaSuccess);
  ASSERT_EQ(cuda::Malloc(&ptr, 100), cudaSuccess);
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
  EXPECT_EQ(cuda::Free(ptr), cudaErrorInvalidValue);
  EXPECT_EQ(TotalInUse(), 300);
  EXPECT_EQ(NewForeignFrees(), 1);
  EXPECT_EQ(cuda::Free(kept), cudaSuccess);
}

TEST_F(CudaRuntimeTest, ZeroBytesAreNotRecorded) {
  void* ptr = &ptr;
  EXPECT_EQ(cuda::Malloc(&ptr, 0), cudaSuccess);
  EXPECT_EQ(ptr, nullptr);
  EXPECT_EQ(cuda::MallocHost(&ptr, 0), cudaSuccess);
  EXPECT_EQ(NewAllocs(), 0);
}

TEST_F(CudaRuntimeTest, NullArgumentsReturnCudasError) {
  EXPECT_EQ(cuda::Malloc(static_cast<void**>(nullptr), 100), cudaErrorInvalidValue);
  EXPECT_EQ(NewAllocs(), 0);
}

TEST_F(CudaRuntimeTest, HugeSizesAreOutOfMemory) {
  void* ptr = nullptr;
  EXPECT_EQ(cuda::Malloc(&ptr, SIZE_MAX), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda::MallocAsync(&ptr, SIZE_MAX - 511, around->stream), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda::Malloc(&ptr, kCapacity), cudaErrorMemoryAllocation) << "the context takes some of it";
  EXPECT_EQ(NewAllocs(), 0);
}

[[noreturn]] void FailWithTheFirstCall() {
  fake_cuda_reset(1, size_t{64} << 20);
  void* ptr = nullptr;
  const bool failed = cudaSetDevice(0) == cudaSuccess && cuda::Malloc(&ptr, size_t{128} << 20) != cudaSuccess;
  std::_Exit(failed ? 0 : 1);
}

TEST(CudaOutOfMemoryTest, FirstCallKnowsTheCapacity) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(FailWithTheFirstCall(), ::testing::ExitedWithCode(0),
              "cudaMalloc of 128.00 MiB failed\n.* larger than the device, which has 64.00 MiB");
}

[[noreturn]] void FailWithVolume() {
  fake_cuda_reset(1, size_t{64} << 20);
  cudaPitchedPtr pitched;
  std::_Exit(cuda::Malloc3D(&pitched, {1024, 1024, 1024}) == cudaErrorMemoryAllocation ? 0 : 1);
}

TEST(CudaOutOfMemoryTest, VolumesAreReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(FailWithVolume(), ::testing::ExitedWithCode(0), "cudaMalloc3D of 1.00 GiB failed");
}

// --- Devices, streams, pools. ---

TEST_F(CudaRuntimeTest, OneGpuIsOneDevice) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  void* of_runtime = nullptr;
  void* of_stream = nullptr;
  const char others[3] = {};
  CudaMemory upstream;
  TrackingAllocator of_allocator(upstream);
  ASSERT_EQ(cuda::Malloc(&of_runtime, 1), cudaSuccess);
  ASSERT_EQ(cuda::MallocAsync(&of_stream, 20, nullptr), cudaSuccess);
  const auto allocated = of_allocator.Allocate(300);
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  ASSERT_EQ(hbmprof_record_alloc(&others[0], 4000, 0), 1);
  ASSERT_TRUE(profiler().RecordAlloc(&others[1], 50000, {profiler().Device("GPU:0")}));
  ASSERT_TRUE(profiler().RecordAlloc(&others[2], 600000));

  const auto bytes = device_memory_profile();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto profile = hbmprof_test::ParseProfile(*bytes);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(hbmprof_test::CheckProfile(*profile), "");
  const hbmprof_test::ProfileView view(*profile);
  EXPECT_EQ(view.Sum("inuse_space"), 654321);
  EXPECT_EQ(view.SumWhere("inuse_space", "device", "GPU:0"), 654321);
  EXPECT_EQ(view.Comment("device GPU:0 space=device", "in_use"), "654321");
  hbmprof_stats stats = {};
  stats.struct_size = sizeof(stats);
  ASSERT_EQ(hbmprof_get_stats(0, &stats), 0);
  EXPECT_EQ(stats.bytes_in_use, 654321);

  EXPECT_EQ(cuda::Free(of_runtime), cudaSuccess);
  EXPECT_EQ(cuda::Free(of_stream), cudaSuccess);
  EXPECT_TRUE(of_allocator.Free(*allocated).ok());
  EXPECT_EQ(hbmprof_record_free(&others[0]), 1);
  for (const char* other : {&others[1], &others[2]}) EXPECT_TRUE(profiler().RecordFree(other));
}

TEST_F(CudaRuntimeTest, ManagedAndPinnedAreNotInTotal) {
  void* device = nullptr;
  void* managed = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(cuda::Malloc(&device, 100), cudaSuccess);
  ASSERT_EQ(cuda::MallocManaged(&managed, 20), cudaSuccess);
  ASSERT_EQ(cuda::MallocHost(&pinned, 3), cudaSuccess);
  const DeviceId gpu = profiler().Device("GPU:1");
  EXPECT_EQ(profiler().Stats(gpu).bytes_in_use, 100);
  EXPECT_EQ(profiler().Stats(gpu, MemorySpace::kManaged).bytes_in_use, 20);
  EXPECT_EQ(profiler().Stats(gpu, MemorySpace::kPinnedHost).bytes_in_use, 3);
  EXPECT_EQ(cuda::Free(device), cudaSuccess);
  EXPECT_EQ(cuda::Free(managed), cudaSuccess);
  EXPECT_EQ(cuda::FreeHost(pinned), cudaSuccess);
}

TEST_F(CudaRuntimeTest, AsyncMemoryIsOnStreamsDevice) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  void* on_stream = nullptr;
  void* from_pool = nullptr;
  void* on_default = nullptr;
  ASSERT_EQ(cuda::MallocAsync(&on_stream, 100, around->stream), cudaSuccess);
  ASSERT_EQ(cuda::MallocFromPoolAsync(&from_pool, 100, around->pool, nullptr), cudaSuccess);
  ASSERT_EQ(cuda::MallocAsync(&on_default, 100, nullptr), cudaSuccess);
  EXPECT_TRUE(IsOn("GPU:1", on_stream));
  EXPECT_TRUE(IsOn("GPU:1", from_pool)) << "the pool's device";
  EXPECT_TRUE(IsOn("GPU:0", on_default));
  for (void* ptr : {on_stream, from_pool, on_default}) EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
}

TEST_F(CudaRuntimeTest, PoolMemoryHasPoolsKind) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeHost, 0};
  cudaMemPool_t host_pool = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&host_pool, &properties), cudaSuccess);
  void* host = nullptr;
  ASSERT_EQ(cuda::MallocFromPoolAsync(&host, 100, host_pool, around->stream), cudaSuccess);
  EXPECT_EQ(profiler().FindBuffer(host)->attributes.kind, MemoryKind::kPinnedHost);
  EXPECT_TRUE(IsOn("GPU:1", host));
  EXPECT_EQ(cuda::FreeAsync(host, around->stream), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(host_pool), cudaSuccess);
#if CUDART_VERSION >= 13000
  properties.allocType = cudaMemAllocationTypeManaged;
  properties.location = {cudaMemLocationTypeDevice, kDevice};
  cudaMemPool_t managed_pool = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&managed_pool, &properties), cudaSuccess);
  void* managed = nullptr;
  ASSERT_EQ(cuda::MallocFromPoolAsync(&managed, 100, managed_pool, around->stream), cudaSuccess);
  EXPECT_EQ(profiler().FindBuffer(managed)->attributes.kind, MemoryKind::kManaged);
  EXPECT_EQ(cuda::FreeAsync(managed, around->stream), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(managed_pool), cudaSuccess);
#endif
}

TEST_F(CudaRuntimeTest, CapturedMemoryIsOfKindGraph) {
  ASSERT_EQ(cudaStreamBeginCapture(around->stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* captured = nullptr;
  ASSERT_EQ(cuda::MallocAsync(&captured, 100, around->stream), cudaSuccess);
  EXPECT_EQ(profiler().FindBuffer(captured)->attributes.kind, MemoryKind::kGraph);
  EXPECT_EQ(cuda::FreeAsync(captured, around->stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(around->stream, &graph), cudaSuccess);
}

// --- Device reset. ---

TEST_F(CudaRuntimeTest, ResetDropsMemoryOfCurrentDevice) {
  std::vector<Made> gone;
  for (Made (*make)() : {MakeMalloc, MakeManaged, MakeHost, MakeRegistered}) {
    gone.push_back(make());
    ASSERT_EQ(gone.back().error, cudaSuccess);
  }
  void* pooled = nullptr;
  ASSERT_EQ(cuda::MallocAsync(&pooled, 77, nullptr), cudaSuccess);
  void* elsewhere = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cuda::Malloc(&elsewhere, 500), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(kDevice), cudaSuccess);

  ASSERT_EQ(cuda::DeviceReset(), cudaSuccess);
  for (const Made& made : gone) EXPECT_FALSE(profiler().FindBuffer(made.id).has_value());
  EXPECT_EQ(TotalInUse(), 577);
  EXPECT_EQ(cuda::Free(elsewhere), cudaSuccess);
  EXPECT_EQ(cuda::FreeAsync(pooled, nullptr), cudaSuccess) << "CUDA keeps pool memory over a reset";
  EXPECT_EQ(NewForeignFrees(), 0);
  objects_before_ = 0;  // of the surroundings nothing is left either
}

TEST_F(CudaRuntimeTest, ResetWhileOffIsFollowed) {
  ASSERT_EQ(MakeMalloc().error, cudaSuccess);
  EXPECT_EQ(TotalInUse(), 1000);
  profiler().SetEnabled(false);
  ASSERT_EQ(cuda::DeviceReset(), cudaSuccess);
  profiler().SetEnabled(true);
  EXPECT_EQ(TotalInUse(), 0);
  objects_before_ = 0;
}

TEST_F(CudaRuntimeTest, FailedResetDropsNothing) {
  const Made made = MakeMalloc();
  fake_cuda_fail("cudaDeviceReset", cudaErrorNotPermitted, 0);
  EXPECT_EQ(cuda::DeviceReset(), cudaErrorNotPermitted);
  EXPECT_EQ(TotalInUse(), 1000);
  EXPECT_EQ(cuda::Free(made.handle), cudaSuccess);
}

// --- The driver's numbers. ---

TEST_F(CudaRuntimeTest, FirstAllocationSetsTheProbe) {
  void* ptr = nullptr;
  ASSERT_EQ(cuda::Malloc(&ptr, 4096), cudaSuccess);
  const DeviceStats stats = profiler().Stats(profiler().Device("GPU:1"));
  EXPECT_EQ(stats.bytes_limit, static_cast<int64_t>(kCapacity));
  EXPECT_EQ(stats.driver_bytes_in_use, static_cast<int64_t>(fake_cuda_bytes_in_use(kDevice)));
  ASSERT_TRUE(stats.unaccounted.has_value());
  EXPECT_EQ(stats.unaccounted, static_cast<int64_t>(fake_cuda_context_bytes()) + 12288)
      << "the context, and memory that was allocated without hbmprof";
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
}

TEST_F(CudaRuntimeTest, ProbeKeepsContextsAndCurrentDevice) {
  void* ptr = nullptr;
  ASSERT_EQ(cuda::Malloc(&ptr, 4096), cudaSuccess);
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
  const DeviceId gpu1 = profiler().Device("GPU:1");
  std::thread([&] {
    void* context = &context;
    EXPECT_EQ(profiler().Stats(gpu1).bytes_limit, static_cast<int64_t>(kCapacity)) << "from a thread without context";
    cuCtxGetCurrent(&context);
    EXPECT_EQ(context, nullptr);
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
    EXPECT_FALSE(fake_cuda_context_active(0));
    EXPECT_FALSE(profiler().TakeSnapshot().devices.empty()) << "a dump asks each device, too";
  }).join();
  // If the probe retained the context, it would outlive the program's last release.
  EXPECT_EQ(fake_cuda_calls("cuDevicePrimaryCtxRetain"), 0);

  fake_cuda_reset_device(kDevice);
  const DeviceStats unused = profiler().Stats(gpu1);
  EXPECT_EQ(unused.bytes_limit, std::nullopt) << "nothing is known of a device that is not in use";
  EXPECT_FALSE(unused.unaccounted.has_value());
  EXPECT_FALSE(fake_cuda_context_active(kDevice)) << "and nothing is made to find out";
  objects_before_ = 0;
}

// --- Threads. ---

TEST_F(CudaRuntimeTest, AllCallsInThreadsEndAtZero) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(t));
      ASSERT_EQ(cudaSetDevice(t % 2), cudaSuccess);
      std::vector<std::pair<const Wrapper*, void*>> mine;
      for (int step = 0; step < 1000; ++step) {
        const Wrapper& wrapper = kWrappers[random() % std::size(kWrappers)];
        if (std::strcmp(wrapper.creates, "cudaHostRegister") == 0) continue;  // one buffer can be registered only once
        const Made made = wrapper.make();
        ASSERT_EQ(made.error, cudaSuccess);
        mine.emplace_back(&wrapper, made.handle);
        while (mine.size() > 5) {
          std::swap(mine[random() % mine.size()], mine.back());
          ASSERT_EQ(mine.back().first->release(mine.back().second), cudaSuccess);
          mine.pop_back();
        }
      }
      for (const auto& [wrapper, handle] : mine) ASSERT_EQ(wrapper->release(handle), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(NewForeignFrees(), 0);
  EXPECT_EQ(NewReplacedRecords(), 0);
}

}  // namespace
}  // namespace hbmprof
