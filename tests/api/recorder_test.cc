// Recordings of Profiler::Default() through the public functions, read back from their files.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/recording.h"
#include "src/export/recording.h"
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
  ReportOutOfMemory({"Allocate", size_t{1} << 40, "sim:0"});
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

TEST_F(RecordingTest, ErrorOfTheFileStartsNothing) {
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
  const std::string path = directory_ + "/a.hbmrec";
  ASSERT_TRUE(StartRecording(path, options).ok());
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
}

TEST_F(RecordingTest, ForkedChildIsNotRecorded) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer ends a forked child that starts a thread";
#endif
#if defined(__SANITIZE_ADDRESS__)
  // The recording's thread of the parent may hold this lock at the fork.
  GTEST_SKIP() << "the address sanitizer's allocator may be locked for ever in the child of many threads";
#endif
  ASSERT_TRUE(StartRecording(directory_ + "/parent.hbmrec").ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool has_none = StopRecording().code() == absl::StatusCode::kFailedPrecondition;
    const bool starts = StartRecording(directory_ + "/child.hbmrec").ok();
    Profiler::Default().RecordAlloc(BufferId(4096), 1, {});
    _exit(has_none && starts && StopRecording().ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Allocate(2);
  ASSERT_TRUE(StopRecording().ok());
  const std::unique_ptr<RecordingReader> parent = Open(directory_ + "/parent.hbmrec");
  const std::unique_ptr<RecordingReader> own = Open(directory_ + "/child.hbmrec");
  ASSERT_TRUE(parent != nullptr && own != nullptr);
  EXPECT_EQ(Count(*parent, RecordedKind::kAlloc), 2);
  EXPECT_EQ(Count(*own, RecordedKind::kAlloc), 1);
  EXPECT_EQ(own->tables().names.process_id, child);
}

}  // namespace
}  // namespace hbmprof
