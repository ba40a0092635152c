// Remembered stacks: the frames of a stack seen before, proven to be there still, without walking.
//
// A thread's memo leads from (pc, sp) to the paths (paths.h) that were met there. To capture: take one, load the words
// that it depends on, compare all. Equal means that the frames are these. Else the stack is walked by rules; a stack
// that is walked for the second time is walked once more, to learn its path. A thread whose stacks hardly repeat does
// without, and tries again now and then.
//
// What could make a remembered path untrue, and why it does not:
// - Words elsewhere: a path is learnt, and used, only if all of it is on the thread's own stack, whose bounds never
//   change. Fibers and alternate signal stacks are walked by rules; so is a stack with a signal's frame.
// - Frames found by other registers, or guessed: a stack with one is walked anew each time.
// - The frame pointer as a mere register: it is compared only where a frame of the path was found by it.
// - An address that comes to mean something else: a path names the objects in it that can be unloaded, and is believed
//   only while they are what is loaded there (rules.h).
// - Signal handlers that capture while the memo is being read or written: a node's tag is written last, so that it
//   never leads to no path; whatever path it leads to is compared in full, and paths are immutable.
// - Sanitizers: stack words are loaded uninstrumented (stack_memory.h).
// - fork: the child has its own copy of the forking thread's memo and stack.
//
// With HBMPROF_CHECK_CAPTURE defined (memo.cc), every stack is learnt at once, every remembered one is walked again by
// rules, and a difference aborts.
#ifndef HBMPROF_SRC_CAPTURE_MEMO_H_
#define HBMPROF_SRC_CAPTURE_MEMO_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/paths.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// One thread's. A signal handler may interrupt any of this, and use it too; what is lost then is no more
// than an entry or a count.
//
// A tree of the paths that were met, flattened into one hash table. Its root is a caller's (pc, sp). A node is a path,
// or, where several paths were met, the place of the innermost return address in which they differ: the word there
// leads on. (Stacks that are equal up to a frame have the next return address at the same place.) Any node may give way
// to another; what hangs below it is then met anew.
class Memo {
 public:
  // In zeros, for the thread whose stack has those bounds.
  void Start(const StackBounds& bounds) {
    stack_low_ = bounds.low;
    stack_bytes_ = bounds.high - bounds.low;
  }

  // The path of the stack that begins at `caller`, cut at `max_depth` frames, if it is remembered; null if not.
  [[gnu::always_inline]] const Path* Find(const Caller& caller, int max_depth) {
    const uintptr_t place_of_sp = caller.sp - stack_low_;
    if (place_of_sp >= stack_bytes_) return nullptr;
    const uintptr_t bytes = stack_bytes_ - place_of_sp;
    uint64_t key = Root(caller);
    for (;;) {
      const Node* node = NodeOf(key);
      if (node == nullptr) return nullptr;
      if (node->place == Path::kNoPlace) {
        const Path* path = PathAt(node->path);
        if (!path->StandsAt(caller, bytes, max_depth)) return nullptr;
        ++hits_;
        return path;
      }
      const uintptr_t offset = node->place * sizeof(uintptr_t);
      if (offset >= bytes) return nullptr;
      key = Child(key, LoadStackWord(caller.sp + offset));
    }
  }

  // Remembers the path of a stack that begins at `caller`.
  void Insert(const Caller& caller, const Path* path);

  // Where stacks hardly repeat, remembering them is a loss, so that it is tried for a while only now and then.
  bool is_pausing() const { return pause_ > 0; }

  // One attempt to learn a path, whatever came of it.
  void CountLearning() { ++learnings_; }

  // After a walk that Find did not save. Whether to remember the stack: if it was walked before, not too long ago.
  bool IsWorthLearning(const Caller& caller, const uintptr_t* pcs, int depth);

 private:
  static constexpr uint32_t kSetBits = 9;
  static constexpr uint32_t kWays = 8;
  struct Node {
    uint16_t tag;    // never 0 but where there is no node
    uint16_t place;  // where it branches; kNoPlace if it is a path
    uint32_t path;   // its number, or that of a path below
  };
  struct alignas(64) Set {
    Node nodes[kWays];
  };
  static_assert(sizeof(Set) == 64, "one cache line");
  static constexpr uint32_t kSeenBits = 11;
  static constexpr uint32_t kTrialCaptures = 2048;
  static constexpr uint32_t kShortestPause = 1024;
  static constexpr uint32_t kLongestPause = 1 << 14;

  static uint64_t Root(const Caller& caller) { return MixAddress(caller.pc + (caller.sp << 21)); }
  static uint64_t Child(uint64_t key, uintptr_t word) { return MixAddress((key ^ key >> 32) + word); }
  static uint16_t TagOf(uint64_t key) { return static_cast<uint16_t>(key >> 24 | 1); }

  Set& SetOf(uint64_t key) { return sets_[key >> (64 - kSetBits)]; }
  // Null if there is none. Not all ways at once: the branches, which the processor foresees from the calls before, let
  // it run ahead.
  Node* NodeOf(uint64_t key) {
    const uint16_t tag = TagOf(key);
    for (Node& node : SetOf(key).nodes) {
      if (node.tag == tag) return &node;
    }
    return nullptr;
  }
  void Add(uint64_t key, const Path* path);

  // Mapped as zeros.
  Set sets_[1 << kSetBits];
  uintptr_t stack_low_;
  uintptr_t stack_bytes_;
  uint32_t pause_;  // walks to come that are not remembered
  uint32_t last_pause_;
  // Since the last decision.
  uint32_t hits_;
  uint32_t misses_;
  uint32_t learnings_;
  uint16_t seen_[1 << kSeenBits];
};

// The calling thread's memo; null while it has none or none that is to be asked. Plain data in the static TLS block,
// for signal handlers' sake.
extern __thread Memo* memo_to_ask __attribute__((tls_model("initial-exec")));

// Makes memos possible for threads from here on. Takes no lock. A thread gets its memo, 52 KiB of pages of its own,
// when it has made some captures, and gives it back when it ends.
void PrepareMemos();

// For a stack that the memo does not know: exactly WalkByRules(caller, pcs, max_depth, /*guess=*/false). `path` gets
// the path by which the stack is remembered from now on, or null.
WalkResult WalkToRemember(const Caller& caller, uintptr_t* pcs, int max_depth, const Path** path);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_MEMO_H_
