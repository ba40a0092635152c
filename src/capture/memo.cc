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

// Frames outward of one frame, and the words that prove them. Offsets count words from `sp`.
struct Run {
  static constexpr uint32_t kWords = 16;
  static constexpr uint16_t kNoOffset = 0xffff;

  uint64_t number;  // of no other run of the process, ever
  // Where it begins; `fp` matters if `uses_fp`.
  uintptr_t pc;
  uintptr_t sp;
  uintptr_t fp;
  // Where it leads: that frame's sp, and the word that is its fp (kNoOffset: the same as at the beginning).
  uint16_t end_sp;
  uint16_t end_fp;
  uint16_t object;            // see PackedRule; 0: none that can be unloaded
  uint16_t frames : 5;        // return addresses: the first words
  uint16_t others : 4;        // further words: the last ones
  uint16_t object_frame : 5;  // return addresses passed before the first frame of `object`
  uint16_t uses_fp : 1;
  uint16_t is_outermost : 1;  // the frame it leads to is the stack's last
  uint16_t offsets[kWords];
  uintptr_t words[kWords];

  uintptr_t AddressInObject() const { return (object_frame == 0 ? pc : words[object_frame - 1]) - 1; }

  // Whether the stack still holds what it was learnt from; then `pcs` gets the return addresses. All of a run's words
  // lie on the thread's own stack.
  bool StandsFor(uintptr_t fp_now, uintptr_t* pcs) const {
    if (uses_fp && fp != fp_now) return false;
    uintptr_t difference = 0;
    for (uint32_t i = 0, n = frames; i < n; ++i) {
      const uintptr_t word = LoadStackWord(sp, offsets[i]);
      pcs[i] = word;
      difference |= word ^ words[i];
    }
    for (uint32_t i = kWords - others; i < kWords; ++i) difference |= LoadStackWord(sp, offsets[i]) ^ words[i];
    return difference == 0;
  }
};
static_assert(sizeof(Run) == 200);

class Memo {
 public:
  // The run that begins where `walk` is and stands for it, null if there is none; `pcs`, with room for a run, gets its
  // return addresses.
  const Run* Find(RuleWalk* walk, uintptr_t* pcs) const {
    const uintptr_t pc = walk->address + 1;
    const uint64_t hash = Hash(pc, walk->sp);
    const uint32_t set = SetOf(hash);
    const uint32_t tag = TagOf(hash);
    for (uint32_t way = 0; way < kWays; ++way) {
      if (tags_[set][way] != tag) continue;
      const Run& run = runs_[set][way];
      if (run.pc == pc && run.sp == walk->sp && run.StandsFor(walk->fp, pcs) &&
          (run.object == 0 || walk->objects.IsLoaded(run.object, run.AddressInObject()))) {
        return &run;
      }
    }
    return nullptr;
  }

  // Whether it is worth asking, for a walk that begins now: where paths hardly repeat, remembering them is a loss, so
  // that it is tried for a while only now and then.
  bool IsWorthwhile() {
    if (kIsChecked) return true;
    if (pause_ > 0) {
      --pause_;
      return false;
    }
    if (++trial_walks_ > kTrialWalks) {
      const bool pays = hits_ * 3 > misses_ * 5;
      last_pause_ = pays ? 0 : std::clamp(last_pause_ * 2, kShortestPause, kLongestPause);
      if (!pays) pause_ = last_pause_;
      trial_walks_ = 0;
      hits_ = 0;
      misses_ = 0;
    }
    return true;
  }
  void CountHit() { ++hits_; }

  // In place of the one that has been in its set longest.
  void Insert(const Run& run) {
    ++misses_;
    const uint64_t hash = Hash(run.pc, run.sp);
    const uint32_t set = SetOf(hash);
    const uint32_t way = victims_[set]++ % kWays;
    tags_[set][way] = TagOf(hash);
    runs_[set][way] = run;
    runs_[set][way].number = NewNumber();
  }

  // The number of the path that is `path` (0: nothing yet) followed by `run`.
  uint64_t Append(uint64_t path, const Run& run) {
    if (path == 0) return run.number;
    Junction& junction = junctions_[(path * 31 + run.number) % kJunctions];
    if (junction.path != path || junction.run != run.number) junction = {path, run.number, NewNumber()};
    return junction.both;
  }

 private:
  struct Junction {
    uint64_t path;
    uint64_t run;
    uint64_t both;
  };
  static constexpr uint32_t kSets = 72;
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kJunctions = 128;
  static constexpr uint32_t kTrialWalks = 256;
  static constexpr uint32_t kShortestPause = 1024;
  static constexpr uint32_t kLongestPause = 1 << 14;

  // Each memo counts in a range of its own.
  uint64_t NewNumber() {
    static std::atomic<uint64_t> ranges{0};
    if (next_number_ == 0) next_number_ = (ranges.fetch_add(1, std::memory_order_relaxed) + 1) << 40;
    return next_number_++;
  }

  static uint64_t Hash(uintptr_t pc, uintptr_t sp) { return MixAddress(pc ^ (sp << 24)); }
  static uint32_t SetOf(uint64_t hash) { return static_cast<uint32_t>((hash & 0xffffffff) * kSets >> 32); }
  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1; }

  // Mapped as zeros: no tag is 0.
  uint32_t pause_;  // walks to come that do without
  uint32_t last_pause_;
  uint32_t trial_walks_;  // since the last decision, with hits_ and misses_
  uint32_t hits_;
  uint32_t misses_;
  uint32_t tags_[kSets][kWays];
  uint8_t victims_[kSets];
  uint64_t next_number_;
  Junction junctions_[kJunctions];
  alignas(64) Run runs_[kSets][kWays];
};
constexpr size_t kMemoBytes = size_t{64} << 10;
static_assert(sizeof(Memo) <= kMemoBytes);

// Makes a Run of the steps of a walk; a witness of RuleWalk::Leave.
class Recorder {
 public:
  void Begin(const RuleWalk& walk) {
    run_.pc = walk.address + 1;
    run_.sp = walk.sp;
    run_.fp = walk.fp;
    run_.object = 0;
    run_.object_frame = 0;
    frames_ = 0;
    others_ = 0;
    uses_fp_ = false;
    fits_ = true;
    fp_ = Fp::kInitial;
  }

  // Whether a step by `rule` can be part of this run.
  bool Accepts(PackedRule rule) {
    // A step adds up to three words.
    if (frames_ + others_ + 3 > Run::kWords) return false;
    if (rule.object() == 0 || rule.object() == run_.object) return true;
    if (run_.object != 0) return false;
    run_.object = static_cast<uint16_t>(rule.object());
    run_.object_frame = static_cast<uint16_t>(frames_ & 31);
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
    ++others_;
    Put(Run::kWords - others_, address, word);
  }
  void Restores(uintptr_t address, uintptr_t word) {
    fp_ = Fp::kRestored;
    fp_at_ = address;
    fp_word_ = word;
  }
  void Returns(uintptr_t address, uintptr_t word) {
    Put(frames_, address, word);
    ++frames_;
  }
  void Untold() { fits_ = false; }

  // At addresses that do not depend on where the run began, once it is worth its lookup.
  bool ShouldEnd(const RuleWalk& walk) const { return frames_ >= 4 && (MixAddress(walk.sp) & 7) == 0; }

  // The run from Begin to where `walk` is now; null if it cannot be remembered.
  const Run* Finish(const RuleWalk& walk, bool is_outermost) {
    run_.end_sp = OffsetOf(walk.sp);
    run_.end_fp = fp_ == Fp::kInitial ? Run::kNoOffset : OffsetOf(fp_at_);
    run_.frames = static_cast<uint16_t>(frames_ & 31);
    run_.others = static_cast<uint16_t>(others_ & 15);
    run_.uses_fp = uses_fp_;
    run_.is_outermost = is_outermost;
    return fits_ && (frames_ > 0 || is_outermost) ? &run_ : nullptr;
  }

 private:
  enum class Fp : uint8_t { kInitial, kRestored, kRestoredAndUsed };

  uint16_t OffsetOf(uintptr_t address) {
    const uintptr_t offset = (address - run_.sp) / sizeof(uintptr_t);
    if (offset >= Run::kNoOffset) {
      fits_ = false;
      return 0;
    }
    return static_cast<uint16_t>(offset);
  }
  void Put(uint32_t index, uintptr_t address, uintptr_t word) {
    run_.offsets[index] = OffsetOf(address);
    run_.words[index] = word;
  }

  Run run_;
  uint32_t frames_ = 0;
  uint32_t others_ = 0;
  bool uses_fp_ = false;
  bool fits_ = true;
  Fp fp_ = Fp::kInitial;
  uintptr_t fp_at_ = 0;
  uintptr_t fp_word_ = 0;
};

WalkResult Walk(Memo* memo, const Caller& caller, uintptr_t* pcs, int max_depth) {
  RuleWalk walk(caller);
  pcs[0] = caller.pc;
  int depth = 1;
  if (!walk.memory.is_own()) return ContinueByRules(&walk, depth, pcs, max_depth, /*guess=*/false);
  Recorder recorder;
  uint64_t path = 0;  // of the runs found so far, while all were found
  bool is_known = true;
  for (;;) {
    uintptr_t beyond[Run::kWords];  // for a run that may not fit
    const int room = max_depth - depth;
    uintptr_t* target = room >= static_cast<int>(Run::kWords) ? pcs + depth : beyond;
    const Run* known = memo->Find(&walk, target);
    if (known != nullptr) {
      memo->CountHit();
      const int frames = known->frames;
      if (target == beyond) std::copy(beyond, beyond + std::min(frames, room), pcs + depth);
      if (is_known) path = memo->Append(path, *known);
      if (frames > room) return {max_depth, WalkEnd::kDepth, path};
      depth += frames;
      if (known->is_outermost) return {depth, WalkEnd::kOutermost, path};
      walk.address = known->words[frames - 1] - 1;
      if (known->end_fp != Run::kNoOffset) walk.fp = LoadStackWord(walk.sp, known->end_fp);
      walk.sp += known->end_sp * sizeof(uintptr_t);
      continue;
    }
    is_known = false;
    path = 0;
    recorder.Begin(walk);
    do {
      const PackedRule rule = walk.Rule();
      if (!recorder.Accepts(rule)) break;
      const RuleWalk::Step step = walk.Leave(rule, &recorder);
      if (step == RuleWalk::Step::kUnknown) return {depth, WalkEnd::kUnknown};
      if (step == RuleWalk::Step::kOutermost) {
        if (rule.kind() == FrameRule::kOutermost) {
          const Run* run = recorder.Finish(walk, /*is_outermost=*/true);
          if (run != nullptr) memo->Insert(*run);
        }
        return {depth, WalkEnd::kOutermost};
      }
      if (depth == max_depth) {
        const Run* run = recorder.Finish(walk, /*is_outermost=*/false);
        if (run != nullptr) memo->Insert(*run);
        return {depth, WalkEnd::kDepth};
      }
      pcs[depth++] = walk.address + 1;
      if (rule.kind() == FrameRule::kSignal) return ContinueByRules(&walk, depth, pcs, max_depth, /*guess=*/false);
    } while (!recorder.ShouldEnd(walk));
    const Run* run = recorder.Finish(walk, /*is_outermost=*/false);
    if (run != nullptr) memo->Insert(*run);
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

WalkResult WalkWithMemo(const Caller& caller, uintptr_t* pcs, int max_depth) {
  ThreadMemo& mine = thread_memo;
  if (mine.is_taken) return WalkByRules(caller, pcs, max_depth, /*guess=*/false);
  mine.is_taken = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Memo* memo = mine.memo != nullptr ? mine.memo : Obtain();
  const WalkResult result = memo != nullptr && memo->IsWorthwhile()
                                ? Walk(memo, caller, pcs, max_depth)
                                : WalkByRules(caller, pcs, max_depth, /*guess=*/false);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.is_taken = false;
  if (kIsChecked) {
    uintptr_t checked[kMaxStackDepth];
    const WalkResult walked = WalkByRules(caller, checked, max_depth, /*guess=*/false);
    if (walked.depth != result.depth || walked.end != result.end || !std::equal(pcs, pcs + result.depth, checked)) {
      std::fprintf(stderr, "hbmprof: a remembered walk of %d frames differs from the stack's %d\n", result.depth,
                   walked.depth);
      std::abort();
    }
  }
  return result;
}

}  // namespace hbmprof::internal
