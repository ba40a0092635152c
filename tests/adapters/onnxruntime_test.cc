// TrackingOrtAllocator: alone, and in a session of the real ONNX Runtime.
#include "hbmprof/adapters/onnxruntime.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "tests/adapters/adapter_tests.h"
#include "tests/adapters/onnx_model.h"

namespace hbmprof::adapters {
namespace {

using adapter_tests::ExpectBeginsIn;
using adapter_tests::ExpectNoLosses;
using adapter_tests::InUse;
using adapter_tests::OperateAtRandom;
using adapter_tests::OutOfMemoryReports;
using adapter_tests::StackOf;

const OrtApi& Api() {
  static const OrtApi* const api = OrtGetApiBase()->GetApi(18);
  return *api;
}
void Check(OrtStatus* status) {
  if (status == nullptr) return;
  ADD_FAILURE() << Api().GetErrorMessage(status);
  Api().ReleaseStatus(status);
}

// An allocator of host memory that counts what is in use.
class CountingAllocator : public OrtAllocator {
 public:
  explicit CountingAllocator(uint32_t of_version = ORT_API_VERSION) : OrtAllocator() {
    version = of_version;
    Check(Api().CreateCpuMemoryInfo(/*OrtDeviceAllocator=*/0, /*OrtMemTypeDefault=*/0, &info_));
    Alloc = [](OrtAllocator* self, size_t bytes) { return Of(self)->Take(bytes); };
    Reserve = [](OrtAllocator* self, size_t bytes) {
      ++Of(self)->reserves;
      return Of(self)->Take(bytes);
    };
    Free = [](OrtAllocator* self, void* memory) { Of(self)->Return(memory); };
    Info = [](const OrtAllocator* self) -> const OrtMemoryInfo* {
      return static_cast<const CountingAllocator*>(self)->info_;
    };
  }
  ~CountingAllocator() { Api().ReleaseMemoryInfo(info_); }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  std::atomic<int64_t> bytes_in_use{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int> reserves{0};
  bool is_full = false;

 private:
  static CountingAllocator* Of(OrtAllocator* self) { return static_cast<CountingAllocator*>(self); }
  void* Take(size_t bytes) {
    if (is_full || bytes == 0) return nullptr;
    void* const memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_[memory] = bytes;
    bytes_in_use += static_cast<int64_t>(bytes);
    ++allocations;
    return memory;
  }
  void Return(void* memory) {
    if (memory == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_in_use -= static_cast<int64_t>(sizes_[memory]);
    sizes_.erase(memory);
    std::free(memory);
  }

  OrtMemoryInfo* info_ = nullptr;
  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
};

class OnnxRuntimeTest : public testing::Test {
 protected:
  AdapterOptions Options(std::string_view device = "ort:0") {
    AdapterOptions options;
    options.device = device;
    options.profiler = &profiler_;
    return options;
  }

  Profiler profiler_;
  CountingAllocator memory_;
};

[[gnu::noinline]] uintptr_t User(OrtAllocator& allocator, size_t bytes) {
  EXPECT_NE(allocator.Alloc(&allocator, bytes), nullptr);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfReserve(OrtAllocator& allocator, size_t bytes) {
  EXPECT_NE(allocator.Reserve(&allocator, bytes), nullptr);
  return RETURNS_TO;
}

TEST_F(OnnxRuntimeTest, StackBeginsAtTheCaller) {
  TrackingOrtAllocator tracker(memory_, Options());
  const uintptr_t user = User(tracker, 100);
  ExpectBeginsIn(StackOf(profiler_, 100), user);
  const uintptr_t user_of_reserve = UserOfReserve(tracker, 200);
  ExpectBeginsIn(StackOf(profiler_, 200), user_of_reserve);
  EXPECT_EQ(memory_.reserves, 1);
}

TEST_F(OnnxRuntimeTest, RandomOperationsAreExact) {
  TrackingOrtAllocator tracker(memory_, Options());
  const auto live = OperateAtRandom(
      [&](size_t bytes) { return bytes % 8 == 0 ? tracker.Reserve(&tracker, bytes) : tracker.Alloc(&tracker, bytes); },
      [&](void* memory, size_t) { tracker.Free(&tracker, memory); });
  EXPECT_GT(memory_.bytes_in_use, 0);
  EXPECT_EQ(InUse(profiler_, "ort:0"), memory_.bytes_in_use);
  for (const auto& [memory, bytes] : live) tracker.Free(&tracker, memory);
  EXPECT_EQ(InUse(profiler_, "ort:0"), 0);
  EXPECT_EQ(memory_.bytes_in_use, 0);
  ExpectNoLosses(profiler_);
}

TEST_F(OnnxRuntimeTest, HasOnlyTheFunctionsOfUpstream) {
  TrackingOrtAllocator tracker(memory_, Options());
  EXPECT_EQ(tracker.Info(&tracker), memory_.Info(&memory_));
  EXPECT_EQ(tracker.GetStats, nullptr);
  EXPECT_EQ(tracker.AllocOnStream, nullptr);
  EXPECT_EQ(tracker.Shrink, nullptr);
  CountingAllocator old(17);  // its Reserve does not count
  TrackingOrtAllocator of_old(old, Options());
  EXPECT_EQ(of_old.version, 17u);
  EXPECT_EQ(of_old.Reserve, nullptr);
  EXPECT_EQ(of_old.Alloc(&of_old, 0), nullptr);
  of_old.Free(&of_old, nullptr);
  ExpectNoLosses(profiler_);
}

TEST_F(OnnxRuntimeTest, OutOfMemoryIsReported) {
  TrackingOrtAllocator tracker(memory_, Options("ort:1"));
  memory_.is_full = true;
  const int reports = OutOfMemoryReports("ort:1", [&] { EXPECT_EQ(tracker.Alloc(&tracker, 100), nullptr); });
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(InUse(profiler_, "ort:1"), 0);
}

constexpr int64_t kSide = 256;

// Runs the model once. Returns its own return address.
[[gnu::noinline]] uintptr_t RunModel(OrtSession* session, OrtValue** result) {
  OrtMemoryInfo* info = nullptr;
  Check(Api().CreateCpuMemoryInfo(0, 0, &info));
  static std::vector<float> input(kSide * kSide, 1.0f);
  const int64_t shape[] = {kSide, kSide};
  OrtValue* value = nullptr;
  Check(Api().CreateTensorWithDataAsOrtValue(info, input.data(), input.size() * sizeof(float), shape, 2, 1, &value));
  const char* const inputs[] = {"X"};
  const char* const outputs[] = {"Y"};
  Check(Api().Run(session, inputs, &value, 1, outputs, 1, result));
  Api().ReleaseValue(value);
  Api().ReleaseMemoryInfo(info);
  return RETURNS_TO;
}

TEST_F(OnnxRuntimeTest, SessionsMemoryIsExact) {
  TrackingOrtAllocator tracker(memory_, Options());
  OrtEnv* env = nullptr;
  Check(Api().CreateEnv(/*ORT_LOGGING_LEVEL_WARNING=*/2, "hbmprof", &env));
  Check(Api().RegisterAllocator(env, &tracker));
  OrtSessionOptions* options = nullptr;
  Check(Api().CreateSessionOptions(&options));
  Check(Api().SetIntraOpNumThreads(options, 1));
  Check(Api().AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  const std::string model = onnx_model::MatMulRelu(kSide);
  OrtSession* session = nullptr;
  Check(Api().CreateSessionFromArray(env, model.data(), model.size(), options, &session));
  ASSERT_NE(session, nullptr);

  OrtValue* result = nullptr;
  const uintptr_t user = RunModel(session, &result);
  ASSERT_NE(result, nullptr);
  void* data = nullptr;
  Check(Api().GetTensorMutableData(result, &data));
  EXPECT_EQ(*static_cast<float*>(data), static_cast<float>(kSide));
  EXPECT_GT(memory_.allocations, 0);
  EXPECT_GE(memory_.bytes_in_use, kSide * kSide * 4) << "the result at least";
  EXPECT_EQ(InUse(profiler_, "ort:0"), memory_.bytes_in_use);
  const std::vector<uint64_t> stack = StackOf(profiler_, kSide * kSide * 4);
  EXPECT_NE(std::find(stack.begin(), stack.end(), user), stack.end()) << "the result's stack has its user";

  Api().ReleaseValue(result);
  Api().ReleaseSession(session);
  Api().ReleaseSessionOptions(options);
  Check(Api().UnregisterAllocator(env, memory_.Info(&memory_)));
  Api().ReleaseEnv(env);
  EXPECT_EQ(InUse(profiler_, "ort:0"), memory_.bytes_in_use);
  EXPECT_EQ(memory_.bytes_in_use, 0);
  ExpectNoLosses(profiler_);
}

}  // namespace
}  // namespace hbmprof::adapters
