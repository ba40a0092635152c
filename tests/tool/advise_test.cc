// `hbmprof advise` on artificial loads with known answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "src/tool/advice/pool.h"
#include "tests/support/made_recording.h"
#include "tests/tool/tool.h"

namespace hbmprof_test {
namespace {

using hbmprof::internal::DriverSample;
using hbmprof::internal::RecordingWriter;
using hbmprof::tool::CachingPool;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMilli = 1000000;
constexpr int64_t kSecond = 1000 * kMilli;

// Writes the recording to a file and returns its path.
std::string Write(const MadeRecording& recording) {
  std::string path = ScratchDir() + "/made.hbmrec";
  absl::StatusOr<std::unique_ptr<RecordingWriter>> writer = RecordingWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  const absl::Status status = recording.WriteTo(**writer);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

json AdviseOn(const MadeRecording& recording) { return ToolJson({"advise", Write(recording)}); }

std::vector<std::string> Kinds(const json& report) {
  std::vector<std::string> kinds;
  for (const json& advice : report["advice"]) kinds.push_back(advice["kind"]);
  return kinds;
}

json Find(const json& report, const std::string& kind) {
  for (const json& advice : report["advice"]) {
    if (advice["kind"] == kind) return advice;
  }
  return nullptr;
}

// A device of 64 MiB, and weights of `weights` bytes at the start. The last event is at 10 s.
class Load : public MadeRecording {
 public:
  explicit Load(int64_t weights) : MadeRecording("GPU:0", 64 * kMiB) {
    Alloc(0, kWeights, weights, Site({{"cudaMalloc"}, {"app::LoadWeights"}, {"main"}}));
  }
  uint32_t Of(const std::string& function) { return Site({{"cudaMalloc"}, {function}, {"main"}}); }
  MadeRecording& End() { return Mark(10 * kSecond, "end"); }
  void DriverSays(int64_t time, int64_t free, int64_t largest) {
    DriverSample sample;
    sample.time = time;
    sample.devices.emplace_back();
    sample.devices[0].bytes_free = free;
    sample.devices[0].largest_free_block_bytes = largest;
    sample.devices[0].bytes_limit = 64 * kMiB;
    Sample(sample);
  }

  static constexpr uint64_t kWeights = 0x100000000;
};

TEST(AdviseTest, GivesNoAdviceOnACleanLoad) {
  Load load(32 * kMiB);
  const uint32_t cache = load.Of("app::Cache");
  for (uint64_t i = 0; i < 8; ++i) load.Alloc(10 * static_cast<int64_t>(i) * kMilli, 0x10000 + i, kMiB, cache);
  const uint32_t activation = load.Of("app::Forward");
  for (int64_t step = 0; step < 100; ++step) {
    const int64_t begin = kSecond + step * 80 * kMilli;
    for (uint64_t i = 0; i < 3; ++i) load.Alloc(begin + static_cast<int64_t>(i), 0x20000 + i, kMiB, activation);
    for (uint64_t i = 3; i-- > 0;) load.Free(begin + 40 * kMilli, 0x20000 + i);
    load.DriverSays(begin + 40 * kMilli, 20 * kMiB, 16 * kMiB);
  }
  load.End();
  const json report = AdviseOn(load);
  EXPECT_THAT(Kinds(report), ElementsAre());
  EXPECT_EQ(report["version"], 1);
  EXPECT_EQ(report["devices"][0]["peak"], 43 * kMiB);
  EXPECT_EQ(report["devices"][0]["driver_calls"], 609);
  EXPECT_THAT(RunTool({"advise", Write(load)}).out, HasSubstr("No advice"));
}

TEST(AdviseTest, NamesTheOperatorOfTheBackwardPass) {
  Load load(32 * kMiB);
  const uint32_t scratch =
      load.Site({{"c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_found_block"},
                 {"at::detail::empty_cuda"},
                 {"torch::autograd::generated::AddmmBackward0::apply"},
                 {"torch::autograd::Engine::evaluate_function"}});
  for (int64_t i = 0; i < 5000; ++i) {
    load.Alloc(i * 2 * kMilli + 1, 0x10000, kMiB, scratch).Free(i * 2 * kMilli + 1000, 0x10000);
  }
  load.End();
  const json report = AdviseOn(load);
  EXPECT_EQ(Find(report, "churn")["sites"][0]["function"], "backward: AddmmBackward0 [PyTorch]") << report.dump(1);
}

TEST(AdviseTest, FindsChurn) {
  Load load(32 * kMiB);
  const uint32_t scratch = load.Of("app::Scratch");
  for (int64_t i = 0; i < 5000; ++i) {
    load.Alloc(i * 2 * kMilli + 1, 0x10000, kMiB, scratch).Free(i * 2 * kMilli + 1000, 0x10000);
  }
  load.End();
  const json report = AdviseOn(load);
  EXPECT_THAT(Kinds(report), ElementsAre("churn", "reallocated", "pool"));
  const json churn = Find(report, "churn");
  EXPECT_EQ(churn["sites"][0]["function"], "app::Scratch");
  EXPECT_EQ(churn["sites"][0]["count"], 5000);
  EXPECT_EQ(churn["sites"][0]["bytes"], 5000 * kMiB);
  EXPECT_EQ(churn["replay"]["driver_calls_before"], 10001);
  EXPECT_EQ(churn["replay"]["driver_calls_after"], 2);  // the weights, and one buffer
  EXPECT_EQ(churn["replay"]["peak_before"], 33 * kMiB);
  EXPECT_EQ(churn["replay"]["peak_after"], 33 * kMiB);
  const json reallocated = Find(report, "reallocated");
  EXPECT_EQ(reallocated["sites"][0]["count"], 4999);
  EXPECT_EQ(reallocated["replay"]["driver_calls_after"], 3);
  EXPECT_EQ(reallocated["replay"]["peak_after"], 33 * kMiB);
}

TEST(AdviseTest, FindsThePoolsSize) {
  Load load(32 * kMiB);
  const uint32_t sites[] = {load.Of("app::Query"), load.Of("app::Key"), load.Of("app::Value")};
  const int64_t sizes[] = {3 * kMiB, kMiB, 2 * kMiB};
  for (int64_t step = 0; step < 1000; ++step) {
    const int64_t begin = step * 10 * kMilli + 1;
    for (uint64_t i = 0; i < 3; ++i) load.Alloc(begin, 0x10000 + i, sizes[i], sites[i]);
    for (uint64_t i = 3; i-- > 0;) load.Free(begin + 1000, 0x10000 + i);
  }
  load.End();
  const json report = AdviseOn(load);
  EXPECT_THAT(
      Find(report, "churn")["text"],
      HasSubstr("app::Query and 2 other functions instead of freeing them: 3000 buffers are short-lived; half of "
                "those of app::Query live"));
  const json pool = Find(report, "pool");
  ASSERT_FALSE(pool.is_null());
  EXPECT_EQ(pool["replay"]["pool_limit"], 4 * kMiB);
  // A segment of 4 MiB for the first two buffers, and one of 2 MiB for the third.
  EXPECT_EQ(pool["replay"]["pool_bytes"], 6 * kMiB);
  EXPECT_EQ(pool["replay"]["driver_calls_before"], 6001);
  EXPECT_EQ(pool["replay"]["driver_calls_after"], 3);
  EXPECT_EQ(pool["replay"]["peak_before"], 38 * kMiB);
  EXPECT_EQ(pool["replay"]["peak_after"], 38 * kMiB);
  EXPECT_THAT(pool["how"], HasSubstr("3.00 MiB (1000 times)"));
}

TEST(AdviseTest, FindsReuse) {
  Load load(10 * kMiB);
  const uint32_t state = load.Of("app::NextState");
  load.Alloc(kMilli, 0x10000, 20 * kMiB, state);
  for (uint64_t i = 1; i <= 50; ++i) {
    const int64_t time = static_cast<int64_t>(i) * 100 * kMilli;
    load.Alloc(time, 0x10000 + i, 20 * kMiB, state).Free(time + kMilli, 0x10000 + i - 1);
  }
  load.End();
  const json report = AdviseOn(load);
  EXPECT_THAT(Kinds(report), ElementsAre("reuse"));
  const json reuse = Find(report, "reuse");
  EXPECT_EQ(reuse["sites"][0]["function"], "app::NextState");
  EXPECT_EQ(reuse["bytes"], 20 * kMiB);
  EXPECT_EQ(reuse["replay"]["peak_before"], 50 * kMiB);
  EXPECT_EQ(reuse["replay"]["peak_after"], 30 * kMiB);
}

TEST(AdviseTest, FindsTheFunctionsWhoseBuffersLieBetweenFreeBlocks) {
  MadeRecording recording("GPU:0", 64 * kMiB);
  const uint32_t batch = recording.Site({{"app::Batch"}});
  const uint32_t index = recording.Site({{"app::Index"}});
  constexpr uint64_t kBase = 0x10000000;
  for (uint64_t i = 0; i < 16; ++i) {
    const int64_t time = static_cast<int64_t>(i) * 100 * kMilli;
    recording.Alloc(time, kBase + i * 4 * kMiB, 3 * kMiB, batch);
    recording.Alloc(time, kBase + i * 4 * kMiB + 3 * kMiB, kMiB, index);
  }
  for (uint64_t i = 0; i < 16; ++i) recording.Free(5 * kSecond, kBase + i * 4 * kMiB);
  // The size of the second failed allocation is not known.
  recording.Failed(6 * kSecond, 8 * kMiB, batch).Failed(7 * kSecond, 0, batch).Mark(10 * kSecond, "end");
  DriverSample sample;
  sample.devices.emplace_back();
  sample.devices[0].bytes_free = 48 * kMiB;
  sample.devices[0].largest_free_block_bytes = 3 * kMiB;
  sample.time = 5 * kSecond + 1;
  recording.Sample(sample);
  const json report = AdviseOn(recording);
  EXPECT_THAT(Kinds(report), ElementsAre("fragmentation"));
  const json advice = Find(report, "fragmentation");
  EXPECT_EQ(advice["sites"][0]["function"], "app::Index");
  EXPECT_EQ(advice["sites"][0]["count"], 16);
  EXPECT_EQ(advice["sites"][0]["bytes"], 16 * kMiB);
  EXPECT_EQ(advice["bytes"], 45 * kMiB);
  EXPECT_EQ(advice["replay"]["largest_free_before"], 3 * kMiB);
  EXPECT_EQ(advice["replay"]["largest_free_after"], 64 * kMiB);
  EXPECT_THAT(advice["text"], HasSubstr("1 allocations failed although enough bytes were free"));
}

// The free bytes of a sample are those of its time.
TEST(AdviseTest, CountsNoFailureAfterTheFreeMemoryOfTheSampleWasAllocated) {
  MadeRecording recording("GPU:0", 64 * kMiB);
  const uint32_t site = recording.Site({{"app::Index"}});
  for (uint64_t i = 0; i < 16; ++i) recording.Alloc(kMilli, 0x10000000 + i * 4 * kMiB, kMiB, site);
  recording.Alloc(kSecond + 100 * kMilli, 0x20000000, 44 * kMiB, site).Failed(kSecond + 200 * kMilli, 8 * kMiB, site);
  DriverSample sample;
  sample.devices.emplace_back();
  sample.devices[0].bytes_free = 48 * kMiB;
  sample.devices[0].largest_free_block_bytes = 20 * kMiB;
  sample.time = kSecond;
  recording.Sample(sample);
  const json advice = Find(AdviseOn(recording), "fragmentation");
  ASSERT_FALSE(advice.is_null());
  EXPECT_THAT(advice["text"], testing::Not(HasSubstr("failed although")));
}

TEST(AdviseTest, NamesNoSitesIfAddressesAreNotThoseOfTheDevice) {
  MadeRecording recording("GPU:0", 64 * kMiB);
  const uint32_t site = recording.Site({{"app::Index"}});
  for (uint64_t i = 0; i < 16; ++i) recording.Alloc(kMilli, 0x10000000 + i * 4 * kMiB, kMiB, site);
  DriverSample sample;
  sample.devices.emplace_back();
  sample.devices[0].bytes_free = 48 * kMiB;
  sample.devices[0].largest_free_block_bytes = 20 * kMiB;  // but the largest gap between the addresses is 3 MiB
  sample.time = kSecond;
  recording.Sample(sample);
  const json advice = Find(AdviseOn(recording), "fragmentation");
  ASSERT_FALSE(advice.is_null());
  EXPECT_TRUE(advice["sites"].empty());
}

TEST(AdviseTest, FindsBuffersToFreeBeforeThePeak) {
  Load load(20 * kMiB);
  load.Alloc(kSecond, 0x10000, 10 * kMiB, load.Of("app::Checkpoint"));
  load.Alloc(5 * kSecond, 0x20000, 30 * kMiB, load.Of("app::Burst"));
  load.Free(5 * kSecond + kMilli, 0x20000).Free(5 * kSecond + 10 * kMilli, 0x10000);
  load.End();
  const json report = AdviseOn(load);
  EXPECT_THAT(Kinds(report), ElementsAre("peak"));
  const json peak = Find(report, "peak");
  EXPECT_EQ(peak["sites"].size(), 1);
  EXPECT_EQ(peak["sites"][0]["function"], "app::Checkpoint");
  EXPECT_EQ(peak["bytes"], 10 * kMiB);
  EXPECT_EQ(peak["replay"]["peak_before"], 60 * kMiB);
  EXPECT_EQ(peak["replay"]["peak_after"], 50 * kMiB);
  EXPECT_THAT(peak["text"], HasSubstr("are freed 10.0 ms after it"));
}

TEST(AdviseTest, FindsMemoryThatIsNeverFreed) {
  Load load(20 * kMiB);
  const uint32_t leak = load.Of("app::Session");
  for (uint64_t i = 1; i <= 200; ++i) load.Alloc(static_cast<int64_t>(i) * 49 * kMilli, 0x10000 + i, kMiB / 10, leak);
  load.End();
  const json report = AdviseOn(load);
  EXPECT_THAT(Kinds(report), ElementsAre("never_freed"));
  const json advice = Find(report, "never_freed");
  EXPECT_EQ(advice["sites"][0]["function"], "app::Session");
  EXPECT_EQ(advice["sites"][0]["count"], 200);
  EXPECT_THAT(advice["text"], StartsWith("app::Session leaks 2.0"));
  EXPECT_THAT(advice["text"], HasSubstr("; GPU:0 reaches its limit in 1"));
}

TEST(AdviseTest, FindsIdleMemoryOfPoolsAtThePeak) {
  MadeRecording recording("GPU:0", 64 * kMiB);
  const uint32_t segment = recording.Site({{"app::Arena"}}, {0, hbmprof::MemoryKind::kPool, "arena"});
  MadeRecording::SiteOptions options;
  options.from = "arena";
  const uint32_t block = recording.Site({{"app::Tensor"}}, options);
  recording.Live(0x10000000, 32 * kMiB, segment);
  recording.Alloc(kMilli, MadeRecording::BlockId(0x10000000), 4 * kMiB, block);
  recording.Mark(10 * kSecond, "end");
  const json reuse = Find(AdviseOn(recording), "reuse");
  ASSERT_FALSE(reuse.is_null());
  EXPECT_EQ(reuse["sites"][0]["function"], "[idle memory of arena]");
  EXPECT_EQ(reuse["sites"][0]["count"], 1);
  EXPECT_EQ(reuse["sites"][0]["bytes"], 28 * kMiB);
  EXPECT_EQ(reuse["bytes"], 28 * kMiB);
  EXPECT_EQ(reuse["replay"]["peak_after"], 4 * kMiB);
}

TEST(AdviseTest, SaysWhyItCannotReadAFile) {
  const CommandResult missing = RunTool({"advise", ScratchDir() + "/none.hbmrec"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("none.hbmrec"));
}

TEST(CachingPoolTest, SplitsAndJoinsBlocks) {
  CachingPool pool(8 * kMiB);
  const auto a = pool.Allocate(2 * kMiB);
  const auto b = pool.Allocate(2 * kMiB);
  const auto c = pool.Allocate(4 * kMiB);
  EXPECT_EQ(pool.segment_count(), 1);
  pool.Free(a);
  pool.Free(c);
  pool.Free(b);  // joins with both neighbours
  EXPECT_EQ(pool.Allocate(8 * kMiB), a);
  EXPECT_EQ(pool.segment_count(), 1);
  EXPECT_EQ(pool.reserved_bytes(), 8 * kMiB);
}

TEST(CachingPoolTest, TakesTheSmallestBlockThatIsLargeEnough) {
  CachingPool pool(16 * kMiB);
  const auto large = pool.Allocate(4 * kMiB);
  pool.Allocate(kMiB);
  const auto small = pool.Allocate(2 * kMiB);
  pool.Allocate(9 * kMiB);
  pool.Free(large);
  pool.Free(small);
  EXPECT_EQ(pool.Allocate(2 * kMiB), small);
  EXPECT_EQ(pool.Allocate(3 * kMiB), large);
}

TEST(CachingPoolTest, DoesNotJoinSegments) {
  CachingPool pool(2 * kMiB);
  const auto a = pool.Allocate(2 * kMiB);
  const auto b = pool.Allocate(2 * kMiB);
  pool.Free(a);
  pool.Free(b);
  pool.Allocate(4 * kMiB);
  EXPECT_EQ(pool.segment_count(), 3);
  EXPECT_EQ(pool.reserved_bytes(), 8 * kMiB);
}

}  // namespace
}  // namespace hbmprof_test
