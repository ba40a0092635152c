#include "src/core/names.h"

#include "src/base/cut_text.h"
#include "src/base/thread_state.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {

NameTable::NameTable(std::string_view first, int capacity) : capacity_(capacity), names_(new Name[capacity]()) {
  Add(first);
}

int NameTable::Find(std::string_view name) const {
  for (int number = count_.load(std::memory_order_acquire) - 1; number >= 0; --number) {
    if (names_[number].text() == name) return number;
  }
  return -1;
}

void NameTable::Add(std::string_view name) {
  const int number = count_.load(std::memory_order_relaxed);
  names_[number].size = name.size();
  name.copy(names_[number].bytes, name.size());
  count_.store(number + 1, std::memory_order_release);
}

int NameTable::NumberOf(std::string_view name) {
  name = CutText(name, kMaxNameBytes);
  int number = Find(name);
  if (number == 0) first_is_requested_.store(true, std::memory_order_relaxed);
  if (number >= 0) return number;
  const ReentryGuard guard;
  // This thread may hold the lock. Its events are not recorded here either, so the number has no effect.
  if (!guard.entered() || IsOff()) return 0;
  SpinLockHolder hold(lock_);
  number = Find(name);
  if (number >= 0) return number;
  if (const int count = count_.load(std::memory_order_relaxed); count < capacity_) {
    Add(count + 1 == capacity_ ? "other" : name);
    return count;
  }
  return capacity_ - 1;
}

std::vector<std::string> NameTable::All() const {
  std::vector<std::string> all;
  for (int i = 0; i < count_.load(std::memory_order_acquire); ++i) all.emplace_back(names_[i].text());
  return all;
}

void CounterTable::Set(std::string_view name, int64_t value) {
  name = CutText(name, kMaxNameBytes);
  const ReentryGuard guard;
  if (!guard.entered() || IsOff()) return;  // this thread may hold the mutex
  MutexLock hold(mutex_);
  const auto found = values_.find(name);
  if (found != values_.end()) {
    found->second = value;
  } else if (values_.size() < kMaxCounters) {
    values_.emplace(name, value);
  }
}

std::vector<std::pair<std::string, int64_t>> CounterTable::All() const {
  MutexLock hold(mutex_);
  return {values_.begin(), values_.end()};
}

ProcessTags::ProcessTags(const Labels& tags) {
  for (auto& [name, text] : LabelsOf(tags)) tags_[name] = text;
}

void ProcessTags::Set(std::string_view key, std::string_view value) {
  const ReentryGuard guard;
  if (!guard.entered() || IsOff()) return;  // this thread may hold the mutex
  MutexLock hold(mutex_);
  for (auto& [name, text] : LabelsOf({{std::string(key), std::string(value)}})) {
    if (text.empty()) {
      tags_.erase(name);
    } else if (tags_.size() < kMaxTagKeys || tags_.count(name) != 0) {
      tags_[name] = std::move(text);
    }
  }
}

Labels ProcessTags::All() const {
  MutexLock hold(mutex_);
  return {tags_.begin(), tags_.end()};
}

}  // namespace hbmprof::internal
