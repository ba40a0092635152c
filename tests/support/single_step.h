// Interrupts the program after each instruction, by SIGTRAP. The handler of SIGTRAP begins with Arrive(context), and
// calls StepAfter(context) to be called again after the next instruction. raise(SIGTRAP) starts it. For one thread at a
// time. Pc(context) is the address of the next instruction.
#ifndef HBMPROF_TESTS_SUPPORT_SINGLE_STEP_H_
#define HBMPROF_TESTS_SUPPORT_SINGLE_STEP_H_

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>

namespace hbmprof_test {

#if defined(__aarch64__)

// A processor's single-step mode is not available to programs, so the next instruction is replaced by a breakpoint.
class SingleStep {
 public:
  static uintptr_t Pc(const ucontext_t* context) { return context->uc_mcontext.pc; }
  // Restores the instruction at which the program was interrupted.
  static void Arrive(ucontext_t* /*context*/) {
    if (breakpoint != nullptr) Write(breakpoint, replaced);
    breakpoint = nullptr;
  }
  static void StepAfter(ucontext_t* context) {
    constexpr uint32_t kBreak = 0xd4200000;
    auto* const next = reinterpret_cast<uint32_t*>(NextPc(context->uc_mcontext));
    constexpr uintptr_t kPage = 4096;
    void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(next) & ~(kPage - 1));
    if (mprotect(page, kPage, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) std::abort();
    replaced = *next;
    breakpoint = next;
    Write(next, kBreak);
  }

 private:
  static void Write(uint32_t* at, uint32_t instruction) {
    *at = instruction;
    __builtin___clear_cache(reinterpret_cast<char*>(at), reinterpret_cast<char*>(at + 1));
  }
  // Returns the distance of a branch in bytes. The instruction has it as a signed number of instructions, in `bits`
  // bits from bit `first` on.
  static uintptr_t Distance(uint32_t instruction, int first, int bits) {
    return static_cast<uintptr_t>(static_cast<int64_t>(uint64_t{instruction} << (64 - first - bits)) >> (64 - bits)) *
           4;
  }
  static bool Holds(uint32_t condition, uint64_t pstate) {
    const bool n = (pstate >> 31 & 1) != 0;
    const bool z = (pstate >> 30 & 1) != 0;
    const bool c = (pstate >> 29 & 1) != 0;
    const bool v = (pstate >> 28 & 1) != 0;
    const bool by_kind[8] = {z, c, n, v, c && !z, n == v, n == v && !z, true};
    return by_kind[condition >> 1] != ((condition & 1) != 0 && condition != 15);
  }
  // Returns the address of the instruction that the processor executes after the one at the pc.
  static uintptr_t NextPc(const mcontext_t& context) {
    const uintptr_t pc = context.pc;
    const uint32_t instruction = *reinterpret_cast<const uint32_t*>(pc);
    const uint32_t low_register = instruction & 31;
    const uint64_t tested = low_register == 31 ? 0 : context.regs[low_register];
    const bool if_not_zero = (instruction >> 24 & 1) != 0;
    if ((instruction & 0x7c000000) == 0x14000000) return pc + Distance(instruction, 0, 26);  // b, bl
    if ((instruction & 0xff000010) == 0x54000000) {                                          // b.cond
      return Holds(instruction & 15, context.pstate) ? pc + Distance(instruction, 5, 19) : pc + 4;
    }
    if ((instruction & 0x7e000000) == 0x34000000) {  // cbz, cbnz
      const uint64_t value = instruction >> 31 != 0 ? tested : static_cast<uint32_t>(tested);
      return (value != 0) == if_not_zero ? pc + Distance(instruction, 5, 19) : pc + 4;
    }
    if ((instruction & 0x7e000000) == 0x36000000) {  // tbz, tbnz
      const uint32_t bit = (instruction >> 31) << 5 | (instruction >> 19 & 31);
      return ((tested >> bit & 1) != 0) == if_not_zero ? pc + Distance(instruction, 5, 14) : pc + 4;
    }
    if ((instruction & 0xfe000000) == 0xd6000000) {  // br, blr, ret, and their variants that authenticate
      const uint32_t named = instruction >> 5 & 31;
      return context.regs[named == 31 ? 30 : named] & ((uintptr_t{1} << 48) - 1);
    }
    if ((instruction & 0x3fc00000) == 0x08400000) {
      // Load-exclusive. A signal between it and the store-exclusive makes the store fail. So the instructions up to the
      // branch after the store are one step.
      for (uintptr_t at = pc + 4; at < pc + 64; at += 4) {
        const uint32_t store = *reinterpret_cast<const uint32_t*>(at);
        if ((store & 0x3fe00000) == 0x08000000) return at + 8;  // cbnz follows
      }
    }
    return pc + 4;
  }

  inline static uint32_t* volatile breakpoint = nullptr;
  inline static volatile uint32_t replaced = 0;
};

#else

// Uses the processor's trap flag.
class SingleStep {
 public:
  static uintptr_t Pc(const ucontext_t* context) { return static_cast<uintptr_t>(context->uc_mcontext.gregs[REG_RIP]); }
  static void Arrive(ucontext_t* context) { context->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag; }
  static void StepAfter(ucontext_t* context) { context->uc_mcontext.gregs[REG_EFL] |= kTrapFlag; }

 private:
  static constexpr greg_t kTrapFlag = 0x100;
};

#endif

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_SUPPORT_SINGLE_STEP_H_
