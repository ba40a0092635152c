// A 32-bit program without a C library: says that it is ready and waits.
void _start(void) {
  static const char text[] = "ready\n";
  int result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(4), "b"(1), "c"(text), "d"(sizeof(text) - 1) : "memory");
  for (;;) __asm__ volatile("int $0x80" : "=a"(result) : "a"(29) : "memory");
}
