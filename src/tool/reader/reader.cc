#include "src/tool/reader/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "src/base/descriptor.h"
#include "src/base/regular_file.h"
#include "src/tool/reader/blocks.h"

namespace hbmprof::internal {
namespace {

using tool::Cat;
using tool::InvalidArgument;

// Tables may take this much memory, as plain bytes, plus kTableExpansion times the size of the file. A file that needs
// more is damaged or hostile.
constexpr size_t kTableBytes = 16 << 20;
constexpr size_t kTableExpansion = 32;

// A block of events or a flush.
struct IndexEntry {
  int64_t offset = 0;  // of the header
  BlockHeader header;
};

// Reads up to `size` bytes at `offset`; fewer at the end of the file. Returns false, with errno set, on failure.
bool ReadPart(const FileDescriptor& file, int64_t offset, size_t size, std::string* bytes) {
  bytes->resize(size);
  size_t done = 0;
  while (done < size) {
    const ssize_t count = RetryOnSignal([&] {
      return pread(file.get(), bytes->data() + done, size - done,
                   static_cast<off_t>(offset + static_cast<int64_t>(done)));
    });
    if (count < 0) return false;
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes->resize(done);
  return true;
}

// The contents of a block of events. `budget` is the sum of the bytes of all such objects, with the overhead of runs.
struct EventBlock {
  explicit EventBlock(size_t* all) : budget(all) {}
  ~EventBlock() { *budget -= bytes; }
  EventBlock(const EventBlock&) = delete;
  EventBlock& operator=(const EventBlock&) = delete;
  // Returns false if the events between two flushes need too much memory.
  bool Charge(size_t more) {
    bytes += more;
    *budget += more;
    return *budget <= kMaxUnflushedBytes;
  }

  size_t* const budget;
  size_t bytes = 0;
  std::string contents;
};

// A run of which one event, `next`, has already been read.
struct OpenRun {
  RunReader reader;
  std::shared_ptr<const EventBlock> block;
  uint64_t order;  // of the runs in the file
  RecordedEvent next;
};

class FileRecordingReader : public RecordingReader {
 public:
  FileRecordingReader(std::string path, int descriptor) : path_(std::move(path)), file_(descriptor) {}

  // Reads all blocks except those of events.
  absl::Status ReadBlocks();

  int64_t event_count() const override { return event_count_; }

  bool Next(RecordedEvent* event) override;
  void Rewind() override {
    runs_.clear();
    next_entry_ = 0;
    flushed_ = INT64_MIN;
    is_in_change_ = false;
    last_time_ = INT64_MIN;
  }

 private:
  enum class Found : uint8_t { kBlock, kEnd, kDamage };
  Found ReadBlock(int64_t offset, BlockHeader* header, std::string* stored);
  // Processes one block. Returns false if the rest of the file must not be read.
  bool Enter(int64_t offset, const BlockHeader& header, const std::string& stored);
  // Expands a block whose contents are kept. Returns false if it is damaged, or if all of these are too large.
  bool ExpandKept(const BlockHeader& header, const std::string& stored, std::string* contents);
  // Makes the last flush the end of a recording without an end block.
  void EndAtLastFlush();
  void SetProblem(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }
  void SetDamage(int64_t offset, const std::string& consequence) { SetProblem(DamageAt(offset) + consequence); }
  static std::string DamageAt(int64_t offset) { return Cat("is damaged at byte ", offset, ": "); }
  // The rest of the file is not read. This is reported beside any other damage.
  void SetEnd(const std::string& reason) { problem_ += (problem_.empty() ? "" : "; ") + reason; }

  // Opens the runs up to the next flush. Returns false after the last one.
  bool OpenGroup();
  void OpenBlock(const IndexEntry& entry);
  // The heap of the open runs: the earliest event is the next one.
  static bool IsLater(const std::unique_ptr<OpenRun>& a, const std::unique_ptr<OpenRun>& b) {
    return a->next.time != b->next.time ? a->next.time > b->next.time : a->order > b->order;
  }
  void SiftDown();

  const std::string path_;
  const FileDescriptor file_;
  int64_t file_bytes_ = 0;
  EventLimits limits_;
  int64_t event_count_ = 0;
  size_t table_bytes_ = 0;
  std::vector<IndexEntry> index_;
  // What is before the last flush or the end block.
  size_t flushed_entries_ = 0;
  int64_t flushed_events_ = 0;
  int64_t flushed_until_ = INT64_MIN;

  // The state of Next.
  size_t next_entry_ = 0;
  int64_t flushed_ = INT64_MIN;  // events up to this time are in the open runs
  size_t unflushed_bytes_ = 0;   // of the blocks of the open runs
  std::vector<std::unique_ptr<OpenRun>> runs_;
  uint64_t run_count_ = 0;
  int64_t last_time_ = INT64_MIN;  // of the event that Next returned last
  bool is_in_change_ = false;      // the next event is the next part of a change, of the run at the top of the heap
};

FileRecordingReader::Found FileRecordingReader::ReadBlock(int64_t offset, BlockHeader* header, std::string* stored) {
  std::string head;
  if (offset >= file_bytes_) return Found::kEnd;
  if (!ReadPart(file_, offset, kBlockHeaderBytes, &head) || head.size() < kBlockHeaderBytes) return Found::kDamage;
  if (!ParseBlockHeader(head, header)) return Found::kDamage;
  if (header->stored_bytes > file_bytes_ - offset - static_cast<int64_t>(kBlockHeaderBytes)) return Found::kDamage;
  if (!ReadPart(file_, offset + static_cast<int64_t>(kBlockHeaderBytes), header->stored_bytes, stored)) {
    return Found::kDamage;
  }
  return header->checksum == BlockChecksum(head, *stored) ? Found::kBlock : Found::kDamage;
}

absl::Status FileRecordingReader::ReadBlocks() {
  struct stat info = {};
  fstat(file_.get(), &info);
  file_bytes_ = info.st_size;
  std::string head;
  if (!ReadPart(file_, 0, kFileHeaderBytes, &head)) {
    return absl::InternalError(Cat(path_, ": cannot be read: ", std::generic_category().message(errno)));
  }
  if (!IsRecording(head) || head.size() < kFileHeaderBytes) {
    return InvalidArgument(path_, ": is not a recording; `hbmprof run --record` and HBMPROF_RECORD write recordings");
  }
  const uint64_t version = ByteReader(std::string_view(head).substr(kRecordingMagic.size())).Fixed(sizeof(uint32_t));
  if (version != kRecordingVersion) {
    return InvalidArgument(path_, ": has version ", version, " of the format of recordings, and this program reads ",
                           "version ", kRecordingVersion, "; use the hbmprof that wrote it");
  }
  int64_t offset = kFileHeaderBytes;
  BlockHeader header;
  std::string stored;
  int64_t blocks = 0;
  while (!is_complete_) {
    const Found found = ReadBlock(offset, &header, &stored);
    if (found == Found::kEnd) break;
    if (found == Found::kDamage) {
      SetEnd(Cat("the last ", file_bytes_ - offset,
                 " bytes do not begin with a whole block, so the recording ends at byte ", offset));
      break;
    }
    if (!Enter(offset, header, stored)) break;
    ++blocks;
    offset += static_cast<int64_t>(kBlockHeaderBytes + header.stored_bytes);
  }
  if (blocks == 0) {
    return absl::DataLossError(Cat(path_, ": holds no readable block", problem_.empty() ? "" : "; ", problem_));
  }
  if (tables_.names.allocators.empty()) tables_.names.allocators.emplace_back();
  if (tables_.tag_sets.empty()) tables_.tag_sets.emplace_back();
  limits_ = LimitsOf(tables_);
  absl::c_stable_sort(samples_, [](const DriverSample& a, const DriverSample& b) { return a.time < b.time; });
  // The limit of a device that is first seen after the start is in the samples only.
  for (const DriverSample& sample : samples_) {
    for (const DriverSample::Device& device : sample.devices) {
      std::optional<int64_t>& limit =
          tables_.names.devices[device.device].spaces[static_cast<size_t>(MemorySpace::kDevice)].bytes_limit;
      if (!limit.has_value()) limit = device.bytes_limit;
    }
  }
  if (!is_complete_) EndAtLastFlush();
  end_time_ = std::max(end_time_, tables_.start_time);
  return absl::OkStatus();
}

// Of the time after the last flush, the file may have the events of some shards only.
void FileRecordingReader::EndAtLastFlush() {
  index_.resize(flushed_entries_);
  event_count_ = flushed_events_;
  end_time_ = std::max(flushed_until_, tables_.start_time);
  while (!samples_.empty() && samples_.back().time > end_time_) samples_.pop_back();
  tool::EraseIf(lost_, [this](const LostEvents& lost) { return lost.from > end_time_; });
  for (LostEvents& lost : lost_) lost.to = std::min(lost.to, end_time_);
}

bool FileRecordingReader::ExpandKept(const BlockHeader& header, const std::string& stored, std::string* contents) {
  table_bytes_ += header.plain_bytes;
  return table_bytes_ <= kTableBytes + kTableExpansion * static_cast<size_t>(file_bytes_) &&
         ExpandBlock(header, stored, contents);
}

bool FileRecordingReader::Enter(int64_t offset, const BlockHeader& header, const std::string& stored) {
  std::string contents;
  switch (header.type) {
    case BlockType::kTables:
      if (ExpandKept(header, stored, &contents) && AddTablesBlock(contents, &tables_)) return true;
      SetEnd(DamageAt(offset) +
             "a block of tables is not readable or does not continue the tables, so the recording ends there");
      return false;
    case BlockType::kSamples:
      if (!ExpandKept(header, stored, &contents) ||
          !AddSamplesBlock(contents, tables_.names.devices.size(), &samples_)) {
        SetDamage(offset, "a block of samples is left out");
      } else {
        end_time_ = std::max(end_time_, header.time);
      }
      return true;
    case BlockType::kLost:
      if (!ExpandBlock(header, stored, &contents) || !AddLostBlock(contents, &lost_)) {
        SetDamage(offset, "a block that counts lost events is left out");
      }
      return true;
    case BlockType::kEvents:
      if (header.count > header.plain_bytes) {  // each event has at least one byte
        SetDamage(offset, "a block of events is left out");
        return true;
      }
      index_.push_back({offset, header});
      event_count_ += header.count;
      end_time_ = std::max(end_time_, header.time);
      return true;
    case BlockType::kEnd:
    case BlockType::kFlush:
      index_.push_back({offset, header});
      end_time_ = std::max(end_time_, header.time);
      flushed_entries_ = index_.size();
      flushed_events_ = event_count_;
      flushed_until_ = std::max(flushed_until_, header.time);
      is_complete_ = header.type == BlockType::kEnd;
      return true;
  }
  return true;  // a block of an unknown type is skipped
}

void FileRecordingReader::OpenBlock(const IndexEntry& entry) {
  BlockHeader header;
  std::string stored;
  const auto block = std::make_shared<EventBlock>(&unflushed_bytes_);
  if (!block->Charge(entry.header.plain_bytes)) {
    SetDamage(entry.offset, "there are too many events without a flush; events are left out");
    return;
  }
  if (ReadBlock(entry.offset, &header, &stored) != Found::kBlock || !ExpandBlock(header, stored, &block->contents)) {
    SetDamage(entry.offset, "a block of events is left out");
    return;
  }
  ByteReader bytes(block->contents);
  uint32_t runs = 0;
  uint64_t left = entry.header.count;
  while (bytes.left() != 0) {
    auto run =
        std::make_unique<OpenRun>(OpenRun{RunReader(&bytes, tables_.site_pools, limits_), block, run_count_++, {}});
    const uint64_t count = run->reader.left();
    const bool is_valid =
        !run->reader.is_damaged() && count <= left && ++runs <= kMaxRunsPerBlock && block->Charge(kRunOverheadBytes);
    if (is_valid) left -= count;
    if (is_valid && run->reader.Next(&run->next)) {
      runs_.push_back(std::move(run));
      absl::c_push_heap(runs_, IsLater);
      continue;
    }
    SetDamage(entry.offset, "events of a block are left out");
    if (!is_valid) return;
  }
}

bool FileRecordingReader::OpenGroup() {
  while (next_entry_ < index_.size()) {
    const IndexEntry& entry = index_[next_entry_++];
    if (entry.header.type == BlockType::kEvents) {
      OpenBlock(entry);
    } else {
      flushed_ = std::max(flushed_, entry.header.time);
      return true;
    }
  }
  if (!is_complete_ || flushed_ == INT64_MAX) return false;
  flushed_ = INT64_MAX;  // all events are known
  return true;
}

void FileRecordingReader::SiftDown() {
  std::unique_ptr<OpenRun> moved = std::move(runs_.front());
  size_t hole = 0;
  for (size_t child = 1; child < runs_.size(); child = 2 * hole + 1) {
    if (child + 1 < runs_.size() && IsLater(runs_[child], runs_[child + 1])) ++child;
    if (!IsLater(moved, runs_[child])) break;
    runs_[hole] = std::move(runs_[child]);
    hole = child;
  }
  runs_[hole] = std::move(moved);
}

bool FileRecordingReader::Next(RecordedEvent* event) {
  while (runs_.empty() || (!is_in_change_ && runs_.front()->next.time > flushed_)) {
    if (!OpenGroup()) return false;
  }
  OpenRun& run = *runs_.front();
  *event = run.next;
  if (event->time < last_time_) {
    SetProblem("is damaged: the times of some events go back");
    event->time = last_time_;
  }
  last_time_ = event->time;
  const bool has_next = run.reader.Next(&run.next);
  if (!has_next) {
    if (run.reader.is_damaged()) SetProblem("is damaged: events of a block are left out");
    // The rest of the change is damaged or missing.
    event->is_continued = false;
    absl::c_pop_heap(runs_, IsLater);
    runs_.pop_back();
  } else if (!event->is_continued) {
    SiftDown();
  }
  is_in_change_ = event->is_continued;
  return true;
}

}  // namespace

bool IsRecording(std::string_view first_bytes) {
  return first_bytes.substr(0, kRecordingMagic.size()) == kRecordingMagic;
}

absl::StatusOr<std::unique_ptr<RecordingReader>> RecordingReader::Open(const std::string& path) {
  const int descriptor = OpenRegularFile(path.c_str(), O_RDONLY);
  if (descriptor < 0) {
    if (errno == EINVAL) return InvalidArgument(path, ": is not a regular file");
    return absl::ErrnoToStatus(errno, path + ": cannot be opened");
  }
  auto reader = std::make_unique<FileRecordingReader>(path, descriptor);
  RETURN_IF_ERROR(reader->ReadBlocks());
  return std::unique_ptr<RecordingReader>(std::move(reader));
}

}  // namespace hbmprof::internal
