// Parses a pprof profile: decompresses it and checks every reference in it, in bounded memory.
// The rest of the tool relies on these checks and does not repeat them. See profile.h for the contents.
#ifndef HBMPROF_SRC_TOOL_PROFILE_PROFILE_READER_H_
#define HBMPROF_SRC_TOOL_PROFILE_PROFILE_READER_H_

#include <google/protobuf/arena.h>

#include "proto/profile.pb.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// A profile as it is in the file. Invariants: the ids of mappings, locations and functions are 1, 2, ... in their
// order. Every string index, every location id of a sample and every function id of a line refers to an existing entry.
// Every sample has one value for each sample type. The ages of a sample are within the limits of docs/spec/profile.md.
// The first string is "". The mapping of a location may be missing, as in pprof: then its id is 0.
class RawProfile {
 public:
  RawProfile();

  const pprof::Profile& message() const { return *message_; }
  pprof::Profile& message() { return *message_; }
  std::string_view text(int64_t index) const { return message_->string_table(static_cast<int>(index)); }

 private:
  friend absl::StatusOr<RawProfile> ParseProfile(std::string_view, const std::string&);
  std::unique_ptr<google::protobuf::Arena> arena_;  // of bounded size
  pprof::Profile* message_;
};

// Adds texts to the string table of a profile, each once.
class StringTable {
 public:
  explicit StringTable(pprof::Profile& message) : message_(message) {
    for (int i = 0; i < message.string_table_size(); ++i) numbers_.try_emplace(message.string_table(i), i);
    Of("");  // a profile has at least this one
  }
  int64_t Of(const std::string& text) {
    const auto [entry, is_new] = numbers_.try_emplace(text, message_.string_table_size());
    if (is_new) message_.add_string_table(text);
    return entry->second;
  }

 private:
  pprof::Profile& message_;
  absl::flat_hash_map<std::string, int64_t> numbers_;
};

// Parses the bytes of a profile, compressed or not. `name` is the name in messages. Thread-safe. Errors name the
// field or byte that is wrong, and what to do: kInvalidArgument (not a profile, damaged, inconsistent);
// kResourceExhausted (larger than 1 GiB when decompressed, or needs much more memory than its size: files.h).
absl::StatusOr<RawProfile> ParseProfile(std::string_view bytes, const std::string& name);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_PROFILE_PROFILE_READER_H_
