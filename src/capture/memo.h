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
// - Frames found by other registers: they have no rule (cfi.h), and the whole capture goes to libunwind.
// - The frame pointer as a mere register: it is compared only where a frame of the path was found by it.
// - An address that comes to mean something else: a path names the objects in it that can be unloaded, and is believed
//   only while they are what is loaded there (rules.h).
// - Signal handlers that capture while the memo is being read or written: a node's tag is written last, so that it
// never
//   leads to no path; whatever path it leads to is compared in full, and paths are immutable.
// - Sanitizers: stack words are loaded uninstrumented (stack_memory.h).
// - fork: the child has its own copy of the forking thread's memo and stack.
//
// With HBMPROF_CHECK_CAPTURE defined, every stack is learnt at once, every remembered one is walked again by rules, and
// a difference aborts.
#ifndef HBMPROF_SRC_CAPTURE_MEMO_H_
#define HBMPROF_SRC_CAPTURE_MEMO_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/paths.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// Makes memos possible for threads from here on. Takes no lock. A thread gets its memo, 64 KiB of pages of its own,
// when it has made some captures, and gives it back when it ends.
void PrepareMemos();

// The path of the stack that begins at `caller`, cut at `max_depth` frames, if the calling thread remembers it; null if
// not.
const Path* RecallStack(const Caller& caller, int max_depth);

// For a stack that RecallStack does not know: exactly WalkByRules(caller, pcs, max_depth, /*guess=*/false). `path` gets
// the path by which the stack is remembered from now on, or null.
WalkResult WalkToRemember(const Caller& caller, uintptr_t* pcs, int max_depth, const Path** path);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_MEMO_H_
