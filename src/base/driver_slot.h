// The form of the exported functions of NVIDIA's libcuda since version 470: each jumps through a pointer of its own in
// writable data, its slot.
#ifndef HBMPROF_SRC_BASE_DRIVER_SLOT_H_
#define HBMPROF_SRC_BASE_DRIVER_SLOT_H_

#include <cstdint>
#include <cstring>

namespace hbmprof::internal {

inline constexpr int kDriverEntryBytesX86 = 22;
inline constexpr int kDriverEntryBytesArm = 96;

// These return the address of the slot of the function at `address`, whose bytes are `code`; 0 if it has another form.
// They read at most the bytes above, and none behind the function's end.

inline uint64_t DriverSlotOfX86(const unsigned char* code, uint64_t address) {
  // [endbr64]; cmpl $0x321cba00, flag(%rip); je; jmp *slot(%rip)
  constexpr unsigned char kEndbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
  constexpr unsigned char kEnded[] = {0x00, 0xba, 0x1c, 0x32};
  const int start = std::memcmp(code, kEndbr, sizeof(kEndbr)) == 0 ? sizeof(kEndbr) : 0;
  const unsigned char* const c = code + start;
  const bool is_known = c[0] == 0x81 && c[1] == 0x3d && std::memcmp(c + 6, kEnded, sizeof(kEnded)) == 0 &&
                        c[10] == 0x74 && c[12] == 0xff && c[13] == 0x25;
  if (!is_known) return 0;
  int32_t distance;
  std::memcpy(&distance, c + 14, sizeof(distance));
  return address + static_cast<uint64_t>(start + 18 + int64_t{distance});
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

#endif  // HBMPROF_SRC_BASE_DRIVER_SLOT_H_
