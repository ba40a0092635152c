#include "src/export/recording_format.h"

#include <libdeflate.h>

#include <memory>
#include <new>

#include "absl/status/status.h"
#include "src/export/recording.h"

namespace hbmprof::internal {
namespace {

constexpr size_t kChecksumOffset = kBlockHeaderBytes - sizeof(uint32_t);
constexpr int kCompressionLevel = 1;  // see gzip.cc

uint32_t Checksum(std::string_view header_bytes, std::string_view stored) {
  const uint32_t of_header = libdeflate_crc32(0, header_bytes.data(), kChecksumOffset);
  return libdeflate_crc32(of_header, stored.data(), stored.size());
}

}  // namespace

bool IsRecording(std::string_view first_bytes) {
  return first_bytes.substr(0, kRecordingMagic.size()) == kRecordingMagic;
}

std::string FileHeaderBytes() {
  std::string bytes(kRecordingMagic);
  ByteWriter(&bytes).Fixed(kRecordingVersion, sizeof(kRecordingVersion));
  return bytes;
}

absl::StatusOr<std::string> MakeBlock(const BlockHeader& header, std::string_view contents) {
  std::string block(kBlockHeaderBytes + contents.size(), '\0');
  size_t stored = 0;
  if (!contents.empty()) {
    const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
        libdeflate_alloc_compressor(kCompressionLevel), &libdeflate_free_compressor);
    if (compressor == nullptr) return absl::ResourceExhaustedError("cannot compress: the host has no memory");
    stored = libdeflate_deflate_compress(compressor.get(), contents.data(), contents.size(),
                                         block.data() + kBlockHeaderBytes, contents.size());
  }
  const bool is_compressed = stored != 0 && stored < contents.size();
  if (!is_compressed) {
    stored = contents.size();
    block.replace(kBlockHeaderBytes, stored, contents);
  }
  block.resize(kBlockHeaderBytes + stored);
  std::string head;
  ByteWriter writer(&head);
  writer.Fixed(kBlockMarker, 4);
  writer.Fixed(static_cast<uint8_t>(header.type), 1);
  writer.Fixed(is_compressed ? 1 : 0, 1);
  writer.Fixed(0, 2);
  writer.Fixed(header.count, 4);
  writer.Fixed(contents.size(), 4);
  writer.Fixed(stored, 4);
  writer.Fixed(static_cast<uint64_t>(header.time), 8);
  writer.Fixed(Checksum(head, std::string_view(block).substr(kBlockHeaderBytes)), 4);
  block.replace(0, kBlockHeaderBytes, head);
  return block;
}

bool ParseBlockHeader(std::string_view bytes, BlockHeader* header) {
  ByteReader reader(bytes.substr(0, kBlockHeaderBytes));
  if (reader.Fixed(4) != kBlockMarker) return false;
  const uint64_t type = reader.Fixed(1);
  const uint64_t method = reader.Fixed(1);
  reader.Fixed(2);
  header->type = static_cast<BlockType>(type);
  header->is_compressed = method == 1;
  header->count = static_cast<uint32_t>(reader.Fixed(4));
  header->plain_bytes = static_cast<uint32_t>(reader.Fixed(4));
  header->stored_bytes = static_cast<uint32_t>(reader.Fixed(4));
  header->time = static_cast<int64_t>(reader.Fixed(8));
  header->checksum = static_cast<uint32_t>(reader.Fixed(4));
  // Deflate compresses by a factor of at most 1032.
  constexpr uint32_t kMaxFactor = 1040;
  return reader.ok() && method <= 1 && header->plain_bytes <= kMaxBlockBytes &&
         header->stored_bytes <= kMaxBlockBytes && header->plain_bytes / kMaxFactor <= header->stored_bytes;
}

bool HasValidChecksum(std::string_view header_bytes, std::string_view stored) {
  BlockHeader header;
  return ParseBlockHeader(header_bytes, &header) && header.checksum == Checksum(header_bytes, stored);
}

bool ExpandBlock(const BlockHeader& header, std::string_view stored, std::string* contents) {
  if (!header.is_compressed) {
    contents->assign(stored);
    return stored.size() == header.plain_bytes;
  }
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (decompressor == nullptr) throw std::bad_alloc();  // the block is not damaged
  contents->resize(header.plain_bytes);
  // Without a pointer for the size, the function succeeds only if the contents have exactly the expected size.
  return libdeflate_deflate_decompress(decompressor.get(), stored.data(), stored.size(), contents->data(),
                                       contents->size(), nullptr) == LIBDEFLATE_SUCCESS;
}

}  // namespace hbmprof::internal
