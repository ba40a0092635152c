// Reads words of a stack during a walk, without access to unmapped memory.
//
// A StackMemory covers the stack that contains a given stack pointer:
// - the thread's own stack, whose bounds are found once per thread, or
// - any other stack (of a fiber, or a signal handler's alternate stack): the pages from the stack pointer upwards. Each
//   walk checks once for each page, by a system call, whether it can be read. Pages are added only in the order of
//   their addresses, so a wrong address is rejected unless all pages up to it can be read.
#ifndef HBMPROF_SRC_CAPTURE_STACK_MEMORY_H_
#define HBMPROF_SRC_CAPTURE_STACK_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "src/capture/architecture.h"

namespace hbmprof::internal {

struct StackBounds {
  uintptr_t low;   // lowest address above the guard
  uintptr_t high;  // end; 0: not determined yet
};

// The calling thread's own stack; an empty range if it is unknown. Plain data in the static TLS block.
extern __thread StackBounds thread_stack_bounds __attribute__((tls_model("initial-exec")));
// Determines and sets thread_stack_bounds. Does not call malloc, takes no lock, and does not change errno.
StackBounds FindThreadStackBounds();
inline StackBounds ThreadStackBounds() {
  const StackBounds bounds = thread_stack_bounds;
  return bounds.high != 0 ? bounds : FindThreadStackBounds();
}

// Returns whether `address` is on the calling thread's own stack. All of that stack above the stack pointer can be
// read.
inline bool IsOnOwnStack(uintptr_t address) {
  const StackBounds own = ThreadStackBounds();
  return address - own.low < own.high - own.low;
}

// Returns the bytes of stack below the calling function's frame. Returns 0 on other stacks than the thread's own,
// because their sizes are unknown.
[[gnu::always_inline]] inline size_t AvailableStackBytes() {
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return IsOnOwnStack(frame) ? frame - ThreadStackBounds().low : 0;
}

// Copies bytes from any address, through the kernel. Returns false if they cannot be read. Another thread may unmap
// them meanwhile, except where the process may not call process_vm_readv. Async-signal-safe. Does not change errno.
bool CopyReadable(uintptr_t from, void* to, size_t bytes);

class StackMemory {
 public:
  explicit StackMemory(uintptr_t sp) : is_own_(IsOnOwnStack(sp)) {
    const uintptr_t start = sp & ~uintptr_t{7};
    const StackBounds bounds = is_own_ ? ThreadStackBounds() : StackBounds{start, start};
    low_ = bounds.low;
    high_ = bounds.high;
  }

  bool is_own() const { return is_own_; }

  // Reads the word at `address`. Returns false if the address is misaligned or not on this stack.
  bool Load(uintptr_t address, uintptr_t* word) {
    if ((address & (sizeof(uintptr_t) - 1)) != 0) return false;
    if (address - low_ >= high_ - low_ && !ExtendTo(address)) return false;
    *word = LoadStackWord(address);
    return true;
  }

 private:
  bool ExtendTo(uintptr_t address);

  uintptr_t low_;
  uintptr_t high_;  // a multiple of the word size, so that no aligned word crosses it
  const bool is_own_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_STACK_MEMORY_H_
