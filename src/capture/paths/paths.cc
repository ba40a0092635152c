#include "src/capture/paths/paths.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include "src/base/hash.h"
#include "src/base/intern_table.h"
#include "src/base/never_destroyed.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

char* path_memory = nullptr;

namespace {

// Makes a path. It is a recorder for RuleWalk::StepOut (walk.h): it records what a walk depends on, and then writes the
// path.
class PathBuilder {
 public:
  static constexpr size_t kMaxBytes = size_t{11} << 10;

  PathBuilder(const Caller& caller, int max_depth) : caller_(caller), max_depth_(max_depth) { pcs_[0] = caller.pc; }

  // To be called before the step out of frame number `frame`, by `rule`.
  void AddObject(PackedRule rule, int frame) {
    const auto id = static_cast<uint16_t>(rule.object());
    if (id == 0) return;
    if (id == kUnidentifiedObject) return Unsupported();
    for (uint32_t i = 0; i < objects_; ++i) {
      if (object_[i].id == id) return;
    }
    if (objects_ == kMaxObjects) return Unsupported();
    object_[objects_++] = {id, static_cast<uint16_t>(frame)};
  }

  void UsesFp() {
    if (fp_ == Fp::kInitial) {
      initial_fp_ = OffsetOf(caller_.fp);
      fp_ = Fp::kInitialUsed;
    } else if (fp_ == Fp::kRestored) {
      Reads(fp_address_, fp_word_);
      fp_ = Fp::kRestoredUsed;
    }
  }
  void Reads(uintptr_t address, uintptr_t word) {
    if (links_ == kMaxWords) return Unsupported();
    OffsetOf(word);  // the word must be an address of the stack, too
    link_offset_[links_] = OffsetOf(address);
    link_target_[links_++] = word - caller_.sp;
  }
  void Restores(uintptr_t address, uintptr_t word) {
    fp_ = Fp::kRestored;
    fp_address_ = address;
    fp_word_ = word;
  }
  void Returns(uintptr_t address, uintptr_t word) {
    if (returns_ == kMaxWords) return Unsupported();
    return_offset_[returns_] = OffsetOf(address);
    pcs_[++returns_] = word;
  }
  void Unsupported() { is_supported_ = false; }

  // Whether the walk can be written as a path.
  bool is_supported() const { return is_supported_ && returns_ > 0; }

  // Writes the path to `bytes()` and returns its size. REQUIRES: is_supported().
  size_t Build(int depth, bool truncated) {
    Path header;
    std::memset(static_cast<void*>(&header), 0, sizeof(header));  // paths are compared as bytes
    size_ = sizeof(header);
    AppendPadded(pcs_ + 1, returns_);
    AppendPadded(link_target_, links_);
    header.offsets_at = static_cast<uint16_t>(size_);
    AppendPadded(return_offset_, returns_);
    AppendPadded(link_offset_, links_);
    header.objects_at = static_cast<uint16_t>(size_);
    for (uint32_t i = 0; i < objects_; ++i) Append(object_[i]);

    header.hash = StackHash(HashWords128(pcs_, static_cast<size_t>(depth)), truncated);
    header.pc = caller_.pc;
    header.depth = static_cast<int16_t>(depth);
    header.max_depth = static_cast<int16_t>(max_depth_);
    header.end = static_cast<uint32_t>((max_offset_ + 1) * sizeof(uintptr_t));
    header.fp = initial_fp_;
    header.returns = Padded(returns_);
    header.links = Padded(links_);
    header.objects = static_cast<uint16_t>(objects_);
    header.unpadded_returns = static_cast<uint16_t>(returns_);
    header.truncated = truncated;
    std::memcpy(bytes_, &header, sizeof(header));
    return size_;
  }
  const char* bytes() const { return bytes_; }

 private:
  enum class Fp : uint8_t { kInitial, kInitialUsed, kRestored, kRestoredUsed };
  // Limit of return addresses, and of links.
  static constexpr uint32_t kMaxWords = kMaxStackDepth;
  static constexpr uint32_t kMaxObjects = 8;
  // kMaxWords is a multiple of the group, so a full path has no padding.
  static_assert(sizeof(Path) + 2 * kMaxWords * (sizeof(uintptr_t) + sizeof(uint16_t)) + 64 <= kMaxBytes);

  static uint16_t Padded(uint32_t count) {
    return static_cast<uint16_t>((count + Path::kGroup - 1) / Path::kGroup * Path::kGroup);
  }
  // Returns the offset of `address`. If it has none, calls Unsupported() and returns 0.
  uint16_t OffsetOf(uintptr_t address) {
    const uintptr_t distance = address - caller_.sp;
    const uintptr_t offset = distance / sizeof(uintptr_t);
    if (offset >= Path::kNoOffset - 1 || distance % sizeof(uintptr_t) != 0) {
      Unsupported();
      return 0;
    }
    if (offset > max_offset_) max_offset_ = static_cast<uint16_t>(offset);
    return static_cast<uint16_t>(offset);
  }

  template <typename Item>
  void Append(Item item) {
    std::memcpy(bytes_ + size_, &item, sizeof(item));
    size_ += sizeof(item);
  }
  // Appends the items, and repetitions of the last one.
  template <typename Item>
  void AppendPadded(const Item* items, uint32_t count) {
    for (uint32_t i = 0; i < Padded(count); ++i) Append(items[std::min(i, count - 1)]);
  }

  const Caller caller_;
  const int max_depth_;
  bool is_supported_ = true;
  Fp fp_ = Fp::kInitial;
  uintptr_t fp_address_ = 0;  // of the stack word from which fp was restored
  uintptr_t fp_word_ = 0;
  uint16_t initial_fp_ = Path::kNoOffset;
  uint16_t max_offset_ = 0;
  uint32_t returns_ = 0;
  uint32_t links_ = 0;
  uint32_t objects_ = 0;
  ObjectOfFrame object_[kMaxObjects];
  uint16_t return_offset_[kMaxWords];
  uint64_t pcs_[1 + kMaxWords];
  uint16_t link_offset_[kMaxWords];
  uintptr_t link_target_[kMaxWords];
  size_t size_;  // of `bytes_`
  alignas(Path) char bytes_[kMaxBytes];
};
static_assert(sizeof(PathBuilder) <= sizeof(LearningScratch) && alignof(PathBuilder) <= alignof(LearningScratch));

// The table of all paths. The key of a path is its bytes.
class PathTable {
 public:
  // Returns the path with these bytes, and adds it if it is new. Returns null if there is no memory.
  const Path* Intern(const char* bytes, size_t size) {
    const auto equal = [&](uint64_t payload) {
      const Path* const path = PathOf(payload);
      return path->bytes() == size && std::memcmp(path, bytes, size) == 0;
    };
    const uint64_t found = table_.Intern(
        HashBytes(bytes, size, 0), equal,
        [](uint64_t payload) { return HashBytes(reinterpret_cast<const char*>(payload), PathOf(payload)->bytes(), 0); },
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Add(bytes, size); });
    return found == 0 ? nullptr : PathOf(found);
  }

 private:
  static constexpr size_t kMaxBytes = (size_t{32} << 20) - kPathAlignment;  // not in large pages: see MapPages

  static const Path* PathOf(uint64_t payload) { return reinterpret_cast<const Path*>(payload); }

  // Returns 0 if there is no memory.
  uint64_t Add(const char* bytes, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.lock()) {
    const size_t bytes_used = (size + kPathAlignment - 1) / kPathAlignment * kPathAlignment;
    if (path_memory == nullptr) path_memory = static_cast<char*>(ReservePages(kMaxBytes));
    if (path_memory == nullptr || bytes_used > kMaxBytes - used_) return 0;
    if (!TakeHostBytes(static_cast<int64_t>(bytes_used))) return 0;
    char* const added = path_memory + used_;
    std::memcpy(added, bytes, size);
    used_ += bytes_used;
    return reinterpret_cast<uint64_t>(added);
  }

  InternTable table_;
  size_t used_ ABSL_GUARDED_BY(table_.lock()) = kPathAlignment;  // no path has the number 0
};

NeverDestroyed<PathTable> path_table;  // threads may capture until the process ends

}  // namespace

uint16_t Path::FirstDifference(const Path& other) const {
  const auto* offset = At<uint16_t>(offsets_at);
  const auto* other_offset = other.At<uint16_t>(other.offsets_at);
  for (int i = 0; i < std::min(unpadded_returns, other.unpadded_returns); ++i) {
    if (offset[i] != other_offset[i]) break;
    if (pcs()[i + 1] != other.pcs()[i + 1]) return offset[i];
  }
  return kNoOffset;
}

uintptr_t Path::ReturnAddressAt(uint32_t offset) const {
  const auto* first = At<uint16_t>(offsets_at);
  const uint16_t* found = std::find(first, first + unpadded_returns, offset);
  return found == first + unpadded_returns ? 0 : pcs()[1 + (found - first)];
}

const Path* LearnPath(const Caller& caller, int max_depth, LearningScratch* scratch) {
  RuleWalk walk(caller);
  if (!walk.memory.is_own()) return nullptr;
  PathBuilder& builder = *new (scratch) PathBuilder(caller, max_depth);
  for (int depth = 1;; ++depth) {
    const PackedRule rule = walk.Rule();
    builder.AddObject(rule, depth - 1);
    const RuleWalk::Step step = walk.StepOut(rule, &builder);
    if (step == RuleWalk::Step::kUnknown || !builder.is_supported()) return nullptr;
    const bool is_outermost = step == RuleWalk::Step::kOutermost;
    if (!is_outermost && depth < max_depth) continue;
    const size_t size = builder.Build(depth, /*truncated=*/!is_outermost);
    return path_table->Intern(builder.bytes(), size);
  }
}

}  // namespace hbmprof::internal
