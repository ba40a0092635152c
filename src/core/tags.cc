#include "src/core/tags.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <set>

#include "hbmprof/tag.h"
#include "src/base/fork.h"
#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/lazy.h"
#include "src/base/mutex.h"
#include "src/base/pages.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {
namespace {

using TagList = std::vector<std::pair<std::string, std::string>>;

// "Extending set `from` with this key and value gives set `to`", remembered. Followed by key and value bytes.
struct Step {
  uint64_t hash;
  TagSetId from;
  TagSetId to;
  uint16_t key_size;
  uint16_t value_size;
  bool dropped;  // a limit was met
  const char* bytes() const { return reinterpret_cast<const char*>(this + 1); }
};

// What strings and the nodes that hold them take from malloc, more or less.
constexpr int64_t kNodeBytes = 96;
int64_t BytesOf(const std::string& text) { return static_cast<int64_t>(sizeof(text) + text.size()); }

class TagRegistry {
 public:
  TagSetId Extend(TagSetId tags, std::string_view key, std::string_view value);
  TagList Of(TagSetId tags) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock hold(mutex_);
    return sets_[tags];
  }
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // The set that `tags` becomes; says in `dropped` whether a limit was met.
  TagSetId Resolve(TagSetId tags, std::string_view key, std::string_view value, bool* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t Remember(uint64_t hash, TagSetId from, std::string_view key, std::string_view value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  InternTable steps_;
  Arena step_arena_ ABSL_GUARDED_BY(mutex_);
  size_t step_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<TagList> sets_ ABSL_GUARDED_BY(mutex_) = {{}};
  std::map<TagList, TagSetId> ids_ ABSL_GUARDED_BY(mutex_) = {{{}, kNoTags}};
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> dropped_{0};
};

// Steps are remembered up to this many; a program that keeps inventing values beyond every limit pays for a lock from
// then on, and no memory.
constexpr size_t kMaxSteps = 4 * size_t{kMaxTagSets};

Lazy<TagRegistry> tag_registry;  // scopes may end during static destruction

TagSetId TagRegistry::Extend(TagSetId tags, std::string_view key, std::string_view value) {
  key = key.substr(0, kMaxTagBytes);
  value = value.substr(0, kMaxTagBytes);
  const uint64_t hash = HashBytes(value.data(), value.size(), HashBytes(key.data(), key.size(), HashWord(tags)));
  uint64_t found = steps_.Find(hash, [&](uint64_t payload) {
    const auto* step = reinterpret_cast<const Step*>(payload);
    return step->hash == hash && step->from == tags && step->key_size == key.size() &&
           step->value_size == value.size() && EqualBytes(step->bytes(), key.data(), key.size()) &&
           EqualBytes(step->bytes() + key.size(), value.data(), value.size());
  });
  if (found == 0) {
    const ForkPause pause;
    // Strings are made below: with a host allocator that is itself traced, its events must pass through.
    ReentryGuard guard;
    // A signal handler's scope, inside this very function: what it interrupted holds the lock.
    if (!guard.entered()) return tags;
    MutexLock hold(mutex_);
    found = Remember(hash, tags, key, value);
    if (found == 0) {
      bool dropped = false;
      const TagSetId result = Resolve(tags, key, value, &dropped);
      if (dropped) dropped_.fetch_add(1, std::memory_order_relaxed);
      return result;
    }
  }
  const auto* step = reinterpret_cast<const Step*>(found);
  if (step->dropped) dropped_.fetch_add(1, std::memory_order_relaxed);
  return step->to;
}

uint64_t TagRegistry::Remember(uint64_t hash, TagSetId from, std::string_view key, std::string_view value) {
  if (step_count_ >= kMaxSteps) return 0;
  auto* step = static_cast<Step*>(step_arena_.Allocate(sizeof(Step) + key.size() + value.size()));
  if (step == nullptr) return 0;
  bool dropped = false;
  step->hash = hash;
  step->from = from;
  step->to = Resolve(from, key, value, &dropped);
  step->dropped = dropped;
  step->key_size = static_cast<uint16_t>(key.size());
  step->value_size = static_cast<uint16_t>(value.size());
  auto* bytes = reinterpret_cast<char*>(step + 1);
  std::memcpy(bytes, key.data(), key.size());
  std::memcpy(bytes + key.size(), value.data(), value.size());
  ++step_count_;
  const uint64_t payload = reinterpret_cast<uintptr_t>(step);
  SpinLockHolder hold(steps_.lock());
  // Two threads may both have missed the same step; the second copy is never found and does no harm. Nor does one for
  // which there is no room.
  if (steps_.MakeRoom([](uint64_t other) { return reinterpret_cast<const Step*>(other)->hash; })) {
    steps_.Insert(hash, payload);
  }
  return payload;
}

TagSetId TagRegistry::Resolve(TagSetId tags, std::string_view key, std::string_view value, bool* dropped) {
  if (key.empty()) return tags;
  std::string name(key);
  if (name == "device" || name == "kind" || name == "allocator" || name == "bytes" || name.rfind("pprof::", 0) == 0) {
    name = "tag_" + name;
  }
  auto known = values_.find(name);
  if (known == values_.end()) {
    if (values_.size() >= kMaxTagKeys || !TakeHostBytes(kNodeBytes + BytesOf(name))) {
      *dropped = true;
      return tags;
    }
    known = values_.emplace(name, std::set<std::string, std::less<>>()).first;
  }
  std::string label(value);
  if (known->second.find(label) == known->second.end()) {
    if (known->second.size() >= kMaxTagValuesPerKey || !TakeHostBytes(kNodeBytes + BytesOf(label))) {
      *dropped = true;
      label = "other";
    } else {
      known->second.insert(label);
    }
  }
  TagList list = sets_[tags];
  const auto place = std::lower_bound(list.begin(), list.end(), name,
                                      [](const auto& tag, const std::string& wanted) { return tag.first < wanted; });
  if (place != list.end() && place->first == name) {
    place->second = label;
  } else {
    list.emplace(place, name, label);
  }
  const auto id = ids_.find(list);
  if (id != ids_.end()) return id->second;
  int64_t bytes = kNodeBytes;
  for (const auto& tag : list) bytes += 2 * (BytesOf(tag.first) + BytesOf(tag.second));  // in sets_ and in ids_
  if (sets_.size() >= kMaxTagSets || !TakeHostBytes(bytes)) {
    *dropped = true;
    return tags;
  }
  const auto made = static_cast<TagSetId>(sets_.size());
  sets_.push_back(list);
  ids_.emplace(std::move(list), made);
  return made;
}

}  // namespace

__thread TagSetId current_tags __attribute__((tls_model("initial-exec"))) = kNoTags;

TagSetId ExtendTags(TagSetId tags, std::string_view key, std::string_view value) try {
  return tag_registry.Get().Extend(tags, key, value);
} catch (const std::bad_alloc&) {  // a scope is not worth a server's life
  return tags;
}

std::vector<std::pair<std::string, std::string>> TagsOf(TagSetId tags) { return tag_registry.Get().Of(tags); }

int64_t DroppedTagValues() { return tag_registry.Get().dropped(); }

}  // namespace hbmprof::internal

namespace hbmprof {

ScopedTag::ScopedTag(std::string_view key, std::string_view value) : outer_(internal::current_tags) {
  internal::current_tags = internal::ExtendTags(outer_, key, value);
}

ScopedTag::~ScopedTag() { internal::current_tags = outer_; }

}  // namespace hbmprof
