// A libcuda.so.1 with entries of the form of NVIDIA's since 470 (without OTHER_FORM), or of an older form.
#ifdef OTHER_FORM
int cuMemAlloc_v2(void) { return 0; }
int cuMemFree_v2(void) { return 0; }
#else
asm(".macro entry name\n"
    ".section .data\n"
    "slot_\\name: .quad 1f\n"
    "ended_\\name: .long 0\n"
    ".text\n"
    ".globl \\name\n"
    ".type \\name, @function\n"
    "\\name: cmpl $0x321cba00, ended_\\name(%rip)\n"
    "je 1f\n"
    "jmp *slot_\\name(%rip)\n"
    "1: xorl %eax, %eax\n"
    "ret\n"
    ".endm\n"
    "entry cuMemAlloc_v2\n"
    "entry cuMemFree_v2\n");
#endif
