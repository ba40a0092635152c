// The blocks of a recording, read from bytes that may be damaged. src/recording writes them.
#ifndef HBMPROF_SRC_TOOL_READER_BLOCKS_H_
#define HBMPROF_SRC_TOOL_READER_BLOCKS_H_

#include "src/core/ledger/recorded_event.h"
#include "src/recording/events.h"
#include "src/recording/format.h"
#include "src/recording/recording.h"
#include "src/tool/util/common.h"

namespace hbmprof::internal {

struct BlockHeader {
  BlockType type = BlockType::kEnd;
  bool is_compressed = false;
  uint32_t count = 0;         // of the events or samples in the block
  uint32_t plain_bytes = 0;   // of the contents
  uint32_t stored_bytes = 0;  // of the contents in the file
  int64_t time = 0;           // see MakeBlock
  uint32_t checksum = 0;
};

// Reads a header of kBlockHeaderBytes bytes. Returns false if the bytes are not a block header.
bool ParseBlockHeader(std::string_view bytes, BlockHeader* header);
// Sets `*contents` to the plain contents. Returns false if they are damaged. Throws std::bad_alloc if there is no
// memory.
bool ExpandBlock(const BlockHeader& header, std::string_view stored, std::string* contents);

// Reads the bytes of a ByteWriter. After the first error all values are 0 or empty, and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : next_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  uint64_t Fixed(int size) {
    const std::string_view bytes = Bytes(static_cast<uint64_t>(size));
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    return value;
  }
  uint64_t Varint() {
    if (next_ < end_ && static_cast<uint8_t>(*next_) < 0x80) return static_cast<uint8_t>(*next_++);
    uint64_t value = 0;
    for (int shift = 0; next_ < end_ && shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(*next_++);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    Fail();
    return 0;
  }
  int64_t Signed() {
    const uint64_t value = Varint();
    return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }
  std::string_view Text() { return Bytes(Varint()); }
  std::string_view Bytes(uint64_t count) {
    if (count > left()) {
      Fail();
      return {};
    }
    const std::string_view bytes(next_, static_cast<size_t>(count));
    next_ += count;
    return bytes;
  }
  // A number of elements that follow, each of at least one byte.
  size_t Count() {
    const uint64_t count = Varint();
    if (count <= left()) return static_cast<size_t>(count);
    Fail();
    return 0;
  }
  // Makes all further values 0.
  void Fail() {
    ok_ = false;
    next_ = end_;
  }
  bool ok() const { return ok_; }
  size_t left() const { return static_cast<size_t>(end_ - next_); }

 private:
  const char* next_;
  const char* end_;
  bool ok_ = true;
};

// The numbers of elements to which events may refer.
struct EventLimits {
  size_t accounts = 0;
  size_t sites = 0;
  size_t threads = 0;
  size_t tag_sets = 0;
  size_t marks = 0;
};

EventLimits LimitsOf(const RecordingTables& tables);

bool IsValidEvent(const RecordedEvent& event, const EventLimits& limits);

class RunReader {
 public:
  // Reads the header of a run from `block`, and moves `block` to the end of the run. `block`'s bytes, `sites` and
  // `limits` must outlive the object.
  RunReader(ByteReader* block, const std::vector<uint32_t>& sites, const EventLimits& limits);

  // Reads the next event. Returns false at the end of the run, or if the run is damaged.
  bool Next(RecordedEvent* event);
  bool is_damaged() const { return is_damaged_; }
  // The number of events that are not read yet.
  uint64_t left() const { return left_; }

 private:
  bool Read(RecordedEvent* event);

  EventPrediction prediction_;
  const EventLimits* limits_;
  uint64_t left_;
  int64_t time_;
  int id_shift_;
  uint16_t thread_ = 0;
  bool is_damaged_ = false;
  ByteReader flags_{{}}, times_{{}}, site_numbers_{{}}, ids_{{}}, bytes_{{}}, threads_{{}};
};

// Adds the contents of a block of tables to `tables`. Returns false if the block is damaged or refers to elements that
// do not exist, or does not continue the tables. Then only the elements before the first wrong one are added.
bool AddTablesBlock(std::string_view contents, RecordingTables* tables);

// Adds the samples of a block. Returns false, with `samples` unchanged, if the block is damaged or refers to a device
// that does not exist.
bool AddSamplesBlock(std::string_view contents, size_t devices, std::vector<DriverSample>* samples);
bool AddLostBlock(std::string_view contents, std::vector<LostEvents>* lost);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_TOOL_READER_BLOCKS_H_
