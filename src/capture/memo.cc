#include "src/capture/memo.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "src/base/pages.h"
#include "src/capture/paths.h"

namespace hbmprof::internal {

__thread Memo* memo_to_ask __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

#ifdef HBMPROF_CHECK_CAPTURE
constexpr bool kIsChecked = true;
#else
constexpr bool kIsChecked = false;
#endif

// What a thread gets.
struct MemoPages {
  Memo memo;
  LearningRoom learning_room;
};
constexpr size_t kMemoBytes = size_t{52} << 10;
static_assert(sizeof(MemoPages) <= kMemoBytes);

// Plain data in the static TLS block, as memo_to_ask.
struct ThreadMemo {
  MemoPages* pages;
  uint32_t captures;  // before it got them
  bool has_none;      // and gets none: they are being made or the thread is ending
  bool is_learning;   // its learning room is in use
};
__thread ThreadMemo thread_memo __attribute__((tls_model("initial-exec"))) = {nullptr, 0, false, false};

// A checked capture is not recalled but walked, so that WalkToRemember can compare the two.
void AskOrNot(Memo* memo) { memo_to_ask = kIsChecked || memo == nullptr || memo->is_pausing() ? nullptr : memo; }

// Calls GiveBack at thread exit, in threads whose value for it is not null.
std::atomic<bool> has_key{false};
pthread_key_t key;

// The object that holds this code, such as a plugin with a static copy of the library, stays loaded from here on. The
// handlers of thread exit, fork and exit lead into it, and so do threads that are on their way to one. Before main, or
// in the dlopen that loads the object: later, another dlopen could be waiting for the calling thread.
[[gnu::constructor]] void StayLoaded() {
  Dl_info info;
  link_map* self = nullptr;
  const auto code = reinterpret_cast<void*>(&StayLoaded);
  if (dladdr1(code, &info, reinterpret_cast<void**>(&self), RTLD_DL_LINKMAP) == 0 || self == nullptr) return;
  // The main program has no name and is never unloaded.
  if (*self->l_name != '\0') dlopen(self->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

void GiveBack(void* pages) {
  thread_memo.has_none = true;
  thread_memo.pages = nullptr;
  AskOrNot(nullptr);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  UnmapPages(pages, kMemoBytes);
}

[[gnu::noinline]] MemoPages* Obtain() {
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
  auto* pages = static_cast<MemoPages*>(MapPages(kMemoBytes));
  if (pages != nullptr && pthread_setspecific(key, pages) != 0) {
    UnmapPages(pages, kMemoBytes);
    pages = nullptr;
  }
  if (pages == nullptr) {
    mine.captures = 0;
  } else {
    pages->memo.Start(ThreadStackBounds());
  }
  mine.pages = pages;
  AskOrNot(pages == nullptr ? nullptr : &pages->memo);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.has_none = false;
  return pages;
}

// LearnPath in the thread's own room; nothing where a signal handler has interrupted that.
const Path* Learn(const Caller& caller, int max_depth, MemoPages* pages) {
  ThreadMemo& mine = thread_memo;
  if (mine.is_learning) return nullptr;
  mine.is_learning = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  bool is_busy = false;
  const Path* path = LearnPath(caller, max_depth, &pages->learning_room, &is_busy);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.is_learning = false;
  if (!is_busy) pages->memo.CountLearning();
  return path;
}

void CheckAgainstWalk(const Path& path, const uintptr_t* pcs, const WalkResult& walk) {
  if (walk.end != WalkEnd::kUnknown && walk.depth == path.depth && path.truncated == (walk.end == WalkEnd::kDepth) &&
      std::equal(pcs, pcs + walk.depth, path.pcs())) {
    return;
  }
  std::fprintf(stderr, "hbmprof: a remembered stack of %d frames differs from the present one of %d\n", path.depth,
               walk.depth);
  std::abort();
}

}  // namespace

void Memo::Insert(const Caller& caller, const Path* path) {
  uint64_t key = Root(caller);
  for (int depth = 0; depth < kMaxStackDepth; ++depth) {
    Node* node = NodeOf(key);
    if (node == nullptr) return Add(key, path);
    // A branch has one of its paths.
    const Path* other = PathAt(node->path);
    const uint16_t difference = path->FirstDifference(*other);
    uint16_t place = node->place;
    if (difference < place) {
      place = difference;
      node->place = place;
      Add(Child(key, other->WordAt(place)), other);  // which may move the node
    } else if (place == Path::kNoPlace) {
      // The same path, or one that no word tells from it.
      node->path = NumberOf(path);
      return;
    }
    const uintptr_t word = path->WordAt(place);
    if (word == 0) return;  // it ends before those that the place tells apart
    key = Child(key, word);
  }
}

bool Memo::IsWorthLearning(const Caller& caller, const uintptr_t* pcs, int depth) {
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

// Makes the node of `key` a path, in place of what has been in its set longest.
void Memo::Add(uint64_t key, const Path* path) {
  Node* node = NodeOf(key);
  if (node == nullptr) {
    Set& set = SetOf(key);
    for (uint32_t way = kWays - 1; way > 0; --way) {
      set.nodes[way].path = set.nodes[way - 1].path;
      set.nodes[way].place = set.nodes[way - 1].place;
      std::atomic_signal_fence(std::memory_order_release);  // no tag is without a path
      set.nodes[way].tag = set.nodes[way - 1].tag;
    }
    node = &set.nodes[0];
  }
  node->path = NumberOf(path);
  node->place = Path::kNoPlace;
  std::atomic_signal_fence(std::memory_order_release);
  node->tag = TagOf(key);
}

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

WalkResult WalkToRemember(const Caller& caller, uintptr_t* pcs, int max_depth, const Path** path) {
  *path = nullptr;
  const WalkResult walk = WalkByRules(caller, pcs, max_depth, /*guess=*/false);
  if (kIsChecked && thread_memo.pages != nullptr) {
    *path = thread_memo.pages->memo.Find(caller, max_depth);
    if (*path != nullptr) {
      CheckAgainstWalk(**path, pcs, walk);
      return walk;
    }
  }
  if (walk.end == WalkEnd::kUnknown || !IsOnOwnStack(caller.sp)) return walk;
  MemoPages* pages = thread_memo.pages;
  if (pages == nullptr) pages = Obtain();
  if (pages == nullptr) return walk;
  Memo& memo = pages->memo;
  const bool is_worth_learning = memo.IsWorthLearning(caller, pcs, walk.depth);
  AskOrNot(&memo);
  if (!is_worth_learning) return walk;
  *path = Learn(caller, max_depth, pages);
  if (*path != nullptr) memo.Insert(caller, *path);
  return walk;
}

}  // namespace hbmprof::internal
