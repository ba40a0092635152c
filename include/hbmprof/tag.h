// ScopedTag: labels what the current thread allocates, for as long as the scope lives.
//
//   hbmprof::ScopedTag model("model", "llama-8b");
//   {
//     hbmprof::ScopedTag phase("phase", "prefill");
//     ...allocations here carry model=llama-8b and phase=prefill...
//   }
#ifndef HBMPROF_TAG_H_
#define HBMPROF_TAG_H_

#include <cstdint>
#include <string_view>

namespace hbmprof {

// Adds the label `key`=`value` to every allocation this thread records while the object lives. Scopes nest; an inner
// scope with the same key hides the outer one. A buffer keeps the tags of its allocation, whoever frees it.
//
// Key and value are copied, and cut at 128 bytes, or before a UTF-8 character that the cut would split. Each distinct
// value is kept for the life of the process, so use few: after 1,000 distinct values of a key the rest become "other"
// (counted in TrackerStats::dropped_tag_values), and after 64 keys or 65,536 distinct combinations a scope adds nothing
// (counted likewise). An empty key adds nothing. The keys "device", "kind", "allocator" and "bytes" and those that
// start with "pprof::" belong to the profile; they get the prefix "tag_". Scopes must end in the reverse order of their
// beginning, on the thread that began them.
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
