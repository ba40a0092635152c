// The ages of buffers: generations, the births of live buffers, how old freed buffers became. The clock is the test's.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "src/base/pages.h"
#include "src/core/generations.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;

TEST(Generations, AreIntervalsOfASecondOrAThousandth) {
  int64_t start = 0;
  for (uint32_t number = 0; number < 40000; ++number) {
    const auto generation = static_cast<Generation>(number);
    ASSERT_EQ(StartOfGeneration(generation), start) << number;
    const int64_t end = StartOfGeneration(static_cast<Generation>(number + 1));
    ASSERT_EQ(GenerationAt(start), generation);
    ASSERT_EQ(GenerationAt(end - 1), generation);
    ASSERT_TRUE(end == start + 1 || (end - start) * 1000 <= start) << number;
    // Each lies in one class of births, at every later time.
    for (const int64_t uptime : {end, 2 * end, 1000 * end}) {
      ASSERT_EQ(start >> BirthClassLog2(uptime), (end - 1) >> BirthClassLog2(uptime)) << number;
    }
    start = end;
  }
  EXPECT_GT(start, int64_t{100} * 365 * 86400) << "a hundred years fit";
  EXPECT_GT(GenerationAt(kMaxGenerationSeconds), GenerationAt(kMaxGenerationSeconds / 2));
}

TEST(Generations, BirthClassesAre33To64) {
  for (int64_t uptime = 0; uptime < 100000; ++uptime) {
    const int64_t classes = (uptime >> BirthClassLog2(uptime)) + 1;
    ASSERT_LE(classes, 64);
    ASSERT_TRUE(classes > 32 || BirthClassLog2(uptime) == 0) << uptime;
  }
}

TEST(Generations, OctavesOfAgesAreThoseOfSeconds) {
  EXPECT_EQ(OctaveOfAge(5, 5), -1);
  EXPECT_EQ(OctaveOfAge(5, 4), -1);
  EXPECT_EQ(OctaveOfAge(5, 6), 0);
  EXPECT_EQ(OctaveOfAge(5, 8), 1);
  EXPECT_EQ(OctaveOfAge(5, 9), 2);
  EXPECT_EQ(OctaveOfAge(0, GenerationAt(kMaxGenerationSeconds)), kAgeOctaves - 1);
}

std::atomic<int64_t> fake_nanos{kSecond};
int64_t FakeClock() { return fake_nanos.load(); }

// Attributes of a kind other than kDevice do not matter here: each call is one site.
class AgesTest : public ::testing::Test {
 protected:
  AgesTest() {
    // All tests begin at the same time.
    generation_clock.store(&FakeClock);
    fake_nanos.store(kSecond);
    present_generation.store(0);
    LookAtClock();
    Advance(10);
  }

  static void Advance(int64_t seconds) {
    fake_nanos.fetch_add(seconds * kSecond);
    LookAtClock();
  }
  static int64_t Now() { return LookAtClock() / kSecond; }

  // All calls have one site for each size.
  [[gnu::noinline]] static BufferId Alloc(Profiler& profiler, uint64_t number, size_t bytes = 256) {
    const BufferId id(0x7f0000000000 + number * 0x10000);
    EXPECT_TRUE(profiler.RecordAlloc(id, bytes));
    return id;
  }

  // The live buffers and their bytes by the begin of their class of births. Expects that the classes of each sample add
  // up to its values.
  static std::map<int64_t, std::pair<int64_t, int64_t>> Births(const Snapshot& snapshot) {
    std::map<int64_t, std::pair<int64_t, int64_t>> births;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.kind == MemoryKind::kPool) continue;  // the idle memory of a pool has no ages
      int64_t objects = 0;
      int64_t bytes = 0;
      for (const Snapshot::Sample::Born& born : sample.born) {
        EXPECT_GE(born.objects, 0);
        EXPECT_GE(born.bytes, 0);
        objects += born.objects;
        bytes += born.bytes;
        auto& sum = births[int64_t{born.birth_class} << snapshot.birth_class_log2];
        sum.first += born.objects;
        sum.second += born.bytes;
      }
      EXPECT_EQ(objects, sample.inuse_objects);
      EXPECT_EQ(bytes, sample.inuse_bytes);
    }
    return births;
  }
  // The freed buffers by octave, of all samples.
  static std::vector<int64_t> Freed(const Profiler& profiler) {
    std::vector<int64_t> sums;
    for (const Snapshot::Sample& sample : profiler.TakeSnapshot().samples) {
      const std::vector<int64_t>& freed = sample.freed_by_octave;
      sums.resize(std::max(sums.size(), freed.size()));
      for (size_t i = 0; i < freed.size(); ++i) sums[i] += freed[i];
    }
    return sums;
  }
  static int64_t ClassOf(int64_t time, const Snapshot& snapshot) {
    return time >> snapshot.birth_class_log2 << snapshot.birth_class_log2;
  }
  // Expects one live buffer, born at that time.
  static void ExpectBornAt(int64_t time, const Profiler& profiler) {
    const Snapshot snapshot = profiler.TakeSnapshot();
    EXPECT_THAT(Births(snapshot),
                ElementsAre(::testing::Pair(ClassOf(time, snapshot), ::testing::Pair(1, ::testing::_))));
  }
};

TEST_F(AgesTest, SegmentFromBeforeAPauseIsAnotherOne) {
  Profiler profiler;
  const Pool pool = {kDefaultDevice, profiler.Allocator("pool")};
  const BufferId segment(0x7f0000000000);
  ASSERT_TRUE(profiler.RecordSegment(pool, segment, 1000) && profiler.RecordBlock(pool, segment, 100));
  Advance(10);
  profiler.SetEnabled(false);
  Advance(10);
  profiler.SetEnabled(true);
  // Segment and block have ended meanwhile, and the pool gets a segment at the same address.
  ASSERT_TRUE(profiler.RecordSegment(pool, segment, 1000) && profiler.RecordBlock(pool, BufferId(0x7f0000000200), 10));
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 1000);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).idle_bytes, 990);
  ASSERT_TRUE(profiler.RecordSegment(pool, segment, 1000)) << "it is one already";
  EXPECT_EQ(profiler.Stats(kDefaultDevice).idle_bytes, 990);
}

TEST_F(AgesTest, LiveBuffersAreInTheClassesOfTheirBirths) {
  Profiler profiler;
  std::map<int64_t, int64_t> expected;  // by second
  for (int i = 0; i < 300; ++i) {
    Alloc(profiler, static_cast<uint64_t>(i));
    ++expected[Now()];
    if (i % 3 == 0) Advance(i % 7);
  }
  const Snapshot snapshot = profiler.TakeSnapshot();
  EXPECT_EQ(snapshot.uptime_seconds, Now());
  std::map<int64_t, std::pair<int64_t, int64_t>> classes;
  for (const auto& [second, count] : expected) {
    classes[ClassOf(second, snapshot)].first += count;
    classes[ClassOf(second, snapshot)].second += count * 256;
  }
  EXPECT_EQ(Births(snapshot), classes);
  EXPECT_GT(classes.size(), 5u);
}

TEST_F(AgesTest, ABufferKeepsItsBirth) {
  Profiler profiler;
  const int64_t birth = Now();
  const BufferId id = Alloc(profiler, 1);
  Advance(600);
  EXPECT_TRUE(profiler.RecordResize(id, 512));
  ExpectBornAt(birth, profiler);
  // Its segment is no sample with ages. A nested one is a block again when it ends.
  const Pool outer = {kDefaultDevice, profiler.Allocator("outer")};
  const Pool inner = {kDefaultDevice, profiler.Allocator("inner")};
  EXPECT_TRUE(profiler.RecordSegment(outer, id, 512));
  EXPECT_THAT(Births(profiler.TakeSnapshot()), IsEmpty());
  EXPECT_TRUE(profiler.RecordBlock(outer, id, 512));
  const int64_t of_block = Now();
  Advance(600);
  EXPECT_TRUE(profiler.RecordSegment(inner, id, 512));
  EXPECT_EQ(profiler.RecordSegmentFree(inner, id), 512);
  ExpectBornAt(of_block, profiler);
}

TEST_F(AgesTest, FreedBuffersAreCountedByOctave) {
  Profiler profiler;
  for (uint64_t i = 1; i < 200; ++i) profiler.RecordFree(Alloc(profiler, i));
  EXPECT_THAT(Freed(profiler), IsEmpty());

  std::vector<BufferId> buffers;
  for (uint64_t i = 1; i <= 100; ++i) buffers.push_back(Alloc(profiler, i));
  const int64_t host_bytes = HostBytes();
  profiler.RecordFree(buffers[99]);
  Advance(5);
  for (int i = 0; i < 70; ++i) profiler.RecordFree(buffers[static_cast<size_t>(i)]);
  EXPECT_EQ(HostBytes(), host_bytes) << "the counters are counted when the site is made";
  Advance(1);
  for (int i = 70; i < 79; ++i) profiler.RecordFree(buffers[static_cast<size_t>(i)]);
  EXPECT_THAT(Freed(profiler), ElementsAre(0, 0, 79));
  Advance(2);
  profiler.RecordFree(buffers[79]);
  EXPECT_THAT(Freed(profiler), ElementsAre(0, 0, 79, 1));
}

TEST_F(AgesTest, FreesOfBlocksAndDropsAreCounted) {
  Profiler profiler;
  const BufferId segment(0x7f0000000000);
  const Pool pool = {kDefaultDevice, profiler.Allocator("pool")};
  ASSERT_TRUE(profiler.RecordSegment(pool, segment, 1 << 20));
  const auto block = [&](uint64_t i) { return BufferId(segment.value() + i * 4096); };
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(profiler.RecordBlock(pool, block(i), 4096));
  Advance(3);
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(profiler.RecordBlockFree(pool, block(i)));
  Advance(3);
  profiler.RecordFree(segment);  // with 20 blocks
  Alloc(profiler, 1000, 512);
  Advance(20);
  profiler.DropDevice(DeviceId{0});
  std::map<int64_t, std::vector<int64_t>> freed;  // by size
  for (const Snapshot::Sample& sample : profiler.TakeSnapshot().samples) {
    if (sample.alloc_objects == 0) continue;  // a row of the pool
    freed[sample.alloc_bytes / sample.alloc_objects] = sample.freed_by_octave;
  }
  EXPECT_THAT(freed[4096], ElementsAre(0, 10, 20));
  EXPECT_THAT(freed[512], ElementsAre(0, 0, 0, 0, 1));
}

// Nobody looks at the clock except the events themselves.
TEST_F(AgesTest, RareEventsAreRightWithinOneEvent) {
  Profiler profiler;
  uint64_t number = 0;
  for (; number < 1000; ++number) Alloc(profiler, number);  // at once
  for (int i = 0; i < 64; ++i) {
    fake_nanos.fetch_add(60 * kSecond);
    Alloc(profiler, number++);
  }
  std::vector<int64_t> times;
  for (int i = 0; i < 100; ++i) {
    fake_nanos.fetch_add(60 * kSecond);
    times.push_back(fake_nanos.load() / kSecond - 1);
    Alloc(profiler, number++);
    const int64_t seen = StartOfGeneration(PresentGeneration());
    EXPECT_GE(seen + seen / 1000 + 60, times.back()) << i;
  }
}

// While threads record, also segments and their blocks, and the time passes, the classes of each snapshot add up. After
// that they are exact.
TEST_F(AgesTest, ClassesAddUpWhileThreadsRecord) {
  constexpr int kThreads = 4;
  constexpr uint64_t kKept = 2000;
  Profiler profiler;
  const Pool pool = {kDefaultDevice, profiler.Allocator("pool")};
  std::atomic<bool> stops{false};
  std::atomic<int> started{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t first = static_cast<uint64_t>(t + 1) << 20;
      for (uint64_t i = 0; i < kKept; ++i) Alloc(profiler, first + i);
      started.fetch_add(1);
      for (uint64_t i = 0; !stops; ++i) {
        const BufferId id = Alloc(profiler, first + kKept + i % 5000, 256 << (i % 3));
        if (i % 7 == 0) profiler.RecordResize(id, 128);
        if (i % 11 == 0) {
          profiler.RecordSegment(pool, id, 128);
          profiler.RecordBlock(pool, id, 64);
        }
        profiler.RecordFree(id);
      }
    });
  }
  while (started < kThreads) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) {
    Advance(i % 3);
    Births(profiler.TakeSnapshot());
  }
  stops = true;
  for (std::thread& thread : threads) thread.join();
  int64_t objects = 0;
  for (const auto& [begin, sum] : Births(profiler.TakeSnapshot())) objects += sum.first;
  EXPECT_EQ(objects, static_cast<int64_t>(kThreads * kKept));
}

}  // namespace
}  // namespace hbmprof::internal
