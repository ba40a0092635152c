// Gzip: compresses bytes.
#ifndef HBMPROF_SRC_EXPORT_GZIP_H_
#define HBMPROF_SRC_EXPORT_GZIP_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hbmprof::internal {

// Returns `bytes` as one gzip member, compressed for speed. Equal input gives equal output.
// Errors: kResourceExhausted if the host has no memory; kInternal if libdeflate fails.
absl::StatusOr<std::string> Gzip(std::string_view bytes);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_GZIP_H_
