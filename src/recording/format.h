// The blocks of a recording, and the numbers and texts in them. docs/spec/recording.md describes the format.
#ifndef HBMPROF_SRC_RECORDING_FORMAT_H_
#define HBMPROF_SRC_RECORDING_FORMAT_H_

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

inline constexpr uint32_t kBlockMarker = 0x4b4c4248;  // "HBLK"
inline constexpr size_t kBlockHeaderBytes = 32;
// Limits of the format.
inline constexpr uint32_t kMaxBlockBytes = 64u << 20;  // plain or stored
inline constexpr uint32_t kMaxRunsPerBlock = 4096;
// Maximum size of the events between two flushes: their plain bytes, plus kRunOverheadBytes for each run.
inline constexpr size_t kMaxUnflushedBytes = size_t{512} << 20;
inline constexpr size_t kRunOverheadBytes = 1280;
// The most bytes of memory that one event may have (RecordedEvent::bytes).
inline constexpr int64_t kMaxEventBytes = int64_t{1} << 48;

// Returns the bytes of a file header.
std::string FileHeaderBytes();
// Returns a whole block. `count`: of its events or samples. `time`: of its latest event or sample; of the flush or end;
// LostEvents::to; 0 for tables. The contents are compressed if that makes them smaller. REQUIRES: at most
// kMaxBlockBytes of contents. Error: kResourceExhausted if the host has no memory.
absl::StatusOr<std::string> MakeBlock(BlockType type, std::string_view contents, uint32_t count, int64_t time);
// Returns the checksum of a block: of the bytes of its header before the checksum, and of the stored contents.
uint32_t BlockChecksum(std::string_view header_bytes, std::string_view stored);

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

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_FORMAT_H_
