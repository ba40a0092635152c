// The assembly macro hbmprof_jump_stub NAME CHOOSER, for functions that replace others of the process. It defines the
// function NAME. This calls the extern "C" function CHOOSER with its own six integer arguments, then with a pointer to
// its caller (hbmprof::Caller). Then it jumps to the address that CHOOSER returns, or returns to its caller if that is
// 0. It keeps the registers that carry integer arguments, the address of the result (x8 of aarch64) and the number of
// vector arguments (al of x86-64). Of each vector register it keeps the lower 128 bits. So the other function gets all
// its arguments, except vectors of more than 128 bits. That function returns to the caller of NAME. The stub has unwind
// information.
#ifndef HBMPROF_SRC_INJECT_LINKER_JUMP_STUB_H_
#define HBMPROF_SRC_INJECT_LINKER_JUMP_STUB_H_

#if defined(__x86_64__)
// The frame: the seventh argument of the called function at 0, eight vector registers from 16, then a Caller (pc, sp,
// fp) at 144, then the integer registers.
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
    subq    $224, %rsp
    movups  %xmm0, 16(%rsp)
    movups  %xmm1, 32(%rsp)
    movups  %xmm2, 48(%rsp)
    movups  %xmm3, 64(%rsp)
    movups  %xmm4, 80(%rsp)
    movups  %xmm5, 96(%rsp)
    movups  %xmm6, 112(%rsp)
    movups  %xmm7, 128(%rsp)
    movq    %rdi, 168(%rsp)
    movq    %rsi, 176(%rsp)
    movq    %rdx, 184(%rsp)
    movq    %rcx, 192(%rsp)
    movq    %r8, 200(%rsp)
    movq    %r9, 208(%rsp)
    movq    %rax, 216(%rsp)
    movq    8(%rbp), %rax
    movq    %rax, 144(%rsp)
    leaq    16(%rbp), %rax
    movq    %rax, 152(%rsp)
    movq    (%rbp), %rax
    movq    %rax, 160(%rsp)
    leaq    144(%rsp), %rax
    movq    %rax, (%rsp)
    call    \chooser
    movq    %rax, %r11
    movups  16(%rsp), %xmm0
    movups  32(%rsp), %xmm1
    movups  48(%rsp), %xmm2
    movups  64(%rsp), %xmm3
    movups  80(%rsp), %xmm4
    movups  96(%rsp), %xmm5
    movups  112(%rsp), %xmm6
    movups  128(%rsp), %xmm7
    movq    168(%rsp), %rdi
    movq    176(%rsp), %rsi
    movq    184(%rsp), %rdx
    movq    192(%rsp), %rcx
    movq    200(%rsp), %r8
    movq    208(%rsp), %r9
    movq    216(%rsp), %rax
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
// The frame: the frame record, eight vector registers, then a Caller (pc, sp, fp) at 144, then x0 to x8.
asm(R"(
    .macro hbmprof_jump_stub name chooser
    .text
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint    #34                 // bti c
    stp     x29, x30, [sp, #-256]!
    .cfi_def_cfa_offset 256
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov     x29, sp
    stp     q0, q1, [sp, #16]
    stp     q2, q3, [sp, #48]
    stp     q4, q5, [sp, #80]
    stp     q6, q7, [sp, #112]
    stp     x0, x1, [sp, #176]
    stp     x2, x3, [sp, #192]
    stp     x4, x5, [sp, #208]
    stp     x6, x7, [sp, #224]
    str     x8, [sp, #240]
    add     x9, sp, #256
    ldr     x10, [sp]
    stp     x30, x9, [sp, #144]
    str     x10, [sp, #160]
    add     x6, sp, #144
    bl      \chooser
    mov     x16, x0
    ldp     q0, q1, [sp, #16]
    ldp     q2, q3, [sp, #48]
    ldp     q4, q5, [sp, #80]
    ldp     q6, q7, [sp, #112]
    ldp     x0, x1, [sp, #176]
    ldp     x2, x3, [sp, #192]
    ldp     x4, x5, [sp, #208]
    ldp     x6, x7, [sp, #224]
    ldr     x8, [sp, #240]
    ldp     x29, x30, [sp], #256
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
