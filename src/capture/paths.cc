#include "src/capture/paths.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>

#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/pages.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {
namespace {

// What a walk depended on: a witness of RuleWalk::Leave, and the path made of it.
class PathRecord {
 public:
  static constexpr size_t kMaxBytes = size_t{6} << 10;

  PathRecord(const Caller& caller, int max_depth) : caller_(caller), max_depth_(max_depth) { pcs_[0] = caller.pc; }

  // Before the step out of frame number `frame`.
  void Enters(PackedRule rule, int frame) {
    const auto id = static_cast<uint16_t>(rule.object());
    if (id == 0) return;
    if (id == PackedRule::kUnidentified) return Untold();
    for (uint32_t i = 0; i < objects_; ++i) {
      if (object_[i].id == id) return;
    }
    if (objects_ == kMaxObjects) return Untold();
    object_[objects_++] = {id, static_cast<uint16_t>(frame)};
  }

  void UsesFp() {
    if (fp_ == Fp::kInitial) {
      initial_fp_ = PlaceOf(caller_.fp);
      fp_ = Fp::kInitialUsed;
    } else if (fp_ == Fp::kRestored) {
      Reads(fp_at_, fp_word_);
      fp_ = Fp::kRestoredUsed;
    }
  }
  void Reads(uintptr_t address, uintptr_t word) {
    if (links_ == kMaxWords) return Untold();
    PlaceOf(word);  // it points into the stack too
    link_place_[links_] = PlaceOf(address);
    target_[links_++] = word - caller_.sp;
  }
  void Restores(uintptr_t address, uintptr_t word) {
    fp_ = Fp::kRestored;
    fp_at_ = address;
    fp_word_ = word;
  }
  void Returns(uintptr_t address, uintptr_t word) {
    if (returns_ == kMaxWords) return Untold();
    place_[returns_] = PlaceOf(address);
    pcs_[++returns_] = word;
  }
  void Untold() { fits_ = false; }

  bool fits() const { return fits_ && returns_ > 0; }
  const char* bytes() const { return bytes_; }

  // Writes the path, for a record that fits, to `bytes()`. Returns its size.
  size_t Write(int depth, bool truncated) {
    // A return address behind a link makes a frame's record with it.
    uint32_t lone_returns = 0;
    uint32_t records = 0;
    uint32_t lone_links = 0;
    std::fill_n(is_in_record_, links_, false);
    for (uint32_t i = 0; i < returns_; ++i) {
      const auto link =
          static_cast<uint16_t>(std::find(link_place_, link_place_ + links_, place_[i] - 1) - link_place_);
      if (link == links_) {
        lone_return_[lone_returns++] = static_cast<uint16_t>(i);
      } else {
        is_in_record_[link] = true;
        record_link_[records] = link;
        record_return_[records++] = static_cast<uint16_t>(i);
      }
    }
    for (uint32_t i = 0; i < links_; ++i) {
      if (!is_in_record_[i]) lone_link_[lone_links++] = static_cast<uint16_t>(i);
    }

    Path header;
    std::memset(static_cast<void*>(&header), 0, sizeof(header));  // paths are told apart by their bytes
    size_t size = sizeof(header);
    const auto add = [&](auto item) {
      std::memcpy(bytes_ + size, &item, sizeof(item));
      size += sizeof(item);
    };
    // Adds what `add_item` adds for each of `numbers`, and for the last one again where padding is needed.
    const auto add_padded = [](const uint16_t* numbers, uint32_t count, const auto& add_item) {
      for (uint32_t i = 0; i < Padded(count); ++i) add_item(numbers[std::min(i, count - 1)]);
    };
    add_padded(lone_return_, lone_returns, [&](uint16_t i) { add(pcs_[1 + i]); });
    for (uint32_t i = 0; i < Padded(records); ++i) {
      add(target_[record_link_[std::min(i, records - 1)]]);
      add(pcs_[1 + record_return_[std::min(i, records - 1)]]);
    }
    add_padded(lone_link_, lone_links, [&](uint16_t i) { add(target_[i]); });
    header.places = static_cast<uint16_t>(size);
    add_padded(lone_return_, lone_returns, [&](uint16_t i) { add(place_[i]); });
    add_padded(record_link_, records, [&](uint16_t i) { add(link_place_[i]); });
    add_padded(lone_link_, lone_links, [&](uint16_t i) { add(link_place_[i]); });
    if (records == 0) {
      header.all_pcs = offsetof(Path, pc);
      header.return_places = header.places;
    } else {
      header.return_places = static_cast<uint16_t>(size);
      for (uint32_t i = 0; i < returns_; ++i) add(place_[i]);
      while (size % alignof(uintptr_t) != 0) add(uint8_t{0});
      header.all_pcs = static_cast<uint16_t>(size);
      for (uint32_t i = 0; i <= returns_; ++i) add(pcs_[i]);
    }
    while (size % alignof(Path::Object) != 0) add(uint8_t{0});
    header.objects_at = static_cast<uint16_t>(size);
    for (uint32_t i = 0; i < objects_; ++i) add(object_[i]);

    header.hash = HashWords128(pcs_, static_cast<size_t>(depth));
    header.pc = caller_.pc;
    header.depth = depth;
    header.max_depth = max_depth_;
    header.end = static_cast<uint32_t>((highest_ + 1) * sizeof(uintptr_t));
    header.fp = initial_fp_;
    header.returns = Padded(lone_returns);
    header.records = Padded(records);
    header.links = Padded(lone_links);
    header.all_returns = static_cast<uint16_t>(returns_);
    header.objects = static_cast<uint16_t>(objects_);
    header.is_simple = records == 0 && lone_links == 0 && objects_ == 0;
    header.truncated = truncated;
    std::memcpy(bytes_, &header, sizeof(header));
    return size;
  }

 private:
  enum class Fp : uint8_t { kInitial, kInitialUsed, kRestored, kRestoredUsed };
  // Of return addresses, and of links.
  static constexpr uint32_t kMaxWords = 188;
  static constexpr uint32_t kMaxObjects = 8;
  // A return address and a link take 8 bytes among the words, 8 among all pcs, and three places; the rest is padding.
  static_assert(sizeof(Path) + 30 * kMaxWords + 400 <= kMaxBytes);

  static uint16_t Padded(uint32_t count) {
    return static_cast<uint16_t>((count + Path::kAtOnce - 1) / Path::kAtOnce * Path::kAtOnce);
  }
  uint16_t PlaceOf(uintptr_t address) {
    const uintptr_t distance = address - caller_.sp;
    const uintptr_t place = distance / sizeof(uintptr_t);
    if (place >= Path::kNoPlace - 1 || distance % sizeof(uintptr_t) != 0) {
      Untold();
      return 0;
    }
    if (place > highest_) highest_ = static_cast<uint16_t>(place);
    return static_cast<uint16_t>(place);
  }

  const Caller caller_;
  const int max_depth_;
  bool fits_ = true;
  Fp fp_ = Fp::kInitial;
  uintptr_t fp_at_ = 0;
  uintptr_t fp_word_ = 0;
  uint16_t initial_fp_ = Path::kNoPlace;
  uint16_t highest_ = 0;
  uint32_t returns_ = 0;
  uint32_t links_ = 0;
  uint32_t objects_ = 0;
  Path::Object object_[kMaxObjects];
  uint16_t place_[kMaxWords];
  uint64_t pcs_[1 + kMaxWords];
  uint16_t link_place_[kMaxWords];
  uintptr_t target_[kMaxWords];
  // Numbers of returns and links, while the path is written.
  uint16_t lone_return_[kMaxWords];
  uint16_t record_return_[kMaxWords];
  uint16_t record_link_[kMaxWords];
  uint16_t lone_link_[kMaxWords];
  bool is_in_record_[kMaxWords];
  alignas(Path) char bytes_[kMaxBytes];
};
static_assert(sizeof(PathRecord) <= sizeof(LearningRoom) && alignof(PathRecord) <= alignof(LearningRoom));

// All paths, found by their bytes.
class PathTable {
 public:
  SpinLock& lock() ABSL_LOCK_RETURNED(table_.lock()) { return table_.lock(); }
  // Null if the kernel has no room.
  const char* memory() const { return memory_; }

  const Path* Intern(const char* bytes, size_t size, bool* is_busy) {
    const uint64_t hash = HashBytes(bytes, size, 0);
    const auto equal = [&](uint64_t payload) {
      const Entry* entry = EntryOf(payload);
      return entry->hash == hash && entry->size == size && std::memcmp(entry + 1, bytes, size) == 0;
    };
    uint64_t found = table_.Find(hash, equal);
    if (found == 0) {
      if (!table_.lock().TryLock()) {
        *is_busy = true;
        return nullptr;
      }
      found = table_.Find(hash, equal);
      if (found == 0) found = Add(hash, bytes, size);
      table_.lock().Unlock();
      if (found == 0) return nullptr;
    }
    return reinterpret_cast<const Path*>(EntryOf(found) + 1);
  }

 private:
  struct Entry {
    uint64_t hash;
    uint64_t size;
  };
  static constexpr size_t kMaxBytes = (size_t{32} << 20) - kPathAlignment;
  static constexpr size_t kCountedAtOnce = size_t{64} << 10;
  static_assert(PathRecord::kMaxBytes < kCountedAtOnce);

  static const Entry* EntryOf(uint64_t payload) { return reinterpret_cast<const Entry*>(payload); }

  // 0 where there is no room.
  uint64_t Add(uint64_t hash, const char* bytes, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.lock()) {
    const size_t bytes_used = (sizeof(Entry) + size + kPathAlignment - 1) / kPathAlignment * kPathAlignment;
    if (memory_ == nullptr || bytes_used > kMaxBytes - used_) return 0;
    if (!table_.MakeRoom([](uint64_t other) { return EntryOf(other)->hash; })) return 0;
    if (used_ + bytes_used > counted_) {
      if (!TakeHostBytes(kCountedAtOnce)) return 0;
      counted_ += kCountedAtOnce;
    }
    auto* entry = reinterpret_cast<Entry*>(memory_ + used_);
    entry->hash = hash;
    entry->size = size;
    std::memcpy(entry + 1, bytes, size);
    const auto payload = reinterpret_cast<uint64_t>(entry);
    table_.Insert(hash, payload);
    used_ += bytes_used;
    return payload;
  }

  InternTable table_;
  char* const memory_ = static_cast<char*>(ReservePages(kMaxBytes));
  size_t used_ ABSL_GUARDED_BY(table_.lock()) = 0;
  size_t counted_ ABSL_GUARDED_BY(table_.lock()) = 0;  // of the host's memory
};

// Never destroyed: threads may capture until the very end.
alignas(PathTable) char path_table_memory[sizeof(PathTable)];
std::atomic<PathTable*> path_table{nullptr};
PathTable* locked_paths = nullptr;  // by the fork in progress: the table may have been made since

}  // namespace

bool Path::ObjectsAreLoaded() const {
  ObjectCheck check;
  const Object* object = At<Object>(objects_at);
  for (const Object* last = object + objects; object != last; ++object) {
    if (!check.IsLoaded(object->id, pcs()[object->frame] - 1)) return false;
  }
  return true;
}

uint16_t Path::FirstDifference(const Path& other) const {
  const auto* place = At<uint16_t>(return_places);
  const auto* other_place = other.At<uint16_t>(other.return_places);
  for (int i = 0; i < std::min(all_returns, other.all_returns); ++i) {
    if (place[i] != other_place[i]) break;
    if (pcs()[i + 1] != other.pcs()[i + 1]) return place[i];
  }
  return kNoPlace;
}

uintptr_t Path::WordAt(uint32_t place) const {
  const auto* first = At<uint16_t>(return_places);
  const uint16_t* at = std::find(first, first + all_returns, place);
  return at == first + all_returns ? 0 : pcs()[1 + (at - first)];
}

const char* path_memory = nullptr;

void PreparePaths() {
  auto* table = new (path_table_memory) PathTable;
  path_memory = table->memory();
  path_table.store(table, std::memory_order_release);
}

void LockPaths() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  PathTable* table = path_table.load(std::memory_order_acquire);
  if (table != nullptr) table->lock().Lock();
  locked_paths = table;
}

void UnlockPaths() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (locked_paths != nullptr) locked_paths->lock().Unlock();
}

const Path* LearnPath(const Caller& caller, int max_depth, LearningRoom* room, bool* is_busy) {
  PathTable* table = path_table.load(std::memory_order_acquire);
  if (table == nullptr) return nullptr;
  RuleWalk walk(caller);
  if (!walk.memory.is_own()) return nullptr;
  PathRecord& record = *new (room) PathRecord(caller, max_depth);
  for (int depth = 1;; ++depth) {
    const PackedRule rule = walk.Rule();
    record.Enters(rule, depth - 1);
    if (rule.kind() == FrameRule::kSignal) return nullptr;
    const RuleWalk::Step step = walk.Leave(rule, &record);
    if (step == RuleWalk::Step::kUnknown || !record.fits()) return nullptr;
    const bool is_outermost = step == RuleWalk::Step::kOutermost;
    if (!is_outermost && depth < max_depth) continue;
    const size_t size = record.Write(depth, /*truncated=*/!is_outermost);
    return table->Intern(record.bytes(), size, is_busy);
  }
}

}  // namespace hbmprof::internal
