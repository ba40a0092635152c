// dlsym, as the whole process finds it once this library is preloaded: a program that looks up one of the driver's
// wrapped calls in a library gets the wrapper; every other look-up is the C library's own, reached by a jump.
//
// The jump matters: the C library tells by the return address who asks, and RTLD_NEXT means "after whoever asks". So
// the entry point is written in assembly, and looks at the arguments only. RTLD_NEXT and RTLD_DEFAULT are never
// answered here: the search itself finds the wrappers, which this library exports, where they come first.
//
// It has both of the C library's versions of the symbol: programs ask for the one they were linked with, and other
// interposers for either by name.
#include <dlfcn.h>

#include "src/backends/cuda/driver_queries.h"
#include "src/backends/cuda/driver_shim.h"

#if !defined(__x86_64__)
#error "The jump to the C library's dlsym is written for x86-64 only"
#endif

extern "C" {

using DlsymFunction = void*(void* handle, const char* name);

// Read by the assembly below.
[[gnu::visibility("hidden")]] DlsymFunction* hbmprof_real_dlsym = nullptr;

// May run before this library's constructors, and on several threads at once: all find the same.
[[gnu::visibility("hidden"), gnu::used]] void hbmprof_find_real_dlsym() {
  void* real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (real == nullptr) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (real == nullptr) __builtin_trap();  // there is no C library
  __atomic_store_n(&hbmprof_real_dlsym, reinterpret_cast<DlsymFunction*>(real), __ATOMIC_RELEASE);
}

[[gnu::visibility("hidden"), gnu::used]] bool hbmprof_is_wrapped(const char* name) {
  return hbmprof::internal::CudaWrapperByName(name) != nullptr;
}

// `name` is that of a wrapped call, `handle` a library's: who asks makes no difference.
[[gnu::visibility("hidden"), gnu::used]] void* hbmprof_dlsym_wrapped(void* handle, const char* name) {
  void* function = hbmprof::internal::FindDriverSymbol(handle, name);
  // Of another library's function of that name, nothing is known: it stays.
  return function == nullptr ? nullptr : hbmprof::internal::CudaWrapperOf(function);
}
}

// rdi: handle, rsi: name.
asm(R"(
    .text
    .p2align 4
    .globl hbmprof_dlsym, hbmprof_dlsym_old
    .type hbmprof_dlsym, @function
    .type hbmprof_dlsym_old, @function
    .symver hbmprof_dlsym, dlsym@@GLIBC_2.34, remove
    .symver hbmprof_dlsym_old, dlsym@GLIBC_2.2.5, remove
hbmprof_dlsym:
hbmprof_dlsym_old:
    .cfi_startproc
    endbr64
    testq   %rsi, %rsi
    je      1f
    leaq    1(%rdi), %rax
    cmpq    $1, %rax            # RTLD_NEXT is -1, RTLD_DEFAULT 0
    jbe     1f
    cmpb    $'c', (%rsi)
    jne     1f
    cmpb    $'u', 1(%rsi)
    jne     1f
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    pushq   %rsi
    .cfi_adjust_cfa_offset 8
    subq    $8, %rsp
    .cfi_adjust_cfa_offset 8
    movq    %rsi, %rdi
    call    hbmprof_is_wrapped
    addq    $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq    %rsi
    .cfi_adjust_cfa_offset -8
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    testb   %al, %al
    jne     hbmprof_dlsym_wrapped
1:
    movq    hbmprof_real_dlsym(%rip), %rax
    testq   %rax, %rax
    je      2f
    jmp     *%rax
2:
    pushq   %rdi
    .cfi_adjust_cfa_offset 8
    pushq   %rsi
    .cfi_adjust_cfa_offset 8
    subq    $8, %rsp
    .cfi_adjust_cfa_offset 8
    call    hbmprof_find_real_dlsym
    addq    $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq    %rsi
    .cfi_adjust_cfa_offset -8
    popq    %rdi
    .cfi_adjust_cfa_offset -8
    jmp     1b
    .cfi_endproc
    .size hbmprof_dlsym, .-hbmprof_dlsym
    .size hbmprof_dlsym_old, .-hbmprof_dlsym_old
)");

namespace hbmprof::internal {

void* FindDriverSymbol(void* library, const char* name) {
  if (__atomic_load_n(&hbmprof_real_dlsym, __ATOMIC_ACQUIRE) == nullptr) hbmprof_find_real_dlsym();
  return hbmprof_real_dlsym(library, name);
}

}  // namespace hbmprof::internal
