// x86-64 with the System V calling convention. See architecture.h, which includes this file.
#ifndef HBMPROF_SRC_CAPTURE_ARCHITECTURE_X86_64_H_
#define HBMPROF_SRC_CAPTURE_ARCHITECTURE_X86_64_H_

namespace hbmprof::internal {

// DWARF numbers of registers.
inline constexpr uint64_t kFpRegister = 6;
inline constexpr uint64_t kSpRegister = 7;
inline constexpr uint64_t kReturnAddressRegister = 16;  // the column of unwind tables

inline constexpr int kAddressBits = 47;  // of the addresses of a program

// Whether a call stores the return address in a register, not on the stack.
inline constexpr bool kHasLinkRegister = false;
inline constexpr size_t kCallBytes = 7;  // length of the longest call instruction
inline constexpr size_t kInstructionAlignment = 1;

// Returns the bits that belong to a return address: here all of them.
inline uintptr_t ReturnAddressMask() { return ~uintptr_t{0}; }

// Loads a word. Sanitizers do not instrument this load. They would report it, because frames of other functions contain
// poisoned words, and words that other threads change.
inline uintptr_t LoadStackWord(uintptr_t address) {
  uintptr_t word;
  asm volatile("movq %1, %0" : "=r"(word) : "m"(*reinterpret_cast<const char(*)[sizeof(word)]>(address)));
  return word;
}

// Loads the two words at the given offsets from `base`, in words.
inline WordPair LoadStackWords(uintptr_t base, intptr_t first_offset, intptr_t second_offset) {
  WordPair words;
  asm volatile("movq (%1,%2,8), %0" : "=x"(words) : "r"(base), "r"(first_offset));
  asm volatile("movhps (%1,%2,8), %0" : "+x"(words) : "r"(base), "r"(second_offset));
  return words;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_ARCHITECTURE_X86_64_H_
