// A library whose code contains the address of a function of the C library.
__asm__(".text\n.globl exit_address\n.hidden exit_address\nexit_address: .quad _exit\n");
extern void (*const exit_address)(int) __attribute__((visibility("hidden")));

void end_in_library(void) { exit_address(5); }
