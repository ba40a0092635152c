// Compression of finished profiles.
#include "src/export/gzip.h"

#include <libdeflate.h>

#include <cstddef>
#include <memory>
#include <new>

#include "absl/status/status.h"

namespace hbmprof::internal {

absl::StatusOr<std::string> Gzip(std::string_view bytes) {
  // zlib's level 1 takes twice as long as this one for the same size. Level 6 of either library takes four times as
  // long for a size that is 10 % smaller.
  constexpr int kLevel = 1;
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
      libdeflate_alloc_compressor(kLevel), &libdeflate_free_compressor);
  const size_t bound = compressor == nullptr ? 0 : libdeflate_gzip_compress_bound(compressor.get(), bytes.size());
  // A std::string of that length is not used, because its initialization would write all of it.
  const std::unique_ptr<char[]> compressed(compressor == nullptr ? nullptr : new (std::nothrow) char[bound]);
  if (compressed == nullptr) {
    return absl::ResourceExhaustedError("cannot compress the profile: the host has no memory");
  }
  const size_t size = libdeflate_gzip_compress(compressor.get(), bytes.data(), bytes.size(), compressed.get(), bound);
  if (size == 0) return absl::InternalError("cannot compress the profile: libdeflate failed");
  return std::string(compressed.get(), size);
}

}  // namespace hbmprof::internal
