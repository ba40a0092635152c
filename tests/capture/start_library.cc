// A library that a test program needs. Its constructor, which the dynamic linker calls at program start, calls a
// function of the program.
extern "C" void capture_at_start();

__attribute__((constructor)) static void CallProgram() {
  capture_at_start();
  asm volatile("");  // no tail call
}

// The program calls it, so that it needs the library.
extern "C" __attribute__((visibility("default"))) int capture_start_library() { return 1; }
