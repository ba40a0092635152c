#include "src/recording/format.h"

#include <libdeflate.h>

#include <memory>

#include "absl/status/status.h"

namespace hbmprof::internal {
namespace {

constexpr int kCompressionLevel = 1;  // see gzip.cc

}  // namespace

uint32_t BlockChecksum(std::string_view header_bytes, std::string_view stored) {
  constexpr size_t kChecksumOffset = kBlockHeaderBytes - sizeof(uint32_t);
  const uint32_t of_header = libdeflate_crc32(0, header_bytes.data(), kChecksumOffset);
  return libdeflate_crc32(of_header, stored.data(), stored.size());
}

std::string FileHeaderBytes() {
  std::string bytes(kRecordingMagic);
  ByteWriter(&bytes).Fixed(kRecordingVersion, sizeof(kRecordingVersion));
  return bytes;
}

absl::StatusOr<std::string> MakeBlock(BlockType type, std::string_view contents, uint32_t count, int64_t time) {
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
  writer.Fixed(static_cast<uint8_t>(type), 1);
  writer.Fixed(is_compressed ? 1 : 0, 1);
  writer.Fixed(0, 2);
  writer.Fixed(count, 4);
  writer.Fixed(contents.size(), 4);
  writer.Fixed(stored, 4);
  writer.Fixed(static_cast<uint64_t>(time), 8);
  writer.Fixed(BlockChecksum(head, std::string_view(block).substr(kBlockHeaderBytes)), 4);
  block.replace(0, kBlockHeaderBytes, head);
  return block;
}

}  // namespace hbmprof::internal
