// The blocks of a recording, and the numbers and texts in them. docs/recording.md describes the format.
#ifndef HBMPROF_SRC_EXPORT_RECORDING_FORMAT_H_
#define HBMPROF_SRC_EXPORT_RECORDING_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hbmprof::internal {

inline constexpr std::string_view kRecordingMagic = "HBMREC\r\n";
inline constexpr uint32_t kRecordingVersion = 2;
inline constexpr size_t kFileHeaderBytes = kRecordingMagic.size() + sizeof(uint32_t);

enum class BlockType : uint8_t {
  kTables = 1,
  kEvents = 2,
  kSamples = 3,
  kLost = 4,
  kFlush = 5,
  kEnd = 6,
};

struct BlockHeader {
  BlockType type = BlockType::kEnd;
  bool is_compressed = false;
  uint32_t count = 0;         // of the events or samples in the block
  uint32_t plain_bytes = 0;   // of the contents
  uint32_t stored_bytes = 0;  // of the contents in the file
  int64_t time = 0;           // of the latest event or sample; of the flush or end; LostEvents::to; 0 for tables
  uint32_t checksum = 0;
};
inline constexpr uint32_t kBlockMarker = 0x4b4c4248;  // "HBLK"
inline constexpr size_t kBlockHeaderBytes = 32;
// Limits of the format.
inline constexpr uint32_t kMaxBlockBytes = 64u << 20;  // plain or stored
inline constexpr uint32_t kMaxRunsPerBlock = 4096;
// Maximum size of the events between two flushes: their plain bytes, plus kRunOverheadBytes for each run.
inline constexpr size_t kMaxUnflushedBytes = size_t{512} << 20;
inline constexpr size_t kRunOverheadBytes = 1280;
inline constexpr int64_t kMaxEventBytes = int64_t{1} << 48;

// Returns the bytes of a file header.
std::string FileHeaderBytes();
// Returns a whole block. The contents are compressed if that makes them smaller. Of `header`, only type, count and time
// are used. REQUIRES: at most kMaxBlockBytes of contents. Error: kResourceExhausted if the host has no memory.
absl::StatusOr<std::string> MakeBlock(const BlockHeader& header, std::string_view contents);
// Reads a header of kBlockHeaderBytes bytes. Returns false if the bytes are not a block header.
bool ParseBlockHeader(std::string_view bytes, BlockHeader* header);
// Returns whether the checksum is that of the header bytes and the stored contents.
bool HasValidChecksum(std::string_view header_bytes, std::string_view stored);
// Sets `*contents` to the plain contents. Returns false if they are damaged. Throws std::bad_alloc if there is no
// memory.
bool ExpandBlock(const BlockHeader& header, std::string_view stored, std::string* contents);

// Appends numbers and texts.
class ByteWriter {
 public:
  explicit ByteWriter(std::string* bytes) : bytes_(*bytes) {}
  void Fixed(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }
  // Seven bits a byte, the lowest first. The highest bit of a byte says that another one follows.
  void Varint(uint64_t value) {
    while (value >= 0x80) {
      bytes_ += static_cast<char>(value | 0x80);
      value >>= 7;
    }
    bytes_ += static_cast<char>(value);
  }
  // A number that may be negative: 0, -1, 1, -2, ... are the varints 0, 1, 2, 3, ...
  void Signed(int64_t value) { Varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63)); }
  void Text(std::string_view text) {
    Varint(text.size());
    bytes_.append(text);
  }

 private:
  std::string& bytes_;
};

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

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_RECORDING_FORMAT_H_
