// Remembered walks: the frames of a stack seen before, proven to be there still, without walking.
//
// Walking from a frame is a pure function of (pc, sp, fp) and of the stack words that decided it: the return addresses,
// and the saved frame pointers that later frames are found by. A thread's Memo keeps runs of up to 16 frames with those
// words. To walk: find the run that begins at this (pc, sp), load its words, compare all. Equal means that the frames
// are these, and the walk goes on behind them; else the frames are walked by rules, and remembered. Runs end at stack
// addresses chosen by their hash, so that stacks with a common outer part share its runs whatever is inside. A thread
// whose paths hardly repeat walks by rules instead, and tries again now and then.
//
// What could make a remembered run untrue, and why it does not:
// - Words elsewhere: a run is learnt, and used, only while the walk is on the thread's own stack, whose bounds never
//   change. Fibers and alternate signal stacks are walked by rules; so is everything outward of a signal's frame.
// - Frames found by other registers: they have no rule (cfi.h), and the whole capture goes to libunwind.
// - The frame pointer as a mere register: it is compared only where a frame of the run was found by it.
// - An address that comes to mean something else: a run names the one object in it that can be unloaded, if any, and is
//   believed only while that is what is loaded there (rules.h). A run does not cross two such objects.
// - Signal handlers that capture while the memo is being read or written: they find it taken, and walk by rules.
// - Sanitizers: stack words are loaded uninstrumented (stack_memory.h).
// - fork: the child has its own copy of the forking thread's memo and stack.
//
// With HBMPROF_CHECK_CAPTURE defined, memos are always asked, every walk is walked again by rules, and a difference
// aborts.
#ifndef HBMPROF_SRC_CAPTURE_MEMO_H_
#define HBMPROF_SRC_CAPTURE_MEMO_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// Makes memos possible for threads from here on. Takes no lock. A thread gets its memo, 64 KiB of pages of its own,
// when it has made some captures, and gives it back when it ends.
void PrepareMemos();

// Exactly WalkByRules(caller, pcs, max_depth, /*guess=*/false), by the calling thread's memo where it has one.
WalkResult WalkWithMemo(const Caller& caller, uintptr_t* pcs, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_MEMO_H_
