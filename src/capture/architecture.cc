#include "src/capture/architecture.h"

#include <pthread.h>

#include <cstddef>
#include <cstring>

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
  // Call through a register or memory: opcode ff, then a ModRM byte whose reg field is 2, then up to five bytes.
  for (size_t length = 2; length <= kCallBytes; ++length) {
    call.is_indirect |= back(length) == 0xff && (back(length - 1) >> 3 & 7) == 2;
  }
  return call;
}

DescriptorRange ThreadDescriptor() {
  // The descriptor begins at the thread pointer. The ABI fixes the contents before offset 0x200. The descriptor has
  // 0x900 bytes in glibc 2.36, and can be aligned to a page.
  uintptr_t self;
  asm("movq %%fs:0, %0" : "=r"(self));
  return {self, self + 0x200, self + 0x1000, 0x11000};
}

#endif

}  // namespace hbmprof::internal
