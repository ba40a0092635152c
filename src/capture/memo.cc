#include "src/capture/memo.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "src/base/pages.h"
#include "src/capture/rules.h"

namespace hbmprof::internal {
namespace {

#ifdef HBMPROF_CHECK_CAPTURE
constexpr bool kIsChecked = true;
#else
constexpr bool kIsChecked = false;
#endif

// Words are compared so many at a time; a path's are padded with repetitions.
constexpr uint32_t kWordsAtOnce = 4;

// What a walk depended on: a witness of RuleWalk::Leave. Offsets count words from the caller's sp. Return addresses
// come first, in the order of the frames.
class PathRecord {
 public:
  static constexpr uint32_t kMaxWords = 256;
  static constexpr uint32_t kMaxObjects = 6;
  static constexpr uint16_t kMaxOffset = 0xffff;

  // An object that can be unloaded, and a frame of the path that lies in it. 0: none.
  struct Object {
    uint16_t id;
    uint16_t frame;
  };

  explicit PathRecord(const Caller& caller) : sp_(caller.sp) {}

  // Before the step out of frame number `frame`. Whether the path can still be remembered.
  bool Enters(PackedRule rule, int frame) {
    if (rule.object() == 0) return true;
    for (uint32_t i = 0; i < object_count_; ++i) {
      if (objects_[i].id == rule.object()) return true;
    }
    if (object_count_ == kMaxObjects) return false;
    objects_[object_count_++] = {static_cast<uint16_t>(rule.object()), static_cast<uint16_t>(frame)};
    return true;
  }

  void UsesFp() {
    if (fp_ == Fp::kInitial) {
      uses_fp_ = true;
    } else if (fp_ == Fp::kRestored) {
      Reads(fp_at_, fp_word_);
      fp_ = Fp::kRestoredAndUsed;
    }
  }
  void Reads(uintptr_t address, uintptr_t word) {
    if (others_ + frames_ == kMaxWords) return Untold();
    ++others_;
    Put(kMaxWords - others_, address, word);
  }
  void Restores(uintptr_t address, uintptr_t word) {
    fp_ = Fp::kRestored;
    fp_at_ = address;
    fp_word_ = word;
  }
  void Returns(uintptr_t address, uintptr_t word) {
    if (others_ + frames_ == kMaxWords) return Untold();
    Put(frames_, address, word);
    ++frames_;
  }
  void Untold() { fits_ = false; }

  bool fits() const { return fits_; }
  bool uses_fp() const { return uses_fp_; }
  const Object* objects() const { return objects_; }
  uint32_t words() const { return frames_ + others_; }
  // The n-th of words().
  uint16_t offset(uint32_t n) const { return offsets_[IndexOf(n)]; }
  uintptr_t word(uint32_t n) const { return words_[IndexOf(n)]; }

 private:
  enum class Fp : uint8_t { kInitial, kRestored, kRestoredAndUsed };

  uint32_t IndexOf(uint32_t n) const { return n < frames_ ? n : kMaxWords - 1 - (n - frames_); }
  void Put(uint32_t index, uintptr_t address, uintptr_t word) {
    const uintptr_t distance = address - sp_;
    const uintptr_t offset = distance / sizeof(uintptr_t);
    if (offset > kMaxOffset || distance % sizeof(uintptr_t) != 0) return Untold();
    offsets_[index] = static_cast<uint16_t>(offset);
    words_[index] = word;
  }

  const uintptr_t sp_;
  uint32_t frames_ = 0;
  uint32_t others_ = 0;
  uint32_t object_count_ = 0;
  Object objects_[kMaxObjects] = {};
  bool uses_fp_ = false;
  bool fits_ = true;
  Fp fp_ = Fp::kInitial;
  uintptr_t fp_at_ = 0;
  uintptr_t fp_word_ = 0;
  uint16_t offsets_[kMaxWords];
  uintptr_t words_[kMaxWords];
};

struct Path {
  uint64_t number;  // of no other path of the process, ever
  // Where it begins; `fp` matters if `uses_fp`.
  uintptr_t pc;
  uintptr_t sp;
  uintptr_t fp;
  // Among all words that the memo ever held, and in its present array: where `pc` is, which the path's words follow.
  uint64_t position;
  uint32_t start;
  uint16_t words;  // a multiple of kWordsAtOnce
  uint16_t depth;  // frames: `pc` and the first words
  uint16_t max_depth;
  bool uses_fp;
  WalkEnd end;
  PathRecord::Object objects[PathRecord::kMaxObjects];
};

class Memo {
 public:
  // The path that `caller` is at the inner end of, if it is known; null if not.
  const Path* Find(const Caller& caller, int max_depth) {
    const uint64_t hash = Hash(caller);
    Set& set = sets_[SetOf(hash)];
    const uint32_t tag = TagOf(hash);
    uint32_t way = set.last_found;
    for (uint32_t i = 0; i < kWays; ++i, way = (way + 1) % kWays) {
      if (set.tags[way] != tag) continue;
      const Path& path = set.paths[way];
      if (path.pc != caller.pc || path.sp != caller.sp || !StandsFor(path, caller, max_depth)) continue;
      set.last_found = way;
      ++hits_;
      return &path;
    }
    return nullptr;
  }

  const uintptr_t* PcsOf(const Path& path) const { return words_ + path.start; }

  // Where paths hardly repeat, remembering them is a loss, so that it is tried for a while only now and then.
  bool IsPausing() const { return !kIsChecked && pause_ > 0; }

  // After a walk that Find did not save. Whether to remember it: if it has been walked before, not too long ago.
  bool IsWorthLearning(const Caller& caller, const uintptr_t* pcs, const WalkResult& walk) {
    if (kIsChecked) return true;
    if (pause_ > 0) {
      --pause_;
      return false;
    }
    if (++misses_ + hits_ > kTrialWalks) {
      const bool pays = hits_ >= learnings_;
      last_pause_ = pays ? 0 : std::clamp(last_pause_ * 2, kShortestPause, kLongestPause);
      pause_ = last_pause_;
      hits_ = 0;
      misses_ = 0;
      learnings_ = 0;
    }
    uint64_t hash = Hash(caller);
    for (int i = 1; i < walk.depth; ++i) hash = hash * 31 + pcs[i];
    hash = MixAddress(hash);
    uint16_t& seen = seen_[hash >> (64 - kSeenBits)];
    const auto mark = static_cast<uint16_t>(hash >> 16);
    if (seen == mark) {
      ++learnings_;
      return true;
    }
    seen = mark;
    return false;
  }

  // Remembers a path in place of the one that has been in its set longest.
  const Path& Insert(const Caller& caller, const PathRecord& record, const WalkResult& walk, int max_depth) {
    const uint64_t hash = Hash(caller);
    Set& set = sets_[SetOf(hash)];
    const uint32_t way = set.victim++ % kWays;
    const uint32_t count = record.words();
    const uint32_t padded = (count + kWordsAtOnce - 1) / kWordsAtOnce * kWordsAtOnce;
    // In one piece; what was there is overwritten.
    if (head_ % kCapacity + padded + 1 > kCapacity) head_ += kCapacity - head_ % kCapacity;
    set.tags[way] = TagOf(hash);
    Path& path = set.paths[way];
    path.number = NewNumber();
    path.pc = caller.pc;
    path.sp = caller.sp;
    path.fp = caller.fp;
    path.position = head_;
    path.start = static_cast<uint32_t>(head_ % kCapacity);
    path.words = static_cast<uint16_t>(padded);
    path.depth = static_cast<uint16_t>(walk.depth);
    path.max_depth = static_cast<uint16_t>(max_depth);
    path.uses_fp = record.uses_fp();
    path.end = walk.end;
    std::copy(record.objects(), record.objects() + PathRecord::kMaxObjects, path.objects);
    words_[path.start] = caller.pc;
    for (uint32_t i = 0; i < padded; ++i) {
      offsets_[path.start + 1 + i] = record.offset(std::min(i, count - 1));
      words_[path.start + 1 + i] = record.word(std::min(i, count - 1));
    }
    head_ += padded + 1;
    return path;
  }

 private:
  static constexpr uint32_t kSets = 48;
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kCapacity = 4600;  // words
  static constexpr uint32_t kSeenBits = 10;
  static constexpr uint32_t kTrialWalks = 256;
  static constexpr uint32_t kShortestPause = 1024;
  static constexpr uint32_t kLongestPause = 1 << 14;

  struct Set {
    uint32_t tags[kWays];  // mapped as zeros: no tag is 0
    uint32_t last_found;
    uint32_t victim;
    Path paths[kWays];
  };

  // Whether the stack still holds what `path`, which begins here, was learnt from.
  bool StandsFor(const Path& path, const Caller& caller, int max_depth) const {
    if (path.position + kCapacity < head_ || path.max_depth != max_depth) return false;
    if (path.uses_fp && path.fp != caller.fp) return false;
    const uint16_t* offsets = offsets_ + path.start + 1;
    const uintptr_t* words = words_ + path.start + 1;
    const uintptr_t sp = caller.sp;
    for (size_t i = 0, end = path.words; i != end; i += kWordsAtOnce) {
      if (LoadStackWord(sp, offsets[i]) != words[i] || LoadStackWord(sp, offsets[i + 1]) != words[i + 1] ||
          LoadStackWord(sp, offsets[i + 2]) != words[i + 2] || LoadStackWord(sp, offsets[i + 3]) != words[i + 3]) {
        return false;
      }
    }
    return path.objects[0].id == 0 || AreLoaded(path);
  }

  // Whether the objects of the path are what is loaded there.
  [[gnu::noinline]] bool AreLoaded(const Path& path) const {
    ObjectCheck check;
    for (const PathRecord::Object& object : path.objects) {
      if (object.id != 0 && !check.IsLoaded(object.id, PcsOf(path)[object.frame] - 1)) return false;
    }
    return true;
  }

  // Each memo counts in a range of its own.
  uint64_t NewNumber() {
    static std::atomic<uint64_t> ranges{0};
    if (next_number_ == 0) next_number_ = (ranges.fetch_add(1, std::memory_order_relaxed) + 1) << 40;
    return next_number_++;
  }

  static uint64_t Hash(const Caller& caller) { return MixAddress(caller.pc + (caller.sp << 21)); }
  static uint32_t SetOf(uint64_t hash) { return static_cast<uint32_t>((hash >> 32) * kSets >> 32); }
  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 20) | 1; }

  // Mapped as zeros.
  uint32_t pause_;  // walks to come that are not remembered
  uint32_t last_pause_;
  // Since the last decision.
  uint32_t hits_;
  uint32_t misses_;
  uint32_t learnings_;
  uint64_t next_number_;
  uint64_t head_;  // the position of the next word
  uint16_t seen_[1 << kSeenBits];
  Set sets_[kSets];
  uint16_t offsets_[kCapacity];
  uintptr_t words_[kCapacity];
};
constexpr size_t kMemoBytes = size_t{64} << 10;
static_assert(sizeof(Memo) <= kMemoBytes);

// Walks again, for the memo; null where the path cannot be remembered.
const Path* Learn(Memo* memo, const Caller& caller, int max_depth) {
  RuleWalk walk(caller);
  if (!walk.memory.is_own()) return nullptr;
  PathRecord record(caller);
  for (int depth = 1;; ++depth) {
    const PackedRule rule = walk.Rule();
    if (rule.kind() == FrameRule::kSignal || !record.Enters(rule, depth - 1)) return nullptr;
    const RuleWalk::Step step = walk.Leave(rule, &record);
    // A frame that no rule describes, or that is not as its rule says.
    if (step == RuleWalk::Step::kUnknown || !record.fits()) return nullptr;
    const bool is_end = step == RuleWalk::Step::kOutermost;
    if (!is_end && depth < max_depth) continue;
    if (record.words() == 0) return nullptr;
    return &memo->Insert(caller, record, {depth, is_end ? WalkEnd::kOutermost : WalkEnd::kDepth}, max_depth);
  }
}

// Plain data in the static TLS block, for signal handlers' sake.
struct ThreadMemo {
  Memo* memo;
  uint32_t captures;  // before it got one
  bool is_taken;      // in use, by a capture that this one may have interrupted; or the thread is ending
};
__thread ThreadMemo thread_memo __attribute__((tls_model("initial-exec"))) = {nullptr, 0, false};

// Calls GiveBack at thread exit, in threads whose value for it is not null.
std::atomic<bool> has_key{false};
pthread_key_t key;

void GiveBack(void* memo) {
  thread_memo.is_taken = true;
  thread_memo.memo = nullptr;
  UnmapPages(memo, kMemoBytes);
}

Memo* Obtain() {
  // A thread that captures now and then is not worth the pages.
  constexpr uint32_t kCapturesBefore = 16;
  ThreadMemo& mine = thread_memo;
  if (mine.captures < kCapturesBefore) {
    ++mine.captures;
    return nullptr;
  }
  if (!has_key.load(std::memory_order_acquire)) return nullptr;
  auto* memo = static_cast<Memo*>(MapPages(kMemoBytes));
  if (memo != nullptr && pthread_setspecific(key, memo) != 0) {
    UnmapPages(memo, kMemoBytes);
    memo = nullptr;
  }
  if (memo == nullptr) mine.captures = 0;
  mine.memo = memo;
  return memo;
}

// Marks the thread's memo as taken while it lives. The fences keep the compiler from moving what is done meanwhile out
// of its reach, as a signal handler would see it.
class Taken {
 public:
  explicit Taken(ThreadMemo& mine) : mine_(mine) {
    mine_.is_taken = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Taken() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    mine_.is_taken = false;
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

 private:
  ThreadMemo& mine_;
};

void CheckAgainstRules(const Caller& caller, int max_depth, const CapturedStack& stack) {
  uintptr_t checked[kMaxStackDepth];
  const WalkResult walked = WalkByRules(caller, checked, max_depth, /*guess=*/false);
  if (walked.end == WalkEnd::kUnknown || walked.depth != stack.depth ||
      stack.truncated != (walked.end == WalkEnd::kDepth) || !std::equal(checked, checked + walked.depth, stack.pcs)) {
    std::fprintf(stderr, "hbmprof: a remembered stack of %d frames differs from the present one of %d\n", stack.depth,
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
  if (pthread_key_create(&key, &GiveBack) != 0) return;
  if (key < kKeysInThread) {
    has_key.store(true, std::memory_order_release);
  } else {
    pthread_key_delete(key);
  }
}

bool RecallPath(const Caller& caller, int max_depth, CapturedStack* stack) {
  ThreadMemo& mine = thread_memo;
  if (mine.memo == nullptr || mine.is_taken || mine.memo->IsPausing() || !IsOnOwnStack(caller.sp)) return false;
  {
    Taken taken(mine);
    const Path* path = mine.memo->Find(caller, max_depth);
    if (path == nullptr) return false;
    *stack = {mine.memo->PcsOf(*path), path->depth, path->end == WalkEnd::kDepth, path->number};
  }
  if (kIsChecked) CheckAgainstRules(caller, max_depth, *stack);
  return true;
}

WalkResult WalkToRemember(const Caller& caller, uintptr_t* pcs, int max_depth, uint64_t* path) {
  *path = 0;
  const WalkResult walk = WalkByRules(caller, pcs, max_depth, /*guess=*/false);
  ThreadMemo& mine = thread_memo;
  if (mine.is_taken || walk.end == WalkEnd::kUnknown || !IsOnOwnStack(caller.sp)) return walk;
  Taken taken(mine);
  Memo* memo = mine.memo != nullptr ? mine.memo : Obtain();
  if (memo == nullptr || !memo->IsWorthLearning(caller, pcs, walk)) return walk;
  const Path* learnt = Learn(memo, caller, max_depth);
  if (learnt != nullptr) *path = learnt->number;
  return walk;
}

}  // namespace hbmprof::internal
