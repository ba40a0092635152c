// ScopedTag: adds a label to what the current thread allocates in a scope.
//
//   hbmprof::ScopedTag model("model", "llama-8b");
//   {
//     hbmprof::ScopedTag phase("phase", "prefill");
//     ...what is allocated here has the labels model=llama-8b and phase=prefill...
//   }
//
// For labels of everything that a process allocates, see DefaultOptions::tags and HBMPROF_TAGS (options.h).
#ifndef HBMPROF_TAG_H_
#define HBMPROF_TAG_H_

#include <cstdint>
#include <string_view>

namespace hbmprof {

// Adds the label `key`=`value` to each allocation that this thread records while the object lives, in every Profiler.
// Scopes nest; an inner scope hides an outer scope with the same key. A buffer keeps the tags that it was allocated
// with. A new thread begins without tags. Scopes must end in the reverse order of their beginning, on the thread that
// began them. The constructor and the destructor never fail and never throw.
//
// Limits:
// - Key and value are copied. They are cut at 128 bytes, or before the UTF-8 character that would be split there.
// - Each distinct value is kept for the life of the process: use a small set of values, not request ids.
// - After 1,000 distinct values of one key, further values become "other".
// - After 64 keys or 65,536 distinct combinations of tags, a scope with a new key or combination has no effect.
// - A scope that exceeds one of these limits of keys, values or combinations is counted in
//   TrackerStats::dropped_tag_values.
// - An empty key has no effect.
// - "device", "kind", "allocator", "bytes" and keys that begin with "pprof::" are labels of the profile itself: as tags
//   they get the prefix "tag_".
class ScopedTag {
 public:
  ScopedTag(std::string_view key, std::string_view value);
  ~ScopedTag();
  ScopedTag(const ScopedTag&) = delete;
  ScopedTag& operator=(const ScopedTag&) = delete;

 private:
  uint32_t outer_;
};

}  // namespace hbmprof

#endif  // HBMPROF_TAG_H_
