// _exit, _Exit and the exec functions of this preloaded library, which all objects of the process call. Each jumps to
// its replacement (src/api/end_calls.h).
#include "src/api/end_calls.h"

#if !defined(__x86_64__)
#error "The jumps are written for x86-64 only"
#endif

asm(R"(
    .macro hbmprof_exported name replacement
    .text
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    jmp     \replacement
    .cfi_endproc
    .size \name, .-\name
    .endm

    hbmprof_exported _exit hbmprof_exit_at_once
    hbmprof_exported _Exit hbmprof_exit_at_once
    hbmprof_exported execl hbmprof_execl
    hbmprof_exported execle hbmprof_execle
    hbmprof_exported execlp hbmprof_execlp
    hbmprof_exported execv hbmprof_execv
    hbmprof_exported execve hbmprof_execve
    hbmprof_exported execvp hbmprof_execvp
    hbmprof_exported execvpe hbmprof_execvpe
    hbmprof_exported execveat hbmprof_execveat
    hbmprof_exported fexecve hbmprof_fexecve
)");

namespace hbmprof::internal {
namespace {

[[gnu::constructor]] void FindReal() { FindRealEndCalls(); }

}  // namespace
}  // namespace hbmprof::internal
