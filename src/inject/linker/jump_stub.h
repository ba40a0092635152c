// The assembly macro hbmprof_jump_stub NAME CHOOSER, for functions that replace others of the process and whose
// arguments are integers and pointers. It defines the function NAME. This calls the extern "C" function CHOOSER with
// its own six integer arguments, then with a pointer to its caller (hbmprof::Caller). Then it jumps to the address that
// CHOOSER returns, or returns to its caller if that is 0. It keeps the registers that carry such arguments and the
// address of the result (x8 of aarch64). So the other function gets all its arguments. That function returns to the
// caller of NAME. The stub has unwind information.
#ifndef HBMPROF_SRC_INJECT_LINKER_JUMP_STUB_H_
#define HBMPROF_SRC_INJECT_LINKER_JUMP_STUB_H_

#if defined(__x86_64__)
// The frame: the seventh argument of the called function at 0, then a Caller (pc, sp, fp) at 8, then the registers.
asm(R"(
    .macro hbmprof_jump_stub name chooser
    .text
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    pushq   %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    movq    %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq    $80, %rsp
    movq    %rdi, 32(%rsp)
    movq    %rsi, 40(%rsp)
    movq    %rdx, 48(%rsp)
    movq    %rcx, 56(%rsp)
    movq    %r8, 64(%rsp)
    movq    %r9, 72(%rsp)
    movq    8(%rbp), %rax
    movq    %rax, 8(%rsp)
    leaq    16(%rbp), %rax
    movq    %rax, 16(%rsp)
    movq    (%rbp), %rax
    movq    %rax, 24(%rsp)
    leaq    8(%rsp), %rax
    movq    %rax, (%rsp)
    call    \chooser
    movq    %rax, %r11
    movq    32(%rsp), %rdi
    movq    40(%rsp), %rsi
    movq    48(%rsp), %rdx
    movq    56(%rsp), %rcx
    movq    64(%rsp), %r8
    movq    72(%rsp), %r9
    leave
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    testq   %r11, %r11
    je      1f
    jmp     *%r11
1:
    ret
    .cfi_endproc
    .size \name, .-\name
    .endm
)");
#elif defined(__aarch64__)
// The frame: the frame record, then a Caller (pc, sp, fp) at 16, then x0 to x8.
asm(R"(
    .macro hbmprof_jump_stub name chooser
    .text
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint    #34                 // bti c
    stp     x29, x30, [sp, #-112]!
    .cfi_def_cfa_offset 112
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov     x29, sp
    stp     x0, x1, [sp, #40]
    stp     x2, x3, [sp, #56]
    stp     x4, x5, [sp, #72]
    stp     x6, x7, [sp, #88]
    str     x8, [sp, #104]
    add     x9, sp, #112
    ldr     x10, [sp]
    stp     x30, x9, [sp, #16]
    str     x10, [sp, #32]
    add     x6, sp, #16
    bl      \chooser
    mov     x16, x0
    ldp     x0, x1, [sp, #40]
    ldp     x2, x3, [sp, #56]
    ldp     x4, x5, [sp, #72]
    ldp     x6, x7, [sp, #88]
    ldr     x8, [sp, #104]
    ldp     x29, x30, [sp], #112
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz     x16, 1f
    br      x16
1:
    ret
    .cfi_endproc
    .size \name, .-\name
    .endm
)");
#else
#error "The stubs are not written for this processor"
#endif

#endif  // HBMPROF_SRC_INJECT_LINKER_JUMP_STUB_H_
