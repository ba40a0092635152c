// A libcuda.so.1 with entries of the form of NVIDIA's 470 to 555 (without OTHER_FORM), or of an older form.
#ifdef OTHER_FORM
int cuMemAlloc_v2(void) { return 0; }
int cuMemFree_v2(void) { return 0; }
#else
asm(".macro entry name\n"
    ".section .data\n"
    ".balign 8\n"
    "slot_\\name: .quad 1f\n"
    "ended_\\name: .long 0\n"
    ".text\n"
    ".globl \\name\n"
    ".type \\name, @function\n"
#if defined(__x86_64__)
    "\\name: cmpl $0x321cba00, ended_\\name(%rip)\n"
    "je 1f\n"
    "jmp *slot_\\name(%rip)\n"
    "1: xorl %eax, %eax\n"
#elif defined(__aarch64__)
    "\\name: adrp x16, ended_\\name\n"
    "mov w17, #0xba00\n"
    "movk w17, #0x321c, lsl #16\n"
    "ldr w16, [x16, #:lo12:ended_\\name]\n"
    "cmp w16, w17\n"
    "b.eq 1f\n"
    "adrp x16, slot_\\name\n"
    "ldr x16, [x16, #:lo12:slot_\\name]\n"
    "br x16\n"
    "1: mov w0, #0\n"
#endif
    "ret\n"
    ".endm\n"
    "entry cuMemAlloc_v2\n"
    "entry cuMemFree_v2\n");
#endif
