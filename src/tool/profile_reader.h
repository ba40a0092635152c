// Reads a pprof profile from a file: decompresses, parses, and checks that every reference in it leads somewhere, in
// bounded memory. Everything else in the tool relies on what ReadProfile promises and checks nothing again.
// Not here: what the profile says (profile.h).
#ifndef HBMPROF_SRC_TOOL_PROFILE_READER_H_
#define HBMPROF_SRC_TOOL_PROFILE_READER_H_

#include <google/protobuf/arena.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/profile.pb.h"

namespace hbmprof::tool {

// A profile as it is in the file. Ids of mappings, locations and functions are nonzero and unique; every index of a
// string, location and function is of one that exists (a sample type's, label's, ... string, a sample's locations, a
// line's function); every sample has one value for each sample type; string_table begins with "". A location's mapping
// may be missing, as pprof allows.
class RawProfile {
 public:
  RawProfile();
  ~RawProfile();
  RawProfile(RawProfile&& other) noexcept;
  RawProfile& operator=(RawProfile&& other) noexcept;

  const pprof::Profile& message() const { return *message_; }
  pprof::Profile& message() { return *message_; }
  std::string_view text(int64_t index) const { return message_->string_table(static_cast<int>(index)); }

 private:
  friend absl::StatusOr<RawProfile> ParseProfile(std::string_view, const std::string&);
  struct Memory;
  std::unique_ptr<Memory> memory_;
  pprof::Profile* message_;
};

// `path` "-" is standard input. Errors carry the path, the field or byte that is wrong, and what to do: kNotFound,
// kPermissionDenied, kInvalidArgument (not a profile, damaged, inconsistent), kResourceExhausted (more than 1 GiB when
// decompressed, or far more memory than its size explains: see memory_limit.h).
absl::StatusOr<RawProfile> ReadProfile(const std::string& path);

// The same for a file's contents, gzip or not; `name` stands in messages.
absl::StatusOr<RawProfile> ParseProfile(std::string_view bytes, const std::string& name);

// The whole contents of a file, at most 1 GiB. Errors as above.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_READER_H_
