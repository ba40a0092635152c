// _exit, _Exit, kill, raise and the exec functions of this preloaded library, which all objects of the process call.
// Each jumps to its replacement (src/api/output/end_calls.h).
#include "src/api/output/end_calls.h"

#if defined(__x86_64__)
#define HBMPROF_JUMP "endbr64\n    jmp"
#elif defined(__aarch64__)
#define HBMPROF_JUMP "hint #34\n    b"  // bti c
#else
#error "The jumps are not written for this processor"
#endif

asm(R"(
    .macro hbmprof_exported name replacement
    .text
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    )" HBMPROF_JUMP R"( \replacement
    .cfi_endproc
    .size \name, .-\name
    .endm

    hbmprof_exported _exit hbmprof_internal_exit
    hbmprof_exported _Exit hbmprof_internal_exit
    hbmprof_exported kill hbmprof_internal_kill
    hbmprof_exported raise hbmprof_internal_raise
    hbmprof_exported execl hbmprof_internal_execl
    hbmprof_exported execle hbmprof_internal_execle
    hbmprof_exported execlp hbmprof_internal_execlp
    hbmprof_exported execv hbmprof_internal_execv
    hbmprof_exported execve hbmprof_internal_execve
    hbmprof_exported execvp hbmprof_internal_execvp
    hbmprof_exported execvpe hbmprof_internal_execvpe
)");
