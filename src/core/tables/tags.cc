#include "src/core/tables/tags.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>

#include "hbmprof/tag.h"
#include "src/base/cut_text.h"
#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/never_destroyed.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/joined/injected.h"

namespace hbmprof::internal {
namespace {

// A cached result: extending set `from` with this key and value gives set `to`. The bytes of the key and of the value
// follow the struct in memory.
struct Step {
  uint64_t hash;
  TagSetId from;
  TagSetId to;
  uint16_t key_size;
  uint16_t value_size;
  bool dropped;  // a limit was reached
  const char* bytes() const { return reinterpret_cast<const char*>(this + 1); }
};

// A key, and how many values it has.
struct Key {
  const char* bytes;
  size_t size;
  int values;
  std::string_view name() const { return {bytes, size}; }
};

// A value of a key. Followed by its bytes.
struct Label {
  uint64_t hash;
  const Key* key;
  size_t size;
  std::string_view value() const { return {reinterpret_cast<const char*>(this + 1), size}; }
};

// Followed by its labels, sorted by key.
struct TagSet {
  uint64_t hash;
  TagSetId id;
  int count;
  const Label* const* labels() const { return reinterpret_cast<const Label* const*>(this + 1); }
};

// It takes host memory in pages, not from malloc: a scope may begin in a signal handler that interrupted malloc.
class TagRegistry {
 public:
  TagSetId Extend(TagSetId tags, std::string_view key, std::string_view value);
  Labels Of(TagSetId tags) const;
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // Length of the longest key with its prefix.
  static constexpr size_t kMaxNameBytes = kMaxTagBytes + 4;

  // These set `*dropped` to true if a limit is reached. They return nullopt or null if the host has no memory.
  std::optional<TagSetId> Resolve(TagSetId tags, std::string_view key, std::string_view value, bool* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  // Returns a null key if the key is new and the limit of keys is reached.
  std::optional<Key*> KeyOf(std::string_view name, bool* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  const Label* LabelOf(Key* key, std::string_view value, bool* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  // Returns memory for a T with `bytes` bytes behind it, or null if the host has none.
  template <typename T>
  T* NewWith(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    return static_cast<T*>(arena_.Allocate(sizeof(T) + bytes));
  }

  SpinLock lock_;
  Arena arena_ ABSL_GUARDED_BY(lock_);
  InternTable steps_;
  size_t step_count_ ABSL_GUARDED_BY(lock_) = 0;
  Key keys_[kMaxTagKeys] ABSL_GUARDED_BY(lock_) = {};
  std::atomic<int> key_count_ ABSL_GUARDED_BY(lock_){0};  // the keys up to here are complete
  InternTable labels_;
  InternTable sets_;
  TagSetId last_set_ ABSL_GUARDED_BY(lock_) = 0;
  std::atomic<int64_t> dropped_{0};
};

// The sets by number. Number 0 is the empty set, for which the pointer is null.
std::atomic<const TagSet*> all_sets[kMaxTagSets];

template <typename T>
const T* At(uint64_t payload) {
  return reinterpret_cast<const T*>(payload);
}
template <typename T>
uint64_t HashOf(uint64_t payload) {
  return At<T>(payload)->hash;
}
uint64_t PayloadOf(const void* entry) { return reinterpret_cast<uintptr_t>(entry); }

// The largest number of cached steps. When it is reached, a call of ExtendTags with new arguments takes a lock each
// time, and no memory for a step.
constexpr size_t kMaxSteps = 4 * size_t{kMaxTagSets};

// Scopes may end during static destruction.
NeverDestroyed<TagRegistry> tag_registry;

constexpr std::string_view kPrefix = "tag_";  // of reserved keys

bool IsReserved(std::string_view key) {
  return key == "device" || key == "kind" || key == "allocator" || key == "bytes" || key.substr(0, 7) == "pprof::";
}

TagSetId TagRegistry::Extend(TagSetId tags, std::string_view key, std::string_view value) {
  key = CutText(key, kMaxTagBytes);
  value = CutText(value, kMaxTagBytes);
  const uint64_t hash = HashBytes(value.data(), value.size(), HashBytes(key.data(), key.size(), HashWord(tags)));
  const auto equal = [&](uint64_t payload) {
    const auto* step = At<Step>(payload);
    return step->hash == hash && step->from == tags && step->key_size == key.size() &&
           step->value_size == value.size() && EqualBytes(step->bytes(), key.data(), key.size()) &&
           EqualBytes(step->bytes() + key.size(), value.data(), value.size());
  };
  if (const uint64_t found = steps_.Find(hash, equal); found != 0) {
    const auto* step = At<Step>(found);
    if (step->dropped) dropped_.fetch_add(1, std::memory_order_relaxed);
    return step->to;
  }
  const ReentryGuard guard;
  // The thread is inside the tracker already, for example in a signal handler that interrupted this function, and may
  // hold the lock.
  if (!guard.entered() || IsOff()) return tags;
  SpinLockHolder hold(lock_);
  bool dropped = false;
  const std::optional<TagSetId> result = Resolve(tags, key, value, &dropped);
  if (!result.has_value() || dropped) dropped_.fetch_add(1, std::memory_order_relaxed);
  if (!result.has_value()) return tags;
  steps_.Intern(hash, equal, &HashOf<Step>, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto* step = step_count_ < kMaxSteps ? NewWith<Step>(key.size() + value.size()) : nullptr;
    if (step == nullptr) return uint64_t{0};
    *step = {hash, tags, *result, static_cast<uint16_t>(key.size()), static_cast<uint16_t>(value.size()), dropped};
    auto* bytes = reinterpret_cast<char*>(step + 1);
    std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), bytes));
    ++step_count_;
    return PayloadOf(step);
  });
  return *result;
}

std::optional<Key*> TagRegistry::KeyOf(std::string_view name, bool* dropped) {
  Key* const end = keys_ + key_count_.load(std::memory_order_relaxed);
  Key* key = std::find_if(keys_, end, [name](const Key& known) { return known.name() == name; });
  if (key != end) return key;
  if (end == keys_ + kMaxTagKeys) {
    *dropped = true;
    return nullptr;
  }
  auto* bytes = static_cast<char*>(arena_.Allocate(name.size()));
  if (bytes == nullptr) return std::nullopt;
  std::copy(name.begin(), name.end(), bytes);
  *key = {bytes, name.size(), 0};
  key_count_.fetch_add(1, std::memory_order_release);
  return key;
}

const Label* TagRegistry::LabelOf(Key* key, std::string_view value, bool* dropped) {
  constexpr std::string_view kOther = "other";
  const uint64_t hash = HashBytes(value.data(), value.size(), HashWord(PayloadOf(key)));
  const auto equal = [&](uint64_t payload) {
    const auto* label = At<Label>(payload);
    return label->hash == hash && label->key == key && label->value() == value;
  };
  bool is_refused = false;
  const uint64_t found = labels_.Intern(hash, equal, &HashOf<Label>, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const bool is_too_many = key->values >= kMaxTagValuesPerKey;
    if (is_too_many) *dropped = true;
    is_refused = is_too_many && value != kOther;
    auto* label = is_refused ? nullptr : NewWith<Label>(value.size());
    if (label == nullptr) return uint64_t{0};
    *label = {hash, key, value.size()};
    std::copy(value.begin(), value.end(), reinterpret_cast<char*>(label + 1));
    if (!is_too_many) ++key->values;
    return PayloadOf(label);
  });
  return is_refused ? LabelOf(key, kOther, dropped) : At<Label>(found);
}

std::optional<TagSetId> TagRegistry::Resolve(TagSetId tags, std::string_view key, std::string_view value,
                                             bool* dropped) {
  if (key.empty()) return tags;
  char prefixed[kMaxNameBytes];
  if (IsReserved(key)) {
    std::copy(key.begin(), key.end(), std::copy(kPrefix.begin(), kPrefix.end(), prefixed));
    key = {prefixed, kPrefix.size() + key.size()};
  }
  const std::optional<Key*> known = KeyOf(key, dropped);
  if (!known.has_value()) return std::nullopt;
  if (*known == nullptr) return tags;
  const Label* label = LabelOf(*known, value, dropped);
  if (label == nullptr) return std::nullopt;

  const Label* list[kMaxTagKeys];
  const TagSet* old = all_sets[tags].load(std::memory_order_relaxed);
  const Label** end = old == nullptr ? list : std::copy_n(old->labels(), old->count, list);
  const Label** position = std::lower_bound(
      list, end, key, [](const Label* tag, std::string_view wanted) { return tag->key->name() < wanted; });
  if (position == end || (*position)->key != label->key) {
    std::copy_backward(position, end, end + 1);
    ++end;
  }
  *position = label;
  const auto count = static_cast<int>(end - list);
  const size_t bytes = static_cast<size_t>(count) * sizeof(*list);
  const uint64_t hash = HashBytes(reinterpret_cast<const char*>(list), bytes, 0);
  const auto equal = [&](uint64_t payload) {
    const auto* set = At<TagSet>(payload);
    return set->hash == hash && set->count == count && std::equal(list, end, set->labels());
  };
  bool is_full = false;
  const uint64_t found = sets_.Intern(hash, equal, &HashOf<TagSet>, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    is_full = last_set_ + 1 == kMaxTagSets;
    auto* set = is_full || !TakeHostBytes(sizeof(all_sets[0])) ? nullptr : NewWith<TagSet>(bytes);
    if (set == nullptr) return uint64_t{0};
    *set = {hash, ++last_set_, count};
    std::memcpy(static_cast<void*>(set + 1), list, bytes);
    all_sets[set->id].store(set, std::memory_order_release);  // before the set can be found
    return PayloadOf(set);
  });
  if (found != 0) return At<TagSet>(found)->id;
  if (!is_full) return std::nullopt;
  *dropped = true;
  return tags;
}

Labels TagRegistry::Of(TagSetId tags) const {
  Labels labels;
  const TagSet* set = all_sets[tags].load(std::memory_order_acquire);
  for (int i = 0; set != nullptr && i < set->count; ++i) {
    labels.emplace_back(set->labels()[i]->key->name(), set->labels()[i]->value());
  }
  return labels;
}

// The injected library's functions take texts that end with a zero byte.
struct ZeroEnded {
  explicit ZeroEnded(std::string_view text) { bytes[CutText(text, kMaxTagBytes).copy(bytes, kMaxTagBytes)] = '\0'; }
  char bytes[kMaxTagBytes + 1];
};

[[gnu::noinline]] void PushJoined(const InjectedProfiler& joined, std::string_view key, std::string_view value) {
  joined.tag_push(ZeroEnded(key).bytes, ZeroEnded(value).bytes);
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
  if (const InjectedProfiler* const joined = JoinedProfiler()) PushJoined(*joined, key, value);
  return outer;
}

void EndTag(TagSetId outer) {
  SetCurrentTags(outer);
  if (const InjectedProfiler* const joined = JoinedProfiler()) joined->tag_pop();
}

Labels WithProcessTags(const Labels& labels, const Labels& process_tags) {
  Labels all;
  std::set_union(labels.begin(), labels.end(), process_tags.begin(), process_tags.end(), std::back_inserter(all),
                 [](const auto& a, const auto& b) { return a.first < b.first; });
  return all;
}

Labels TagsOf(TagSetId tags) { return tag_registry->Of(tags); }

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
