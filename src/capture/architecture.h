// The parts of stack capture that depend on the processor and its calling convention: registers, return addresses, call
// instructions, and loads of stack words. architecture_x86_64.h and architecture_aarch64.h define the same names.
#ifndef HBMPROF_SRC_CAPTURE_ARCHITECTURE_H_
#define HBMPROF_SRC_CAPTURE_ARCHITECTURE_H_

#include <features.h>

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {
// Two words of a stack.
using WordPair = uintptr_t __attribute__((vector_size(2 * sizeof(uintptr_t)), may_alias));
}  // namespace hbmprof::internal

#if defined(__aarch64__)
#include "src/capture/architecture_aarch64.h"
#elif defined(__x86_64__)
#include "src/capture/architecture_x86_64.h"
#else
#error "call stacks can be captured on x86-64 and aarch64 only"
#endif
#if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 35)
#error "hbmprof must be compiled with glibc 2.35 or later, which has _dl_find_object"
#endif

namespace hbmprof::internal {

// Returns a stored return address without its signature.
inline uintptr_t StripReturnAddress(uintptr_t stored) { return stored & ReturnAddressMask(); }

// The call instruction that ends before a return address. On x86-64 the same bytes can be the end of a direct call and
// of an indirect call.
struct CallInstruction {
  bool is_direct = false;
  bool is_indirect = false;
  uintptr_t target = 0;  // of the direct call
};
// Decodes the kCallBytes bytes that end at `pc`.
CallInstruction DecodeCall(const unsigned char (&bytes)[kCallBytes], uintptr_t pc);

// The part of the C library's thread descriptor that can contain the words that describe the thread's stack. See
// stack_memory.cc.
struct DescriptorRange {
  uintptr_t self;        // address of the descriptor
  uintptr_t first;       // first address to search
  uintptr_t limit;       // end of the addresses to search
  uintptr_t max_behind;  // the stack's block ends at most this number of bytes after the words
};
DescriptorRange ThreadDescriptor();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_ARCHITECTURE_H_
