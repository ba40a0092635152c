// Initializes the static copy of GCC's unwinder in an injected library.
//
// If a thread is cancelled or calls pthread_exit inside a wrapped call, glibc unwinds it with the shared libgcc_s. That
// calls the personality routine of the wrappers, which is in this library, and this routine calls the static copy. The
// copy ends the process if it has not unwound anything itself before.
#include <unwind.h>

namespace {

[[gnu::constructor]] void StartUnwinder() {
  _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_END_OF_STACK; }, nullptr);
}

}  // namespace
