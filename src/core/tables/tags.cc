#include "src/core/tables/tags.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "hbmprof/tag.h"
#include "src/base/cut_text.h"
#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/never_destroyed.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/injected/injected.h"

namespace hbmprof::internal {
namespace {

// A key with a value. Followed by the bytes of both.
struct Label {
  std::string_view key() const { return {reinterpret_cast<const char*>(this + 1), key_size}; }
  std::string_view value() const { return {key().data() + key_size, value_size}; }

  uint64_t hash;
  uint16_t key_number;
  uint16_t key_size;
  uint16_t value_size;
};

// Followed by its labels, sorted by key.
struct TagSet {
  const Label* const* labels() const { return reinterpret_cast<const Label* const*>(this + 1); }

  uint64_t hash;
  TagSetId id;
  int count;
};

template <typename T>
const T* At(uint64_t payload) {
  return reinterpret_cast<const T*>(payload);
}
template <typename T>
uint64_t HashOf(uint64_t payload) {
  return At<T>(payload)->hash;
}

constexpr std::string_view kPrefix = "tag_";  // of reserved keys
constexpr std::string_view kOther = "other";  // the value beyond the limit of its key
constexpr size_t kMaxKeyBytes = kMaxTagBytes + kPrefix.size();

bool IsReserved(std::string_view key) {
  return key == "device" || key == "kind" || key == "allocator" || key == "bytes" || key.substr(0, 7) == "pprof::";
}

// The sets by number. Number 0 is the empty set, for which the pointer is null.
std::atomic<const TagSet*> all_sets[kMaxTagSets];

// It takes host memory in pages, not from malloc: a scope may begin in a signal handler that interrupted malloc. A
// known label and a known set are found without a lock.
class TagRegistry {
 public:
  TagSetId Extend(TagSetId tags, std::string_view key, std::string_view value) {
    key = CutText(key, kMaxTagBytes);
    value = CutText(value, kMaxTagBytes);
    const ReentryGuard guard;
    // A thread that is inside the tracker, for example in a signal handler that interrupted this function, may hold a
    // lock.
    if (key.empty() || !guard.entered() || IsOff()) return tags;
    char prefixed[kMaxKeyBytes];
    if (IsReserved(key)) {
      std::copy(key.begin(), key.end(), std::copy(kPrefix.begin(), kPrefix.end(), prefixed));
      key = {prefixed, kPrefix.size() + key.size()};
    }
    const Label* label = LabelOf(key, value);
    const bool is_dropped = label == nullptr;
    if (is_dropped) label = LabelOf(key, kOther);
    const TagSet* set = nullptr;
    if (label != nullptr) {
      const Label* list[kMaxTagKeys];
      const TagSet* const old = all_sets[tags].load(std::memory_order_acquire);
      const Label** end = old == nullptr ? list : std::copy_n(old->labels(), old->count, list);
      const Label** const position = std::lower_bound(
          list, end, key, [](const Label* tag, std::string_view wanted) { return tag->key() < wanted; });
      if (position == end || (*position)->key_number != label->key_number) {
        std::copy_backward(position, end, end + 1);
        ++end;
      }
      *position = label;
      set = SetOf(list, static_cast<int>(end - list));
    }
    if (set == nullptr || is_dropped) dropped_.fetch_add(1, std::memory_order_relaxed);
    return set == nullptr ? tags : set->id;
  }
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Key {
    const Label* label;  // the first one with this key
    int values;
  };

  // These return null if a limit is reached or the host has no memory.
  const Label* LabelOf(std::string_view key, std::string_view value) {
    const uint64_t hash =
        HashBytes(value.data(), value.size(), HashBytes(key.data(), key.size(), HashWord(key.size())));
    const auto equal = [&](uint64_t payload) {
      const auto* label = At<Label>(payload);
      return label->hash == hash && label->key() == key && label->value() == value;
    };
    const auto make = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS -> uint64_t {
      Key* const end = keys_ + key_count_;
      Key* const known = std::find_if(keys_, end, [key](const Key& one) { return one.label->key() == key; });
      if (known == keys_ + kMaxTagKeys || (known->values >= kMaxTagValuesPerKey && value != kOther)) return 0;
      auto* const label = static_cast<Label*>(label_arena_.Allocate(sizeof(Label) + key.size() + value.size()));
      if (label == nullptr) return 0;
      *label = {hash, static_cast<uint16_t>(known - keys_), static_cast<uint16_t>(key.size()),
                static_cast<uint16_t>(value.size())};
      std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), reinterpret_cast<char*>(label + 1)));
      if (known == end) {
        *known = {label, 0};
        ++key_count_;
      }
      ++known->values;
      return reinterpret_cast<uintptr_t>(label);
    };
    return At<Label>(labels_.Intern(hash, equal, &HashOf<Label>, make));
  }
  const TagSet* SetOf(const Label* const* labels, int count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(*labels);
    const uint64_t hash = HashBytes(reinterpret_cast<const char*>(labels), bytes, 0);
    const auto equal = [&](uint64_t payload) {
      const auto* set = At<TagSet>(payload);
      return set->hash == hash && set->count == count && std::equal(labels, labels + count, set->labels());
    };
    const auto make = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS -> uint64_t {
      if (last_set_ + 1 == kMaxTagSets || !TakeHostBytes(sizeof(all_sets[0]))) return 0;
      auto* const set = static_cast<TagSet*>(set_arena_.Allocate(sizeof(TagSet) + bytes));
      if (set == nullptr) return 0;
      *set = {hash, ++last_set_, count};
      std::memcpy(static_cast<void*>(set + 1), labels, bytes);
      all_sets[set->id].store(set, std::memory_order_release);  // before the set can be found
      return reinterpret_cast<uintptr_t>(set);
    };
    return At<TagSet>(sets_.Intern(hash, equal, &HashOf<TagSet>, make));
  }

  InternTable labels_;
  Arena label_arena_ ABSL_GUARDED_BY(labels_.lock());
  Key keys_[kMaxTagKeys] ABSL_GUARDED_BY(labels_.lock()) = {};
  int key_count_ ABSL_GUARDED_BY(labels_.lock()) = 0;
  InternTable sets_;
  Arena set_arena_ ABSL_GUARDED_BY(sets_.lock());
  TagSetId last_set_ ABSL_GUARDED_BY(sets_.lock()) = 0;
  std::atomic<int64_t> dropped_{0};
};

// Scopes may end during static destruction.
NeverDestroyed<TagRegistry> tag_registry;

// The injected library's functions take texts that end with a zero byte.
struct ZeroEnded {
  explicit ZeroEnded(std::string_view text) { bytes[CutText(text, kMaxTagBytes).copy(bytes, kMaxTagBytes)] = '\0'; }
  char bytes[kMaxTagBytes + 1];
};

[[gnu::noinline]] void PushInjected(const InjectedProfiler& injected, std::string_view key, std::string_view value) {
  injected.tag_push(ZeroEnded(key).bytes, ZeroEnded(value).bytes);
}

}  // namespace

__thread TagSetId current_tags __attribute__((tls_model("initial-exec"))) = kNoTags;
std::atomic<void (*)(TagSetId)> tags_observer{nullptr};

void CallTagsObserver(TagSetId tags) {
  if (auto* const observe = tags_observer.load(std::memory_order_relaxed)) observe(tags);
}

TagSetId ExtendTags(TagSetId tags, std::string_view key, std::string_view value) {
  return tag_registry->Extend(tags, key, value);
}

TagSetId BeginTag(std::string_view key, std::string_view value) {
  const TagSetId outer = current_tags;
  SetCurrentTags(ExtendTags(outer, key, value));
  if (const InjectedProfiler* const injected = InjectedOfProcess()) PushInjected(*injected, key, value);
  return outer;
}

void EndTag(TagSetId outer) {
  SetCurrentTags(outer);
  if (const InjectedProfiler* const injected = InjectedOfProcess()) injected->tag_pop();
}

Labels WithProcessTags(const Labels& labels, const Labels& process_tags) {
  Labels all;
  std::set_union(labels.begin(), labels.end(), process_tags.begin(), process_tags.end(), std::back_inserter(all),
                 [](const auto& a, const auto& b) { return a.first < b.first; });
  return all;
}

Labels TagsOf(TagSetId tags) {
  Labels labels;
  const TagSet* const set = all_sets[tags].load(std::memory_order_acquire);
  for (int i = 0; set != nullptr && i < set->count; ++i) {
    labels.emplace_back(set->labels()[i]->key(), set->labels()[i]->value());
  }
  return labels;
}

Labels LabelsOf(const Labels& tags) {
  std::map<std::string, std::string> labels;
  for (const auto& [key, value] : tags) {
    const std::string_view cut = CutText(key, kMaxTagBytes);
    if (cut.empty()) continue;
    const std::string name = std::string(IsReserved(cut) ? kPrefix : "").append(cut);
    if (labels.size() < kMaxTagKeys || labels.count(name) != 0)
      labels[name] = std::string(CutText(value, kMaxTagBytes));
  }
  return {labels.begin(), labels.end()};
}

int64_t DroppedTagValues() { return tag_registry->dropped(); }

}  // namespace hbmprof::internal

namespace hbmprof {

ScopedTag::ScopedTag(std::string_view key, std::string_view value) : outer_(internal::BeginTag(key, value)) {}

ScopedTag::~ScopedTag() { internal::EndTag(outer_); }

}  // namespace hbmprof
