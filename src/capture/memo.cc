#include "src/capture/memo.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "src/base/pages.h"
#include "src/capture/paths.h"

namespace hbmprof::internal {
namespace {

#ifdef HBMPROF_CHECK_CAPTURE
constexpr bool kIsChecked = true;
#else
constexpr bool kIsChecked = false;
#endif

// One thread's. A signal handler may interrupt any of this and use it too; what is lost then is no more than an entry
// or a count.
//
// A tree of the paths that were met, flattened into one hash table. Its root is a caller's (pc, sp). A node is a path,
// or, where several paths were met, the place of the innermost return address in which they differ: the word there
// leads on. (Stacks that are equal up to a frame have the next return address at the same place.) Any node may give way
// to another; what hangs below it is then met anew.
class Memo {
 public:
  // The path of the stack that begins at `caller`, if it is remembered; null if not.
  const Path* Find(const Caller& caller, uintptr_t stack_end, int max_depth) {
    uint64_t node = Root(caller);
    for (;;) {
      const Slot slot = SlotOf(node);
      if (slot.set == nullptr) return nullptr;
      const uint16_t place = slot.set->places[slot.way];
      if (place == Path::kNoPlace) {
        const Path* path = PathAt(slot.set->paths[slot.way]);
        if (!path->StandsAt(caller, stack_end, max_depth)) return nullptr;
        ++hits_;
        return path;
      }
      const uintptr_t at = caller.sp + place * sizeof(uintptr_t);
      if (at >= stack_end) return nullptr;
      node = Child(node, LoadStackWord(at));
    }
  }

  // Remembers the path of a stack that begins at `caller`.
  void Insert(const Caller& caller, const Path* path) {
    uint64_t node = Root(caller);
    for (int depth = 0; depth < kMaxStackDepth; ++depth) {
      const Slot slot = SlotOf(node);
      if (slot.set == nullptr) return Add(node, path);
      // A branch has one of its paths.
      const Path* other = PathAt(slot.set->paths[slot.way]);
      uint16_t& place = slot.set->places[slot.way];
      const uint16_t difference = path->FirstDifference(*other);
      if (difference < place) {
        place = difference;
        Add(Child(node, other->WordAt(difference)), other);
      } else if (place == Path::kNoPlace) {
        // The same path, or one that no word tells from it.
        slot.set->paths[slot.way] = NumberOf(path);
        return;
      }
      node = Child(node, path->WordAt(place));
    }
  }

  // Where stacks hardly repeat, remembering them is a loss, so that it is tried for a while only now and then.
  bool is_pausing() const { return pause_ > 0; }

  // One attempt to learn a path, whatever came of it.
  void CountLearning() { ++learnings_; }

  // After a walk that Find did not save. Whether to remember the stack: if it was walked before, not too long ago.
  bool IsWorthLearning(const Caller& caller, const uintptr_t* pcs, int depth) {
    if (kIsChecked) return true;
    if (pause_ > 0) {
      --pause_;
      return false;
    }
    if (++misses_ + hits_ > kTrialCaptures) {
      const bool pays = hits_ >= learnings_;
      last_pause_ = pays ? 0 : std::clamp(last_pause_ * 2, kShortestPause, kLongestPause);
      pause_ = last_pause_;
      hits_ = 0;
      misses_ = 0;
      learnings_ = 0;
    }
    uint64_t hash = Root(caller);
    for (int i = 1; i < depth; ++i) hash = hash * 31 + pcs[i];
    hash = MixAddress(hash);
    uint16_t& seen = seen_[hash >> (64 - kSeenBits)];
    const auto mark = static_cast<uint16_t>(hash >> 16);
    if (seen == mark) return true;
    seen = mark;
    return false;
  }

 private:
  static constexpr uint32_t kSets = 959;
  static constexpr uint32_t kWays = 8;
  // A cache line of nodes: a tag, never 0 but where there is no node; the place where it branches, kNoPlace if it is a
  // path; its path's number, or one of those below.
  struct alignas(64) Set {
    uint16_t tags[kWays];
    uint16_t places[kWays];
    uint32_t paths[kWays];
  };
  // Of a node; without a set if there is none.
  struct Slot {
    Set* set;
    uint32_t way;
  };
  static constexpr uint32_t kSeenBits = 11;
  static constexpr uint32_t kTrialCaptures = 2048;
  static constexpr uint32_t kShortestPause = 1024;
  static constexpr uint32_t kLongestPause = 1 << 14;

  static uint64_t Root(const Caller& caller) { return MixAddress(caller.pc + (caller.sp << 21)); }
  static uint64_t Child(uint64_t node, uintptr_t word) { return MixAddress((node ^ node >> 32) + word); }
  static uint16_t TagOf(uint64_t node) { return static_cast<uint16_t>(node >> 24 | 1); }

  Set& SetOf(uint64_t node) { return sets_[(node >> 32) * kSets >> 32]; }
  // Not all ways at once: the branches, which the processor foresees from the calls before, let it run ahead.
  Slot SlotOf(uint64_t node) {
    Set& set = SetOf(node);
    const uint16_t tag = TagOf(node);
    for (uint32_t way = 0; way < kWays; ++way) {
      if (set.tags[way] == tag) return {&set, way};
    }
    return {nullptr, 0};
  }
  // Makes `node` a path, in place of what has been in its set longest.
  void Add(uint64_t node, const Path* path) {
    Slot slot = SlotOf(node);
    if (slot.set == nullptr) {
      Set& set = SetOf(node);
      for (uint32_t way = kWays - 1; way > 0; --way) {
        set.paths[way] = set.paths[way - 1];
        set.places[way] = set.places[way - 1];
        std::atomic_signal_fence(std::memory_order_release);  // no tag is without a path
        set.tags[way] = set.tags[way - 1];
      }
      slot = {&set, 0};
    }
    slot.set->paths[slot.way] = NumberOf(path);
    slot.set->places[slot.way] = Path::kNoPlace;
    std::atomic_signal_fence(std::memory_order_release);
    slot.set->tags[slot.way] = TagOf(node);
  }

  // Mapped as zeros.
  uint32_t pause_;  // walks to come that are not remembered
  uint32_t last_pause_;
  // Since the last decision.
  uint32_t hits_;
  uint32_t misses_;
  uint32_t learnings_;
  uint16_t seen_[1 << kSeenBits];
  Set sets_[kSets];
};
constexpr size_t kMemoBytes = size_t{64} << 10;
static_assert(sizeof(Memo) <= kMemoBytes);

// Plain data in the static TLS block, for signal handlers' sake.
struct ThreadMemo {
  Memo* memo;
  uint32_t captures;  // before it got one
  bool has_none;      // and gets none: it is being made or the thread is ending
};
__thread ThreadMemo thread_memo __attribute__((tls_model("initial-exec"))) = {nullptr, 0, false};

// Calls GiveBack at thread exit, in threads whose value for it is not null.
std::atomic<bool> has_key{false};
pthread_key_t key;

void GiveBack(void* memo) {
  thread_memo.has_none = true;
  thread_memo.memo = nullptr;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  UnmapPages(memo, kMemoBytes);
}

[[gnu::noinline]] Memo* Obtain() {
  // A thread that captures now and then is not worth the pages.
  constexpr uint32_t kCapturesBefore = 16;
  ThreadMemo& mine = thread_memo;
  if (mine.has_none) return nullptr;
  if (mine.captures < kCapturesBefore) {
    ++mine.captures;
    return nullptr;
  }
  if (!has_key.load(std::memory_order_acquire)) return nullptr;
  mine.has_none = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  auto* memo = static_cast<Memo*>(MapPages(kMemoBytes));
  if (memo != nullptr && pthread_setspecific(key, memo) != 0) {
    UnmapPages(memo, kMemoBytes);
    memo = nullptr;
  }
  if (memo == nullptr) mine.captures = 0;
  mine.memo = memo;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.has_none = false;
  return memo;
}

[[gnu::noinline]] void CheckAgainstRules(const Caller& caller, int max_depth, const Path& path) {
  uintptr_t checked[kMaxStackDepth];
  const WalkResult walked = WalkByRules(caller, checked, max_depth, /*guess=*/false);
  if (walked.end == WalkEnd::kUnknown || walked.depth != path.depth ||
      path.truncated != (walked.end == WalkEnd::kDepth) || !std::equal(checked, checked + walked.depth, path.pcs())) {
    std::fprintf(stderr, "hbmprof: a remembered stack of %d frames differs from the present one of %d\n", path.depth,
                 walked.depth);
    std::abort();
  }
}

}  // namespace

void PrepareMemos() {
  // Values of the first keys are stored in the thread itself; those of later ones would take memory from malloc.
  constexpr pthread_key_t kKeysInThread = 32;
  static std::atomic<bool> is_tried{false};
  if (is_tried.exchange(true)) return;
  PreparePaths();
  if (pthread_key_create(&key, &GiveBack) != 0) return;
  if (key < kKeysInThread) {
    has_key.store(true, std::memory_order_release);
  } else {
    pthread_key_delete(key);
  }
}

const Path* RecallStack(const Caller& caller, int max_depth) {
  Memo* memo = thread_memo.memo;
  if (memo == nullptr || memo->is_pausing()) return nullptr;
  const StackBounds bounds = thread_stack_bounds;  // known since the walk after which the memo was made
  if (caller.sp - bounds.low >= bounds.high - bounds.low) return nullptr;
  const Path* path = memo->Find(caller, bounds.high, max_depth);
  if (kIsChecked && path != nullptr) CheckAgainstRules(caller, max_depth, *path);
  return path;
}

WalkResult WalkToRemember(const Caller& caller, uintptr_t* pcs, int max_depth, const Path** path) {
  *path = nullptr;
  const WalkResult walk = WalkByRules(caller, pcs, max_depth, /*guess=*/false);
  if (walk.end == WalkEnd::kUnknown || !IsOnOwnStack(caller.sp)) return walk;
  Memo* memo = thread_memo.memo;
  if (memo == nullptr) memo = Obtain();
  if (memo == nullptr || !memo->IsWorthLearning(caller, pcs, walk.depth)) return walk;
  bool is_busy = false;
  *path = LearnPath(caller, max_depth, &is_busy);
  if (!is_busy) memo->CountLearning();
  if (*path != nullptr) memo->Insert(caller, *path);
  return walk;
}

}  // namespace hbmprof::internal
