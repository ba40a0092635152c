// Sets of tags (key=value labels), each with a small number, its TagSetId; and the current set of each thread.
//
// They belong to the process, since a tag scope belongs to a thread and not to a profiler. Sets are never removed; the
// limits below bound them. Thread safety: all functions may be called from any thread. ExtendTags takes no lock if the
// result exists.
#ifndef HBMPROF_SRC_CORE_TABLES_TAGS_H_
#define HBMPROF_SRC_CORE_TABLES_TAGS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hbmprof::internal {

using TagSetId = uint32_t;
inline constexpr TagSetId kNoTags = 0;

// hbmprof/tag.h describes the effect of these limits.
inline constexpr int kMaxTagKeys = 64;
inline constexpr int kMaxTagValuesPerKey = 1000;
inline constexpr TagSetId kMaxTagSets = 65536;
inline constexpr size_t kMaxTagBytes = 128;

// The calling thread's set. Plain data in the static TLS block.
extern __thread TagSetId current_tags __attribute__((tls_model("initial-exec")));

// Called when the current set of a thread has changed, with the new set; null: nothing is called.
extern std::atomic<void (*)(TagSetId)> tags_observer;
// Calls tags_observer. A function of its own, so that SetCurrentTags needs no stack frame.
[[gnu::cold, gnu::noinline]] void CallTagsObserver(TagSetId tags);
// Sets the calling thread's set.
inline void SetCurrentTags(TagSetId tags) {
  const TagSetId before = current_tags;
  current_tags = tags;
  if (__builtin_expect(tags_observer.load(std::memory_order_relaxed) != nullptr, 0) != 0 && before != tags) {
    CallTagsObserver(tags);
  }
}

// Returns the set `tags` with `key` set to `value`. Returns `tags` if a limit is reached, if the host has no memory, or
// if the thread is inside the tracker. A value beyond its key's limit becomes "other". Takes no memory from malloc.
TagSetId ExtendTags(TagSetId tags, std::string_view key, std::string_view value);

// Begins a scope: adds a tag to the calling thread's set, and also to that of the injected library if this copy of the
// library uses its profiler. Returns the argument for EndTag of the same scope.
TagSetId BeginTag(std::string_view key, std::string_view value);
void EndTag(TagSetId outer);

using Labels = std::vector<std::pair<std::string, std::string>>;  // keys and values
// The labels of a set, sorted by key.
Labels TagsOf(TagSetId tags);

// Returns the labels of a thread's set together with those of the process, sorted by key. If both have a tag with the
// same key, the thread's tag is used.
Labels WithProcessTags(const Labels& labels, const Labels& process_tags);

// Returns the tags as labels, sorted by key. Names and limits are those of ExtendTags. If two tags have the same key,
// the last one is used.
Labels LabelsOf(const Labels& tags);

// Returns how often ExtendTags reached a limit or found no host memory.
int64_t DroppedTagValues();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_TAGS_H_
