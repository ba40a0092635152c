// aarch64 with the calling convention AAPCS64. See architecture.h, which includes this file.
//
// A call stores the return address in the link register, x30. A function that calls others stores x30 on its stack. If
// it keeps a frame pointer, x29, it stores x30 directly after the caller's x29 (a frame record). Differences to x86-64:
// - The position of the return address differs between functions, so a rule contains it (FrameRule::return_offset).
// - A stored return address may be signed (pointer authentication): some of its high bits are a signature.
#ifndef HBMPROF_SRC_CAPTURE_ARCHITECTURE_AARCH64_H_
#define HBMPROF_SRC_CAPTURE_ARCHITECTURE_AARCH64_H_

namespace hbmprof::internal {

// DWARF numbers of registers.
inline constexpr uint64_t kFpRegister = 29;
inline constexpr uint64_t kSpRegister = 31;
inline constexpr uint64_t kReturnAddressRegister = 30;

inline constexpr int kAddressBits = 48;  // of the addresses of a program

// Whether a call stores the return address in a register, not on the stack.
inline constexpr bool kHasLinkRegister = true;
inline constexpr size_t kCallBytes = 4;  // length of a call instruction
inline constexpr size_t kInstructionAlignment = 4;

// Returns the bits that belong to a return address. The other bits can be a signature. Their number depends on the
// kernel's page tables, so the instruction xpaclri is used: it removes the signature from x30. Older processors execute
// it as a nop.
inline uintptr_t ReturnAddressMask() {
  register uintptr_t x30 asm("x30") = ~(uintptr_t{1} << 55);  // bit 55 is 0 in the addresses of a program
  asm("hint #7 // xpaclri" : "+r"(x30));
  return x30;
}

// Loads a word. The compiler's instrumentation does not see this load.
inline uintptr_t LoadStackWord(uintptr_t address) {
  uintptr_t word;
  asm volatile("ldr %0, [%1]" : "=r"(word) : "r"(address));
  return word;
}

// Loads the two words at the given offsets from `base`, in words.
inline WordPair LoadStackWords(uintptr_t base, intptr_t first_offset, intptr_t second_offset) {
  uintptr_t first;
  uintptr_t second;
  asm volatile("ldr %0, [%1, %2, lsl #3]" : "=r"(first) : "r"(base), "r"(first_offset));
  asm volatile("ldr %0, [%1, %2, lsl #3]" : "=r"(second) : "r"(base), "r"(second_offset));
  return WordPair{first, second};
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_ARCHITECTURE_AARCH64_H_
