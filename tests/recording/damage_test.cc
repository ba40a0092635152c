// Recordings that are cut off, damaged, or cannot be written.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/recording/writer.h"
#include "src/tool/reader/blocks.h"
#include "src/tool/reader/reader.h"
#include "tests/support/made_recording.h"
#include "tests/support/make_recording.h"
#include "tests/support/temporary_directory.h"

namespace hbmprof::internal {
namespace {

using ::hbmprof_test::MadeRecording;
using ::hbmprof_test::NewDirectory;
using ::testing::HasSubstr;

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Store(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

bool IsEqual(const RecordedEvent& a, const RecordedEvent& b) {
  return a.time == b.time && a.id == b.id && a.bytes == b.bytes && a.site == b.site && a.kind == b.kind;
}

std::vector<RecordedEvent> EventsOf(RecordingReader& reader) {
  std::vector<RecordedEvent> events;
  RecordedEvent event;
  while (reader.Next(&event)) events.push_back(event);
  return events;
}

// A recording of several blocks of each type.
std::string MakeLoad(int64_t events) {
  const std::string path = NewDirectory() + "/load.hbmrec";
  hbmprof_test::MadeLoad load;
  load.events = events;
  load.pool = true;
  const absl::Status status = hbmprof_test::MakeRecording(path, load);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

TEST(RecordingDamageTest, TruncatedFileKeepsWholeBlocks) {
  const std::string path = MakeLoad(20000);
  const std::string bytes = BytesOf(path);
  const std::vector<RecordedEvent> all = EventsOf(**RecordingReader::Open(path));
  const std::string cut = NewDirectory() + "/cut.hbmrec";
  size_t most = 0;
  for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 100) {
    Store(cut, bytes.substr(0, size));
    auto reader = RecordingReader::Open(cut);
    if (!reader.ok()) {
      EXPECT_THAT(reader.status().message(), HasSubstr(cut));
      continue;
    }
    EXPECT_FALSE((*reader)->is_complete());
    const std::vector<RecordedEvent> some = EventsOf(**reader);
    ASSERT_LE(some.size(), all.size());
    ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin(), IsEqual)) << size;
    most = std::max(most, some.size());
  }
  EXPECT_GT(most, all.size() / 2);
}

// The writer was killed after it had written the free, which is of another shard than its allocation.
TEST(RecordingDamageTest, EventsAfterTheLastFlushAreLeftOut) {
  MadeRecording made;
  const uint32_t site = made.Site({{"main"}});
  const auto at = [](int64_t time) { return MadeRecording::kStart + time; };
  const RecordedEvent first[] = {{at(10), 0x1000, 64, site, 0, RecordedKind::kAlloc, false},
                                 {at(30), 0x2000, 64, site, 0, RecordedKind::kAlloc, false}};
  const RecordedEvent second = {at(15), 0x3000, 64, site, 1, RecordedKind::kAlloc, false};
  const RecordedEvent third = {at(35), 0x4000, 64, site, 1, RecordedKind::kFree, false};
  made.Thread(2, "");
  DriverSample early, late;
  early.time = at(12);
  late.time = at(36);
  const std::string path = NewDirectory() + "/killed.hbmrec";
  const auto writer = *RecordingWriter::Create(path);
  ASSERT_TRUE(writer->AddTables(made.tables()).ok());
  const auto without_flush = static_cast<size_t>(writer->size());
  ASSERT_TRUE(writer->AddEvents(first, 2).ok());
  ASSERT_TRUE(writer->AddEvents(&second, 1).ok());
  ASSERT_TRUE(writer->AddSample(early).ok());
  ASSERT_TRUE(writer->Flush(at(20)).ok());
  ASSERT_TRUE(writer->AddEvents(&third, 1).ok());
  ASSERT_TRUE(writer->AddSample(late).ok());
  ASSERT_TRUE(writer->AddLost({at(37), at(38), 1}).ok());
  ASSERT_TRUE(writer->Flush(at(40)).ok());
  const std::string bytes = BytesOf(path);
  const auto open = [&](size_t size) {
    Store(path, bytes.substr(0, size));
    return *RecordingReader::Open(path);
  };

  auto reader = open(bytes.size() - kBlockHeaderBytes);
  EXPECT_FALSE(reader->is_complete());
  EXPECT_EQ(reader->problem(), "");
  EXPECT_EQ(reader->end_time(), at(20));
  EXPECT_EQ(reader->samples().size(), 1u);
  EXPECT_EQ(reader->lost().size(), 0u);
  for (int i = 0; i < 2; ++i) {
    const std::vector<RecordedEvent> events = EventsOf(*reader);
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[0].time, at(10));
    EXPECT_EQ(events[1].time, at(15));
    reader->Rewind();
  }
  reader = open(bytes.size());
  EXPECT_EQ(reader->end_time(), at(40));
  EXPECT_EQ(EventsOf(*reader).size(), 4u);
  EXPECT_EQ(reader->lost().size(), 1u);
  reader = open(without_flush);
  EXPECT_EQ(reader->end_time(), at(0));
  EXPECT_EQ(EventsOf(*reader).size(), 0u);
}

TEST(RecordingDamageTest, RecordingEndsAtADamagedBlock) {
  const std::string path = MakeLoad(40000);
  std::string bytes = BytesOf(path);
  const std::vector<RecordedEvent> all = EventsOf(**RecordingReader::Open(path));
  bytes[bytes.size() / 2] ^= 0x40;
  Store(path, bytes);
  auto reader = RecordingReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE((*reader)->is_complete());
  EXPECT_THAT((*reader)->problem(), HasSubstr("do not begin with a whole block, so the recording ends at byte "));
  const std::vector<RecordedEvent> some = EventsOf(**reader);
  EXPECT_GT(some.size(), all.size() / 4);
  ASSERT_LT(some.size(), all.size());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin(), IsEqual));
}

// A block of tables that does not continue the tables: the rest of the file is not read.
TEST(RecordingDamageTest, RecordingEndsAtWrongTables) {
  MadeRecording made;
  const std::string path = NewDirectory() + "/tables.hbmrec";
  const auto writer = *RecordingWriter::Create(path);
  size_t ends[3] = {};
  for (int i = 0; i < 3; ++i) {
    const uint32_t site = made.Site({{"main"}});
    ASSERT_TRUE(writer->AddTables(made.tables()).ok());
    const RecordedEvent event{MadeRecording::kStart + i, 1, 1, site, 0, RecordedKind::kAlloc, false};
    ASSERT_TRUE(writer->AddEvents(&event, 1).ok());
    ASSERT_TRUE(writer->Flush(event.time).ok());
    ends[i] = static_cast<size_t>(writer->size());
  }
  std::string bytes = BytesOf(path);
  Store(path, bytes.erase(ends[0], ends[1] - ends[0]));
  auto reader = RecordingReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE((*reader)->is_complete());
  EXPECT_THAT((*reader)->problem(), HasSubstr("is damaged at byte " + std::to_string(ends[0])));
  EXPECT_THAT((*reader)->problem(), HasSubstr("does not continue the tables, so the recording ends there"));
  EXPECT_EQ(EventsOf(**reader).size(), 1u);
}

TEST(RecordingDamageTest, AnyChangedByteIsReportedOrHasNoEffect) {
  const std::string path = MakeLoad(300);
  const std::string bytes = BytesOf(path);
  const size_t all = EventsOf(**RecordingReader::Open(path)).size();
  for (size_t i = 0; i < bytes.size(); i += 11) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] + 1 + i % 255);
    Store(path, damaged);
    auto reader = RecordingReader::Open(path);
    if (!reader.ok()) continue;
    const size_t some = EventsOf(**reader).size();
    EXPECT_TRUE(some == all || !(*reader)->problem().empty()) << i;
  }
}

// Blocks whose header has a wrong number of events, with a valid checksum.
TEST(RecordingDamageTest, EventCountIsAnUpperBound) {
  const std::string path = MakeLoad(20000);
  const std::string bytes = BytesOf(path);
  for (const uint32_t count : {uint32_t{0}, uint32_t{100}, UINT32_MAX}) {
    SCOPED_TRACE(count);
    std::string changed = FileHeaderBytes();
    for (size_t at = changed.size(); at < bytes.size();) {
      BlockHeader header;
      ASSERT_TRUE(ParseBlockHeader(std::string_view(bytes).substr(at, kBlockHeaderBytes), &header));
      const std::string_view stored = std::string_view(bytes).substr(at + kBlockHeaderBytes, header.stored_bytes);
      std::string contents;
      ASSERT_TRUE(ExpandBlock(header, stored, &contents));
      if (header.type == BlockType::kEvents) header.count = count;
      changed += *MakeBlock(header.type, contents, header.count, header.time);
      at += kBlockHeaderBytes + header.stored_bytes;
    }
    Store(path, changed);
    const auto reader = RecordingReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_LE(static_cast<int64_t>(EventsOf(**reader).size()), (*reader)->event_count());
    EXPECT_LE((*reader)->event_count(), 20000 * 200);
    EXPECT_NE((*reader)->problem(), "");
  }
}

TEST(RecordingDamageTest, OtherFilesAreRefused) {
  const std::string path = NewDirectory() + "/file";
  Store(path, "");
  EXPECT_EQ(RecordingReader::Open(path).status().code(), absl::StatusCode::kInvalidArgument);
  Store(path, std::string("HBMREC\r\n\x03\0\0\0 of the future", 26));
  EXPECT_THAT(RecordingReader::Open(path).status().message(), HasSubstr("has version 3"));
  Store(path, std::string("HBMREC\r\n\x02\0\0\0", 12));
  EXPECT_EQ(RecordingReader::Open(path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(RecordingReader::Open(path + "missing").status().code(), absl::StatusCode::kNotFound);
  const std::string pipe = NewDirectory() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(RecordingReader::Open(pipe).status().message(), pipe + ": is not a regular file");
}

TEST(RecordingDamageTest, FullDiskIsAClearErrorAndKeepsWholeBlocks) {
  const std::string path = NewDirectory() + "/full.hbmrec";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    hbmprof_test::MadeLoad load;
    load.events = 1000000;
    const absl::Status status = hbmprof_test::MakeRecording(path, load);
    const std::string expected = "cannot write " + path + ": write: File too large";
    _exit(status.code() == absl::StatusCode::kResourceExhausted && status.message() == expected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_LE(std::filesystem::file_size(path), 100000u);
  auto reader = RecordingReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE((*reader)->is_complete());
  EXPECT_EQ((*reader)->problem(), "");
  EXPECT_GT(EventsOf(**reader).size(), 1000u);
}

TEST(RecordingDamageTest, MissingDirectoryIsAnError) {
  const auto writer = RecordingWriter::Create(NewDirectory() + "/missing/file.hbmrec");
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace hbmprof::internal
