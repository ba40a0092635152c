// A library for tests that load it: call_through_frame calls back through a frame of FRAME_BYTES, and the constructor
// calls the function whose address is in the environment variable CAPTURE_TEST_HOOK.
#include <cstdlib>
#include <cstring>

extern "C" __attribute__((visibility("default"), noinline)) int call_through_frame(void (*function)()) {
  volatile char block[FRAME_BYTES];
  block[FRAME_BYTES / 2] = 1;
  function();
  return block[FRAME_BYTES / 2];
}

__attribute__((constructor)) static void CallHook() {
  const char* hook = getenv("CAPTURE_TEST_HOOK");
  if (hook != nullptr) reinterpret_cast<void (*)()>(strtoull(hook, nullptr, 16))();
}
