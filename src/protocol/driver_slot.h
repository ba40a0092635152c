// The form of the exported functions of NVIDIA's libcuda since version 470: each jumps or calls through a pointer of
// its own in writable data, its slot.
#ifndef HBMPROF_SRC_PROTOCOL_DRIVER_SLOT_H_
#define HBMPROF_SRC_PROTOCOL_DRIVER_SLOT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

namespace hbmprof::internal {

inline constexpr int kDriverEntryBytesX86 = 72;
inline constexpr int kDriverEntryBytesArm = 96;

// These return the address of the slot of the function at `address`, whose bytes are `code`; 0 if it has another form.
// They read at most the bytes above, and none behind the function's end.

inline uint64_t DriverSlotOfX86(const unsigned char* code, uint64_t address) {
  // Until 555: cmpl; je; jmp. 580: a frame is made first, and the slot is called. Since 595: a frame is made after je.
  // In a frame, arguments on the stack are copied. So this follows the instructions up to the jump or the call.
  struct Instruction {
    std::string_view start;
    int bytes;
  };
  constexpr Instruction kKnown[] = {
      {"\x81\x3d", 10},         // cmpl $number, flag(%rip)
      {"\x74", 2},              // je
      {"\x0f\x84", 6},          // je
      {"\xf3\x0f\x1e\xfa", 4},  // endbr64
      {"\x55", 1},              // push %rbp
      {"\x50", 1},              // push %rax
      {"\x41\x54", 2},          // push %r12
      {"\xff\x75", 3},          // push number(%rbp)
      {"\x8b\x45", 3},          // mov number(%rbp), %eax
      {"\x48\x89\xe5", 3},      // mov %rsp, %rbp
      {"\x48\x83\xec", 4},      // sub $number, %rsp
  };
  constexpr std::string_view kEnded("\x00\xba\x1c\x32", 4);
  constexpr std::string_view kJump = "\xff\x25", kCall = "\xff\x15";
  constexpr int kJumpBytes = 6;
  bool has_comparison = false, has_branch = false;
  for (int at = 0; at <= kDriverEntryBytesX86 - kJumpBytes;) {
    const std::string_view rest(reinterpret_cast<const char*>(code + at),
                                static_cast<size_t>(kDriverEntryBytesX86 - at));
    if (rest.substr(0, 2) == kJump || rest.substr(0, 2) == kCall) {
      int32_t distance;
      std::memcpy(&distance, code + at + 2, sizeof(distance));
      return has_branch ? address + static_cast<uint64_t>(at + kJumpBytes + int64_t{distance}) : 0;
    }
    const Instruction* const known = std::find_if(std::begin(kKnown), std::end(kKnown), [rest](const Instruction& it) {
      return rest.substr(0, it.start.size()) == it.start;
    });
    if (known == std::end(kKnown)) return 0;
    if (known == &kKnown[0]) has_comparison = rest.substr(6, kEnded.size()) == kEnded;
    if (known == &kKnown[1] || known == &kKnown[2]) has_branch = has_comparison;
    at += known->bytes;
  }
  return 0;
}

inline uint64_t DriverSlotOfArm(const unsigned char* code, uint64_t address) {
  // The same in more instructions, in an order that differs: adrp and ldr of the flag; mov and movk of 0x321cba00; cmp;
  // b.eq; adrp and ldr of the slot; br or blr. An argument may be copied between them. So this follows the registers.
  uint64_t page[32] = {};  // by register: the address that adrp has put there
  uint64_t slot[32] = {};  // the address from which it was loaded
  bool has_low = false, has_high = false, has_branch = false;
  for (int i = 0; i < kDriverEntryBytesArm; i += 4, address += 4) {
    uint32_t w;
    std::memcpy(&w, code + i, sizeof(w));
    const uint32_t to = w & 31, from = w >> 5 & 31, moved = w >> 16 & 31;
    uint64_t new_page = 0, new_slot = 0;
    if ((w & 0x9f000000) == 0x90000000) {  // adrp
      const uint64_t pages = uint64_t{w >> 5 & 0x7ffff} << 2 | (w >> 29 & 3);
      new_page = (address & ~uint64_t{4095}) + static_cast<uint64_t>((static_cast<int64_t>(pages << 43) >> 43) * 4096);
    } else if ((w & 0xffc00000) == 0xf9400000 && page[from] != 0) {  // ldr
      new_slot = page[from] + (w >> 10 & 0xfff) * 8;
    } else if ((w & 0xffe0ffe0) == 0xaa0003e0) {  // mov between registers
      new_slot = slot[moved];
    } else if ((w & 0xff00001f) == 0x54000000) {  // b.eq
      has_branch = has_low && has_high;
    } else if ((w & 0xffdffc1f) == 0xd61f0000) {  // br, blr
      return has_branch ? slot[from] : 0;
    } else if ((w & 0x7c000000) == 0x14000000 || (w & 0xfe000000) == 0xd6000000 || (w & 0x7c000000) == 0x34000000 ||
               (w & 0xff000000) == 0x54000000) {
      return 0;  // another branch
    }
    has_low = has_low || (w & 0xffffffe0) == (0x52800000 | 0xba00 << 5);
    has_high = has_high || (w & 0xffffffe0) == (0x72a00000 | 0x321c << 5);
    page[to] = new_page;
    slot[to] = new_slot;
  }
  return 0;
}

#if defined(__aarch64__)
inline constexpr int kDriverEntryBytes = kDriverEntryBytesArm;
inline uint64_t DriverSlotOf(const unsigned char* code, uint64_t address) { return DriverSlotOfArm(code, address); }
#else
inline constexpr int kDriverEntryBytes = kDriverEntryBytesX86;
inline uint64_t DriverSlotOf(const unsigned char* code, uint64_t address) { return DriverSlotOfX86(code, address); }
#endif

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_PROTOCOL_DRIVER_SLOT_H_
