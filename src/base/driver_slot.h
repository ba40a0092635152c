// The form of the exported functions of NVIDIA's libcuda since version 470: each jumps through a pointer of its own in
// writable data, its slot.
#ifndef HBMPROF_SRC_BASE_DRIVER_SLOT_H_
#define HBMPROF_SRC_BASE_DRIVER_SLOT_H_

#include <cstdint>
#include <cstring>

namespace hbmprof::internal {

#if defined(__aarch64__)
inline constexpr int kDriverEntryBytes = 40;
#else
inline constexpr int kDriverEntryBytes = 22;
#endif

// Returns the address of the slot of the function at `address`, which begins with these kDriverEntryBytes bytes; 0 if
// it has another form.
inline uint64_t DriverSlotOf([[maybe_unused]] const unsigned char* code, [[maybe_unused]] uint64_t address) {
#if defined(__x86_64__)
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
#elif defined(__aarch64__)
  // [bti c]; adrp; mov; movk; ldr; cmp; b.eq; adrp xN; ldr xN, [xN, #offset]; br xN
  uint32_t words[kDriverEntryBytes / 4];
  std::memcpy(words, code, sizeof(words));
  const int start = words[0] == 0xd503245f ? 1 : 0;
  const uint32_t* const w = words + start;
  const bool is_known = (w[0] & 0x9f000000) == 0x90000000 && (w[5] & 0xff00001f) == 0x54000000 &&
                        (w[6] & 0x9f000000) == 0x90000000 && (w[7] & 0xffc00000) == 0xf9400000 &&
                        (w[8] & 0xfffffc1f) == 0xd61f0000;
  if (!is_known || (w[7] >> 5 & 31) != (w[6] & 31) || (w[8] >> 5 & 31) != (w[7] & 31)) return 0;
  const uint64_t pages = uint64_t{w[6] >> 5 & 0x7ffff} << 2 | (w[6] >> 29 & 3);
  const auto signed_pages = static_cast<int64_t>(pages << 43) >> 43;
  const uint64_t at = address + static_cast<uint64_t>((start + 6) * 4);
  return (at & ~uint64_t{4095}) + static_cast<uint64_t>(signed_pages * 4096) + (w[7] >> 10 & 0xfff) * 8;
#else
  return 0;
#endif
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_DRIVER_SLOT_H_
