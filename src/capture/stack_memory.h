// Reading the words of a thread's stack while walking it, without ever touching memory that is not there.
//
// A StackMemory covers the stack that a given stack pointer lies on:
// - the thread's own stack, whose bounds are found once per thread, or
// - any other (a fiber's, a signal handler's alternate stack): the pages from the stack pointer upwards, each of which
//   the kernel is asked about once per walk, and only in sequence, so that a wild address is never near.
#ifndef HBMPROF_SRC_CAPTURE_STACK_MEMORY_H_
#define HBMPROF_SRC_CAPTURE_STACK_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {

struct StackBounds {
  uintptr_t low;   // lowest address that is not a guard
  uintptr_t high;  // one past the highest; 0: not looked for yet
};

// The calling thread's own stack; an empty range where it is not known. Plain data in the static TLS block.
extern __thread StackBounds thread_stack_bounds __attribute__((tls_model("initial-exec")));
// Calls neither malloc nor anything that takes a lock. Leaves errno alone.
StackBounds FindThreadStackBounds();
inline StackBounds ThreadStackBounds() {
  const StackBounds bounds = thread_stack_bounds;
  return bounds.high != 0 ? bounds : FindThreadStackBounds();
}

// Whether `address` lies on the calling thread's own stack, all of which is readable above the stack pointer.
inline bool IsOnOwnStack(uintptr_t address) {
  const StackBounds own = ThreadStackBounds();
  return address - own.low < own.high - own.low;
}

// The bytes that the calling function's callees have on its stack. 0 if it does not run on the thread's own stack: how
// large another one is (a fiber's, an alternate signal stack) cannot be told, where it has no guard page.
[[gnu::always_inline]] inline size_t StackRoom() {
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return IsOnOwnStack(frame) ? frame - ThreadStackBounds().low : 0;
}

// A load that no sanitizer instruments: the stack of others has poisoned words and unsynchronised ones.
inline uintptr_t LoadStackWord(uintptr_t address) {
#if defined(__x86_64__)
  uintptr_t word;
  asm volatile("movq (%1), %0" : "=r"(word) : "r"(address));
  return word;
#else
  return *reinterpret_cast<const volatile uintptr_t*>(address);
#endif
}

// The two words that are so many words up from `base`, at once.
using WordPair = uintptr_t __attribute__((vector_size(2 * sizeof(uintptr_t)), may_alias));
inline WordPair LoadStackWords(uintptr_t base, intptr_t first_offset, intptr_t second_offset) {
#if defined(__x86_64__)
  WordPair words;
  asm volatile("movq (%1,%2,8), %0" : "=x"(words) : "r"(base), "r"(first_offset));
  asm volatile("movhps (%1,%2,8), %0" : "+x"(words) : "r"(base), "r"(second_offset));
  return words;
#else
  const auto at = [base](intptr_t offset) { return base + static_cast<uintptr_t>(offset) * sizeof(uintptr_t); };
  return WordPair{LoadStackWord(at(first_offset)), LoadStackWord(at(second_offset))};
#endif
}

// The two words that lie `offset` and one more words up from `base`.
inline WordPair LoadStackPair(uintptr_t base, intptr_t offset) {
#if defined(__x86_64__)
  WordPair words;
  asm volatile("movdqu (%1,%2,8), %0" : "=x"(words) : "r"(base), "r"(offset));
  return words;
#else
  return LoadStackWords(base, offset, offset + 1);
#endif
}

class StackMemory {
 public:
  explicit StackMemory(uintptr_t sp) { Enter(sp); }

  // Covers the stack that `sp` lies on from here on.
  void Enter(uintptr_t sp) {
    if (IsOnOwnStack(sp)) {
      const StackBounds own = ThreadStackBounds();
      low_ = own.low;
      high_ = own.high;
      is_own_ = true;
    } else {
      EnterOther(sp);
    }
  }

  bool is_own() const { return is_own_; }
  uintptr_t high() const { return high_; }

  // Reads the word at `address`. False if that is misaligned, or not in this stack.
  bool Load(uintptr_t address, uintptr_t* word) {
    if ((address & (sizeof(uintptr_t) - 1)) != 0) return false;
    if (address - low_ >= high_ - low_ && !ExtendTo(address)) return false;
    *word = LoadStackWord(address);
    return true;
  }

 private:
  void EnterOther(uintptr_t sp);
  bool ExtendTo(uintptr_t address);

  uintptr_t low_ = 0;
  uintptr_t high_ = 0;  // multiple of the word size: a word that begins inside ends inside
  bool is_own_ = false;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_STACK_MEMORY_H_
