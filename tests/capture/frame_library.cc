// A library that tests load. call_through_frame has a frame of FRAME_BYTES and calls a function. The constructor calls
// the function whose address is in the environment variable CAPTURE_TEST_HOOK.
#include <cstdlib>

extern "C" __attribute__((visibility("default"), noinline)) int call_through_frame(void (*function)()) {
  char block[FRAME_BYTES];
  // Keeps the whole block on the stack, without a write to it.
  asm volatile("" ::"r"(block) : "memory");
  function();
  asm volatile("" ::"r"(block) : "memory");
  return 1;
}

__attribute__((constructor)) static void CallHook() {
  const char* hook = getenv("CAPTURE_TEST_HOOK");
  if (hook != nullptr) reinterpret_cast<void (*)()>(strtoull(hook, nullptr, 16))();
}
