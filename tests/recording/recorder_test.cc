// Recordings of Profiler::Default() through the public functions, read back from their files.
#include "src/recording/recorder/recorder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/c_api.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/recording.h"
#include "src/api/control/live.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/tool/reader/reader.h"
#include "src/tool/reader/state.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof {
namespace {

using internal::RecordedEvent;
using internal::RecordedKind;
using internal::RecordingReader;

constexpr int64_t kBytes = 4096;

std::unique_ptr<RecordingReader> Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? *std::move(reader) : nullptr;
}

// The number of events of this kind.
int Count(RecordingReader& reader, RecordedKind kind) {
  int count = 0;
  RecordedEvent event;
  for (reader.Rewind(); reader.Next(&event);) count += event.kind == kind ? 1 : 0;
  return count;
}

// Not inlined, so that the recording contains its name.
[[gnu::noinline]] void FailsToAllocate(size_t bytes) {
  ReportOutOfMemory({"Allocate", bytes, "sim:0"});
  asm volatile("");
}

// Returns the name of the innermost function of the site's stack.
std::string InnermostFunction(const RecordingReader& reader, uint32_t site) {
  const internal::RecordingTables& tables = reader.tables();
  const uint64_t pc = tables.names.stacks[tables.sites[site].stack].return_addresses.at(0);
  return std::string(internal::NamesOfRecording(tables)->Symbolize({}, {pc - 1}).at(0).name);
}

internal::ProfilerImpl& Impl() { return internal::ProfilerAccess::ImplOf(Profiler::Default()); }

class RecordingTest : public ::testing::Test {
 protected:
  void Allocate(int count) {
    Profiler& profiler = Profiler::Default();
    const DeviceId device = profiler.Device("sim:0");
    for (int i = 0; i < count; ++i) {
      const BufferId id((uint64_t{1} << 40) + static_cast<uint64_t>(next_++) * kBytes);
      ASSERT_TRUE(profiler.RecordAlloc(id, kBytes, {device}));
    }
  }
  void TearDown() override { Profiler::Default().DropDevice(Profiler::Default().Device("sim:0")); }

  const std::string directory_ = hbmprof_test::NewDirectory();
  int next_ = 0;
};

TEST_F(RecordingTest, HasTheEventsOfItsTime) {
  Allocate(5);
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec").ok());
  EXPECT_EQ(StartRecording(directory_ + "/b.hbmrec").code(), absl::StatusCode::kFailedPrecondition);
  Allocate(7);
  {
    const ScopedTag tag("phase", "decode");
    Allocate(1);
  }
  Profiler::Default().RecordFree(BufferId(uint64_t{1} << 40));
  FailsToAllocate(size_t{1} << 39);
  ASSERT_TRUE(save_device_memory_profile(directory_ + "/now.pb.gz").ok());
  ASSERT_TRUE(StopRecording().ok());
  EXPECT_EQ(StopRecording().code(), absl::StatusCode::kFailedPrecondition);
  Allocate(3);

  const std::unique_ptr<RecordingReader> reader = Open(directory_ + "/a.hbmrec");
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->is_complete()) << reader->problem();
  EXPECT_EQ(reader->tables().live.size(), 5u);
  EXPECT_EQ(Count(*reader, RecordedKind::kAlloc), 8);
  EXPECT_EQ(Count(*reader, RecordedKind::kFree), 1);
  EXPECT_EQ(Count(*reader, RecordedKind::kTags), 2);
  EXPECT_EQ(Count(*reader, RecordedKind::kFailed), 1);
  EXPECT_FALSE(reader->samples().empty());
  RecordedEvent event;
  for (reader->Rewind(); reader->Next(&event) && event.kind != RecordedKind::kMark;) continue;
  ASSERT_EQ(event.kind, RecordedKind::kMark);
  // Reports may write profiles, too: one of the marks is that of the profile.
  bool is_marked = false;
  for (const auto& mark : reader->tables().marks) is_marked = is_marked || mark.name == directory_ + "/now.pb.gz";
  EXPECT_TRUE(is_marked);
}

TEST_F(RecordingTest, FailedAllocationHasItsStackAndTags) {
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec").ok());
  Allocate(1);
  {
    const ScopedTag tag("phase", "load");
    // The second failure of a minute is recorded and not reported.
    for (const size_t bytes : {1000, 2000}) FailsToAllocate(bytes);
  }
  ReportOutOfMemory({"Allocate", std::nullopt, ""});  // on the device with the most bytes in use
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> reader = Open(directory_ + "/a.hbmrec");
  ASSERT_NE(reader, nullptr);
  std::vector<RecordedEvent> failures;
  RecordedEvent event;
  while (reader->Next(&event)) {
    if (event.kind == RecordedKind::kFailed) failures.push_back(event);
  }
  ASSERT_EQ(failures.size(), 3u);
  EXPECT_EQ(failures[0].bytes, 1000);
  EXPECT_EQ(failures[1].bytes, 2000);
  EXPECT_EQ(failures[2].bytes, 0) << "not known";
  for (const RecordedEvent& failure : failures) ASSERT_LT(failure.site, reader->tables().sites.size());
  EXPECT_EQ(failures[0].site, failures[1].site) << "one site for all sizes";
  EXPECT_NE(InnermostFunction(*reader, failures[0].site).find("FailsToAllocate"), std::string::npos);
  using Tags = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(reader->tables().sites[failures[0].site].tags, (Tags{{"phase", "load"}}));
  EXPECT_EQ(reader->tables().names.devices[failures[2].id / kMemorySpaceCount].name, "sim:0");
  // Profiles do not contain the site, because nothing was allocated there.
  EXPECT_EQ(reader->tables().sites[failures[0].site].alloc_objects, 0);
}

TEST_F(RecordingTest, SegmentAndItsFirstBlockAreTwoBuffers) {
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  const BufferId address(uint64_t{7} << 40);
  const Pool outer = {device, profiler.Allocator("outer")};
  const Pool inner = {device, profiler.Allocator("inner")};
  ASSERT_TRUE(profiler.RecordSegment(outer, address, 1 << 20));
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec").ok());
  ASSERT_TRUE(profiler.RecordBlock(outer, address, kBytes));
  ASSERT_TRUE(profiler.RecordBlock(outer, BufferId(address.value() + kBytes), kBytes));
  ASSERT_TRUE(profiler.RecordSegment(inner, address, kBytes));  // the first block becomes a segment itself
  ASSERT_TRUE(profiler.RecordBlock(inner, address, 512));
  ASSERT_TRUE(profiler.RecordBlockFree(inner, address));
  ASSERT_TRUE(profiler.RecordBlockFree(outer, address));
  ASSERT_TRUE(profiler.RecordSegmentFree(outer, address));
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> reader = Open(directory_ + "/a.hbmrec");
  ASSERT_NE(reader, nullptr);
  internal::RecordingState state(reader->tables());
  // After each change: the sizes of the live buffers by address, in ascending order.
  std::vector<std::string> steps;
  RecordedEvent event;
  while (reader->Next(&event)) {
    state.Apply(event);
    if (event.is_continued) continue;
    std::multiset<std::pair<uint64_t, int64_t>> live;
    for (const auto& [id, buffer] : state.live()) {
      live.emplace(internal::AddressOfBuffer(id).value() - address.value(), buffer.bytes);
    }
    std::string step = std::to_string(state.bytes_in_use(0)) + ":";
    for (const auto& [offset, bytes] : live) step += " " + std::to_string(offset) + "+" + std::to_string(bytes);
    steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<std::string>{
                       "1048576: 0+4096 0+1048576", "1048576: 0+4096 0+1048576 4096+4096",
                       "1048576: 0+4096 0+1048576 4096+4096", "1048576: 0+512 0+4096 0+1048576 4096+4096",
                       "1048576: 0+4096 0+1048576 4096+4096", "1048576: 0+1048576 4096+4096", "0: 4096+4096", "0:"}));
}

TEST_F(RecordingTest, FileErrorStartsNoRecording) {
  const absl::Status status = StartRecording(directory_ + "/missing/a.hbmrec");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_EQ(StopRecording().code(), absl::StatusCode::kFailedPrecondition);
  RecordingOptions options;
  options.buffer_bytes = 1;
  EXPECT_EQ(StartRecording(directory_ + "/a.hbmrec", options).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RecordingTest, SizeIsBounded) {
  RecordingOptions options;
  options.max_bytes = 1 << 20;
  // The folder is a symbolic link, which another one replaces: both files are in the first folder.
  ASSERT_EQ(mkdir((directory_ + "/data").c_str(), 0700), 0);
  const std::string path = directory_ + "/data/a.hbmrec";
  std::ofstream(path) << "an older file";
  const std::string link = directory_ + "/link";
  ASSERT_EQ(symlink("data", link.c_str()), 0);
  ASSERT_TRUE(StartRecording(link + "/a.hbmrec", options).ok());
  ASSERT_TRUE(unlink(link.c_str()) == 0 && mkdir(link.c_str(), 0700) == 0);
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  FILE* old = nullptr;
  for (int round = 0; round < 400 && old == nullptr; ++round) {
    for (uint64_t i = 1; i <= 20'000; ++i) profiler.RecordAlloc(BufferId(i * 7919 * kBytes), i % 50 * 512, {device});
    for (uint64_t i = 1; i <= 20'000; ++i) profiler.RecordFree(BufferId(i * 7919 * kBytes));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    old = std::fopen((path + ".old").c_str(), "r");
  }
  ASSERT_NE(old, nullptr) << "the file was not renamed";
  std::fclose(old);
  Allocate(2);
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> before = Open(path + ".old");
  const std::unique_ptr<RecordingReader> now = Open(path);
  ASSERT_TRUE(before != nullptr && now != nullptr);
  EXPECT_TRUE(before->is_complete());
  EXPECT_TRUE(now->is_complete());
  EXPECT_FALSE(now->tables().names.warnings.empty());
  EXPECT_EQ(before->end_time(), now->tables().start_time);
  EXPECT_EQ(unlink((link + "/a.hbmrec.old").c_str()), -1);
}

TEST_F(RecordingTest, LargeTablesAtTheStartDoNotFillTheFile) {
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) profiler.RecordAlloc(BufferId(random() >> 20 | 4096), random() % 99, {device});
  RecordingOptions options;
  options.max_bytes = 1 << 20;
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec", options).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  Allocate(1);
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> reader = Open(directory_ + "/a.hbmrec");
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->tables().names.warnings.empty()) << "no new file has begun";
  EXPECT_GT(reader->tables().live.size(), 190'000u);
  EXPECT_EQ(Count(*reader, RecordedKind::kAlloc), 1);
}

// Switching a log on counts as recording, also if there is no event.
TEST_F(RecordingTest, ForkedChildIsNotRecorded) {
#if defined(__SANITIZE_ADDRESS__)
  // At the fork, the thread that writes the parent's recording may hold the lock of this allocator.
  GTEST_SKIP() << "the address sanitizer's allocator may be locked for ever in the child of many threads";
#endif
  ASSERT_TRUE(StartRecording(directory_ + "/parent.hbmrec").ok());
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const auto is_refused = [](const absl::Status& status) {
      return status.code() == absl::StatusCode::kFailedPrecondition;
    };
    _exit(is_refused(StopRecording()) && is_refused(StartRecording(directory_ + "/child.hbmrec")) &&
                  is_refused(SaveFlightRecording(directory_ + "/flight.hbmrec"))
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Allocate(2);
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> parent = Open(directory_ + "/parent.hbmrec");
  ASSERT_NE(parent, nullptr);
  EXPECT_EQ(Count(*parent, RecordedKind::kAlloc), 2);
}

// The flight recorder of Profiler::Default().
class FlightTest : public RecordingTest {
 protected:
  void TearDown() override {
    internal::StopFlightRecorder();
    RecordingTest::TearDown();
  }
  std::unique_ptr<RecordingReader> Save(const std::string& name) {
    const absl::Status status = SaveFlightRecording(directory_ + "/" + name);
    EXPECT_TRUE(status.ok()) << status;
    std::unique_ptr<RecordingReader> reader = Open(directory_ + "/" + name);
    EXPECT_TRUE(reader != nullptr && reader->is_complete());
    return reader;
  }
};

TEST_F(FlightTest, KeepsTheEventsOfTheLastSeconds) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLimit(1000);  // much longer than a save takes on a loaded machine
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), 1'000'000, std::chrono::nanoseconds(kLimit).count()));
  Allocate(10);
  const std::unique_ptr<RecordingReader> early = Save("early.hbmrec");
  ASSERT_NE(early, nullptr);
  EXPECT_EQ(Count(*early, RecordedKind::kAlloc), 10);
  std::this_thread::sleep_for(kLimit + milliseconds(100));
  Allocate(7);
  const std::unique_ptr<RecordingReader> reader = Save("late.hbmrec");
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(Count(*reader, RecordedKind::kAlloc), 7);
  EXPECT_EQ(reader->tables().live.size(), 10u);
  const int64_t duration = reader->end_time() - reader->tables().start_time;
  EXPECT_NEAR(static_cast<double>(duration), 1e9, 300e6) << "the sample of the driver is taken last";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_LE(reader->tables().start_unix_nanos + duration, std::chrono::nanoseconds(now).count());
  EXPECT_TRUE(reader->tables().names.warnings.empty());
}

TEST_F(FlightTest, WarnsIfEventsDoNotFit) {
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), 1, /*nanos=*/1'000'000'000'000));
  Profiler& profiler = Profiler::Default();
  for (int i = 0; i < 50'000; ++i) {
    profiler.RecordAlloc(BufferId(uint64_t{kBytes}), 1, {profiler.Device("sim:0")});
    profiler.RecordFree(BufferId(uint64_t{kBytes}));
  }
  const std::unique_ptr<RecordingReader> reader = Save("a.hbmrec");
  ASSERT_NE(reader, nullptr);
  ASSERT_EQ(reader->tables().names.warnings.size(), 1u);
  EXPECT_EQ(reader->tables().names.warnings[0].find("The flight recorder has only the last "), 0u);
  EXPECT_NE(reader->tables().names.warnings[0].find(" of 1e+03 seconds"), std::string::npos);
}

TEST_F(FlightTest, EachSaveBeginsWhereTheOneBeforeEndsWhileThreadsRecord) {
  constexpr int kEvents = 20'000;
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), kEvents, /*nanos=*/0));
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  const auto record = [&](uint64_t thread, uint64_t i) {
    const BufferId id((thread << 41) + i % 16 * kBytes);
    profiler.RecordAlloc(id, kBytes, {device});
    profiler.RecordFree(id);
  };
  Allocate(5);
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 1; thread <= 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; !ends; ++i) {
        record(thread, i);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  int64_t last_end = 0;
  for (const char* name : {"a.hbmrec", "b.hbmrec", "c.hbmrec"}) {
    for (uint64_t i = 0; i < 10 * kEvents; ++i) record(9, i);  // all buffers of the ring are full
    const std::unique_ptr<RecordingReader> reader = Save(name);
    ASSERT_NE(reader, nullptr);
    EXPECT_GE(reader->tables().start_time, last_end) << name;
    last_end = reader->end_time();
    EXPECT_GE(reader->event_count(), kEvents) << name;
    EXPECT_TRUE(reader->tables().live_is_complete) << name;
    EXPECT_EQ(reader->problem(), "") << name;
    internal::RecordingState state(reader->tables());
    RecordedEvent event;
    while (reader->Next(&event)) state.Apply(event);
    int kept = 0;
    for (const auto& [id, buffer] : state.live()) kept += id >= uint64_t{1} << 40 && id < uint64_t{1} << 41 ? 1 : 0;
    EXPECT_EQ(kept, 5) << name;
    EXPECT_LE(state.bytes_in_use(0), (5 + 3) * kBytes) << name;
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FlightTest, TellsIfTheLiveBuffersOfItsStartAreNotKnown) {
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), /*events=*/1, /*nanos=*/0));
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  // While this many records are listed, the few buffers of the recorder are filled several times.
  constexpr uint64_t kRecords = hbmprof_test::kSanitized ? 30'000 : 300'000;
  for (uint64_t i = 1; i <= kRecords; ++i) profiler.RecordAlloc(BufferId((uint64_t{3} << 40) + i), 1, {device});
  const std::unique_ptr<RecordingReader> quiet = Save("quiet.hbmrec");
  ASSERT_NE(quiet, nullptr);
  EXPECT_TRUE(quiet->tables().live_is_complete);
  EXPECT_EQ(quiet->tables().live.size() + static_cast<size_t>(Count(*quiet, RecordedKind::kAlloc)), kRecords);
  std::atomic<bool> ends{false};
  std::thread thread([&] {
    constexpr uint64_t kIds = 1000;
    while (!ends) {
      for (uint64_t i = 1; i <= kIds; ++i) profiler.RecordAlloc(BufferId((uint64_t{4} << 40) + i), kBytes, {device});
      for (uint64_t i = 1; i <= kIds; ++i) profiler.RecordFree(BufferId((uint64_t{4} << 40) + i));
    }
  });
  // On a machine with other work, the thread may not run while the records are listed.
  bool is_unknown = false;
  for (int i = 0; i < 300 && !is_unknown; ++i) {
    const std::unique_ptr<RecordingReader> reader = Save("a.hbmrec");
    if (reader == nullptr) break;
    EXPECT_EQ(reader->problem(), "");
    const internal::RecordingTables& tables = reader->tables();
    is_unknown = !tables.live_is_complete;
    if (is_unknown) {
      EXPECT_TRUE(tables.live.empty());
      continue;
    }
    int64_t difference = 0;
    for (const internal::RecordingTables::Live& live : tables.live) difference += live.bytes;
    for (const Snapshot::Sample& site : tables.sites) difference -= site.inuse_bytes;
    // The thread may be between the live table and the event.
    EXPECT_LE(std::abs(difference), kBytes);
  }
  EXPECT_TRUE(is_unknown);
  ends = true;
  thread.join();
}

TEST_F(FlightTest, StartsAfterTheRecordingThatIsInProgress) {
  constexpr int kPairs = hbmprof_test::kSanitized ? 10'000 : 100'000;
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec").ok());
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), /*events=*/1, /*nanos=*/0));
  for (int i = 0; i < kPairs; ++i) {
    profiler.RecordAlloc(BufferId(uint64_t{kBytes}), 1, {device});
    profiler.RecordFree(BufferId(uint64_t{kBytes}));
  }
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> recording = Open(directory_ + "/a.hbmrec");
  ASSERT_NE(recording, nullptr);
  EXPECT_EQ(recording->event_count(), 2 * kPairs);
  Allocate(4);
  const std::unique_ptr<RecordingReader> flight = Save("b.hbmrec");
  ASSERT_NE(flight, nullptr);
  EXPECT_EQ(Count(*flight, RecordedKind::kAlloc), 4);
}

std::atomic<bool> is_handled{false};

// Otherwise a signal that ends the process waits for a thread that waits for the interrupted one.
TEST_F(FlightTest, SignalIsHandledAfterTheSave) {
  Profiler& profiler = Profiler::Default();
  const DeviceId device = profiler.Device("sim:0");
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), 100'000, /*nanos=*/0));
  Allocate(1);
  auto* const before = std::signal(SIGUSR2, [](int) { is_handled.store(true); });
  int calls = 0;
  bool is_handled_in_save = false;
  profiler.SetDeviceProbe(device, [&] {
    ++calls;
    std::raise(SIGUSR2);
    is_handled_in_save = is_handled_in_save || is_handled.load();
    return DeviceProbe{};
  });
  Save("a.hbmrec");
  profiler.RemoveDeviceProbe(device, nullptr);
  std::signal(SIGUSR2, before);
  EXPECT_GT(calls, 0);
  EXPECT_FALSE(is_handled_in_save);
  EXPECT_TRUE(is_handled.load());
}

TEST_F(FlightTest, StartsEmptyAfterARecording) {
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), 100'000, /*nanos=*/0));
  Allocate(3);
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec").ok());
  Allocate(2);
  EXPECT_EQ(SaveFlightRecording(directory_ + "/no.hbmrec").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(StopRecording().ok());
  Allocate(4);
  const std::unique_ptr<RecordingReader> recording = Open(directory_ + "/a.hbmrec");
  const std::unique_ptr<RecordingReader> flight = Save("b.hbmrec");
  ASSERT_TRUE(recording != nullptr && flight != nullptr);
  EXPECT_EQ(Count(*flight, RecordedKind::kAlloc), 4);
  EXPECT_EQ(flight->tables().live.size(), 5u);
  EXPECT_GE(flight->tables().start_time, recording->end_time()) << "it has no events of the recording";
}

TEST_F(FlightTest, DoesNotReplaceARecordingOfThisProcess) {
  ASSERT_TRUE(internal::StartFlightRecorder(Impl(), 100'000, /*nanos=*/0));
  ASSERT_TRUE(StartRecording(directory_ + "/a.hbmrec").ok());
  Allocate(3);
  ASSERT_TRUE(StopRecording().ok());
  Allocate(2);
  EXPECT_EQ(SaveFlightRecording(directory_ + "/a.hbmrec").code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(save_device_memory_profile(directory_ + "/a.pb.gz").ok());
  const std::unique_ptr<RecordingReader> recording = Open(directory_ + "/a.hbmrec");
  ASSERT_NE(recording, nullptr);
  EXPECT_EQ(Count(*recording, RecordedKind::kAlloc), 3) << "the profile's flight recording has not replaced it";
}

}  // namespace
}  // namespace hbmprof
