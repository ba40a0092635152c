// Sets of tags (key=value labels), each with a small number, its TagSetId; and the current set of each thread.
//
// Process-wide, since a tag scope belongs to a thread and not to a profiler. Nothing is ever removed; the limits below
// bound it. Thread safety: everything from any thread. Extending a set in a way seen before takes no lock.
#ifndef HBMPROF_SRC_CORE_TAGS_H_
#define HBMPROF_SRC_CORE_TAGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hbmprof::internal {

using TagSetId = uint32_t;
inline constexpr TagSetId kNoTags = 0;

// See hbmprof/tag.h for what they mean to a user.
inline constexpr int kMaxTagKeys = 64;
inline constexpr int kMaxTagValuesPerKey = 1000;
inline constexpr TagSetId kMaxTagSets = 65536;
inline constexpr size_t kMaxTagBytes = 128;

// Of the calling thread. Plain data in the static TLS block.
extern __thread TagSetId current_tags __attribute__((tls_model("initial-exec")));

// The set `tags` with `key` set to `value` besides, or `tags` itself when a limit or the host's memory says no, and
// inside the tracker. A value beyond its key's limit becomes "other". Takes no memory from malloc.
TagSetId ExtendTags(TagSetId tags, std::string_view key, std::string_view value);

// Begins a scope: adds a tag to those of the calling thread, here and, if this copy of the library has joined the
// injected one's profiler, there too. Returns what EndTag of the same scope needs.
uint32_t BeginTag(std::string_view key, std::string_view value);
void EndTag(uint32_t before);

// The labels of a set, sorted by key.
std::vector<std::pair<std::string, std::string>> TagsOf(TagSetId tags);

// The tags as labels, sorted by key: names and limits as in ExtendTags; of two with the same key, the last one.
std::vector<std::pair<std::string, std::string>> LabelsOf(const std::vector<std::pair<std::string, std::string>>& tags);

// How often ExtendTags met a limit.
int64_t DroppedTagValues();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TAGS_H_
