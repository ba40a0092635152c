#include "src/capture/architecture.h"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstring>

#include "src/capture/cfi.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

#if defined(__aarch64__)

CallInstruction DecodeCall(const unsigned char (&bytes)[kCallBytes], uintptr_t pc) {
  CallInstruction call;
  uint32_t instruction;
  std::memcpy(&instruction, bytes, sizeof(instruction));
  if (pc % sizeof(instruction) != 0) return call;
  if ((instruction & 0xfc000000) == 0x94000000) {  // bl: a distance of 26 bits, in instructions
    const auto distance = static_cast<int32_t>(instruction << 6) >> 4;
    call.is_direct = true;
    call.target = pc - sizeof(instruction) + static_cast<uintptr_t>(int64_t{distance});
  }
  call.is_indirect = (instruction & 0xfffffc1f) == 0xd63f0000 ||  // blr
                     (instruction & 0xfefff800) == 0xd63f0800;    // blraa and its variants
  return call;
}

FrameRule SignalTrampolineRule(uintptr_t pc) {
  FrameRule rule;
  // mov x8, #139 (rt_sigreturn); svc #0. The unwind information of older kernels leads to the caller of the interrupted
  // function, and newer kernels have none.
  constexpr uint64_t kTrampoline = 0xd4000001d2801168;
  // The bytes are read like words of a foreign stack: the kernel confirms that they can be read.
  const uintptr_t first = pc & ~(sizeof(uintptr_t) - 1);
  uintptr_t words[2] = {0, 0};
  StackMemory code(first);
  if (pc % 4 != 0 || !code.Load(first, &words[0])) return rule;
  if (pc != first && !code.Load(first + sizeof(uintptr_t), &words[1])) return rule;
  uint64_t instructions;
  std::memcpy(&instructions, reinterpret_cast<const char*>(words) + (pc - first), sizeof(instructions));
  if (instructions != kTrampoline) return rule;
  rule.kind = FrameRule::kSignal;
  rule.fp_saved = true;
  constexpr size_t kContext = sizeof(siginfo_t) + offsetof(ucontext_t, uc_mcontext);
  rule.cfa_offset = kContext + offsetof(mcontext_t, sp);
  rule.fp_offset = kContext + offsetof(mcontext_t, regs) + kFpRegister * sizeof(uint64_t);
  return rule;
}

DescriptorRange ThreadDescriptor() {
  // The descriptor ends at the thread pointer. After it comes the thread-local data of the objects that were loaded at
  // program start. Its size has no limit, but programs have much less than 1 MiB.
  const auto self = static_cast<uintptr_t>(pthread_self());
  return {self, self, reinterpret_cast<uintptr_t>(__builtin_thread_pointer()), uintptr_t{1} << 20};
}

#else

CallInstruction DecodeCall(const unsigned char (&bytes)[kCallBytes], uintptr_t pc) {
  const auto back = [&bytes](size_t n) { return bytes[kCallBytes - n]; };
  CallInstruction call;
  if (back(5) == 0xe8) {  // call to pc + distance
    int32_t distance;
    std::memcpy(&distance, bytes + kCallBytes - 4, sizeof(distance));
    call.is_direct = true;
    call.target = pc + static_cast<uintptr_t>(int64_t{distance});
  }
  // Call through a register or memory: opcode ff, then a ModRM byte whose reg field is 2 and whose other fields give
  // the length.
  for (size_t length = 2; length <= kCallBytes; ++length) {
    if (back(length) != 0xff) continue;
    const unsigned char modrm = back(length - 1);
    if ((modrm >> 3 & 7) != 2) continue;
    const unsigned mod = modrm >> 6;
    const unsigned rm = modrm & 7;
    size_t expected = 2;
    if (mod != 3) {
      if (rm == 4) ++expected;  // a SIB byte
      const bool has_base = mod != 0 || !(rm == 5 || (rm == 4 && (back(length - 2) & 7) == 5));
      expected += mod == 1 ? 1 : mod == 2 || !has_base ? 4 : 0;  // displacement
    }
    if (length == expected) call.is_indirect = true;
  }
  return call;
}

FrameRule SignalTrampolineRule(uintptr_t) { return {}; }

DescriptorRange ThreadDescriptor() {
  // The descriptor begins at the thread pointer. The ABI fixes the contents before offset 0x200. The descriptor has
  // 0x900 bytes in glibc 2.36, and can be aligned to a page.
  uintptr_t self = 0;
#if defined(__x86_64__)
  asm("movq %%fs:0, %0" : "=r"(self));
#endif
  return {self, self + 0x200, self + 0x1000, 0x11000};
}

#endif

}  // namespace hbmprof::internal
